//! What can go wrong between text and tokens.

use turbospark_formats::MetadataError;

/// An error of this crate; messages name the file or key, what was found and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The checkpoint brings neither tokenizer.json nor tokenizer keys.
    #[error(
        "the checkpoint has no tokenizer: expected tokenizer.json beside it, or tokenizer.ggml.* keys in a GGUF"
    )]
    NoTokenizer,
    /// tokenizer.json is malformed or uses a part that is not supported.
    #[error("tokenizer.json: {0}")]
    TokenizerJson(String),
    /// tokenizer.ggml.model is not one of the supported kinds.
    #[error("tokenizer.ggml.model `{0}` is not supported (supported: gpt2, llama, gemma4)")]
    TokenizerModel(String),
    /// tokenizer.ggml.pre is not one of the supported pre-tokenizers.
    #[error("tokenizer.ggml.pre `{0}` is not supported; supported: {1}")]
    PreTokenizer(String, String),
    /// A tokenizer key of the GGUF is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A tokenizer key has an impossible value.
    #[error("{key}: {problem}")]
    Vocabulary {
        /// The metadata key or JSON field.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Text could not be encoded.
    #[error("cannot encode: {0}")]
    Encode(String),
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is outside the vocabulary of {size} tokens")]
    TokenId {
        /// The id.
        id: u32,
        /// Number of ids.
        size: usize,
    },
    /// The checkpoint has no chat template.
    #[error(
        "the checkpoint has no chat template: pass --raw to send the prompt as it is, or give a template file"
    )]
    NoTemplate,
    /// The chat template is not valid.
    #[error("chat template: {0}")]
    TemplateSyntax(String),
    /// The chat template refused the messages or used too much.
    #[error("chat template: {0}")]
    TemplateRender(String),
}

impl TextError {
    pub(crate) fn vocabulary(key: &'static str, problem: impl Into<String>) -> Self {
        TextError::Vocabulary { key, problem: problem.into() }
    }
}
