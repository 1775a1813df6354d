//! Passes over rows: ops that need nothing of other rows, and the quantisation at their end.

use std::sync::{Mutex, PoisonError};

use turbospark_program::{Batch, Multiplier, Op, Outputs, Program, Reg, RopeTable, Tap};

use crate::activations::{Activations, Form, TILE};
use crate::isa::Isa;
use crate::load::Loaded;
use crate::ops;
use crate::pool::Pool;
use crate::registers::{ByRow, Registers};

/// Elements below which a pass is not worth waking other threads for.
const SMALL: usize = 16 << 10;

/// What passes need of a batch, its rows by number.
#[derive(Default)]
pub(crate) struct BatchRows {
    /// Batch rows whose logits are wanted.
    pub wanted: Vec<usize>,
    /// For each rotary table cosines and sines, [rows, pairs].
    angles: Vec<(Vec<f32>, Vec<f32>)>,
}

impl BatchRows {
    /// Computes what depends on the batch only.
    pub fn begin(&mut self, pool: &mut Pool, program: &Program, batch: &Batch) {
        let rows = &batch.rows;
        self.wanted.clear();
        self.wanted.extend((0..rows.len()).filter(|&i| rows[i].logits));
        self.angles.resize_with(program.ropes().len(), Default::default);
        for ((cos, sin), table) in self.angles.iter_mut().zip(program.ropes()) {
            let pairs = table.frequencies.len();
            cos.resize(rows.len() * pairs, 0.0);
            sin.resize(rows.len() * pairs, 0.0);
            let shared =
                (crate::registers::Shared::new(&mut cos[..]), crate::registers::Shared::new(&mut sin[..]));
            pool.run(rows.len(), 8, &|_, range| {
                for row in range {
                    // SAFETY: a row is given to one thread.
                    let (cos, sin) =
                        unsafe { (shared.0.part(row * pairs, pairs), shared.1.part(row * pairs, pairs)) };
                    angles(table, rows[row].position, cos, sin);
                }
            });
        }
    }

    /// The batch row that row `row` of a register is.
    fn batch_row(&self, wanted: bool, row: usize) -> usize {
        if wanted { self.wanted[row] } else { row }
    }
}

fn angles(table: &RopeTable, position: u32, cos: &mut [f32], sin: &mut [f32]) {
    for (j, (cos, sin)) in cos.iter_mut().zip(sin).enumerate() {
        (*cos, *sin) = table.cos_sin(position, j);
    }
}

/// A pass over rows.
pub(crate) struct Pass<'a> {
    pub isa: Isa,
    pub program: &'a Program,
    pub loaded: &'a Loaded,
    pub batch: &'a Batch,
    pub rows: &'a BatchRows,
    pub ops: &'a [usize],
    /// Over the rows whose logits are wanted.
    pub wanted: bool,
    /// Which register the input of the next linears is made of.
    pub fill: Option<(Reg, Form)>,
}

