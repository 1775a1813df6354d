//! The rows an executor computes in one step.

use crate::program::Program;
use crate::state::{SequenceId, States};
use crate::tap::EditSet;

/// One token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token id.
    pub token: u32,
    /// Sequence it belongs to.
    pub sequence: SequenceId,
    /// Its position, the next of the sequence.
    pub position: u32,
    /// Whether logits are wanted.
    pub logits: bool,
    /// Index into [`Batch::edits`].
    pub edits: Option<u16>,
    /// Whether the captured taps keep this row.
    pub capture: bool,
}

/// Rows of any number of sequences; the rows of a sequence stand in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The rows.
    pub rows: Vec<Row>,
    /// Sets of edits that rows refer to.
    pub edits: Vec<EditSet>,
}

/// A batch that does not fit its program or the state of its sequences.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// No rows.
    #[error("the batch has no rows")]
    Empty,
    /// A token id past the vocabulary.
    #[error("row {row}: token {token} is not below the vocabulary of {vocabulary}")]
    Token {
        /// Row of the batch.
        row: usize,
        /// Its token.
        token: u32,
        /// Number of tokens.
        vocabulary: usize,
    },
    /// A position that is not the next.
    #[error("row {row}: position {position} of sequence {sequence} is out of order, the next is {expected}")]
    Position {
        /// Row of the batch.
        row: usize,
        /// Its sequence.
        sequence: SequenceId,
        /// Its position.
        position: u32,
        /// The position that would be right.
        expected: u32,
    },
    /// A sequence that does not exist.
    #[error("row {row}: there is no sequence {sequence}")]
    Sequence {
        /// Row of the batch.
        row: usize,
        /// The sequence.
        sequence: SequenceId,
    },
    /// A set of edits that the batch does not have.
    #[error("row {row}: edit set {edits} is not in the batch, which has {count}")]
    Edits {
        /// Row of the batch.
        row: usize,
        /// Its set.
        edits: u16,
        /// Sets in the batch.
        count: usize,
    },
    /// An edit at a place the program does not have, or of another width.
    #[error("edit at {tap}: the direction has {found} elements, the model's {tap} has {expected}")]
    EditWidth {
        /// Where the edit is.
        tap: crate::Tap,
        /// Elements of its direction.
        found: usize,
        /// Elements of the tap's register, 0 if there is no such tap.
        expected: usize,
    },
}

impl Batch {
    /// A batch that appends `tokens` to one sequence and wants logits of the last.
    pub fn append(states: &States, sequence: SequenceId, tokens: &[u32]) -> Batch {
        let start = states.length(sequence).unwrap_or(0);
        let rows = tokens
            .iter()
            .enumerate()
            .map(|(i, &token)| Row {
                token,
                sequence,
                position: start + i as u32,
                logits: i + 1 == tokens.len(),
                edits: None,
                capture: false,
            })
            .collect();
        Batch { rows, edits: Vec::new() }
    }

    /// Rows whose logits are wanted.
    pub fn wanted(&self) -> usize {
        self.rows.iter().filter(|row| row.logits).count()
    }

    /// Rows that are captured.
    pub fn captured(&self) -> usize {
        self.rows.iter().filter(|row| row.capture).count()
    }

    /// Checks tokens, positions, sequences and edits.
    pub fn check(&self, program: &Program, states: &States) -> Result<(), BatchError> {
        if self.rows.is_empty() {
            return Err(BatchError::Empty);
        }
        let vocabulary = program.vocabulary();
        let mut next: Vec<(SequenceId, u32)> = Vec::new();
        for (i, row) in self.rows.iter().enumerate() {
            if row.token as usize >= vocabulary {
                return Err(BatchError::Token { row: i, token: row.token, vocabulary });
            }
            let known = next.iter_mut().find(|(sequence, _)| *sequence == row.sequence);
            let expected = match known {
                Some((_, position)) => position,
                None => {
                    let length = states
                        .length(row.sequence)
                        .ok_or(BatchError::Sequence { row: i, sequence: row.sequence })?;
                    next.push((row.sequence, length));
                    let last = next.len() - 1;
                    &mut next[last].1
                }
            };
            if row.position != *expected {
                return Err(BatchError::Position {
                    row: i,
                    sequence: row.sequence,
                    position: row.position,
                    expected: *expected,
                });
            }
            *expected += 1;
            if let Some(edits) = row.edits.filter(|&e| e as usize >= self.edits.len()) {
                return Err(BatchError::Edits { row: i, edits, count: self.edits.len() });
            }
        }
        for edit in self.edits.iter().flatten() {
            let expected = program.tap_width(edit.tap).unwrap_or(0);
            if edit.direction.len() != expected {
                return Err(BatchError::EditWidth { tap: edit.tap, found: edit.direction.len(), expected });
            }
        }
        Ok(())
    }
}
