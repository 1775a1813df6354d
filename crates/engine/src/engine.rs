//! A loaded model: its executor, its experts and the sequences it works on.

use std::sync::Arc;

use turbospark_cpu::{CpuExecutor, CpuOptions, PanelPacker, Timings};
use turbospark_experts::trace::Trace;
use turbospark_experts::{
    LoadOptions, PackedExperts, Prefetch, ResidentExperts, StreamOptions, StreamedExperts,
};
use turbospark_formats::{Checkpoint, OpenError};
use turbospark_program::{
    BuildError, EditSet, Executor, ExpertError, ExpertSource, Program, SequenceId, StateError, States,
    StepError, WeightError,
};

use crate::edits::Edits;
use crate::memory::{ExpertPlacement, MemoryError, MemoryOptions, MemoryPlan};
use crate::statistics::RunStatistics;

/// How a model is opened. The defaults suit a first try.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenOptions {
    /// Positions of a sequence; none is what the model was made for, at most 4096 by default.
    pub context: Option<usize>,
    /// Sequences that memory is planned for.
    pub sequences: usize,
    /// Most rows of one batch: a longer prompt is computed in chunks of this many. None is what the memory allows.
    pub prefill_chunk: Option<usize>,
    /// Whether the logits of whole chunks are wanted, as evaluating and scoring do: memory is planned for them.
    pub all_logits: bool,
    /// Bytes that the process takes beside the model; they count to its budget.
    pub beside: usize,
    /// How much memory may be taken, and how routed experts use it.
    pub memory: MemoryOptions,
    /// What runs the program.
    pub executor: ExecutorKind,
    /// Options of the CPU executor.
    pub cpu: CpuOptions,
    /// How a family reads the checkpoint where implementations differ.
    pub family: turbospark_families::FamilyOptions,
}

/// The executors a model can be opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorKind {
    /// Packed weights and integer kernels.
    #[default]
    Cpu,
    /// Plain f32 loops.
    Reference,
}

/// Context used when none is asked for and the model allows more.
pub const DEFAULT_CONTEXT: usize = 4096;

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            context: None,
            sequences: 1,
            prefill_chunk: None,
            all_logits: false,
            beside: 0,
            memory: MemoryOptions::default(),
            executor: ExecutorKind::default(),
            cpu: CpuOptions::default(),
            family: turbospark_families::FamilyOptions::default(),
        }
    }
}