impl Pass<'_> {
    /// Runs the ops, pausing at taps that something is attached to.
    pub fn run(
        &self,
        pool: &mut Pool,
        registers: &mut Registers,
        activations: &mut Activations,
        outputs: &mut Outputs<'_>,
    ) {
        let mut start = 0;
        for (at, &op) in self.ops.iter().enumerate() {
            if let Op::Tap { x, tap } = self.program.ops()[op]
                && is_active(tap, self.batch, outputs)
            {
                self.ops_and_fill(pool, registers, activations, &self.ops[start..at], None);
                apply(tap, x, self.batch, registers, outputs);
                start = at + 1;
            }
        }
        self.ops_and_fill(pool, registers, activations, &self.ops[start..], self.fill);
    }

    fn ops_and_fill(
        &self,
        pool: &mut Pool,
        registers: &mut Registers,
        activations: &mut Activations,
        ops: &[usize],
        fill: Option<(Reg, Form)>,
    ) {
        let rows = if self.wanted { self.rows.wanted.len() } else { self.batch.rows.len() };
        let outs = ops.iter().filter_map(|&op| self.program.ops()[op].out());
        let width: usize = outs.chain(fill.map(|fill| fill.0)).map(|reg| registers.width(reg)).sum();
        if rows == 0 || width == 0 {
            return;
        }
        let grain = if rows * width < SMALL { rows.next_multiple_of(TILE) } else { TILE };
        let Some((reg, form)) = fill else {
            let registers = registers.by_row();
            pool.run(rows, grain, &|_, range| range.for_each(|row| self.row(ops, &registers, row)));
            return;
        };
        activations.prepare(form, rows, registers.width(reg));
        let registers = registers.by_row();
        // Tiles are handed out in order; which thread takes which does not matter.
        let tiles = Mutex::new(activations.tiles_mut());
        pool.run(rows.div_ceil(TILE), grain / TILE, &|_, range| {
            for _ in range {
                let tile = tiles.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(mut tile) = tile else { continue };
                tile.rows().for_each(|row| self.row(ops, &registers, row));
                // SAFETY: this thread has the tile's rows.
                tile.fill(self.isa, |row| unsafe { registers.row(reg, row) });
            }
        });
    }

    /// All ops on one row.
    fn row(&self, ops: &[usize], registers: &ByRow<'_>, row: usize) {
        for &index in ops {
            let op = &self.program.ops()[index];
            let Some(out) = op.out() else { continue };
            // SAFETY: a thread has this row of all registers of the pass, and the plan gives an op's result another
            // buffer than its inputs; only `SelectRows` reads other rows, of a register that no pass over wanted rows
            // writes.
            let (out, read) = unsafe { (registers.row_mut(out, row), |reg: Reg| registers.row(reg, row)) };
            self.op(index, op, row, out, read, registers);
        }
    }

    fn op<'r>(
        &self,
        index: usize,
        op: &Op,
        row: usize,
        out: &mut [f32],
        read: impl Fn(Reg) -> &'r [f32],
        registers: &'r ByRow<'_>,
    ) {
        let isa = self.isa;
        match op {
            Op::Embed { table, scale, .. } => {
                let token = self.batch.rows[self.rows.batch_row(self.wanted, row)].token;
                self.loaded.table(*table).matrix(0).dequantize_row(token as usize, out);
                out.iter_mut().for_each(|x| *x *= scale);
            }
            Op::RmsNorm { x, eps, group, .. } => {
                ops::rms_norm(isa, read(*x), self.loaded.factors(index), *eps, *group, out);
            }
            Op::Rope { x, table, .. } => {
                let (cos, sin) = &self.rows.angles[*table];
                let pairs = self.program.ropes()[*table].frequencies.len();
                let range = self.rows.batch_row(self.wanted, row) * pairs..;
                ops::rope(isa, read(*x), &cos[range.clone()][..pairs], &sin[range][..pairs], out);
            }
            Op::Add { a, b, .. } => ops::add(isa, read(*a), read(*b), out),
            Op::Mul { x, by: Multiplier::Scalar(s), .. } => ops::scale(isa, read(*x), *s, out),
            Op::Mul { x, by: Multiplier::Weight(weight), .. } => match self.loaded.vector(*weight) {
                [s] if out.len() != 1 => ops::scale(isa, read(*x), *s, out),
                vector => ops::mul(isa, read(*x), vector, out),
            },
            Op::Gate { gate, up, activation, .. } => ops::gate(isa, *activation, read(*gate), read(*up), out),
            Op::Softcap { x, cap, .. } => ops::softcap(isa, read(*x), *cap, out),
            Op::Slice { x, start, .. } => {
                let width = out.len();
                out.copy_from_slice(&read(*x)[*start..][..width]);
            }
            Op::SelectRows { x, .. } => {
                // SAFETY: see `row`: nobody writes that register in this pass.
                let from = unsafe { registers.row(*x, self.rows.wanted[row]) };
                out.copy_from_slice(from);
            }
            // Steps of their own, or nothing to do.
            Op::Linear { .. }
            | Op::Attention { .. }
            | Op::Route { .. }
            | Op::Experts { .. }
            | Op::Tap { .. } => {}
        }
    }
}

fn is_active(tap: Tap, batch: &Batch, outputs: &Outputs<'_>) -> bool {
    batch.edits.iter().flatten().any(|edit| edit.tap == tap)
        || outputs.taps.iter().any(|rows| rows.tap == tap)
}

/// Applies edits and then captures, so that a capture shows what the model goes on with.
fn apply(tap: Tap, x: Reg, batch: &Batch, registers: &mut Registers, outputs: &mut Outputs<'_>) {
    let width = registers.width(x);
    let values = registers.write(x);
    for (row, values) in batch.rows.iter().zip(values.chunks_exact_mut(width)) {
        let edits = row.edits.and_then(|set| batch.edits.get(set as usize)).into_iter().flatten();
        edits.filter(|edit| edit.tap == tap).for_each(|edit| edit.apply(values));
    }
    let Some(capture) = outputs.taps.iter_mut().find(|capture| capture.tap == tap) else { return };
    let captured = batch.rows.iter().zip(values.chunks_exact(width)).filter(|(row, _)| row.capture);
    for (out, (_, values)) in capture.rows.chunks_exact_mut(width).zip(captured) {
        out.copy_from_slice(values);
    }
}
