//! A model as data: ops, builder, batches, sequence state and the traits that run them.
//!
//! A family turns a checkpoint's config into a [`Program`] with a [`Builder`]; an [`Executor`] runs it over the
//! rows of a [`Batch`], reading and appending the key-value pages that [`States`] accounts for, and takes routed
//! experts from an [`ExpertSource`].

pub mod arithmetic;
mod batch;
mod builder;
mod executor;
mod experts;
mod op;
mod pages;
mod print;
mod program;
mod rope;
mod state;
mod tap;
mod weights;

pub use batch::{Batch, BatchError, Row};
pub use builder::{BuildError, Builder};
pub use executor::{
    BestLogits, Executor, Limits, Logits, MemoryNeed, OutputError, Outputs, RoutedRows, StepError, TapRows,
};
pub use experts::{
    ExpertError, ExpertLayout, ExpertMatrix, ExpertPacker, ExpertPart, ExpertRef, ExpertRequest,
    ExpertSource, Lease, LeasedBytes, RowPacker,
};
pub use op::{Activation, Attention, Experts, Multiplier, Op, Precision, Route, Routing};
pub use pages::{PAGE_POSITIONS, PageCopy, PageId};
pub use program::{
    Buffer, ExpertLayer, KvLayer, Program, Reg, Register, RowSet, Segment, Weight, WeightSpec,
};
pub use rope::{RopeScaling, RopeTable, YarnScaling};
pub use state::{SequenceId, StateError, States};
pub use tap::{Edit, EditKind, EditSet, Tap};
pub use weights::{WeightError, Weights};
