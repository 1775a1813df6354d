//! What a model will take and about how fast it will be, before it is opened.
//!
//! ```no_run
//! use turbospark_engine::OpenOptions;
//! use turbospark_engine::planning::Planning;
//! use turbospark_formats::Checkpoint;
//!
//! let checkpoint = Checkpoint::open("model.gguf".as_ref())?;
//! let planning = Planning::new(&checkpoint, OpenOptions::default())?;
//! let plan = planning.plan()?;
//! let estimate = planning.estimate(&plan, &planning.measure(&plan)?);
//! println!("{plan}: {:.1} tokens/s", estimate.tokens_per_second);
//! # Ok::<(), turbospark_engine::EngineError>(())
//! ```

mod budgets;
mod estimate;
mod hits;

use std::time::Duration;

use serde::Serialize;
use turbospark_cpu::{Ceilings, PanelPacker};
use turbospark_experts::reader::{DiskRate, disk_rate, packed_rate};
use turbospark_experts::trace::Trace;
use turbospark_experts::{ExpertTable, StreamOptions};
use turbospark_formats::Checkpoint;
use turbospark_program::Program;

use crate::bench::Work;
use crate::engine::{EngineError, ExecutorKind, OpenOptions};
use crate::memory::MemoryPlan;

pub use estimate::Estimate;
pub use hits::HitSource;

/// What a disk is measured for; a slow one takes longer.
const DISK_TIME: Duration = Duration::from_millis(400);
/// Memory is measured in this much at most, and in less where the budget is small.
const MEASURED: u64 = 256 << 20;

/// What one generated token reads, its keys and values apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenCost {
    /// Bytes of weights that every token needs, in the layout that the executor reads.
    pub shared_bytes: u64,
    /// Experts of all layers: layers x experts a token.
    pub experts: usize,
    /// Bytes of them, in the layout that the executor reads.
    pub expert_bytes: u64,
    /// Bytes of them, as the file has them: what misses read.
    pub expert_file_bytes: u64,
}

/// What the machine gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes a second that all threads together read from memory.
    pub memory: f64,
    /// Of experts from their file; none for a model without any.
    pub disk: Option<DiskRate>,
    /// The same, brought into the layout that the executor reads by the threads that read them.
    pub packed: Option<DiskRate>,
}

/// A model that is planned for.
pub struct Planning<'a> {
    program: Program,
    checkpoint: &'a Checkpoint,
    options: OpenOptions,
    context: usize,
    table: ExpertTable,
    token: TokenCost,
    trace: Option<Trace>,
}

impl<'a> Planning<'a> {
    /// Looks at the sizes of a checkpoint's tensors; nothing of them is read.
    pub fn new(checkpoint: &'a Checkpoint, options: OpenOptions) -> Result<Planning<'a>, EngineError> {
        let program = turbospark_families::build(checkpoint, &options.family)?.program;
        let context = options.context_of(&program)?;
        let table = ExpertTable::find(&program, checkpoint)?;
        let work = Work::of(&program, checkpoint, ExecutorKind::Cpu)?;
        let layers = program.expert_layers().iter().zip(table.layers());
        let token = TokenCost {
            shared_bytes: work.token().bytes - work.experts.bytes,
            experts: program.expert_layers().iter().map(|layer| layer.k).sum(),
            expert_bytes: work.experts.bytes,
            expert_file_bytes: layers.map(|(layer, of)| (layer.k * of.layout().bytes()) as u64).sum(),
        };
        Ok(Planning { program, checkpoint, options, context, table, token, trace: None })
    }

    /// Takes a trace of the model's routing to tell how often experts will be found in a slot.
    ///
    /// # Errors
    /// A trace of another model.
    pub fn set_trace(&mut self, trace: Trace) -> Result<(), EngineError> {
        let layers = self.program.expert_layers();
        let same = layers.iter().map(|layer| layer.layer as u32).eq(trace.layers().iter().copied())
            && layers.iter().map(|layer| layer.experts).eq(trace.shape().experts)
            && layers.iter().all(|layer| layer.k == trace.k());
        if !same || trace.is_empty() {
            let of = |layers: usize, experts: usize, k: usize| {
                format!("{layers} layers of {experts} experts, {k} a token")
            };
            let first = layers.first().map_or((0, 0), |layer| (layer.experts, layer.k));
            let experts = trace.shape().experts.first().copied().unwrap_or(0);
            let found = of(trace.layers().len(), experts, trace.k());
            let reason = format!(
                "the trace has {} tokens of a model with {found}; this one has {}: record one of it with \
                 turbospark experts trace",
                trace.len(),
                of(layers.len(), first.0, first.1)
            );
            return Err(EngineError::Trace(reason));
        }
        self.trace = Some(trace);
        Ok(())
    }

    /// Where the memory goes, as [`Engine::new`](crate::Engine::new) would have it.
    pub fn plan(&self) -> Result<MemoryPlan, EngineError> {
        MemoryPlan::new(&self.program, self.checkpoint, &self.options, self.context)
    }

    /// What a token reads.
    pub fn token(&self) -> TokenCost {
        self.token
    }

    /// The program that will run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Measures memory and, where there are experts, reading them from their file: about a second in all.
    pub fn measure(&self, plan: &MemoryPlan) -> Result<Rates, EngineError> {
        let memory = plan.budget.map_or(MEASURED, |budget| budget / 4).min(MEASURED) as usize;
        let ceilings = Ceilings::within(&self.options.cpu, memory);
        let memory = ceilings.map_err(EngineError::Ceilings)?.read();
        if self.table.layers().is_empty() {
            return Ok(Rates { memory, disk: None, packed: None });
        }
        let reader = self.options.memory.reader.unwrap_or_default();
        let workers = StreamOptions::workers(self.table.packing().is_none());
        let disk = disk_rate(&self.table, reader, workers, DISK_TIME)?;
        let packer = PanelPacker::new(self.options.cpu.isa);
        let packed = match self.table.packing() {
            Some(_) => disk,
            None => packed_rate(&self.table, disk.reader, workers, &packer, DISK_TIME)?,
        };
        Ok(Rates { memory, disk: Some(disk), packed: Some(packed) })
    }
}
