//! What can keep a program from being opened.

use turbospark_program::WeightError;

/// A program that cannot be run here.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A weight that the checkpoint does not have as it must be.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A matrix whose rows are not whole blocks of its format.
    #[error("tensor {name} has rows of {columns} elements, which is no whole number of blocks of {format}")]
    Columns {
        /// Canonical name.
        name: String,
        /// Elements of a row.
        columns: usize,
        /// Format of the tensor.
        format: turbospark_formats::Format,
    },
    /// An attention that no kernel is made for.
    #[error("op {op}, attention: {reason}")]
    Attention {
        /// Index of the op.
        op: usize,
        /// What is out of the ordinary.
        reason: String,
    },
    /// No memory for the weights.
    #[error("{bytes} bytes of memory for tensor {name}: {error}")]
    Memory {
        /// Canonical name.
        name: String,
        /// Bytes of its panels.
        bytes: usize,
        /// What the system says.
        error: std::io::Error,
    },
    /// No threads.
    #[error("{threads} threads cannot be started: {error}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system says.
        error: std::io::Error,
    },
}
