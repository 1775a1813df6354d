//! GGUF files.

mod metadata;

pub use metadata::{GgufMetadata, GgufValue, MetadataError, PerLayer};
