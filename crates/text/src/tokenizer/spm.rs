//! Score-based SentencePiece (tokenizer.ggml.model llama).
//!
//! Text is cut into characters; of all neighbours that together are a token, the pair with the best score is joined,
//! the leftmost first, until none is left. Characters that are no token become bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};

use super::Special;
use super::bytes::{METASPACE, byte_token};
use super::gguf::{TOKENS, Tokens};
use super::vocabulary::TokenKind;
use crate::TextError;

#[derive(Debug)]
pub(super) struct Spm {
    ids: HashMap<Box<str>, u32>,
    scores: Vec<f32>,
    bytes: [Option<u32>; 256],
    unknown: u32,
    add_space: bool,
    parse: Matcher,
    as_text: Matcher,
}

/// Finds tokens that are taken whole.
#[derive(Debug)]
struct Matcher {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
    /// Whether the white space after the token belongs to it.
    strips: Vec<bool>,
}

/// Two neighbours that may be joined; the greatest is joined first.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    id: u32,
    /// Length of both at the time, to recognise stale entries.
    len: usize,
}

/// A character or what grew from it; length 0 once joined to its left neighbour.
struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
    id: Option<u32>,
}

const NONE: usize = usize::MAX;

impl Spm {
    pub(super) fn new(
        tokens: &Tokens<'_>,
        scores: Vec<f32>,
        unknown: u32,
        add_space: bool,
        strips: bool,
    ) -> Result<Self, TextError> {
        let mut bytes = [None; 256];
        for (id, name) in tokens.names.iter().enumerate() {
            if let Some(byte) = byte_token(name) {
                bytes[byte as usize] = Some(id as u32);
            }
        }
        Ok(Spm {
            ids: tokens.ids.iter().map(|(name, &id)| (Box::from(*name), id)).collect(),
            scores,
            bytes,
            unknown,
            add_space,
            parse: Matcher::new(tokens, &[TokenKind::Control, TokenKind::Added], strips)?,
            as_text: Matcher::new(tokens, &[TokenKind::Added], strips)?,
        })
    }

    pub(super) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    pub(super) fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let matcher = match special {
            Special::Parse => &self.parse,
            Special::AsText => &self.as_text,
        };
        let mut ids = Vec::new();
        let mut start = 0;
        while start < text.len() {
            let found = matcher.find(text, start);
            let end = found.map_or(text.len(), |(at, _, _)| at);
            if end > start {
                // Each stretch of text after a special token begins a text of its own.
                let mut piece = String::with_capacity(end - start + 3);
                if self.add_space {
                    piece.push(METASPACE);
                }
                piece.extend(text[start..end].chars().map(|c| if c == ' ' { METASPACE } else { c }));
                self.encode_piece(&piece, &mut ids);
            }
            match found {
                Some((_, after, id)) => {
                    ids.push(id);
                    start = after;
                }
                None => break,
            }
        }
        ids
    }

    fn encode_piece(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                prev: i.wrapping_sub(1),
                next: i + 1,
                id: self.id(&text[start..start + c.len_utf8()]),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut heap = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.offer(text, &symbols, right - 1, right, &mut heap);
        }
        while let Some(pair) = heap.pop() {
            let (left, right) = (&symbols[pair.left], &symbols[pair.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            let next = right.next;
            symbols[pair.right].len = 0;
            symbols[pair.left].len = pair.len;
            symbols[pair.left].next = next;
            symbols[pair.left].id = Some(pair.id);
            if next != NONE {
                symbols[next].prev = pair.left;
                self.offer(text, &symbols, pair.left, next, &mut heap);
            }
            let prev = symbols[pair.left].prev;
            if prev != NONE {
                self.offer(text, &symbols, prev, pair.left, &mut heap);
            }
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            match symbol.id {
                Some(id) => out.push(id),
                None => out.extend(
                    text[symbol.start..symbol.start + symbol.len]
                        .bytes()
                        .map(|b| self.bytes[b as usize].unwrap_or(self.unknown)),
                ),
            }
        }
    }

    fn offer(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, heap: &mut BinaryHeap<Pair>) {
        let (a, b) = (&symbols[left], &symbols[right]);
        let len = a.len + b.len;
        if let Some(id) = self.id(&text[a.start..a.start + len]) {
            heap.push(Pair { score: self.scores[id as usize], left, right, id, len });
        }
    }
}

impl Matcher {
    fn new(tokens: &Tokens<'_>, kinds: &[TokenKind], strips: bool) -> Result<Self, TextError> {
        let (mut names, mut ids, mut strip) = (Vec::new(), Vec::new(), Vec::new());
        for (id, (name, kind)) in tokens.names.iter().zip(&tokens.kinds).enumerate() {
            if kinds.contains(kind) {
                names.push(*name);
                ids.push(id as u32);
                strip.push(strips && !matches!(*name, "<unk>" | "<s>" | "<|endoftext|>"));
            }
        }
        let automaton = if names.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&names);
            Some(built.map_err(|e| TextError::vocabulary(TOKENS, e.to_string()))?)
        };
        Ok(Matcher { automaton, ids, strips: strip })
    }

    /// The next token at or after `from`: where it begins, where the text goes on, its id.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize, u32)> {
        let found = self.automaton.as_ref()?.find(&text[from..])?;
        let which = found.pattern().as_usize();
        let mut after = from + found.end();
        if self.strips[which] {
            after += text[after..].len()
                - text[after..].trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']).len();
        }
        Some((from + found.start(), after, self.ids[which]))
    }
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}
