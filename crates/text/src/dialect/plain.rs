//! Everything is answer.

use super::{Event, Piece, answer};

/// The parser without state.
#[derive(Clone, Debug)]
pub struct Parser;

impl Parser {
    pub(super) fn push(&mut self, piece: Piece<'_>, out: &mut Vec<Event>) {
        if let Piece::Text(text) = piece {
            answer(text, out);
        }
    }
}
