//! The plan: what each part takes, and how large the pool and the chunks of a prompt are.

use std::fmt;

use turbospark_cpu::{CpuExecutor, PanelPacker};
use turbospark_experts::memory_limit::{MemoryLimit, MemorySize, MemorySizeError, format_bytes};
use turbospark_experts::{ExpertTable, PoolSizes, StreamOptions};
use turbospark_formats::Checkpoint;
use turbospark_program::{ExpertError, ExpertPacker, Limits, MemoryNeed, Program};

use super::error::MemoryError;
use super::options::{RefusedOption, Residency};
use crate::engine::{EngineError, ExecutorKind, OpenOptions};

/// Rows of a chunk where nothing is gained by more.
const CHUNK: usize = 512;
/// A budget that is short still allows chunks of so many rows.
const SMALLEST_CHUNK: usize = 16;
/// Beyond this a chunk's working memory buys no speed.
const LARGEST_CHUNK: usize = 2048;
/// Of what is left for streaming, chunks take at most one part of so many; slots have the rest.
const CHUNK_PART: usize = 8;
/// The program itself, its threads, and buffers that reading and packing take for a moment.
const PROCESS: usize = 64 << 20;
/// A tokenizer's tables, for each token of the vocabulary: 580 bytes were measured with 151,936 tokens.
const TOKENIZER: usize = 600;
const MIB: usize = 1 << 20;

/// Where routed experts will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpertPlacement {
    /// The model has none.
    None,
    /// In the mapped file.
    Mapped,
    /// In memory.
    Resident,
    /// In their file and a pool of slots.
    Streamed {
        /// Slots of the pool.
        sizes: PoolSizes,
        /// Reading threads.
        workers: usize,
    },
}

/// What each part of a model takes.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// What the process may take; none if it is not bounded.
    pub budget: Option<u64>,
    /// Positions of a sequence.
    pub context: usize,
    /// Sequences at once.
    pub sequences: usize,
    /// Most rows of a batch.
    pub chunk: usize,
    /// What the executor takes.
    pub need: MemoryNeed,
    /// Logits that are handed out.
    pub logits: usize,
    /// Program, tokenizer and buffers.
    pub process: usize,
    /// Where experts are.
    pub placement: ExpertPlacement,
    /// Bytes of memory that experts take: all of them, or the pool.
    pub experts: usize,
    /// Number of experts, of all layers.
    pub expert_count: usize,
    /// Bytes that all experts take, in the layout that the executor reads.
    pub all_experts: usize,
}

impl MemoryPlan {
    /// Plans for `options`; of the checkpoint only sizes are looked at.
    pub fn new(
        program: &Program,
        checkpoint: &Checkpoint,
        options: &OpenOptions,
        context: usize,
    ) -> Result<MemoryPlan, EngineError> {
        let memory = &options.memory;
        memory.check(program, options.executor, checkpoint).map_err(MemoryError::from)?;
        let sequences = options.sequences.max(1);
        let mut plan = MemoryPlan {
            budget: None,
            context,
            sequences,
            chunk: options.prefill_chunk.unwrap_or(CHUNK).max(1),
            need: MemoryNeed::default(),
            logits: 0,
            process: PROCESS + TOKENIZER * program.vocabulary() + options.beside,
            placement: ExpertPlacement::None,
            experts: 0,
            expert_count: program.expert_layers().iter().map(|layer| layer.experts).sum(),
            all_experts: 0,
        };
        if options.executor == ExecutorKind::Reference {
            plan.placement = ExpertPlacement::Mapped;
            return Ok(plan);
        }
        let planner = Planner::new(program, checkpoint, options, context)?;
        plan.all_experts = planner.all_experts();
        planner.place(&mut plan)?;
        Ok(plan)
    }

    /// Bytes of everything but experts.
    pub fn fixed(&self) -> usize {
        self.need.resident + self.need.kv + self.need.scratch + self.logits + self.process
    }

    /// Bytes of everything.
    pub fn total(&self) -> usize {
        self.fixed() + self.experts
    }

    /// The pool's slots; none if nothing is streamed.
    pub fn slots(&self) -> Option<usize> {
        match &self.placement {
            ExpertPlacement::Streamed { sizes, .. } => Some(slots(sizes)),
            _ => None,
        }
    }
}

