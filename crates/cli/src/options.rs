//! Options that several commands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use turbospark_engine::memory_limit::{MemorySize, format_bytes};
use turbospark_engine::policy::PolicyKind;
use turbospark_engine::reader::ReaderKind;
use turbospark_engine::{
    CpuOptions, Engine, ExecutorKind, Isa, KvFormat, MemoryOptions, Model, OpenOptions, Prefetch, Residency,
};
use turbospark_families::{EmbeddingScale, FamilyOptions, YarnRounding};

use crate::error::CliError;

/// How a model is opened and run.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Positions that prompt and answer may take together [default: what the model allows, at most 4096]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Prompt positions computed at a time; the result does not depend on it [default: 128; more where experts are
    /// streamed and the memory allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_chunk: Option<u32>,
    /// Memory that the process may take: a size such as 8GiB, a share such as 50%, or auto
    #[arg(long, value_name = "SIZE|PERCENT|auto", help_heading = "Memory")]
    pub memory: Option<MemorySize>,
    /// Where routed experts are kept: auto, stream (from disk through slots), mapped or resident
    #[arg(long, value_name = "WHERE", default_value_t, help_heading = "Memory")]
    pub expert_residency: Residency,
    /// Which streamed expert leaves its slot: lru, per-layer-lru, lfu-ageing, least-stale or forecast
    #[arg(long, value_name = "NAME", help_heading = "Memory")]
    pub policy: Option<PolicyKind>,
    /// How streamed experts are read: auto, uring, direct or buffered
    #[arg(long, value_name = "NAME", help_heading = "Memory")]
    pub reader: Option<ReaderKind>,
    /// Stream experts through so many slots [default: what the memory allows]
    #[arg(long, value_name = "N", help_heading = "Memory")]
    pub slots: Option<usize>,
    /// When streamed experts that the next layer will probably want are read ahead: auto (while the disk is idle
    /// enough), on or off
    #[arg(long, value_name = "WHEN", help_heading = "Memory")]
    pub prefetch: Option<Prefetch>,
    /// Compare each expert of a packed store with its digest as it is read
    #[arg(long, help_heading = "Memory")]
    pub verify_reads: bool,
    /// What runs the model
    #[arg(long, value_enum, default_value_t = Executor::Cpu)]
    pub executor: Executor,
    /// Threads of the CPU executor [default: the physical cores that the process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Instruction set of the CPU executor [default: the best of this machine]
    #[arg(long, value_enum)]
    pub isa: Option<InstructionSet>,
    /// How the CPU executor keeps keys and values
    #[arg(long, value_enum)]
    pub kv: Option<Kv>,
    /// Ends of YaRN's ramp: as the checkpoint says, or rounded as llama.cpp has them
    #[arg(long, value_enum, default_value_t = Yarn::Checkpoint)]
    pub yarn: Yarn,
    /// Gemma's embedding scale: in f32, or rounded as references that run in bf16 have it
    #[arg(long, value_enum, default_value_t = Scale::Float32)]
    pub embedding_scale: Scale,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Executor {
    /// Packed weights and integer kernels
    Cpu,
    /// Plain f32 loops: slow, exact
    Reference,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Scale {
    Float32,
    Bf16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum InstructionSet {
    Scalar,
    Neon,
    Avx2,
    Avx512,
}

impl InstructionSet {
    fn name(self) -> &'static str {
        match self {
            InstructionSet::Scalar => "scalar",
            InstructionSet::Neon => "neon",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kv {
    F16,
    F32,
    /// 8-bit integers with a scale for every 32
    Q8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Yarn {
    Checkpoint,
    Rounded,
}

impl RunArgs {
    /// The options, or which of them does not apply.
    pub fn open_options(&self) -> Result<OpenOptions, CliError> {
        Ok(OpenOptions {
            context: self.context,
            prefill_chunk: self.prefill_chunk.map(|rows| rows as usize),
            memory: MemoryOptions {
                budget: self.memory,
                residency: self.expert_residency,
                policy: self.policy,
                reader: self.reader,
                slots: self.slots,
                prefetch: self.prefetch,
                verify_reads: self.verify_reads,
            },
            executor: match self.executor {
                Executor::Cpu => ExecutorKind::Cpu,
                Executor::Reference => ExecutorKind::Reference,
            },
            cpu: self.cpu_options()?,
            family: FamilyOptions {
                yarn: match self.yarn {
                    Yarn::Checkpoint => YarnRounding::Checkpoint,
                    Yarn::Rounded => YarnRounding::Rounded,
                },
                embedding_scale: match self.embedding_scale {
                    Scale::Float32 => EmbeddingScale::Float32,
                    Scale::Bf16 => EmbeddingScale::Bf16Rounded,
                },
            },
            ..OpenOptions::default()
        })
    }

    fn cpu_options(&self) -> Result<CpuOptions, CliError> {
        let given = [
            ("--threads", self.threads.is_some()),
            ("--isa", self.isa.is_some()),
            ("--kv", self.kv.is_some()),
        ];
        if let (Executor::Reference, Some((name, _))) =
            (self.executor, given.iter().find(|(_, given)| *given))
        {
            let reason = format!("{name} is an option of the CPU executor and does nothing on the reference");
            return Err(CliError::Usage(reason + "; leave it out, or use --executor cpu"));
        }
        let mut options = CpuOptions::default();
        if let Some(threads) = self.threads {
            options.threads = threads.into();
        }
        if let Some(isa) = self.isa {
            options.isa = Isa::named(isa.name()).ok_or_else(|| {
                let have: Vec<String> = Isa::all().map(|isa| isa.to_string()).collect();
                CliError::Usage(format!("this machine has no {}; it has {}", isa.name(), have.join(", ")))
            })?;
        }
        if let Some(kv) = self.kv {
            options.kv = match kv {
                Kv::F16 => KvFormat::F16,
                Kv::F32 => KvFormat::F32,
                Kv::Q8 => KvFormat::Q8,
            };
        }
        Ok(options)
    }

    /// Opens the model at `path`, or the demo model, to generate.
    pub fn open(&self, path: Option<&PathBuf>) -> Result<Model, CliError> {
        self.open_for(path, self.open_options()?)
    }

    /// Opens it to evaluate given tokens.
    pub fn open_to_evaluate(&self, path: Option<&PathBuf>) -> Result<Model, CliError> {
        self.open_for(path, OpenOptions { all_logits: true, ..self.open_options()? })
    }

    /// Opens it with options that a command has changed.
    pub fn open_for(&self, path: Option<&PathBuf>, options: OpenOptions) -> Result<Model, CliError> {
        let model = match path {
            Some(path) => Model::open(path, options)?,
            None => Model::demo(options)?,
        };
        print_memory_line(&model.engine);
        Ok(model)
    }
}

/// Says on standard error how memory is used where experts are streamed.
pub fn print_memory_line(engine: &Engine) {
    let plan = engine.memory();
    let (Some(streamed), Some(slots)) = (engine.streamed(), plan.slots()) else { return };
    let budget = plan.budget.map(format_bytes).unwrap_or_default();
    let (all, experts) = (format_bytes(plan.all_experts as u64), plan.expert_count);
    eprintln!(
        "memory: {all} of experts are streamed, {slots} of {experts} kept at a time; of {budget}: {plan}; reader {}",
        streamed.reader()
    );
}
