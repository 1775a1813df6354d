//! `<think>` blocks, and tool calls as `<tool_call>` blocks.

use serde_json::Value;

use super::{Event, Piece, answer, reasoning};
use crate::stop_strings::overlap;

/// The spelling of a block.
#[derive(Debug)]
pub(super) struct Tags {
    open: &'static str,
    close: &'static str,
    pub(super) marks: &'static [&'static str],
}

pub(super) const ANGLE: Tags = Tags {
    open: "<think>",
    close: "</think>",
    marks: &["<think>", "</think>", "<tool_call>", "</tool_call>"],
};
pub(super) const BRACKET: Tags = Tags {
    open: "[THINK]",
    close: "[/THINK]",
    marks: &["[THINK]", "[/THINK]", "<tool_call>", "</tool_call>"],
};

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// Where the parser stands.
#[derive(Clone, Debug)]
pub struct Parser {
    tags: &'static Tags,
    state: State,
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Nothing but white space so far.
    Start,
    /// In a block, at its first character or later.
    Thinking {
        begun: bool,
    },
    /// White space after a block is dropped.
    AfterBlock,
    Answer,
    Call,
}

impl Parser {
    pub(super) fn after(tags: &'static Tags, prompt_end: &str) -> Self {
        let opened = prompt_end.trim_end().ends_with(tags.open);
        let state = if opened { State::Thinking { begun: false } } else { State::Start };
        Parser { tags, state, held: String::new() }
    }

    pub(super) fn push(&mut self, piece: Piece<'_>, out: &mut Vec<Event>) {
        let (Piece::Text(text) | Piece::Mark(text)) = piece;
        self.held.push_str(text);
        while self.step(out) {}
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Event>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Thinking { .. } => reasoning(held.trim_end(), out),
            State::Call => finish_call(&held, out),
            State::AfterBlock => answer(held.trim_start(), out),
            State::Start | State::Answer => answer(&held, out),
        }
        self.state = State::Answer;
    }

    /// Consumes some of the held text; false when more is needed.
    fn step(&mut self, out: &mut Vec<Event>) -> bool {
        match self.state {
            State::Start => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(self.tags.open) {
                    self.held = rest.to_owned();
                    self.state = State::Thinking { begun: false };
                } else if self.tags.open.starts_with(begun) {
                    return false;
                } else {
                    self.state = State::Answer;
                }
                true
            }
            State::Thinking { begun } => {
                if !begun {
                    let at = self.held.len() - self.held.trim_start().len();
                    self.held.drain(..at);
                    if self.held.is_empty() {
                        return false;
                    }
                    self.state = State::Thinking { begun: true };
                }
                if let Some(at) = self.held.find(self.tags.close) {
                    reasoning(self.held[..at].trim_end(), out);
                    self.held.drain(..at + self.tags.close.len());
                    self.state = State::AfterBlock;
                    return true;
                }
                // White space before the end of the block is not shown, so it waits for what follows.
                let shown = self.held.len() - overlap(&self.held, self.tags.close);
                let shown = self.held[..shown].trim_end().len();
                reasoning(&self.held[..shown], out);
                self.held.drain(..shown);
                false
            }
            State::AfterBlock => {
                let at = self.held.len() - self.held.trim_start().len();
                self.held.drain(..at);
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Answer => {
                if let Some(at) = self.held.find(CALL) {
                    answer(&self.held[..at], out);
                    self.held.drain(..at + CALL.len());
                    self.state = State::Call;
                    return true;
                }
                let shown = self.held.len() - overlap(&self.held, CALL);
                answer(&self.held[..shown], out);
                self.held.drain(..shown);
                false
            }
            State::Call => {
                let Some(at) = self.held.find(CALL_END) else { return false };
                finish_call(&self.held[..at], out);
                self.held.drain(..at + CALL_END.len());
                self.state = State::AfterBlock;
                true
            }
        }
    }
}

/// A call that cannot be understood is shown as the model wrote it.
fn finish_call(text: &str, out: &mut Vec<Event>) {
    match json_call(text).or_else(|| tagged_call(text)) {
        Some((name, arguments)) => out.push(Event::ToolCall { name, arguments }),
        None => answer(text, out),
    }
}

/// `{"name": .., "arguments": {..}}`
fn json_call(text: &str) -> Option<(String, String)> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let name = value.get("name")?.as_str()?.to_owned();
    let arguments = match value.get("arguments").or_else(|| value.get("parameters")) {
        Some(Value::String(text)) => text.clone(),
        Some(arguments) => arguments.to_string(),
        None => "{}".into(),
    };
    Some((name, arguments))
}

/// `<function=NAME> <parameter=KEY> VALUE </parameter> .. </function>` (Qwen3-Coder); values are JSON or text.
fn tagged_call(text: &str) -> Option<(String, String)> {
    let (name, mut rest) = text.trim().strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = serde_json::Map::new();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (key, value) = parameter.split_once('>')?;
        let (value, after) = value.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let parsed = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        arguments.insert(key.trim().to_owned(), parsed);
        rest = after;
    }
    Some((name.trim().to_owned(), Value::Object(arguments).to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;
    use super::super::{Dialect, Event};

    fn run(prompt_end: &str, text: &str) -> Vec<Event> {
        parse(Dialect::Think, prompt_end, text)
    }

    fn reasoning(text: &str) -> Event {
        Event::Reasoning(text.into())
    }

    fn answer(text: &str) -> Event {
        Event::Answer(text.into())
    }

    #[test]
    fn a_block_is_reasoning() {
        let expected = [reasoning("Let me\n\nsee."), answer("Yes.\n")];
        assert_eq!(run("assistant\n", "<think>\nLet me\n\nsee.\n</think>\n\nYes.\n"), expected);
        assert_eq!(run("assistant\n<think>\n", "Let me\n\nsee.\n</think>\n\nYes.\n"), expected);
        assert_eq!(run("<think>\n\n</think>\n\n", "Yes."), [answer("Yes.")]);
        assert_eq!(run("", "<think>\n\n</think>\n\nYes."), [answer("Yes.")]);
        assert_eq!(run("", "<think>cut off"), [reasoning("cut off")]);
        assert_eq!(run("", "a <think> tag, 1 < 2 </thinking>"), [answer("a <think> tag, 1 < 2 </thinking>")]);
        assert_eq!(run("", "<thi"), [answer("<thi")]);
        assert_eq!(parse(Dialect::BracketThink, "", "[THINK]a[/THINK]b"), [reasoning("a"), answer("b")]);
    }

    #[test]
    fn calls_in_both_spellings() {
        let call =
            |name: &str, arguments: &str| Event::ToolCall { name: name.into(), arguments: arguments.into() };
        assert_eq!(
            run(
                "",
                "Wait.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>"
            ),
            [answer("Wait."), call("f", "{\"a\":1}"), call("g", "{}")]
        );
        assert_eq!(
            run(
                "",
                "<tool_call>\n<function=f>\n<parameter=city>\nRome\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
            ),
            [call("f", "{\"city\":\"Rome\",\"n\":3}")]
        );
        assert_eq!(run("", "<tool_call>not json</tool_call>"), [answer("not json")]);
    }
}