fn slots(sizes: &PoolSizes) -> usize {
    sizes.classes.iter().map(|class| class.slots).sum()
}

impl fmt::Display for MemoryPlan {
    /// The sum, part by part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |n: usize| format_bytes(n as u64);
        let MemoryNeed { resident, kv, scratch } = self.need;
        write!(f, "{} weights that every token needs", bytes(resident))?;
        write!(f, " + {} keys and values ({} positions", bytes(kv), self.context)?;
        if self.sequences > 1 {
            write!(f, " x {} sequences", self.sequences)?;
        }
        write!(f, ") + {} working memory (chunks of {})", bytes(scratch + self.logits), self.chunk)?;
        write!(f, " + {} program and tokenizer", bytes(self.process))?;
        match &self.placement {
            ExpertPlacement::None => {}
            ExpertPlacement::Mapped if self.experts == 0 => {}
            ExpertPlacement::Mapped => write!(f, " + {} experts, mapped", bytes(self.experts))?,
            ExpertPlacement::Resident => write!(f, " + {} experts", bytes(self.experts))?,
            ExpertPlacement::Streamed { sizes, .. } => {
                let (slots, all) = (slots(sizes), self.expert_count);
                write!(f, " + {} in {slots} slots for {all} experts", bytes(self.experts))?;
            }
        }
        write!(f, " = {}", bytes(self.total()))
    }
}

/// Everything that a plan is made from.
struct Planner<'a> {
    program: &'a Program,
    checkpoint: &'a Checkpoint,
    options: &'a OpenOptions,
    context: usize,
    table: ExpertTable,
    packer: PanelPacker,
    budget: Option<u64>,
    workers: usize,
}

