//! What runs a program, and where its results go.

use crate::batch::{Batch, BatchError};
use crate::experts::{ExpertError, ExpertSource};
use crate::program::Program;
use crate::state::{StateError, States};
use crate::tap::Tap;

/// Bounds that memory is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of a batch.
    pub rows: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Sequences at once.
    pub sequences: usize,
    /// Rows of a batch whose logits are wanted.
    pub wanted: usize,
}

/// Bytes that an executor will take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights every token needs.
    pub resident: usize,
    /// Keys and values at the limits.
    pub kv: usize,
    /// Registers and working memory.
    pub scratch: usize,
}

/// Something that runs a program.
///
/// On one kind of executor the logits of a row are the same bits whatever batch the row is computed in.
pub trait Executor: Send {
    /// The program it runs.
    fn program(&self) -> &Program;

    /// What it will take for `limits`, before anything of the weights is read.
    fn memory(&self, limits: &Limits) -> MemoryNeed;

    /// Computes the rows of `batch`, appends their keys and values, and fills `outputs`.
    ///
    /// On an error the sequences are as they were before.
    fn step(
        &mut self,
        batch: &Batch,
        states: &mut States,
        experts: &dyn ExpertSource,
        outputs: &mut Outputs<'_>,
    ) -> Result<(), StepError>;
}

/// Where the results of a step go; all memory is the caller's.
#[derive(Debug, Default)]
pub struct Outputs<'a> {
    /// Logits of the rows that want them, in batch order.
    pub logits: Logits<'a>,
    /// Captured rows, one entry a tap.
    pub taps: Vec<TapRows<'a>>,
    /// Router choices of captured rows.
    pub routes: Option<RoutedRows<'a>>,
}

/// The form in which logits are wanted.
#[derive(Debug, Default)]
pub enum Logits<'a> {
    /// Not at all.
    #[default]
    None,
    /// [wanted rows, vocabulary]
    All(&'a mut [f32]),
    /// Only the largest.
    Best(BestLogits<'a>),
}

/// The `n` largest logits of each wanted row, in falling order, ties to the lower id.
#[derive(Debug)]
pub struct BestLogits<'a> {
    /// How many.
    pub n: usize,
    /// [wanted rows, n]
    pub ids: &'a mut [u32],
    /// [wanted rows, n]
    pub values: &'a mut [f32],
}

/// Rows of one tap, as they are after the edits of that tap.
#[derive(Debug)]
pub struct TapRows<'a> {
    /// Which tap.
    pub tap: Tap,
    /// [captured rows, width]
    pub rows: &'a mut [f32],
}

/// What the routers chose for captured rows.
#[derive(Debug)]
pub struct RoutedRows<'a> {
    /// [expert layers, captured rows, k], in falling order of router logits.
    pub ids: &'a mut [u32],
    /// As `ids`: final mixing weights.
    pub weights: &'a mut [f32],
}

