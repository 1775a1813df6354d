//! Harmony, the format of gpt-oss.
//!
//! A message is `<|start|>` header `<|message|>` content and an end. The header names a role, a channel (analysis is
//! reasoning, commentary with a recipient calls a tool, the rest is answer), a recipient (`to=`), before the channel or
//! after it, and a content type. Models get headers wrong in a few percent of turns, so whatever can be understood is.

use super::{Event, Piece, answer, pieces, reasoning};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
pub(super) const MARKS: &[&str] = &[START, CHANNEL, MESSAGE, CONSTRAIN, "<|end|>", "<|return|>", "<|call|>"];

/// More words than a header can have after its channel: the model forgot `<|message|>`.
const MAX_HEADER_WORDS: usize = 4;

/// Where the parser stands in a message.
#[derive(Clone, Debug)]
pub struct Parser {
    state: State,
    /// An answer message has been shown; the next one begins a paragraph.
    answered: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Between messages; text here is a header whose `<|start|>` is missing, or an answer without one.
    Between(String),
    /// After `<|start|>`, marks spelt out.
    Header(String),
    Content(Kind),
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Reasoning,
    Answer {
        begun: bool,
    },
    Tool {
        name: String,
        arguments: String,
    },
    /// A message that is not the assistant's.
    Foreign,
}

impl Parser {
    pub(super) fn after(prompt_end: &str) -> Self {
        let mut parser = Parser { state: State::Between(String::new()), answered: false };
        if let Some(at) = prompt_end.rfind(START) {
            let mut ignored = Vec::new();
            for piece in pieces(&prompt_end[at..], MARKS) {
                parser.push(piece, &mut ignored);
            }
        }
        parser.answered = false;
        if let State::Content(Kind::Answer { begun }) = &mut parser.state {
            *begun = true;
        }
        parser
    }

