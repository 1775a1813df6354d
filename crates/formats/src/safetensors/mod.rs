//! safetensors files, single and sharded.

mod error;
mod header;
mod index;

pub use error::{SafetensorsError, SafetensorsFault};
pub use header::{SafetensorsFile, SafetensorsTensor};
pub(crate) use index::Index;
