//! One view of a model, whatever its files: metadata, tensors by canonical name, tokenizer files.

mod error;
pub(crate) mod files;
mod open;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use error::OpenError;

use crate::gguf::GgufPairs;
use crate::packed::PackedStore;
use crate::{GgufMetadata, Tensor};

/// Where the hyper-parameters come from; families turn either into their config struct.
#[derive(Clone, Debug)]
pub enum Metadata {
    /// Hugging Face or MLX folder.
    Config {
        /// config.json
        config: serde_json::Value,
        /// generation_config.json, if present.
        generation: Option<serde_json::Value>,
    },
    /// Key-value pairs of a GGUF file.
    Gguf(GgufMetadata),
}

/// Files that belong to the tokenizer of a Hugging Face or MLX folder; a GGUF has it in its metadata.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles {
    /// tokenizer.json, as bytes.
    pub tokenizer: Option<Vec<u8>>,
    /// tokenizer_config.json
    pub config: Option<serde_json::Value>,
    /// chat_template.jinja (or the older chat_template.json's text); takes precedence over the one in `config`.
    pub chat_template: Option<String>,
    /// special_tokens_map.json
    pub special_tokens: Option<serde_json::Value>,
}

/// An opened model: nothing of its weights has been copied.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The file or folder it was opened from.
    pub path: PathBuf,
    /// Hyper-parameters.
    pub metadata: Metadata,
    /// Tokenizer files, empty for GGUF.
    pub tokenizer: TokenizerFiles,
    /// Tensors that were skipped, with the reason (vision tower, rotary tables).
    pub skipped: Vec<(String, &'static str)>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) packed: Option<PackedStore>,
    /// The metadata as the file of a GGUF has it.
    pub(crate) gguf_pairs: Option<GgufPairs>,
}

impl Checkpoint {
    /// The tensor of that canonical name.
    ///
    /// Canonical names are those of the family's Hugging Face checkpoints for causal language models
    /// (`model.layers.0.self_attn.q_proj.weight`), whatever the file's own spelling. Routed experts are always
    /// stacks named `..experts.{gate,up,down}_proj.{weight,bias}` of [experts, rows, columns].
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The packed store that the checkpoint was opened from, if it was one. Its stacks of experts have names, shapes
    /// and layouts, but no matrices: [`Tensor::count`] is 0.
    pub fn packed(&self) -> Option<&PackedStore> {
        self.packed.as_ref()
    }

    /// All tensors in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}
