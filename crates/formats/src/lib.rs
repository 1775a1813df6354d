//! Model files of turbospark: GGUF, safetensors and the block formats within them.
//!
//! [`Checkpoint`] is the one view of a model: metadata and tensors by canonical name. A [`Tensor`] is a view of
//! mapped bytes; differences of storage between formats end here.

mod checkpoint;
mod dequantize;
mod format;
mod gguf;
mod source;
mod tensor;

pub use checkpoint::{Checkpoint, Metadata, TokenizerFiles};
pub use format::{Float, Format};
pub use gguf::{GgufMetadata, GgufValue, MetadataError, PerLayer};
pub use source::{ByteSlice, Source};
pub use tensor::{MAX_PARTS, MatrixLayout, MatrixRef, RowMap, Tensor};
