//! Budgets that do not work.

use turbospark_experts::memory_limit::{MemorySize, MemorySizeError, format_bytes};

use super::options::{RefusedOption, spelled};

/// A budget or an option of memory that cannot be kept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MemoryError {
    /// An option that cannot do what it says.
    #[error(transparent)]
    Option(#[from] RefusedOption),
    /// A size that cannot be found out.
    #[error(transparent)]
    Size(#[from] MemorySizeError),
    /// Less than the model needs.
    #[error(
        "{} of memory{} is too small: {arithmetic}; the smallest that works is --memory {}",
        format_bytes(*budget),
        if *automatic { ", which is what auto finds here," } else { "" },
        spelled(MemorySize::Bytes(*least))
    )]
    TooSmall {
        /// The budget.
        budget: u64,
        /// Whether it was found by `auto`.
        automatic: bool,
        /// The sum that does not fit.
        arithmetic: String,
        /// The smallest that works, in whole MiB.
        least: u64,
    },
}