    pub(super) fn push(&mut self, piece: Piece<'_>, out: &mut Vec<Event>) {
        match piece {
            Piece::Text(text) => self.text(text, out),
            Piece::Mark(START) => {
                self.end_message(out);
                self.state = State::Header(String::new());
            }
            Piece::Mark(mark @ (CHANNEL | CONSTRAIN)) => match &mut self.state {
                State::Header(header) => header.push_str(mark),
                State::Between(header) => {
                    let header = std::mem::take(header) + mark;
                    self.state = State::Header(header);
                }
                // A channel within content begins the next message; a stray type says nothing.
                State::Content(_) if mark == CHANNEL => {
                    self.end_message(out);
                    self.state = State::Header(CHANNEL.into());
                }
                State::Content(_) => {}
            },
            Piece::Mark(MESSAGE) => {
                if let State::Header(header) | State::Between(header) = &self.state {
                    self.state = State::Content(kind(header));
                }
            }
            Piece::Mark(_) => {
                self.end_message(out);
                self.state = State::Between(String::new());
            }
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Event>) {
        self.end_message(out);
        self.state = State::Between(String::new());
    }

    fn text(&mut self, text: &str, out: &mut Vec<Event>) {
        match &mut self.state {
            State::Content(_) => self.content(text, out),
            State::Header(header) => {
                header.push_str(text);
                if let Some((kind, content)) = unmarked_content(header) {
                    self.state = State::Content(kind);
                    self.content(&content, out);
                }
            }
            State::Between(held) => {
                held.push_str(text);
                let begun = held.trim_start();
                if !("assistant".starts_with(begun) || begun.starts_with("assistant")) {
                    let content = begun.to_owned();
                    self.state = State::Content(Kind::Answer { begun: false });
                    self.content(&content, out);
                }
            }
        }
    }

    fn content(&mut self, text: &str, out: &mut Vec<Event>) {
        let State::Content(kind) = &mut self.state else { return };
        match kind {
            Kind::Reasoning => reasoning(text, out),
            Kind::Tool { arguments, .. } => arguments.push_str(text),
            Kind::Foreign => {}
            Kind::Answer { begun } => {
                if !*begun && self.answered {
                    answer("\n\n", out);
                }
                *begun = true;
                self.answered = true;
                answer(text, out);
            }
        }
    }

    fn end_message(&mut self, out: &mut Vec<Event>) {
        if let State::Content(Kind::Tool { name, arguments }) = &mut self.state {
            let (name, arguments) = (std::mem::take(name), std::mem::take(arguments));
            out.push(Event::ToolCall { name, arguments });
        }
    }
}

/// What a header announces.
fn kind(header: &str) -> Kind {
    let (before, after) = header.split_once(CHANNEL).unwrap_or((header, ""));
    let role = before.split_whitespace().find(|word| !word.starts_with("to=")).unwrap_or("assistant");
    if !role.starts_with("assistant") {
        return Kind::Foreign;
    }
    let recipient = recipient(before).or_else(|| recipient(after));
    if let Some(name) = recipient {
        return Kind::Tool { name, arguments: String::new() };
    }
    // The last channel counts if a confused header names several.
    let channel = after.rsplit(CHANNEL).next().unwrap_or("").trim_start();
    if channel.starts_with("analysis") { Kind::Reasoning } else { Kind::Answer { begun: false } }
}

/// The tool after `to=`; a message to the assistant itself or to the user calls nothing.
fn recipient(part: &str) -> Option<String> {
    let (_, name) = part.split_once("to=")?;
    let end = name.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(name.len());
    let name = &name[..end];
    let name = name.strip_prefix("functions.").unwrap_or(name);
    (!matches!(name, "" | "assistant" | "user" | "all")).then(|| name.to_owned())
}

/// Recognises content that began without `<|message|>`.
fn unmarked_content(header: &str) -> Option<(Kind, String)> {
    match header.split_once(CHANNEL) {
        None => {
            let rest = header.strip_prefix("assistant")?;
            let begun = rest.trim_start();
            let fits = "to=".starts_with(begun) || begun.starts_with("to=");
            (!fits).then(|| (Kind::Answer { begun: false }, begun.to_owned()))
        }
        Some((_, after)) => {
            let words = after.split_whitespace().count();
            if words <= MAX_HEADER_WORDS || after.contains("to=") || after.contains(CONSTRAIN) {
                return None;
            }
            let after = after.trim_start();
            let content = after.split_once(char::is_whitespace).map_or("", |(_, content)| content);
            Some((kind(header), content.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;
    use super::super::{Dialect, Event};

    const OPEN: &str = "<|start|>user<|message|>Hi<|end|><|start|>assistant";

    fn run(text: &str) -> Vec<Event> {
        parse(Dialect::Harmony, OPEN, text)
    }

    fn reasoning(text: &str) -> Event {
        Event::Reasoning(text.into())
    }

    fn answer(text: &str) -> Event {
        Event::Answer(text.into())
    }

    fn call(name: &str, arguments: &str) -> Event {
        Event::ToolCall { name: name.into(), arguments: arguments.into() }
    }

    #[test]
    fn channels_are_told_apart() {
        assert_eq!(run("<|channel|>final<|message|>Hello.<|return|>"), [answer("Hello.")]);
        assert_eq!(
            run(
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>"
            ),
            [reasoning("Hm."), answer("Yes")]
        );
        assert_eq!(
            run(
                "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>final<|message|>Done<|return|>"
            ),
            [answer("I will look.\n\nDone")]
        );
    }

    #[test]
    fn calls_in_every_spelling() {
        let expected = [call("get_weather", "{\"city\":\"Rome\"}")];
        for header in [
            "<|channel|>commentary to=functions.get_weather <|constrain|>json",
            "<|channel|>commentary to=functions.get_weather<|constrain|>json",
            "<|channel|>commentary to=functions.get_weather json",
            "<|channel|>analysis to=functions.get_weather code",
            " to=functions.get_weather<|channel|>commentary <|constrain|>json",
            " to=get_weather<|channel|>commentary json",
        ] {
            assert_eq!(
                run(&format!("{header}<|message|>{{\"city\":\"Rome\"}}<|call|>")),
                expected,
                "{header}"
            );
        }
        assert_eq!(run("<|channel|>analysis to=python code<|message|>1+1<|call|>"), [call("python", "1+1")]);
    }

    #[test]
    fn malformed_headers_are_understood() {
        // A message addressed to nobody in particular.
        assert_eq!(run("<|channel|>analysis to=assistant<|message|>x<|end|>"), [reasoning("x")]);
        // No <|start|>, no end.
        assert_eq!(
            run("<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b"),
            [reasoning("a"), answer("b")]
        );
        assert_eq!(
            run("<|channel|>analysis<|message|>a<|channel|>final<|message|>b"),
            [reasoning("a"), answer("b")]
        );
        // No header at all.
        assert_eq!(run("Hello there"), [answer("Hello there")]);
        assert_eq!(run("<|message|>Hello"), [answer("Hello")]);
        assert_eq!(run("<|channel|>analysis<|message|>a<|end|>Hello"), [reasoning("a"), answer("Hello")]);
        // No <|message|>.
        assert_eq!(
            run(
                "<|channel|>analysis We need to say hello now.<|end|><|start|>assistant<|channel|>final<|message|>Hello"
            ),
            [reasoning("We need to say hello now."), answer("Hello")]
        );
        // A made-up tool result is not shown.
        assert_eq!(
            run(
                "<|channel|>final<|message|>a<|end|><|start|>functions.f to=assistant<|channel|>commentary<|message|>x<|end|>"
            ),
            [answer("a")]
        );
        assert_eq!(run("<|channel|>fin"), []);
    }

    #[test]
    fn the_prompt_may_end_anywhere_in_a_message() {
        let after = |end: &str, text: &str| parse(Dialect::Harmony, end, text);
        assert_eq!(after("<|start|>assistant<|channel|>final<|message|>", "Hi<|return|>"), [answer("Hi")]);
        assert_eq!(
            after("<|start|>assistant<|channel|>analysis<|message|>So", " far<|end|>"),
            [reasoning(" far")]
        );
        assert_eq!(after("<|start|>assistant<|channel|>", "final<|message|>Hi"), [answer("Hi")]);
        assert_eq!(after("no marks", "<|start|>assistant<|channel|>final<|message|>Hi"), [answer("Hi")]);
    }
}
