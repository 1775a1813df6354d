//! The plain executor that defines what every other one must compute.
//!
//! Each op is an f32 loop that reads beside the model's specification. Weights are widened to f32 exactly, a row
//! at a time, when they are used; keys and values are kept in f32. Threads share output rows only, so a row's
//! logits do not depend on the batch, the chunk or the number of threads.

mod attention;
mod experts;
mod kv;
mod ops;
mod registers;
mod route;

use turbospark_formats::Checkpoint;
use turbospark_program::{
    Batch, Executor, ExpertRequest, ExpertSource, Limits, MemoryNeed, Op, Outputs, Program, States,
    StepError, Tap, WeightError, Weights,
};

use kv::KvPages;
use ops::Vectors;
use registers::{Registers, Rows};

/// What an op has written.
#[derive(Clone, Copy, Debug)]
pub enum Observed<'a> {
    /// Rows of activations.
    Values(&'a [f32]),
    /// Experts and their weights, k a row.
    Routes {
        /// Expert ids.
        ids: &'a [u32],
        /// Mixing weights.
        weights: &'a [f32],
    },
}

/// Called after every op that writes a register, with its index in the program.
pub type Observer<'a> = dyn FnMut(usize, Observed<'_>) + 'a;

/// Runs a program in plain f32.
pub struct ReferenceExecutor {
    program: Program,
    weights: Weights,
    vectors: Vectors,
    kv: KvPages,
    registers: Registers,
}

impl ReferenceExecutor {
    /// Finds the program's weights in the checkpoint; matrices stay where they are.
    pub fn open(program: Program, checkpoint: &Checkpoint) -> Result<ReferenceExecutor, WeightError> {
        let weights = Weights::bind(&program, checkpoint)?;
        let vectors = Vectors::widen(&program, &weights);
        let kv = KvPages::new(&program);
        let registers = Registers::new(&program);
        Ok(ReferenceExecutor { program, weights, vectors, kv, registers })
    }

