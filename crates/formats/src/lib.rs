//! Model files of turbospark: GGUF, safetensors and the block formats within them.
//!
//! [`Checkpoint`] is the one view of a model: metadata and tensors by canonical name. A [`Tensor`] is a view of
//! mapped bytes; differences of storage between formats end here.

mod assemble;
mod checkpoint;
mod dequantize;
mod format;
mod gguf;
mod joined;
mod names;
pub mod packed;
mod quantization;
mod quantize;
mod safetensors;
mod source;
mod stored;
mod tensor;

pub use ::safetensors::Dtype;
pub use assemble::LayoutError;
pub use checkpoint::{Checkpoint, Metadata, OpenError, TokenizerFiles};
pub use format::{Float, Format};
pub use gguf::{
    GgufError, GgufFault, GgufFile, GgufMetadata, GgufTensor, GgufValue, MetadataError, PerLayer, SplitError,
};
pub use joined::JoinError;
pub use quantization::QuantizationError;
pub use quantize::{QUANTIZED, QuantizeError, quantize_row};
pub use safetensors::{SafetensorsError, SafetensorsFault, SafetensorsFile, SafetensorsTensor};
pub use source::{ByteSlice, Source};
pub use tensor::{MAX_PARTS, MatrixLayout, MatrixRef, RowMap, Tensor};