/// Outputs that do not fit the batch and the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// A slice of the wrong length.
    #[error("{what} has room for {found} elements, the batch needs {expected}")]
    Length {
        /// Which slice.
        what: String,
        /// Its elements.
        found: usize,
        /// Elements needed.
        expected: usize,
    },
    /// A tap that the program does not have.
    #[error("the model has no tap {0}")]
    Tap(Tap),
    /// Best logits asked for with an impossible count.
    #[error("the best {n} logits were asked for, the vocabulary has {vocabulary}")]
    Best {
        /// Asked for.
        n: usize,
        /// Largest possible.
        vocabulary: usize,
    },
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch is not valid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The outputs do not fit.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// No room for keys and values.
    #[error(transparent)]
    State(#[from] StateError),
    /// An expert could not be had.
    #[error(transparent)]
    Expert(#[from] ExpertError),
    /// A table whose rows are read from its file, and the file was cut.
    #[error("reading rows of a table from {}: {error}", path.display())]
    Table {
        /// The file.
        path: std::path::PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// Mathematics went out of range.
    #[error("row {row}: logit {index} is {value}, not a finite number; the checkpoint or an edit is broken")]
    NotFinite {
        /// Row of the batch.
        row: usize,
        /// Token id.
        index: usize,
        /// The value.
        value: f32,
    },
}

impl Outputs<'_> {
    /// Only full logits.
    pub fn logits(logits: &mut [f32]) -> Outputs<'_> {
        Outputs { logits: Logits::All(logits), ..Outputs::default() }
    }

    /// Checks every slice's length against the batch.
    pub fn check(&self, batch: &Batch, program: &Program) -> Result<(), OutputError> {
        let length = |what: &dyn std::fmt::Display, found: usize, expected: usize| {
            if found == expected {
                return Ok(());
            }
            Err(OutputError::Length { what: what.to_string(), found, expected })
        };
        let (wanted, captured) = (batch.wanted(), batch.captured());
        let vocabulary = program.vocabulary();
        match &self.logits {
            Logits::None => {}
            Logits::All(slice) => length(&"the logits slice", slice.len(), wanted * vocabulary)?,
            Logits::Best(best) => {
                if best.n == 0 || best.n > vocabulary {
                    return Err(OutputError::Best { n: best.n, vocabulary });
                }
                length(&"the slice of best ids", best.ids.len(), wanted * best.n)?;
                length(&"the slice of best values", best.values.len(), wanted * best.n)?;
            }
        }
        for tap in &self.taps {
            let width = program.tap_width(tap.tap).ok_or(OutputError::Tap(tap.tap))?;
            length(&tap.tap, tap.rows.len(), captured * width)?;
        }
        if let Some(routes) = &self.routes {
            let ranks: usize = program.expert_layers().iter().map(|layer| layer.k).sum();
            length(&"the slice of routed ids", routes.ids.len(), ranks * captured)?;
            length(&"the slice of routing weights", routes.weights.len(), ranks * captured)?;
        }
        Ok(())
    }

    /// Stores the logits of wanted row `index` (row `row` of the batch), which must be finite.
    pub fn put_logits(&mut self, index: usize, row: usize, logits: &[f32]) -> Result<(), StepError> {
        // Without an early end in the inner loop this takes as long as reading the logits.
        let finite = |x: &[f32]| x.iter().fold(true, |all, x| all & x.is_finite());
        if !logits.chunks(256).all(finite)
            && let Some(at) = logits.iter().position(|x| !x.is_finite())
        {
            return Err(StepError::NotFinite { row, index: at, value: logits[at] });
        }
        match &mut self.logits {
            Logits::None => {}
            Logits::All(slice) => {
                slice[index * logits.len()..(index + 1) * logits.len()].copy_from_slice(logits)
            }
            Logits::Best(best) => {
                let range = index * best.n..(index + 1) * best.n;
                largest(logits, &mut best.ids[range.clone()], &mut best.values[range]);
            }
        }
        Ok(())
    }
}

/// The largest of `values`, as many as the slices hold, in falling order; ties go to the lower index.
pub(crate) fn largest(values: &[f32], ids: &mut [u32], best: &mut [f32]) {
    let n = ids.len();
    let mut held = 0;
    for (id, &value) in values.iter().enumerate() {
        if held == n && value <= best[n - 1] {
            continue;
        }
        let at = best[..held].partition_point(|&b| b >= value);
        if held < n {
            held += 1;
        }
        ids.copy_within(at..held - 1, at + 1);
        best.copy_within(at..held - 1, at + 1);
        (ids[at], best[at]) = (id as u32, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_breaks_ties_by_index() {
        let values = [1.0, 3.0, 2.0, 3.0, -1.0, 2.0];
        let (mut ids, mut best) = ([0; 4], [0.0; 4]);
        largest(&values, &mut ids, &mut best);
        assert_eq!((ids, best), ([1, 3, 2, 5], [3.0, 3.0, 2.0, 2.0]));
    }
}
