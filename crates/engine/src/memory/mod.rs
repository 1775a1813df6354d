//! Where the memory of a model goes: the arithmetic that is done before anything is read.

mod error;
mod options;
mod plan;

pub use error::MemoryError;
pub use options::{MemoryOptions, RefusedOption, Residency, UnknownResidency};
pub use plan::{ExpertPlacement, MemoryPlan};