/// A model that could not be opened or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The files.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The config.
    #[error(transparent)]
    Family(#[from] turbospark_families::FamilyError),
    /// The program.
    #[error("the program of this checkpoint cannot be built: {0}")]
    Build(#[from] BuildError),
    /// The tensors.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The CPU executor.
    #[error(transparent)]
    Cpu(#[from] turbospark_cpu::OpenError),
    /// The experts.
    #[error(transparent)]
    Experts(#[from] ExpertError),
    /// The budget of memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Tokenizer or template.
    #[error(transparent)]
    Text(#[from] turbospark_text::TextError),
    /// No tokenizer, and text was wanted.
    #[error("this model can only be run on token ids: {0}")]
    NoText(String),
    /// Sampling.
    #[error(transparent)]
    Sampling(#[from] turbospark_sampling::SamplingError),
    /// A step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The state of a sequence.
    #[error(transparent)]
    State(#[from] StateError),
    /// Measuring what the machine gives.
    #[error("measuring what the machine gives: {0}")]
    Ceilings(std::io::Error),
    /// Models that do not predict the same tokens.
    #[error("a vocabulary of {found} tokens cannot be compared with one of {expected}")]
    Vocabularies {
        /// Of the model.
        found: usize,
        /// Of the judge.
        expected: usize,
    },
    /// A packed store in a layout of another version.
    #[error(
        "{}: its experts are packed as {found}, this program reads {wanted}; pack the original model again",
        path.display()
    )]
    Layout {
        /// The store.
        path: std::path::PathBuf,
        /// What the executor reads.
        wanted: &'static str,
        /// What the store has.
        found: String,
    },
    /// Writing a packed store.
    #[error(transparent)]
    Pack(#[from] turbospark_formats::packed::PackError),
    /// Steering.
    #[error(transparent)]
    Steering(#[from] crate::steering::SteeringError),
    /// Routes of a model that has none, or none that a trace can hold.
    #[error("{0}")]
    Trace(String),
    /// A session that was closed.
    #[error("there is no such session; it was closed")]
    NoSession,
    /// Nothing to continue from.
    #[error("the prompt has no tokens; give a text, or a model whose tokenizer adds a start token")]
    EmptyPrompt,
    /// More than the context holds.
    #[error(
        "the prompt has {tokens} tokens, the context is {context} and an answer needs at least one more; \
         shorten the prompt or raise --context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A context that the model was not made for.
    #[error("--context {asked} is more than the {possible} positions the model was made for")]
    Context {
        /// Asked for.
        asked: usize,
        /// Largest possible.
        possible: usize,
    },
}

/// A past that generation can go on from; closed with [`Engine::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(usize);

/// What a session's sequence holds.
#[derive(Debug)]
pub(crate) struct Session {
    pub sequence: SequenceId,
    /// Tokens whose keys and values are in the sequence.
    pub tokens: Vec<u32>,
    /// The edits they were computed under.
    pub edits: Edits,
    /// How many of them, at most, were computed as a prompt.
    pub prompt: usize,
}

/// A model ready to run.
pub struct Engine {
    pub(crate) executor: Box<dyn EngineExecutor>,
    pub(crate) experts: Experts,
    pub(crate) states: States,
    options: OpenOptions,
    sessions: Vec<Option<Session>>,
    /// Edits of rows that are evaluated or scored.
    pub(crate) edits: EditSet,
    pub(crate) trace: Option<Trace>,
    pub(crate) statistics: RunStatistics,
    plan: MemoryPlan,
}

/// Where experts come from.
pub(crate) enum Experts {
    Streamed(Box<StreamedExperts>),
    Other(Box<dyn ExpertSource>),
}

impl Experts {
    pub fn source(&self) -> &dyn ExpertSource {
        match self {
            Experts::Streamed(streamed) => &**streamed,
            Experts::Other(source) => &**source,
        }
    }
}

/// An executor, and where its time goes if it knows.
pub(crate) trait EngineExecutor: Executor {
    /// Where the time of the steps since the last call went.
    fn take_timings(&mut self) -> Option<Timings> {
        None
    }
}

impl EngineExecutor for turbospark_reference::ReferenceExecutor {}

impl EngineExecutor for CpuExecutor {
    fn take_timings(&mut self) -> Option<Timings> {
        Some(CpuExecutor::take_timings(self))
    }
}

/// An executor, and experts in the layout that it reads.
type Loaded = (Box<dyn EngineExecutor>, Experts);

fn load(
    checkpoint: &Checkpoint,
    program: Program,
    options: &OpenOptions,
    plan: &MemoryPlan,
) -> Result<Loaded, EngineError> {
    if options.executor == ExecutorKind::Reference {
        let experts = ResidentExperts::open(&program, checkpoint)?;
        let executor = turbospark_reference::ReferenceExecutor::open(program, checkpoint)?;
        return Ok((Box::new(executor), Experts::Other(Box::new(experts))));
    }
    let packer = PanelPacker::new(options.cpu.isa);
    let verify = options.memory.verify_reads;
    if let Some(store) = checkpoint.packed().filter(|_| verify) {
        store.check_resident().map_err(OpenError::from)?;
    }
    let ExpertPlacement::Streamed { sizes, workers } = &plan.placement else {
        let experts: Box<dyn ExpertSource> = if plan.placement == ExpertPlacement::Mapped {
            Box::new(ResidentExperts::open(&program, checkpoint)?)
        } else {
            let load = LoadOptions { verify, ..LoadOptions::default() };
            Box::new(PackedExperts::open(&program, checkpoint, &packer, load, &|_| {})?)
        };
        // A budget that was given counts the page cache; without one, the next start is faster with it.
        let cpu = CpuOptions { evict: options.memory.budget.is_some(), ..options.cpu };
        let executor = CpuExecutor::open(program, checkpoint, cpu)?;
        return Ok((Box::new(executor), Experts::Other(experts)));
    };
    let MemoryOptions { policy, reader, prefetch, .. } = options.memory;
    let stream = StreamOptions {
        budget: sizes.bytes(*workers),
        policy: policy.unwrap_or_default(),
        reader: reader.unwrap_or_default(),
        workers: *workers,
        prefetch: prefetch.unwrap_or_default(),
        verify,
    };
    let experts = StreamedExperts::open(&program, checkpoint, Some(Arc::new(packer)), &stream)?;
    // Where every expert has a slot there is nothing to foretell, and memory is short only if a budget was given: the
    // pages of resident weights would then count for the process until the system wants them back.
    let short = plan.slots() < Some(plan.expert_count);
    let predict = short && stream.prefetch != Prefetch::Off;
    let evict = short || options.memory.budget.is_some();
    let cpu = CpuOptions { evict, predict, ..options.cpu };
    let executor = CpuExecutor::open(program, checkpoint, cpu)?;
    Ok((Box::new(executor), Experts::Streamed(Box::new(experts))))
}

impl OpenOptions {
    /// Positions that sequences of `program` have.
    pub(crate) fn context_of(&self, program: &Program) -> Result<usize, EngineError> {
        let possible = program.max_positions();
        let context = self.context.unwrap_or(possible.min(DEFAULT_CONTEXT));
        if context > possible {
            return Err(EngineError::Context { asked: context, possible });
        }
        Ok(context)
    }
}

impl Engine {
    /// Builds the program of `checkpoint` and gets it ready to run.
    pub fn new(checkpoint: &Checkpoint, options: OpenOptions) -> Result<Engine, EngineError> {
        let program = turbospark_families::build(checkpoint, &options.family)?.program;
        Engine::with_program(checkpoint, program, options)
    }

    /// Runs a program of the caller's own on the tensors of `checkpoint`.
    pub fn with_program(
        checkpoint: &Checkpoint,
        program: Program,
        options: OpenOptions,
    ) -> Result<Engine, EngineError> {
        let context = options.context_of(&program)?;
        let plan = MemoryPlan::new(&program, checkpoint, &options, context)?;
        let states = States::new(&program, None);
        let (executor, experts) = load(checkpoint, program, &options, &plan)?;
        Ok(Engine {
            executor,
            experts,
            states,
            options,
            sessions: Vec::new(),
            statistics: RunStatistics::default(),
            plan,
            edits: Vec::new(),
            trace: None,
        })
    }

    /// The program being run.
    pub fn program(&self) -> &Program {
        self.executor.program()
    }

    /// The options it was opened with.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Positions a sequence can have.
    pub fn context(&self) -> usize {
        self.plan.context
    }

    /// Where the memory goes.
    pub fn memory(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The source of experts that are streamed; none if they are not.
    pub fn streamed(&self) -> Option<&StreamedExperts> {
        match &self.experts {
            Experts::Streamed(streamed) => Some(streamed),
            Experts::Other(_) => None,
        }
    }

    /// An empty session.
    pub fn open_session(&mut self) -> SessionId {
        let sequence = self.states.create();
        let session = Session { sequence, tokens: Vec::new(), edits: Edits::default(), prompt: 0 };
        self.insert(session)
    }

    /// Another session with the same past, sharing its memory until either goes on.
    pub fn fork_session(&mut self, id: SessionId) -> Result<SessionId, EngineError> {
        let Session { sequence, tokens, edits, prompt } = self.session(id)?;
        let (sequence, tokens, edits, prompt) = (*sequence, tokens.clone(), edits.clone(), *prompt);
        let sequence = self.states.fork(sequence)?;
        Ok(self.insert(Session { sequence, tokens, edits, prompt }))
    }

    /// Forgets a session.
    pub fn close(&mut self, id: SessionId) -> Result<(), EngineError> {
        let session = self.sessions.get_mut(id.0).and_then(Option::take).ok_or(EngineError::NoSession)?;
        Ok(self.states.remove(session.sequence)?)
    }

    /// Sets the edits of every row that is evaluated, scored or captured from now on.
    pub fn set_edits(&mut self, edits: EditSet) {
        self.edits = edits;
    }

    fn insert(&mut self, session: Session) -> SessionId {
        let index = self.sessions.iter().position(Option::is_none).unwrap_or(self.sessions.len());
        if index == self.sessions.len() {
            self.sessions.push(None);
        }
        self.sessions[index] = Some(session);
        SessionId(index)
    }

    pub(crate) fn session(&self, id: SessionId) -> Result<&Session, EngineError> {
        self.sessions.get(id.0).and_then(Option::as_ref).ok_or(EngineError::NoSession)
    }

    pub(crate) fn session_mut(&mut self, id: SessionId) -> Result<&mut Session, EngineError> {
        self.sessions.get_mut(id.0).and_then(Option::as_mut).ok_or(EngineError::NoSession)
    }

    /// Cuts a session to the longest part of its past that `prompt` begins with. At least one token of the
    /// prompt is left to compute, since its logits are wanted.
    pub(crate) fn reuse_prefix(
        &mut self,
        id: SessionId,
        prompt: &[u32],
        edits: &Edits,
    ) -> Result<usize, EngineError> {
        let session = self.session(id)?;
        let sequence = session.sequence;
        let common = session.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let common = edits.kept(&session.edits, session.prompt, common).min(prompt.len().saturating_sub(1));
        let (sequence, kept) = match self.states.truncate(sequence, common as u32) {
            Ok(()) => (sequence, common),
            // A sliding window has moved past that point: start anew.
            Err(StateError::WindowPassed { .. }) => {
                self.states.remove(sequence)?;
                (self.states.create(), 0)
            }
            Err(error) => return Err(error.into()),
        };
        let session = self.session_mut(id)?;
        session.sequence = sequence;
        session.tokens.truncate(kept);
        session.edits = edits.clone();
        session.prompt = prompt.len();
        Ok(kept)
    }
}
