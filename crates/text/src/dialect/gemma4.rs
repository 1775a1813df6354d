//! Gemma 4: a thought channel, and calls in a notation of its own.
//!
//! `<|channel>thought` newline reasoning `<channel|>` answer; a call is `<|tool_call>call:NAME{key:VALUE,..}<tool_call|>`
//! with every string between two `<|"|>` tokens.

use serde_json::{Map, Value};

use super::{Event, Piece, answer, pieces, reasoning};

const CHANNEL: &str = "<|channel>";
const CHANNEL_END: &str = "<channel|>";
const CALL: &str = "<|tool_call>";
const CALL_END: &str = "<tool_call|>";
const QUOTE: &str = "<|\"|>";
pub(super) const MARKS: &[&str] = &[
    CHANNEL,
    CHANNEL_END,
    CALL,
    CALL_END,
    QUOTE,
    "<|turn>",
    "<turn|>",
    "<|tool_response>",
    "<tool_response|>",
];

/// Nesting of lists and maps in a call's arguments.
const MAX_DEPTH: usize = 32;

/// Where the parser stands.
#[derive(Clone, Debug)]
pub struct Parser {
    state: State,
    /// White space between a block and the answer is dropped.
    trim: bool,
}

#[derive(Clone, Debug)]
enum State {
    Answer,
    /// The name of a channel, up to the end of its line.
    Channel(String),
    Thought,
    Call(String),
}

impl Parser {
    pub(super) fn after(prompt_end: &str) -> Self {
        let mut parser = Parser { state: State::Answer, trim: false };
        let turn = prompt_end.rfind("<|turn>").unwrap_or(0);
        let mut ignored = Vec::new();
        for piece in pieces(&prompt_end[turn..], MARKS) {
            parser.push(piece, &mut ignored);
        }
        parser.trim = matches!(parser.state, State::Answer);
        parser
    }

    pub(super) fn push(&mut self, piece: Piece<'_>, out: &mut Vec<Event>) {
        match piece {
            Piece::Text(text) => self.text(text, out),
            Piece::Mark(CHANNEL) => self.begin(State::Channel(String::new()), out),
            Piece::Mark(CALL) => self.begin(State::Call(String::new()), out),
            Piece::Mark(QUOTE) => {
                if let State::Call(call) = &mut self.state {
                    call.push_str(QUOTE);
                }
            }
            Piece::Mark(_) => self.begin(State::Answer, out),
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Event>) {
        self.begin(State::Answer, out);
    }

    fn begin(&mut self, next: State, out: &mut Vec<Event>) {
        if let State::Call(call) = std::mem::replace(&mut self.state, next) {
            let (name, arguments) = read_call(&call);
            out.push(Event::ToolCall { name, arguments });
        }
        self.trim = true;
    }

    fn text(&mut self, text: &str, out: &mut Vec<Event>) {
        match &mut self.state {
            State::Call(call) => call.push_str(text),
            State::Channel(name) => {
                name.push_str(text);
                if let Some((_, thought)) = name.split_once('\n') {
                    reasoning(thought, out);
                    self.state = State::Thought;
                }
            }
            State::Thought => reasoning(text, out),
            State::Answer => {
                let text = if self.trim { text.trim_start() } else { text };
                self.trim &= text.is_empty();
                answer(text, out);
            }
        }
    }
}

/// Name and arguments as JSON; arguments that cannot be read stay as the model wrote them.
fn read_call(call: &str) -> (String, String) {
    let call = call.trim();
    let call = call.strip_prefix("call:").unwrap_or(call);
    let (name, rest) = call.split_at(call.find('{').unwrap_or(call.len()));
    let mut reader = Reader { rest };
    match reader.value(0) {
        Some(value @ Value::Object(_)) => (name.trim().to_owned(), value.to_string()),
        _ => (name.trim().to_owned(), rest.to_owned()),
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn until(&mut self, stops: &[char]) -> &'a str {
        let (word, rest) = self.rest.split_at(self.rest.find(stops).unwrap_or(self.rest.len()));
        self.rest = rest;
        word.trim()
    }

    fn string(&mut self) -> Option<&'a str> {
        let (text, rest) = self.rest.split_once(QUOTE)?;
        self.rest = rest;
        Some(text)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.take(QUOTE) {
            return self.string().map(|text| Value::String(text.to_owned()));
        }
        if self.take("{") {
            let mut map = Map::new();
            while !self.take("}") {
                let key = if self.take(QUOTE) { self.string()? } else { self.until(&[':', '}']) };
                if !self.take(":") {
                    return None;
                }
                map.insert(key.to_owned(), self.value(depth + 1)?);
                if !self.take(",") && !self.rest.trim_start().starts_with('}') {
                    return None;
                }
            }
            return Some(Value::Object(map));
        }
        if self.take("[") {
            let mut list = Vec::new();
            while !self.take("]") {
                list.push(self.value(depth + 1)?);
                if !self.take(",") && !self.rest.trim_start().starts_with(']') {
                    return None;
                }
            }
            return Some(Value::Array(list));
        }
        let word = self.until(&[',', '}', ']']);
        if word.is_empty() {
            return None;
        }
        Some(serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;
    use super::super::{Dialect, Event};

    const OPEN: &str = "<|turn>user\nHi<turn|>\n<|turn>model\n";

    fn run(text: &str) -> Vec<Event> {
        parse(Dialect::Gemma4, OPEN, text)
    }

    #[test]
    fn thoughts_are_reasoning() {
        let expected = [Event::Reasoning("Hm.\n".into()), Event::Answer("Yes.".into())];
        assert_eq!(run("<|channel>thought\nHm.\n<channel|>Yes.<turn|>"), expected);
        assert_eq!(run("<|channel>thought\n<channel|>\nYes.<turn|>"), expected[1..]);
        assert_eq!(run("Yes.<turn|>"), expected[1..]);
        let opened = format!("{OPEN}<|channel>thought\n");
        assert_eq!(parse(Dialect::Gemma4, &opened, "Hm.\n<channel|>Yes."), expected);
        let empty = format!("{OPEN}<|channel>thought\n<channel|>");
        assert_eq!(parse(Dialect::Gemma4, &empty, "Yes."), expected[1..]);
    }

    #[test]
    fn calls_become_json() {
        let call =
            |name: &str, arguments: &str| Event::ToolCall { name: name.into(), arguments: arguments.into() };
        assert_eq!(
            run(
                "<|tool_call>call:get_weather{city:<|\"|>Rome, {IT}<|\"|>,days:3,more:{a:[1,true,<|\"|>x<|\"|>],b:null}}<tool_call|><|tool_call>call:now{}<tool_call|><|tool_response>"
            ),
            [
                call(
                    "get_weather",
                    "{\"city\":\"Rome, {IT}\",\"days\":3,\"more\":{\"a\":[1,true,\"x\"],\"b\":null}}"
                ),
                call("now", "{}"),
            ]
        );
        assert_eq!(run("<|tool_call>call:f{a:<tool_call|>"), [call("f", "{a:")]);
    }
}