impl<'a> Planner<'a> {
    fn new(
        program: &'a Program,
        checkpoint: &'a Checkpoint,
        options: &'a OpenOptions,
        context: usize,
    ) -> Result<Planner<'a>, EngineError> {
        let limit = MemoryLimit::read();
        let budget = match (options.memory.budget, &limit) {
            (None | Some(MemorySize::Auto), Some(limit)) => Some(limit.auto()),
            (None, None) => None,
            (Some(size), limit) => Some(size.bytes(limit.as_ref()).map_err(MemoryError::from)?),
        };
        let table = ExpertTable::find(program, checkpoint)?;
        let packer = PanelPacker::new(options.cpu.isa);
        table.needs(&packer).map_err(|error| unreadable(checkpoint, error))?;
        Ok(Planner {
            program,
            checkpoint,
            options,
            context,
            workers: StreamOptions::workers(table.packing().is_none()),
            table,
            packer,
            budget,
        })
    }

    fn all_experts(&self) -> usize {
        self.table.bytes_in_memory(&self.packer)
    }

    fn place(&self, plan: &mut MemoryPlan) -> Result<(), EngineError> {
        plan.budget = self.budget;
        let memory = &self.options.memory;
        if memory.residency == Residency::Mapped {
            return if self.try_resident(plan)? { Ok(()) } else { Err(self.too_small(plan).into()) };
        }
        if memory.residency != Residency::Stream && memory.slots.is_none() && self.try_resident(plan)? {
            return match memory.check_resident() {
                Err(refused) if plan.expert_count > 0 => Err(MemoryError::from(refused).into()),
                _ => Ok(()),
            };
        }
        let budget = self.budget.ok_or(MemoryError::Size(MemorySizeError::Unknown))? as usize;
        if plan.expert_count == 0 || memory.residency == Residency::Resident {
            return Err(self.too_small(plan).into());
        }
        self.stream(plan, budget)
    }

    /// Fills in what chunks of `rows` rows take.
    fn set_chunk(&self, plan: &mut MemoryPlan, rows: usize) -> Result<(), EngineError> {
        let wanted = if self.options.all_logits { rows } else { plan.sequences };
        let limits = Limits { rows, context: self.context, sequences: plan.sequences, wanted };
        plan.chunk = rows;
        plan.need = CpuExecutor::memory_need(self.program, self.checkpoint, &self.options.cpu, &limits)?;
        plan.logits = wanted * self.program.vocabulary() * size_of::<f32>();
        Ok(())
    }

    /// The smallest chunk that may be used.
    fn smallest_chunk(&self) -> usize {
        self.options.prefill_chunk.unwrap_or(SMALLEST_CHUNK).max(1)
    }

    /// Plans for experts in memory or mapped; false, with the smallest plan that keeps them there, if that is too much.
    fn try_resident(&self, plan: &mut MemoryPlan) -> Result<bool, EngineError> {
        if self.options.memory.residency == Residency::Mapped {
            // The page cache has them, which a budget counts.
            plan.placement = ExpertPlacement::Mapped;
            plan.experts = self.all_experts();
        } else if plan.expert_count > 0 {
            plan.placement = ExpertPlacement::Resident;
            // Rounded to a huge page; and while they are read, each thread has one as the file has it.
            let raw = self.table.layers().iter().map(|layer| layer.layout().bytes()).max();
            let raw = raw.filter(|_| self.table.packing().is_none()).unwrap_or(0);
            plan.experts = self.all_experts() + raw * self.options.cpu.threads + 2 * MIB;
        }
        let mut rows = self.options.prefill_chunk.unwrap_or(CHUNK).max(1);
        loop {
            self.set_chunk(plan, rows)?;
            if self.budget.is_none_or(|budget| plan.total() as u64 <= budget) {
                return Ok(true);
            }
            if rows <= self.smallest_chunk() {
                return Ok(false);
            }
            rows = (rows / 2).max(self.smallest_chunk());
        }
    }

    fn stream(&self, plan: &mut MemoryPlan, budget: usize) -> Result<(), EngineError> {
        let (workers, packer) = (self.workers, Some(&self.packer as &dyn ExpertPacker));
        let least = PoolSizes::least(&self.table, packer);
        plan.experts = least.bytes(workers);
        plan.placement = ExpertPlacement::Streamed { sizes: least, workers };
        let mut rows = self.smallest_chunk();
        self.set_chunk(plan, rows)?;
        let smallest = plan.total();
        let Some(left) = budget.checked_sub(smallest) else { return Err(self.too_small(plan).into()) };
        let largest = LARGEST_CHUNK.min(self.context.next_power_of_two());
        while self.options.prefill_chunk.is_none() && rows < largest {
            self.set_chunk(plan, rows * 2)?;
            if plan.total() - smallest > left / CHUNK_PART {
                break;
            }
            rows *= 2;
        }
        self.set_chunk(plan, rows)?;
        let pool = budget - plan.fixed();
        let sizes = match self.options.memory.slots {
            None => PoolSizes::fit(&self.table, packer, pool, workers)?,
            Some(wanted) => self.with_slots(plan, wanted)?,
        };
        plan.experts = sizes.bytes(workers);
        plan.placement = ExpertPlacement::Streamed { sizes, workers };
        if plan.experts > pool {
            return Err(self.too_small(plan).into());
        }
        Ok(())
    }

    /// A pool of so many slots, of all sizes together.
    fn with_slots(&self, plan: &MemoryPlan, wanted: usize) -> Result<PoolSizes, EngineError> {
        let packer = Some(&self.packer as &dyn ExpertPacker);
        let smallest = PoolSizes::least(&self.table, packer);
        let (least, most) = (slots(&smallest), plan.expert_count);
        if wanted < least || wanted > most {
            return Err(MemoryError::from(RefusedOption::Slots { slots: wanted, least, most }).into());
        }
        // The largest budget that gives no more.
        let (mut low, mut high) = (smallest.bytes(self.workers), usize::MAX / 2);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let sizes = PoolSizes::fit(&self.table, packer, middle, self.workers)?;
            if slots(&sizes) <= wanted { low = middle } else { high = middle }
        }
        Ok(PoolSizes::fit(&self.table, packer, low, self.workers)?)
    }

    fn too_small(&self, plan: &MemoryPlan) -> MemoryError {
        MemoryError::TooSmall {
            budget: self.budget.unwrap_or(0),
            automatic: matches!(self.options.memory.budget, None | Some(MemorySize::Auto)),
            arithmetic: plan.to_string(),
            least: plan.total().next_multiple_of(MIB) as u64,
        }
    }
}

/// An error that names the store whose layout of experts is not read.
fn unreadable(checkpoint: &Checkpoint, error: ExpertError) -> EngineError {
    match error {
        ExpertError::Packing { wanted, found } => {
            EngineError::Layout { path: checkpoint.path.clone(), wanted, found }
        }
        other => other.into(),
    }
}
