//! The tokenizer keys of a GGUF file.

use std::collections::HashMap;

use turbospark_formats::{GgufMetadata, GgufValue};

use super::bytes::Spelling;
use super::pretokenizer::PreTokenizer;
use super::spm::Spm;
use super::vocabulary::{TokenKind, Vocabulary};
use super::{Encoder, Tokenizer, bpe};
use crate::TextError;

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

/// The tokens of a file, checked: no two are alike, every array is as long as the tokens.
pub(super) struct Tokens<'a> {
    pub(super) names: Vec<&'a str>,
    pub(super) ids: HashMap<&'a str, u32>,
    pub(super) kinds: Vec<TokenKind>,
}

pub(super) fn read(metadata: &GgufMetadata) -> Result<Tokenizer, TextError> {
    let Some(model) = metadata.string("tokenizer.ggml.model")? else { return Err(TextError::NoTokenizer) };
    let pre = metadata.string("tokenizer.ggml.pre")?.unwrap_or("");
    // Gemma 4 appears under both spellings.
    let gemma = model == "gemma4" || (model == "gpt2" && pre == "gemma4");
    let tokens = Tokens::read(metadata)?;
    let (encoder, spelling, add_bos, leading_space) = match model {
        _ if gemma => (Encoder::hf(bpe::gemma4(metadata, &tokens)?), Spelling::Metaspace, true, false),
        "gpt2" => {
            let pre = PreTokenizer::named(pre)
                .ok_or_else(|| TextError::PreTokenizer(pre.to_owned(), PreTokenizer::names()))?;
            (Encoder::hf(bpe::byte_level(metadata, &tokens, &pre)?), Spelling::ByteLevel, pre.add_bos, false)
        }
        "llama" => {
            let space = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
            let scores = scores(metadata, tokens.names.len())?;
            let unknown = token_id(metadata, "unknown", tokens.names.len())?.unwrap_or(0);
            let spm = Spm::new(&tokens, scores, unknown, space, strips_after_special(metadata)?)?;
            (Encoder::Spm(Box::new(spm)), Spelling::Metaspace, true, space)
        }
        other => return Err(TextError::TokenizerModel(other.to_owned())),
    };
    let mut vocabulary = Vocabulary::default();
    for (name, &kind) in tokens.names.iter().zip(&tokens.kinds) {
        vocabulary.push(name, kind, spelling);
    }
    let bos = token_id(metadata, "bos", tokens.names.len())?;
    let eos = token_id(metadata, "eos", tokens.names.len())?;
    // The first Gemma 4 files say false; the model needs it.
    let add_bos = gemma || metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos);
    let add_eos = metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let prefix = bos.filter(|_| add_bos).into_iter().collect();
    let suffix = eos.filter(|_| add_eos).into_iter().collect();
    Ok(Tokenizer { encoder, vocabulary, bos, eos, prefix, suffix, leading_space })
}

/// `tokenizer.ggml.<name>_token_id`, checked against the vocabulary.
pub(crate) fn token_id(metadata: &GgufMetadata, name: &str, size: usize) -> Result<Option<u32>, TextError> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    match metadata.integer(&key) {
        Ok(None) => Ok(None),
        Ok(Some(id)) if (id as usize) < size => Ok(Some(id as u32)),
        Ok(Some(id)) => Err(TextError::Vocabulary {
            key: "tokenizer.ggml.*_token_id",
            problem: format!("{key} is {id}, the vocabulary has {size} tokens"),
        }),
        // Some converters write -1 for "none".
        Err(_) if matches!(metadata.get(&key), Some(GgufValue::Signed(-1))) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a GgufMetadata) -> Result<Self, TextError> {
        let names = metadata.strings(TOKENS)?.ok_or_else(|| TextError::vocabulary(TOKENS, "missing"))?;
        if names.is_empty() || names.len() > u32::MAX as usize {
            return Err(TextError::vocabulary(TOKENS, format!("{} tokens", names.len())));
        }
        let mut kinds = kinds(metadata, names.len())?;
        let mut ids = HashMap::with_capacity(names.len());
        for (id, name) in names.iter().enumerate() {
            if name.is_empty() {
                kinds[id] = TokenKind::Unused;
            } else if let Some(first) = ids.insert(*name, id as u32) {
                return Err(TextError::vocabulary(
                    TOKENS,
                    format!("token {name:?} is listed twice, as {first} and {id}"),
                ));
            }
            // Files of old converters give turn markers an ordinary type; they would be cut into pieces.
            if kinds[id] == TokenKind::Normal
                && crate::stop::ends_turn_by_name(name)
                && name.starts_with("<|")
            {
                kinds[id] = TokenKind::Control;
            }
        }
        Ok(Tokens { names, ids, kinds })
    }
}

fn kinds(metadata: &GgufMetadata, size: usize) -> Result<Vec<TokenKind>, TextError> {
    let Some(value) = metadata.get(TYPES) else { return Ok(vec![TokenKind::Normal; size]) };
    let items = array(value, TYPES, size)?;
    items
        .iter()
        .map(|item| match item.as_integer() {
            Some(2 | 3) => Ok(TokenKind::Control),
            Some(4) => Ok(TokenKind::Added),
            Some(_) => Ok(TokenKind::Normal),
            None => Err(TextError::vocabulary(TYPES, "not integers")),
        })
        .collect()
}

fn scores(metadata: &GgufMetadata, size: usize) -> Result<Vec<f32>, TextError> {
    let value = metadata.get(SCORES).ok_or_else(|| TextError::vocabulary(SCORES, "missing"))?;
    let items = array(value, SCORES, size)?;
    items
        .iter()
        .enumerate()
        .map(|(id, item)| {
            let score = match item {
                GgufValue::Float(x) => *x,
                GgufValue::Signed(x) => *x as f64,
                GgufValue::Unsigned(x) => *x as f64,
                _ => return Err(TextError::vocabulary(SCORES, "not numbers")),
            };
            if score.is_finite() {
                Ok(score as f32)
            } else {
                Err(TextError::vocabulary(SCORES, format!("score {score} of token {id}")))
            }
        })
        .collect()
}

fn array<'a>(value: &'a GgufValue, key: &'static str, size: usize) -> Result<&'a [GgufValue], TextError> {
    match value {
        GgufValue::Array(items) if items.len() == size => Ok(items),
        GgufValue::Array(items) => {
            Err(TextError::vocabulary(key, format!("{} entries for {size} tokens", items.len())))
        }
        _ => Err(TextError::vocabulary(key, "not an array")),
    }
}

/// Phi-3's special tokens swallow the white space after them; its files say so only by the model's name.
fn strips_after_special(metadata: &GgufMetadata) -> Result<bool, TextError> {
    let name = metadata.string("general.name")?.unwrap_or("").to_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}
