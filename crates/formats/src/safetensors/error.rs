//! What can be wrong with safetensors files and their index.

use std::path::PathBuf;

/// A safetensors file or index that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct SafetensorsError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: Box<SafetensorsFault>,
}

/// The faults of a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsFault {
    /// Shorter than the length of the header.
    #[error("not a safetensors file: it has {0} bytes, the header's length alone takes 8")]
    TooShort(usize),
    /// A header that the file cannot have.
    #[error("the header claims {claimed} bytes, the file has {left} after its length; download it again")]
    HeaderLength {
        /// Bytes the header claims.
        claimed: u64,
        /// Bytes there are.
        left: usize,
    },
    /// A header beyond what the format allows.
    #[error("the header claims {0} bytes, the format allows 100000000")]
    HeaderTooLarge(u64),
    /// The header is not the JSON it should be.
    #[error("the header is not valid: {0}")]
    Header(serde_json::Error),
    /// The same tensor name twice.
    #[error("tensor {0} is there twice")]
    DuplicateTensor(String),
    /// An element type that safetensors does not define.
    #[error("tensor {tensor} has the unknown element type {found:?}")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type.
        found: String,
    },
    /// The number of bytes does not fit in 63 bits.
    #[error("tensor {tensor} is too large: its shape is {shape:?}")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Offsets that disagree with shape and type.
    #[error(
        "tensor {tensor} of type {kind} and shape {shape:?} needs {need} bytes, its offsets are {start}..{end}"
    )]
    Length {
        /// The tensor.
        tensor: String,
        /// Its element type.
        kind: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes it needs.
        need: usize,
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
    },
    /// Tensors that overlap or leave a hole.
    #[error(
        "tensor {tensor} starts at offset {start}, expected {expected}: tensors may not overlap nor leave holes"
    )]
    Offset {
        /// The tensor.
        tensor: String,
        /// Where it starts.
        start: usize,
        /// Where the tensor before it ends.
        expected: usize,
    },
    /// Data beyond the end of the file.
    #[error(
        "file is truncated: tensor {tensor} needs bytes {start}..{end}, the file has {length}; download it again"
    )]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// First byte in the file.
        start: u128,
        /// One past the last byte.
        end: u128,
        /// Length of the file.
        length: usize,
    },
    /// Bytes that belong to no tensor.
    #[error("{0} bytes after the last tensor belong to none")]
    Trailing(usize),
    /// A refusal of the safetensors crate.
    #[error("{0}")]
    Invalid(::safetensors::SafeTensorError),
    /// An index that is not the JSON it should be.
    #[error("not an index of shards: {0}")]
    Index(serde_json::Error),
    /// A shard outside the model's folder.
    #[error("tensor {tensor} is placed in {shard:?}, expected a file name within the folder")]
    ShardPath {
        /// The tensor.
        tensor: String,
        /// The path in the index.
        shard: String,
    },
    /// A shard that cannot be opened.
    #[error("shard {shard}, which has tensor {tensor}, cannot be opened: {error}")]
    Shard {
        /// The shard.
        shard: String,
        /// One of its tensors.
        tensor: String,
        /// Why.
        error: std::io::Error,
    },
    /// A tensor that its shard does not have.
    #[error("tensor {tensor} is placed in {shard}, which does not have it")]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// The same tensor in two shards.
    #[error("tensor {tensor} is in both {first} and {second}")]
    DuplicateInShards {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: String,
        /// The other.
        second: String,
    },
}
