//! Choices of where memory goes, and which of them can be had.

use std::fmt;
use std::str::FromStr;

use turbospark_experts::Prefetch;
use turbospark_experts::memory_limit::MemorySize;
use turbospark_experts::policy::PolicyKind;
use turbospark_experts::reader::ReaderKind;
use turbospark_formats::Checkpoint;
use turbospark_program::Program;

use crate::engine::ExecutorKind;

/// Where routed experts are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residency {
    /// In memory if the budget has room for all of them, else streamed.
    #[default]
    Auto,
    /// In their file, passing through a pool of slots.
    Stream,
    /// In the mapped file: for the reference executor, and for packed stores.
    Mapped,
    /// All in memory.
    Resident,
}

impl Residency {
    const ALL: [Residency; 4] = [Residency::Auto, Residency::Stream, Residency::Mapped, Residency::Resident];

    /// The name as an option spells it.
    pub fn name(self) -> &'static str {
        match self {
            Residency::Auto => "auto",
            Residency::Stream => "stream",
            Residency::Mapped => "mapped",
            Residency::Resident => "resident",
        }
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is not a residency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expert residency cannot be {0}: it is auto, stream, mapped or resident")]
pub struct UnknownResidency(String);

impl FromStr for Residency {
    type Err = UnknownResidency;

    fn from_str(name: &str) -> Result<Residency, UnknownResidency> {
        let found = Residency::ALL.into_iter().find(|residency| residency.name() == name);
        found.ok_or_else(|| UnknownResidency(name.to_owned()))
    }
}

/// How much memory a model may take, and how routed experts use it. What is left open is chosen; what is given is
/// done or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryOptions {
    /// The budget of the whole process; none is `auto`, or all there is where the system does not say.
    pub budget: Option<MemorySize>,
    /// Where routed experts are kept.
    pub residency: Residency,
    /// Which expert leaves its slot.
    pub policy: Option<PolicyKind>,
    /// How streamed experts are read.
    pub reader: Option<ReaderKind>,
    /// Slots of the pool; none is as many as the budget has room for.
    pub slots: Option<usize>,
    /// When experts are read ahead.
    pub prefetch: Option<Prefetch>,
    /// Whether each expert of a packed store is compared with its digest as it is read, and the resident tensors
    /// when the model is opened.
    pub verify_reads: bool,
}

/// An option that cannot do what it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedOption {
    /// An option of streaming where nothing is streamed.
    #[error("{option} does nothing here: {reason}")]
    Idle {
        /// The option as it is typed.
        option: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// Experts in a layout that the reference executor does not read.
    #[error(
        "--executor reference cannot read a packed store, whose experts lie as the CPU executor reads them; use the \
         model that it was packed from, or --executor cpu"
    )]
    Reference,
    /// More or fewer slots than a pool can have.
    #[error("--slots {slots}: this model's pool has {least} to {most} slots")]
    Slots {
        /// Asked for.
        slots: usize,
        /// One of each size.
        least: usize,
        /// One for each expert.
        most: usize,
    },
}

const REFERENCE: &str = "the reference executor reads the mapped file; leave it out, or use --executor cpu";
const MAPPED: &str = "the CPU executor reads experts in a layout of its own, which only a packed store has (`turbospark pack`); use stream or resident";
const NO_DIGESTS: &str = "only a packed store has digests to compare with (`turbospark pack`); leave it out";
const MAPPED_READS: &str = "mapped experts are read by the system; use --expert-residency stream or resident";
const DENSE: &str = "the model has no routed experts; leave it out";
const MAPPED_STREAMS: &str = "experts are mapped; leave it out, or use --expert-residency stream";
const RESIDENT: &str = "experts are resident; leave it out, or use --expert-residency stream";

impl MemoryOptions {
    /// The options of streaming that were given, as they are typed.
    fn streaming(&self) -> Option<String> {
        let policy = self.policy.map(|policy| format!("--policy {policy}"));
        let reader = || self.reader.map(|reader| format!("--reader {reader}"));
        let slots = || self.slots.map(|slots| format!("--slots {slots}"));
        let prefetch = || self.prefetch.map(|prefetch| format!("--prefetch {prefetch}"));
        policy.or_else(reader).or_else(slots).or_else(prefetch)
    }

    /// Refuses what cannot apply to `program` on `executor`, whatever the budget.
    pub fn check(
        &self,
        program: &Program,
        executor: ExecutorKind,
        checkpoint: &Checkpoint,
    ) -> Result<(), RefusedOption> {
        let packed = checkpoint.packed().is_some();
        if packed && executor == ExecutorKind::Reference {
            return Err(RefusedOption::Reference);
        }
        let residency = (self.residency != Residency::Auto).then_some(self.residency);
        let refuse = |option: Option<String>, reason| match option {
            Some(option) => Err(RefusedOption::Idle { option, reason }),
            None => Ok(()),
        };
        let residency_option = residency.map(|residency| format!("--expert-residency {residency}"));
        if executor == ExecutorKind::Reference {
            refuse(self.budget.map(|budget| format!("--memory {}", spelled(budget))), REFERENCE)?;
            refuse(residency_option.clone().filter(|_| residency != Some(Residency::Mapped)), REFERENCE)?;
            refuse(self.streaming(), REFERENCE)?;
        }
        if program.expert_layers().is_empty() {
            refuse(residency_option.or_else(|| self.streaming()), DENSE)?;
        } else if executor == ExecutorKind::Cpu {
            refuse(residency_option.filter(|_| residency == Some(Residency::Mapped) && !packed), MAPPED)?;
        }
        let verify = || self.verify_reads.then(|| "--verify-reads".to_owned());
        refuse(verify().filter(|_| !packed), NO_DIGESTS)?;
        if residency == Some(Residency::Mapped) {
            refuse(verify(), MAPPED_READS)?;
            refuse(self.streaming(), MAPPED_STREAMS)?;
        }
        if residency == Some(Residency::Resident) { self.check_resident() } else { Ok(()) }
    }

    /// Refuses options of streaming where experts turn out to be resident.
    pub(super) fn check_resident(&self) -> Result<(), RefusedOption> {
        match self.streaming() {
            Some(option) => Err(RefusedOption::Idle { option, reason: RESIDENT }),
            None => Ok(()),
        }
    }
}

/// A size that can be typed back.
pub(super) fn spelled(size: MemorySize) -> String {
    match size {
        MemorySize::Bytes(bytes) if bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
        MemorySize::Bytes(bytes) if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        MemorySize::Bytes(bytes) => bytes.to_string(),
        other => other.to_string(),
    }
}
