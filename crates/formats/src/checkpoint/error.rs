//! Why a model cannot be opened.

use std::path::PathBuf;

use crate::assemble::LayoutError;
use crate::gguf::{GgufError, MetadataError, SplitError};
use crate::joined::JoinError;
use crate::packed::PackedError;
use crate::quantization::QuantizationError;
use crate::safetensors::SafetensorsError;

/// A model that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or folder cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file that is no model.
    #[error(
        "{}: not a model: {found}; expected a GGUF file, or a folder with config.json and *.safetensors or with one \
         *.gguf",
        path.display()
    )]
    NotAModel {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// Several models where one is expected.
    #[error("{}: the folder has several models ({}); name one of the files", path.display(), files.join(", "))]
    Ambiguous {
        /// The folder.
        path: PathBuf,
        /// Some of the files.
        files: Vec<String>,
    },
    /// Shards without their index.
    #[error(
        "{}: the folder has {} safetensors files but neither model.safetensors nor model.safetensors.index.json",
        path.display(),
        count
    )]
    NoIndex {
        /// The folder.
        path: PathBuf,
        /// How many files.
        count: usize,
    },
    /// A file beyond the size that its kind can have.
    #[error("{}: the file is larger than {} MiB, which no such file needs", path.display(), limit >> 20)]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes allowed.
        limit: u64,
    },
    /// A file that is not JSON.
    #[error("{}: not valid JSON: {error}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: serde_json::Error,
    },
    /// A text that is not UTF-8.
    #[error("{}: not valid UTF-8", path.display())]
    Utf8 {
        /// The file.
        path: PathBuf,
    },
    /// config.json is not an object.
    #[error("{}: expected a JSON object", path.display())]
    Config {
        /// The file.
        path: PathBuf,
    },
    /// A GGUF file that cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Parts of a split GGUF that do not make a whole.
    #[error(transparent)]
    Split(#[from] Box<SplitError>),
    /// A key of a GGUF file that names depend on.
    #[error("{}: {error}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        error: Box<MetadataError>,
    },
    /// A safetensors file or index that cannot be read.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A packed store that cannot be read.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// A tensor that is in two of the given files.
    #[error("{}: tensor {tensor} is there twice", path.display())]
    DuplicateTensor {
        /// The model.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A quantisation that is not read.
    #[error("{}: {error}", path.display())]
    Quantization {
        /// The model.
        path: PathBuf,
        /// Which.
        error: Box<QuantizationError>,
    },
    /// Quantised tensors whose parts do not fit.
    #[error("{}: {error}", path.display())]
    Join {
        /// The model.
        path: PathBuf,
        /// Which.
        error: Box<JoinError>,
    },
    /// Tensors that do not fit their place in a model.
    #[error("{}: {error}", path.display())]
    Layout {
        /// The model.
        path: PathBuf,
        /// Which.
        error: Box<LayoutError>,
    },
}