    fn run<'s>(
        &mut self,
        batch: &Batch,
        states: &States,
        experts: &'s dyn ExpertSource,
        outputs: &mut Outputs<'_>,
        observe: &mut Observer<'_>,
    ) -> Result<(), StepError> {
        let rows = Rows::new(batch, &self.program);
        self.registers.begin(&rows, &self.program);
        // Requests that `Route` has begun and `Experts` has not yet taken, by expert layer.
        let mut requests: Vec<(usize, Box<dyn ExpertRequest + 's>)> = Vec::new();
        for index in 0..self.program.ops().len() {
            let op = self.program.ops()[index].clone();
            match &op {
                Op::Attention { q, kv, out, attention } => {
                    if let Some((k, v)) = kv {
                        let (k, v) = (self.registers.read(*k), self.registers.read(*v));
                        self.kv.append(attention.cache, batch, states, k, v);
                    }
                    let sinks = attention.sinks.map(|w| self.vectors.get(w));
                    let mut result = self.registers.take(*out);
                    let q = self.registers.read(*q);
                    attention::run(attention, q, sinks, &self.kv, batch, states, &mut result);
                    self.registers.put(*out, result);
                }
                Op::Route { logits, out, routing, layer } => {
                    let scale = routing.expert_scale.map(|w| self.vectors.get(w));
                    let logits_rows = self.registers.read(*logits);
                    let routes = route::run(routing, scale, logits_rows, rows.count(*logits));
                    requests.push((*layer, experts.begin(*layer, &routes.distinct())?));
                    route::capture(&routes, *layer, &self.program, batch, outputs);
                    self.registers.put_routes(*out, routes);
                }
                Op::Experts { x, route, out, experts: op } => {
                    let at = requests.iter().position(|(layer, _)| *layer == op.layer);
                    let routes = self.registers.routes(*route);
                    let mut request = match at {
                        Some(at) => requests.swap_remove(at).1,
                        None => experts.begin(op.layer, &routes.distinct())?,
                    };
                    let biases = experts::Biases::new(op, &self.vectors);
                    let layout = experts.layout(op.layer);
                    let input = self.registers.read(*x);
                    let hidden = self.program.register(*x).width;
                    let sum =
                        experts::run(op.activation, &biases, layout, &mut *request, input, hidden, routes)?;
                    self.registers.put(*out, sum);
                }
                Op::Tap { x, tap } => self.tap(*tap, *x, batch, outputs),
                plain => {
                    ops::run(plain, &self.program, &self.weights, &self.vectors, &mut self.registers, &rows)
                }
            }
            match op.out() {
                Some(out) if self.program.register(out).route => {
                    let routes = self.registers.routes(out);
                    observe(index, Observed::Routes { ids: &routes.ids, weights: &routes.weights });
                }
                Some(out) => observe(index, Observed::Values(self.registers.read(out))),
                None => {}
            }
        }
        let logits = self.registers.read(self.program.logits());
        let vocabulary = self.program.vocabulary();
        for (index, (&row, logits)) in rows.wanted.iter().zip(logits.chunks_exact(vocabulary)).enumerate() {
            outputs.put_logits(index, row, logits)?;
        }
        Ok(())
    }

    /// As [`Executor::step`]; `observe` sees what every op writes.
    pub fn step_observed(
        &mut self,
        batch: &Batch,
        states: &mut States,
        experts: &dyn ExpertSource,
        outputs: &mut Outputs<'_>,
        observe: &mut Observer<'_>,
    ) -> Result<(), StepError> {
        batch.check(&self.program, states)?;
        outputs.check(batch, &self.program)?;
        states.prepare(batch)?;
        self.kv.reserve(states);
        self.kv.copy(&states.take_copies());
        let result = self.run(batch, states, experts, outputs, observe);
        match result {
            Ok(()) => states.commit(batch),
            Err(_) => states.rollback(batch),
        }
        result
    }

    /// Applies edits and then captures, so that a capture shows what the model goes on with.
    fn tap(&mut self, tap: Tap, x: turbospark_program::Reg, batch: &Batch, outputs: &mut Outputs<'_>) {
        let width = self.program.register(x).width;
        let values = self.registers.write(x);
        for (row, values) in batch.rows.iter().zip(values.chunks_exact_mut(width)) {
            let edits = row.edits.and_then(|set| batch.edits.get(set as usize)).into_iter().flatten();
            edits.filter(|edit| edit.tap == tap).for_each(|edit| edit.apply(values));
        }
        let Some(capture) = outputs.taps.iter_mut().find(|capture| capture.tap == tap) else { return };
        let values = self.registers.read(x).chunks_exact(width);
        let captured = batch.rows.iter().zip(values).filter(|(row, _)| row.capture);
        for (out, (_, values)) in capture.rows.chunks_exact_mut(width).zip(captured) {
            out.copy_from_slice(values);
        }
    }
}

impl Executor for ReferenceExecutor {
    fn program(&self) -> &Program {
        &self.program
    }

    fn memory(&self, limits: &Limits) -> MemoryNeed {
        let weights = self.weights.iter().map(|tensor| tensor.bytes()).sum();
        let tokens = limits.context * limits.sequences;
        let kv = self.program.kv_layers().iter().map(|l| (l.key_width + l.value_width) * 4 * tokens).sum();
        let widths: usize = self.program.buffers().iter().map(|buffer| buffer.width).sum();
        MemoryNeed { resident: weights, kv, scratch: widths * 4 * limits.rows }
    }

    fn step(
        &mut self,
        batch: &Batch,
        states: &mut States,
        experts: &dyn ExpertSource,
        outputs: &mut Outputs<'_>,
    ) -> Result<(), StepError> {
        self.step_observed(batch, states, experts, outputs, &mut |_, _| {})
    }
}
