//! What the linear products of a model amount to.

use turbospark_cpu::PanelLayout;
use turbospark_formats::{Checkpoint, MatrixLayout, Tensor};
use turbospark_program::{Op, Precision, Program, RowSet, WeightError, Weights};

use crate::engine::ExecutorKind;

/// Work of linear products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Amount {
    /// Bytes of weights, in the layout that the executor reads.
    pub bytes: u64,
    /// Multiply-adds, of integers or floats.
    pub multiply_adds: u64,
    /// Of them those with weights that are stored as floats.
    pub float_multiply_adds: u64,
}

/// The linear products that rows of a batch need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Work {
    /// Of every row, its routed experts included.
    pub row: Amount,
    /// What of `row` its routed experts are.
    pub experts: Amount,
    /// Of a row whose logits are wanted, in addition.
    pub head: Amount,
}

impl Work {
    /// Counts the products of `program`.
    pub fn of(program: &Program, checkpoint: &Checkpoint, kind: ExecutorKind) -> Result<Work, WeightError> {
        let weights = Weights::bind(program, checkpoint)?;
        let mut work = Work::default();
        for op in program.ops() {
            match op {
                Op::Linear { out, weight, precision, .. } => {
                    let amount = match program.register(*out).rows {
                        RowSet::All => &mut work.row,
                        RowSet::Wanted => &mut work.head,
                    };
                    amount.add(&matrix(weights.get(*weight), kind, *precision), 1);
                }
                Op::Experts { experts, .. } => {
                    let layer = &program.expert_layers()[experts.layer];
                    // `bind` has found them.
                    let stacks = [&layer.gate, &layer.up, &layer.down].map(|name| checkpoint.get(name));
                    for stack in stacks.into_iter().flatten() {
                        let amount = matrix(stack, kind, Precision::Block);
                        work.row.add(&amount, layer.k as u64);
                        work.experts.add(&amount, layer.k as u64);
                    }
                }
                _ => {}
            }
        }
        Ok(work)
    }

    /// Work of one generated token.
    pub fn token(&self) -> Amount {
        self.rows(1, 1)
    }

    /// Work of `rows` rows, `wanted` of them with logits. The bytes are counted for every row, though a batch
    /// reads them once.
    pub fn rows(&self, rows: usize, wanted: usize) -> Amount {
        let mut amount = Amount::default();
        amount.add(&self.row, rows as u64);
        amount.add(&self.head, wanted as u64);
        amount
    }
}

impl Amount {
    fn add(&mut self, other: &Amount, times: u64) {
        self.bytes += other.bytes * times;
        self.multiply_adds += other.multiply_adds * times;
        self.float_multiply_adds += other.float_multiply_adds * times;
    }

    /// Whether all but a few of the products are of integers, so that the rate of those bounds them.
    pub fn is_integer(&self) -> bool {
        self.float_multiply_adds * 20 <= self.multiply_adds
    }
}

/// One product with a matrix of a tensor.
fn matrix(tensor: &Tensor, kind: ExecutorKind, precision: Precision) -> Amount {
    let layout: &MatrixLayout = tensor.layout();
    let panels = match precision {
        Precision::Block => PanelLayout::of(layout),
        Precision::Full => PanelLayout::of_full(layout),
    };
    let bytes = match (kind, panels) {
        (ExecutorKind::Cpu, Some(panels)) => panels.bytes(),
        _ => tensor.bytes() / tensor.count().max(1),
    };
    let multiply_adds = layout.rows as u64 * layout.columns as u64;
    let float = kind == ExecutorKind::Reference || precision == Precision::Full || layout.format.is_float();
    let float_multiply_adds = if float { multiply_adds } else { 0 };
    Amount { bytes: bytes as u64, multiply_adds, float_multiply_adds }
}
