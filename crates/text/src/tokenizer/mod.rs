//! Text to token ids and back.

mod bpe;
mod bytes;
mod gguf;
mod json;
mod merges;
mod pretokenizer;
mod spm;
mod vocabulary;

use std::sync::OnceLock;

use turbospark_formats::{Checkpoint, GgufMetadata, Metadata, TokenizerFiles};

use crate::{Detokenizer, TextError};
use spm::Spm;
use vocabulary::{TokenKind, Vocabulary};

/// Whether the spelling of a special token in a text means the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `<|end|>` in the text becomes that token: rendered templates and raw prompts.
    Parse,
    /// `<|end|>` in the text is eight characters: text that must not be able to end a turn.
    AsText,
}

/// A tokenizer, whatever files it came from.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    vocabulary: Vocabulary,
    bos: Option<u32>,
    eos: Option<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// Encoding puts a space before the text, decoding takes it away.
    leading_space: bool,
}

#[derive(Debug)]
enum Encoder {
    Hf {
        parse: Box<tokenizers::Tokenizer>,
        /// The same with special tokens switched off; made at first use since it doubles the memory.
        as_text: OnceLock<Box<tokenizers::Tokenizer>>,
    },
    Spm(Box<Spm>),
}

impl Encoder {
    fn hf(tokenizer: tokenizers::Tokenizer) -> Self {
        Encoder::Hf { parse: Box::new(tokenizer), as_text: OnceLock::new() }
    }

    fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        match self {
            Encoder::Hf { parse, as_text } => {
                let tokenizer = match special {
                    Special::Parse => parse,
                    Special::AsText => as_text.get_or_init(|| {
                        let mut copy = parse.clone();
                        copy.set_encode_special_tokens(true);
                        copy
                    }),
                };
                let encoding =
                    tokenizer.encode_fast(text, false).map_err(|e| TextError::Encode(e.to_string()))?;
                Ok(encoding.get_ids().to_vec())
            }
            Encoder::Spm(spm) => Ok(spm.encode(text, special)),
        }
    }
}

impl Tokenizer {
    /// The tokenizer of a checkpoint.
    ///
    /// # Errors
    /// When there is none, when its kind is not supported, or when its tables contradict each other.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        match &checkpoint.metadata {
            Metadata::Gguf(metadata) => Self::from_gguf(metadata),
            Metadata::Config { .. } => Self::from_files(&checkpoint.tokenizer),
        }
    }

    /// From the tokenizer files of a Hugging Face or MLX folder.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn from_files(files: &TokenizerFiles) -> Result<Self, TextError> {
        let bytes = files.tokenizer.as_deref().ok_or(TextError::NoTokenizer)?;
        json::read(bytes, files)
    }

    /// From the tokenizer keys of a GGUF file.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn from_gguf(metadata: &GgufMetadata) -> Result<Self, TextError> {
        gguf::read(metadata)
    }

    /// Token ids of a text, without tokens at its beginning or end.
    ///
    /// # Errors
    /// When the text holds something that the vocabulary cannot express.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        self.encoder.encode(text, special)
    }

    /// Token ids of a prompt: begins with the tokens that the model wants there, once, even if the text already
    /// begins with them.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode(text, special)?;
        if !self.prefix.is_empty() && !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        Ok(ids)
    }

    /// As [`Tokenizer::encode_prompt`], and ends with the tokens that the model wants at the end of a document, once.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_document(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode_prompt(text, special)?;
        if !self.suffix.is_empty() && !ids.ends_with(&self.suffix) {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// The text of ids; special tokens are left out.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        self.decode_with(self.detokenizer(), ids)
    }

    /// The text of ids with special tokens spelt out.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String, TextError> {
        self.decode_with(self.detokenizer().showing_special(), ids)
    }

    fn decode_with(&self, mut stream: Detokenizer<'_>, ids: &[u32]) -> Result<String, TextError> {
        let mut text = String::new();
        for &id in ids {
            stream.push(id, &mut text)?;
        }
        stream.flush(&mut text);
        Ok(text)
    }

    /// A streaming detokenizer for a text that begins here.
    pub fn detokenizer(&self) -> Detokenizer<'_> {
        Detokenizer::new(self, self.leading_space)
    }

    /// A streaming detokenizer for the rest of a text: a leading space is kept.
    pub fn continuation(&self) -> Detokenizer<'_> {
        Detokenizer::new(self, false)
    }

    /// The bytes that a token stands for; a special token's are those of its name.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        self.vocabulary.bytes(id)
    }

    /// Whether the id is a control token, which is never text. False outside the vocabulary.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocabulary.kind(id), Ok(TokenKind::Control))
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn id(&self, name: &str) -> Option<u32> {
        match &self.encoder {
            Encoder::Hf { parse, .. } => parse.token_to_id(name),
            Encoder::Spm(spm) => spm.id(name),
        }
    }

    /// The name of a token for people: its bytes as text.
    pub fn token_name(&self, id: u32) -> String {
        self.token_bytes(id).map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default()
    }

    /// One more than the largest id. A model's embedding may have more rows.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The tokens that [`Tokenizer::encode_prompt`] puts first.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }
}

pub(crate) use gguf::token_id as gguf_token_id;
pub(crate) use json::special_name;
