//! A tensor as a file has it, before names and layouts are made canonical.

use crate::{ByteSlice, Format};

/// A tensor of a file with its format known; parts that a format keeps in several tensors are joined.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Name in the file.
    pub name: String,
    /// Shape in elements, slowest dimension first.
    pub shape: Vec<usize>,
    /// Storage format.
    pub format: Format,
    /// `format.parts()` slices, each with all rows.
    pub parts: Vec<ByteSlice>,
}
