//! What every token id stands for.

use super::bytes::{Spelling, append_bytes};
use crate::TextError;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Marks structure; never shown as text, parsed only where special tokens are meant.
    Control,
    /// Added text that is always taken whole (`<think>`, runs of spaces).
    Added,
    /// An id without a token.
    Unused,
}

/// Bytes and kind of each id, in one arena.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
}

impl Vocabulary {
    /// Appends the next id.
    ///
    /// Added and control tokens of byte-level vocabularies are written as plain text, all others as spelt.
    pub(crate) fn push(&mut self, piece: &str, kind: TokenKind, spelling: Spelling) {
        match kind {
            TokenKind::Unused => {}
            TokenKind::Control => self.bytes.extend_from_slice(piece.as_bytes()),
            TokenKind::Added if spelling == Spelling::ByteLevel => {
                self.bytes.extend_from_slice(piece.as_bytes())
            }
            TokenKind::Added | TokenKind::Normal => append_bytes(piece, spelling, &mut self.bytes),
        }
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Result<TokenKind, TextError> {
        self.kinds.get(id as usize).copied().ok_or(TextError::TokenId { id, size: self.len() })
    }

    pub(crate) fn bytes(&self, id: u32) -> Result<&[u8], TextError> {
        let i = id as usize;
        let end = *self.ends.get(i).ok_or(TextError::TokenId { id, size: self.len() })?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Ok(&self.bytes[start..end])
    }
}
