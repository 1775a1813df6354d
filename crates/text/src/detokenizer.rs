//! Token ids to text as they come, never half a character.

use crate::{TextError, Tokenizer};

/// Turns ids into text piece by piece.
///
/// Bytes are held back while they may still become a character; bytes that cannot become one are U+FFFD. Control
/// tokens are not text (unless asked for) and no character spans one.
#[derive(Clone, Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    pending: Vec<u8>,
    strip_space: bool,
    show_special: bool,
}

impl<'t> Detokenizer<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, strip_space: bool) -> Self {
        Detokenizer { tokenizer, pending: Vec::new(), strip_space, show_special: false }
    }

    /// Spell control tokens out.
    #[must_use]
    pub fn showing_special(mut self) -> Self {
        self.show_special = true;
        self
    }

    /// Appends the text that this id completes.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn push(&mut self, id: u32, out: &mut String) -> Result<(), TextError> {
        let mut bytes = self.tokenizer.token_bytes(id)?;
        if self.tokenizer.is_special(id) {
            self.flush(out);
            if self.show_special {
                out.push_str(&String::from_utf8_lossy(bytes));
            }
            return Ok(());
        }
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.pending.extend_from_slice(bytes);
        let kept = take_complete(&self.pending, out);
        self.pending.drain(..self.pending.len() - kept);
        Ok(())
    }

    /// Appends what was held back: an unfinished character is U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push_str(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        }
    }
}

/// Appends all of `bytes` but an unfinished character at the end, whose length is returned.
fn take_complete(bytes: &[u8], out: &mut String) -> usize {
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        out.push_str(chunk.valid());
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        if chunks.peek().is_none() && unfinished(invalid) {
            return invalid.len();
        }
        out.push(char::REPLACEMENT_CHARACTER);
    }
    0
}

/// Whether an invalid end of a text may become valid with more bytes.
fn unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_held_back() {
        let mut out = String::new();
        assert_eq!(take_complete("aé".as_bytes(), &mut out), 0);
        assert_eq!(out, "aé");
        out.clear();
        assert_eq!(take_complete(&[b'a', 0xf0, 0x9f, 0xa6], &mut out), 3);
        assert_eq!(out, "a");
        out.clear();
        assert_eq!(take_complete(&[0xff, b'a', 0xe2, b'b'], &mut out), 0);
        assert_eq!(out, "\u{fffd}a\u{fffd}b");
    }
}
