//! GGUF files.

mod cursor;
mod error;
mod metadata;
mod reader;
mod split;
mod types;
mod values;

pub use error::{GgufError, GgufFault};
pub use metadata::{GgufMetadata, GgufValue, MetadataError, PerLayer};
pub(crate) use reader::GgufPairs;
pub use reader::{GgufFile, GgufTensor};
pub use split::SplitError;
pub(crate) use split::{SplitName, join};
