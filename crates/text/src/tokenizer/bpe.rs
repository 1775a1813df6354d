//! BPE tokenizers built from GGUF metadata.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};
use turbospark_formats::GgufMetadata;

use super::bytes::METASPACE;
use super::gguf::{MERGES, TOKENS, Tokens};
use super::pretokenizer::PreTokenizer;
use super::vocabulary::TokenKind;
use crate::TextError;

/// Byte-level BPE (tokenizer.ggml.model gpt2).
pub(super) fn byte_level(
    metadata: &GgufMetadata,
    tokens: &Tokens<'_>,
    pre: &PreTokenizer,
) -> Result<tokenizers::Tokenizer, TextError> {
    let model = BPE::builder()
        .vocab_and_merges(vocab(tokens), merges(metadata, &tokens.ids)?)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(refused)?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    if pre.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(refused)?;
    }
    let mut steps = splits(pre.splits)?;
    steps.push(ByteLevel::new(false, true, false).into());
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    add_tokens(&mut tokenizer, tokens)?;
    Ok(tokenizer)
}

/// Gemma 4: merges over whole lines of UTF-8, spaces as U+2581, unknown characters as byte tokens.
pub(super) fn gemma4(
    metadata: &GgufMetadata,
    tokens: &Tokens<'_>,
) -> Result<tokenizers::Tokenizer, TextError> {
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab(tokens), merges(metadata, &tokens.ids)?)
        .byte_fallback(true)
        .fuse_unk(true);
    if tokens.ids.contains_key("<unk>") {
        builder = builder.unk_token("<unk>".into());
    }
    let mut tokenizer = tokenizers::Tokenizer::new(builder.build().map_err(refused)?);
    tokenizer
        .with_normalizer(Some(Replace::new(" ", METASPACE.to_string()).map_err(refused)?))
        .map_err(refused)?;
    // No token mixes line ends with other characters, so lines can be merged one by one.
    tokenizer.with_pre_tokenizer(Some(Sequence::new(splits(&[r"[^\n]+|\n+"])?)));
    add_tokens(&mut tokenizer, tokens)?;
    Ok(tokenizer)
}

fn splits(patterns: &[&str]) -> Result<Vec<PreTokenizerWrapper>, TextError> {
    patterns
        .iter()
        .map(|pattern| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            Ok(Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(refused)?.into())
        })
        .collect()
}

fn vocab(tokens: &Tokens<'_>) -> Vocab {
    tokens.ids.iter().map(|(name, &id)| ((*name).to_owned(), id)).collect()
}

/// The merges in order of rank; both halves and the whole must be tokens, which also rules out cycles.
fn merges(metadata: &GgufMetadata, ids: &HashMap<&str, u32>) -> Result<Vec<(String, String)>, TextError> {
    let lines = metadata.strings(MERGES)?.ok_or_else(|| TextError::vocabulary(MERGES, "missing"))?;
    let mut merges = Vec::with_capacity(lines.len());
    let mut whole = String::new();
    for (rank, line) in lines.iter().enumerate() {
        let bad =
            |problem: String| TextError::vocabulary(MERGES, format!("merge {rank} {line:?}: {problem}"));
        // The first half may itself begin with a space.
        let at = line.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(i, _)| i);
        let Some(at) = at else { return Err(bad("no space between two tokens".into())) };
        let (left, right) = (&line[..at], &line[at + 1..]);
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        for part in [left, right, whole.as_str()] {
            if !ids.contains_key(part) {
                return Err(bad(format!("{part:?} is not a token")));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

fn add_tokens(tokenizer: &mut tokenizers::Tokenizer, tokens: &Tokens<'_>) -> Result<(), TextError> {
    let added = tokens.names.iter().zip(&tokens.kinds).filter_map(|(name, kind)| match kind {
        TokenKind::Control => Some(AddedToken::from(*name, true)),
        TokenKind::Added => Some(AddedToken::from(*name, false).normalized(false)),
        TokenKind::Normal | TokenKind::Unused => None,
    });
    tokenizer.add_tokens(added.collect::<Vec<_>>()).map_err(refused)?;
    Ok(())
}

fn refused(error: Box<dyn std::error::Error + Send + Sync>) -> TextError {
    TextError::vocabulary(TOKENS, error.to_string())
}
