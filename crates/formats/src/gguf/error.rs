//! What can be wrong with a GGUF file.

use std::path::PathBuf;

/// A GGUF file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct GgufError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: Box<GgufFault>,
}

/// The faults of a GGUF file.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum GgufFault {
    /// The first four bytes are not "GGUF".
    #[error("not a GGUF file: it does not start with \"GGUF\"")]
    Magic,
    /// The byte order of the file is not ours.
    #[error(
        "a big-endian GGUF file; convert it with `gguf_convert_endian.py FILE little` of the gguf package"
    )]
    BigEndian,
    /// A version other than 2 and 3.
    #[error("GGUF version {0} is not supported, expected 2 or 3; convert the model again from its source")]
    Version(u32),
    /// The header goes on beyond the end of the file.
    #[error("file is truncated: {what} at byte {at} needs {need} bytes, {left} are left")]
    Ends {
        /// What was being read.
        what: String,
        /// Where.
        at: usize,
        /// Bytes it claims.
        need: u128,
        /// Bytes there are.
        left: usize,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("{0} is not valid UTF-8")]
    Utf8(String),
    /// The same key twice.
    #[error("metadata key {0} is there twice")]
    DuplicateKey(String),
    /// A value type that GGUF does not define.
    #[error("metadata key {key} has value type {found}, expected 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        found: u32,
    },
    /// A boolean byte other than 0 and 1.
    #[error("metadata key {key} has {found} as a boolean, expected 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// Arrays within arrays beyond any use.
    #[error("metadata key {key} nests arrays deeper than {limit}")]
    Nesting {
        /// The key.
        key: String,
        /// The deepest nesting read.
        limit: usize,
    },
    /// More array elements than any model has.
    #[error("metadata key {key}: arrays of more than {limit} elements in all are not read")]
    TooManyElements {
        /// The key that went over the limit.
        key: String,
        /// The limit.
        limit: usize,
    },
    /// general.alignment is unusable.
    #[error("general.alignment is {0}, expected a power of two")]
    Alignment(String),
    /// The same tensor name twice.
    #[error("tensor {0} is there twice")]
    DuplicateTensor(String),
    /// More dimensions than ggml has.
    #[error("tensor {tensor} has {found} dimensions, expected at most 4")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Its number of dimensions.
        found: u32,
    },
    /// A dimension of zero.
    #[error("tensor {tensor} has no elements: its shape is {shape:?}")]
    NoElements {
        /// The tensor.
        tensor: String,
        /// Its dimensions, in the file's order.
        shape: Vec<u64>,
    },
    /// The number of elements or bytes does not fit in 63 bits.
    #[error("tensor {tensor} is too large: its shape is {shape:?}")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its dimensions, in the file's order.
        shape: Vec<u64>,
    },
    /// A tensor type that is not read.
    #[error(
        "tensor {tensor} has type {found}, which is not supported; use a file with types among F32, F16, BF16, \
         Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4"
    )]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type's name, or its number if ggml has no name for it.
        found: String,
    },
    /// Rows that are not whole blocks.
    #[error(
        "tensor {tensor} of type {format} has rows of {columns} elements, expected a multiple of {block}"
    )]
    Blocks {
        /// The tensor.
        tensor: String,
        /// Its type.
        format: crate::Format,
        /// Elements of a row.
        columns: usize,
        /// Elements of a block.
        block: usize,
    },
    /// An offset that ignores the alignment.
    #[error("tensor {tensor} is at offset {offset}, expected a multiple of the alignment {alignment}")]
    Offset {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Data beyond the end of the file.
    #[error(
        "file is truncated: tensor {tensor} needs bytes {start}..{end}, the file has {length}; download it again"
    )]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// First byte.
        start: u128,
        /// One past the last byte.
        end: u128,
        /// Length of the file.
        length: usize,
    },
    /// Two tensors in the same bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
}
