//! The packed store: a folder of ordinary safetensors files whose experts lie as an executor reads them.
//!
//! - `turbospark.json`: the manifest. Layouts, sizes and BLAKE3 digests of everything else, and of itself.
//! - `experts-00003.safetensors`: the experts of layer 3, one tensor each, which begins and ends at a multiple of
//!   4096 bytes.
//! - `resident.safetensors`: all other tensors, in the bytes that the model's own files have.
//! - The model's own configuration and tokenizer: `config.json` and its like, or a GGUF without tensors.
//! - While it is being written, `turbospark.unfinished.json` says what is complete.

mod digest;
mod error;
mod files;
mod journal;
mod manifest;
mod open;
mod plan;
mod spelling;
mod verify;
mod write;

pub use digest::Digest;
pub use error::{PackError, PackedError, PackedFault};
pub(crate) use open::open;
pub use plan::{ExpertStacks, StorePlan};
pub use verify::{Damage, DamageKind, Verification, verify};
pub use write::{Sink, StoreWriter};

use std::path::Path;

use crate::{ByteSlice, Format, MatrixLayout};

/// Experts begin and end at multiples of this: the largest logical block of common disks.
pub const PACKED_ALIGNMENT: usize = 4096;

const MANIFEST: &str = "turbospark.json";
const JOURNAL: &str = "turbospark.unfinished.json";
const RESIDENT: &str = "resident.safetensors";
const GGUF_METADATA: &str = "metadata.gguf";
/// What a file is called until it is complete.
const PART: &str = ".part";

/// Whether `folder` is a packed store, complete or not.
pub(crate) fn is_store(folder: &Path) -> bool {
    folder.join(MANIFEST).exists() || folder.join(JOURNAL).exists()
}

/// Whether `name` is that of a file of a store's folder that stands for the store.
pub(crate) fn stands_for_store(name: &str) -> bool {
    [MANIFEST, JOURNAL, GGUF_METADATA, "config.json"].contains(&name) || name.ends_with(".safetensors")
}

/// What a checkpoint that was opened from a packed store knows beyond its resident tensors.
#[derive(Clone, Debug)]
pub struct PackedStore {
    packing: String,
    quantized: Option<Format>,
    layers: Vec<PackedLayer>,
    /// Resident tensors of the files, with the digests they should have.
    resident: Vec<(String, ByteSlice, Digest)>,
}

impl PackedStore {
    /// Name and version of the layout that experts are in.
    pub fn packing(&self) -> &str {
        &self.packing
    }

    /// The format that experts were quantised to when they were packed; none if they kept their own.
    pub fn quantized(&self) -> Option<Format> {
        self.quantized
    }

    /// The experts of each layer.
    pub fn layers(&self) -> &[PackedLayer] {
        &self.layers
    }

    /// Bytes of all experts on disk.
    pub fn expert_bytes(&self) -> usize {
        self.layers.iter().flat_map(|layer| &layer.experts).map(|slice| slice.len()).sum()
    }

    /// Reads every resident tensor and compares its digest; the first that is damaged is the error.
    pub fn check_resident(&self) -> Result<(), PackedError> {
        for (name, bytes, digest) in &self.resident {
            let found = digest::of_mapped(bytes);
            if found != *digest {
                let what = format!("tensor {name}");
                return Err(PackedError::new(bytes.source().path(), PackedFault::Damaged { what }));
            }
        }
        Ok(())
    }
}

/// The packed experts of a layer.
#[derive(Clone, Debug)]
pub struct PackedLayer {
    /// Canonical names of the gate, up and down stacks.
    pub stacks: [String; 3],
    /// Format, rows and columns of each expert's gate, up and down, before they were packed.
    pub matrices: [MatrixLayout; 3],
    /// Bytes of a packed expert. Its slice ends with zeros up to a multiple of [`PACKED_ALIGNMENT`].
    pub bytes: usize,
    /// The experts, each at a multiple of [`PACKED_ALIGNMENT`] in its file.
    pub experts: Vec<ByteSlice>,
    /// The digest of each expert's slice.
    pub digests: Vec<Digest>,
}
