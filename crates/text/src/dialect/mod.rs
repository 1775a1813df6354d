//! How models tell reasoning, answer and tool calls apart.
//!
//! A parser takes the pieces of an answer as they are decoded, text or a mark (a special token that the dialect uses),
//! and yields events. Marks are known by their token, so text that merely looks like one stays text.

mod gemma4;
mod harmony;
mod plain;
mod think;

use crate::Tokenizer;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What the model thinks before it answers.
    Reasoning(String),
    /// What the user is to see.
    Answer(String),
    /// A call of a tool, complete.
    ToolCall {
        /// Name of the tool.
        name: String,
        /// Its arguments as the model wrote them, mostly a JSON object; not checked.
        arguments: String,
    },
}

/// A decoded piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Ordinary text.
    Text(&'a str),
    /// One of [`Dialect::marks`].
    Mark(&'a str),
}

/// A convention of reasoning and tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// All is answer.
    Plain,
    /// Channels of gpt-oss.
    Harmony,
    /// `<think>` blocks and `<tool_call>` blocks (Qwen, DeepSeek and many others).
    Think,
    /// `[THINK]` blocks (Mistral).
    BracketThink,
    /// Thought channel and calls of Gemma 4.
    Gemma4,
}

impl Dialect {
    /// The dialect of a checkpoint, told by its chat template and vocabulary.
    pub fn detect(template: Option<&str>, tokenizer: &Tokenizer) -> Self {
        let has = |name: &str| tokenizer.id(name).is_some();
        let template = template.unwrap_or("");
        if has("<|channel|>") && has("<|message|>") && has("<|start|>") {
            Dialect::Harmony
        } else if has("<|channel>") && has("<channel|>") {
            Dialect::Gemma4
        } else if template.contains("[THINK]") {
            Dialect::BracketThink
        } else if ["<think>", "</think>", "<tool_call>"].iter().any(|tag| template.contains(tag)) {
            Dialect::Think
        } else {
            Dialect::Plain
        }
    }

    /// Tokens that mean something in this dialect, where the vocabulary has them.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Dialect::Plain => &[],
            Dialect::Harmony => harmony::MARKS,
            Dialect::Think => think::ANGLE.marks,
            Dialect::BracketThink => think::BRACKET.marks,
            Dialect::Gemma4 => gemma4::MARKS,
        }
    }

    /// A parser for the answer to a prompt whose end, with special tokens spelt out, is `prompt_end`.
    pub fn parser(self, prompt_end: &str) -> Parser {
        Parser(match self {
            Dialect::Plain => State::Plain(plain::Parser),
            Dialect::Harmony => State::Harmony(harmony::Parser::after(prompt_end)),
            Dialect::Think => State::Think(think::Parser::after(&think::ANGLE, prompt_end)),
            Dialect::BracketThink => State::Think(think::Parser::after(&think::BRACKET, prompt_end)),
            Dialect::Gemma4 => State::Gemma4(gemma4::Parser::after(prompt_end)),
        })
    }
}

/// The state of one answer.
#[derive(Clone, Debug)]
pub struct Parser(State);

#[derive(Clone, Debug)]
enum State {
    Plain(plain::Parser),
    Harmony(harmony::Parser),
    Think(think::Parser),
    Gemma4(gemma4::Parser),
}

impl Parser {
    /// Takes the next piece.
    pub fn push(&mut self, piece: Piece<'_>, out: &mut Vec<Event>) {
        match &mut self.0 {
            State::Plain(p) => p.push(piece, out),
            State::Harmony(p) => p.push(piece, out),
            State::Think(p) => p.push(piece, out),
            State::Gemma4(p) => p.push(piece, out),
        }
    }

    /// Yields what was held back when the answer ends.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        match &mut self.0 {
            State::Plain(_) => {}
            State::Harmony(p) => p.finish(out),
            State::Think(p) => p.finish(out),
            State::Gemma4(p) => p.finish(out),
        }
    }
}

fn answer(text: &str, out: &mut Vec<Event>) {
    if !text.is_empty() {
        out.push(Event::Answer(text.to_owned()));
    }
}

fn reasoning(text: &str, out: &mut Vec<Event>) {
    if !text.is_empty() {
        out.push(Event::Reasoning(text.to_owned()));
    }
}

/// Cuts text in which marks are spelt out into pieces.
fn pieces<'a>(mut text: &'a str, marks: &'a [&'a str]) -> Vec<Piece<'a>> {
    let mut out = Vec::new();
    while !text.is_empty() {
        let first = marks.iter().filter_map(|mark| text.find(mark).map(|at| (at, *mark))).min();
        let Some((at, mark)) = first else {
            out.push(Piece::Text(text));
            break;
        };
        if at > 0 {
            out.push(Piece::Text(&text[..at]));
        }
        out.push(Piece::Mark(mark));
        text = &text[at + mark.len()..];
    }
    out
}

#[cfg(test)]
mod testing {
    use super::*;

    /// Parses an answer in which marks are spelt out, whole and in pieces of every length, and joins the events.
    pub(super) fn parse(dialect: Dialect, prompt_end: &str, text: &str) -> Vec<Event> {
        let whole = parse_in(dialect, prompt_end, text, usize::MAX);
        for size in 1..8 {
            assert_eq!(
                parse_in(dialect, prompt_end, text, size),
                whole,
                "pieces of {size} characters of {text:?}"
            );
        }
        whole
    }

    fn parse_in(dialect: Dialect, prompt_end: &str, text: &str, size: usize) -> Vec<Event> {
        let mut parser = dialect.parser(prompt_end);
        let mut out = Vec::new();
        for piece in pieces(text, dialect.marks()) {
            match piece {
                Piece::Text(text) => {
                    let chars: Vec<char> = text.chars().collect();
                    for part in chars.chunks(size.min(chars.len().max(1))) {
                        parser.push(Piece::Text(&part.iter().collect::<String>()), &mut out);
                    }
                }
                mark => parser.push(mark, &mut out),
            }
        }
        parser.finish(&mut out);
        let mut joined: Vec<Event> = Vec::new();
        for event in out {
            match (joined.last_mut(), event) {
                (Some(Event::Answer(text)), Event::Answer(more)) => text.push_str(&more),
                (Some(Event::Reasoning(text)), Event::Reasoning(more)) => text.push_str(&more),
                (_, event) => joined.push(event),
            }
        }
        joined
    }
}
