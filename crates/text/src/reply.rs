//! An answer as it is generated: ids in, events out.

use std::collections::HashMap;

use crate::{Detokenizer, Dialect, Event, Parser, Piece, StopStrings, TextError, Tokenizer};

/// Why an answer ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model produced one of its stop tokens.
    Token(u32),
    /// The answer contains one of the caller's stop strings.
    String(String),
}

/// Turns the ids of one answer into events.
///
/// Special tokens never become text. Stop strings are looked for in the answer, not in reasoning or tool calls.
#[derive(Clone, Debug)]
pub struct Reply<'t> {
    tokenizer: &'t Tokenizer,
    detokenizer: Detokenizer<'t>,
    parser: Parser,
    marks: HashMap<u32, &'static str>,
    stop_ids: &'t [u32],
    stop_strings: StopStrings,
    text: String,
    events: Vec<Event>,
}

impl<'t> Reply<'t> {
    pub(crate) fn new(
        tokenizer: &'t Tokenizer,
        detokenizer: Detokenizer<'t>,
        dialect: Dialect,
        prompt_end: &str,
        stop_ids: &'t [u32],
        stop_strings: StopStrings,
    ) -> Self {
        let marks = dialect.marks().iter().filter_map(|name| Some((tokenizer.id(name)?, *name))).collect();
        let parser = dialect.parser(prompt_end);
        let (text, events) = (String::new(), Vec::new());
        Reply { tokenizer, detokenizer, parser, marks, stop_ids, stop_strings, text, events }
    }

    /// Takes the next id and appends what it completes. After a stop, call [`Reply::finish`].
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn push(&mut self, id: u32, out: &mut Vec<Event>) -> Result<Option<Stop>, TextError> {
        self.text.clear();
        let mark = self.marks.get(&id).copied();
        if mark.is_some() || self.tokenizer.is_special(id) || self.stop_ids.contains(&id) {
            self.detokenizer.flush(&mut self.text);
        } else {
            self.detokenizer.push(id, &mut self.text)?;
        }
        if !self.text.is_empty() {
            self.parser.push(Piece::Text(&self.text), &mut self.events);
        }
        if let Some(mark) = mark {
            self.parser.push(Piece::Mark(mark), &mut self.events);
        }
        if let Some(stop) = self.deliver(out) {
            return Ok(Some(Stop::String(stop)));
        }
        Ok(self.stop_ids.contains(&id).then_some(Stop::Token(id)))
    }

    /// Appends what was held back. To be called once, when the answer ends for whatever reason.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        self.text.clear();
        self.detokenizer.flush(&mut self.text);
        if !self.text.is_empty() {
            self.parser.push(Piece::Text(&self.text), &mut self.events);
        }
        self.parser.finish(&mut self.events);
        if self.deliver(out).is_none() && !self.stop_strings.stopped() {
            let mut rest = String::new();
            self.stop_strings.flush(&mut rest);
            if !rest.is_empty() {
                out.push(Event::Answer(rest));
            }
        }
    }

    /// Passes events on, answers through the stop strings. Nothing follows a stop string.
    fn deliver(&mut self, out: &mut Vec<Event>) -> Option<String> {
        for event in std::mem::take(&mut self.events) {
            if self.stop_strings.stopped() {
                continue;
            }
            match event {
                Event::Answer(text) => {
                    let mut shown = String::new();
                    let stop = self.stop_strings.push(&text, &mut shown).map(str::to_owned);
                    if !shown.is_empty() {
                        out.push(Event::Answer(shown));
                    }
                    if stop.is_some() {
                        self.events.clear();
                        return stop;
                    }
                }
                other => out.push(other),
            }
        }
        None
    }
}
