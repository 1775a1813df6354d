//! Edits of the rows of one sequence, by what kind of token a row holds.

use turbospark_program::EditSet;

/// Edits of prompt rows and of rows of generated tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edits {
    /// Of the tokens of a prompt. The last of them brings the first token of the answer.
    pub prompt: EditSet,
    /// Of the tokens that were generated, when they are computed in their turn.
    pub generated: EditSet,
}

impl Edits {
    /// No edits at all.
    pub fn is_empty(&self) -> bool {
        self.prompt.is_empty() && self.generated.is_empty()
    }

    /// As many of the first `common` positions of a session's past as a new prompt can keep: `past` says what edits
    /// they were computed under, and the first `prompt` of them were a prompt.
    ///
    /// To the new prompt all of them are prompt rows. So that answers never depend on what was kept, a position is
    /// kept only if it was computed under the edits it would get now.
    pub(crate) fn kept(&self, past: &Edits, prompt: usize, common: usize) -> usize {
        if past.prompt != self.prompt {
            0
        } else if past.generated != self.prompt {
            common.min(prompt)
        } else {
            common
        }
    }
}

impl From<EditSet> for Edits {
    /// The same edits for every row.
    fn from(edits: EditSet) -> Edits {
        Edits { prompt: edits.clone(), generated: edits }
    }
}
