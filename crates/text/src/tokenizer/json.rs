//! tokenizer.json, read by the `tokenizers` crate.

use serde_json::Value;
use turbospark_formats::TokenizerFiles;

use super::bytes::Spelling;
use super::vocabulary::{TokenKind, Vocabulary};
use super::{Encoder, Tokenizer, merges};
use crate::TextError;

/// Ids far beyond the number of tokens would make the tables larger than the file.
const MAX_ID_GAP: usize = 1 << 16;

pub(super) fn read(bytes: &[u8], files: &TokenizerFiles) -> Result<Tokenizer, TextError> {
    merges::check(bytes)?;
    let mut hf =
        tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| TextError::TokenizerJson(e.to_string()))?;
    // A prompt is never cut or padded behind the caller's back.
    hf.with_truncation(None).map_err(|e| TextError::TokenizerJson(e.to_string()))?;
    hf.with_padding(None);
    let (spelling, leading_space) = spelling(&hf)?;
    let vocabulary = vocabulary(&hf, spelling)?;

    let named = |key: &str| special_name(files, key).and_then(|name| hf.token_to_id(&name));
    let (bos, eos) = (named("bos_token"), named("eos_token"));
    let (mut prefix, mut suffix) = affixes(&hf)?;
    let flag = |key: &str| files.config.as_ref().and_then(|c| c.get(key)).and_then(Value::as_bool);
    // tokenizer_config.json overrides the post-processor, as transformers does.
    match (flag("add_bos_token"), bos) {
        (Some(true), Some(bos)) if !prefix.contains(&bos) => prefix.insert(0, bos),
        (Some(false), Some(bos)) => prefix.retain(|&id| id != bos),
        _ => {}
    }
    match (flag("add_eos_token"), eos) {
        (Some(true), Some(eos)) if !suffix.contains(&eos) => suffix.push(eos),
        (Some(false), Some(eos)) => suffix.retain(|&id| id != eos),
        _ => {}
    }
    Ok(Tokenizer { encoder: Encoder::hf(hf), vocabulary, bos, eos, prefix, suffix, leading_space })
}

/// A special token's text from tokenizer_config.json or special_tokens_map.json: a string or an object with `content`.
pub(crate) fn special_name(files: &TokenizerFiles, key: &str) -> Option<String> {
    [&files.config, &files.special_tokens].into_iter().flatten().find_map(|file| {
        let value = file.get(key)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        Some(text.to_owned())
    })
}

/// The tokens that the post-processor puts before and after a text.
fn affixes(hf: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), TextError> {
    let encode = |add: bool| {
        let encoding = hf.encode_fast("a", add).map_err(|e| TextError::TokenizerJson(e.to_string()))?;
        Ok::<_, TextError>(encoding.get_ids().to_vec())
    };
    let (bare, full) = (encode(false)?, encode(true)?);
    let found = full.windows(bare.len().max(1)).position(|window| window == bare.as_slice());
    Ok(match found {
        Some(at) => (full[..at].to_vec(), full[at + bare.len()..].to_vec()),
        None => (Vec::new(), Vec::new()),
    })
}

/// How tokens spell bytes, told by the decoder, and whether decoding drops a leading space.
fn spelling(hf: &tokenizers::Tokenizer) -> Result<(Spelling, bool), TextError> {
    let decoder =
        serde_json::to_value(hf.get_decoder()).map_err(|e| TextError::TokenizerJson(e.to_string()))?;
    let steps = match decoder.get("type").and_then(Value::as_str) {
        Some("Sequence") => decoder.get("decoders").and_then(Value::as_array).cloned().unwrap_or_default(),
        _ => vec![decoder],
    };
    let (mut found, mut leading_space) = (None, false);
    for step in &steps {
        match step.get("type").and_then(Value::as_str).unwrap_or("null") {
            "ByteLevel" => found = Some(Spelling::ByteLevel),
            "ByteFallback" | "Replace" => found = found.or(Some(Spelling::Metaspace)),
            "Metaspace" => {
                found = Some(Spelling::Metaspace);
                leading_space = step.get("prepend_scheme").and_then(Value::as_str) != Some("never");
            }
            "Strip" => leading_space = step.get("start").and_then(Value::as_u64).unwrap_or(0) > 0,
            "Fuse" => {}
            other => return Err(TextError::TokenizerJson(format!("decoder `{other}` is not supported"))),
        }
    }
    let spelling = found.ok_or_else(|| TextError::TokenizerJson("no decoder that is supported".into()))?;
    Ok((spelling, leading_space))
}

fn vocabulary(hf: &tokenizers::Tokenizer, spelling: Spelling) -> Result<Vocabulary, TextError> {
    let by_name = hf.get_vocab(true);
    let size = by_name.values().max().map_or(0, |&id| id as usize + 1);
    if size > 4 * by_name.len() + MAX_ID_GAP {
        let problem = format!("largest id {} with only {} tokens", size - 1, by_name.len());
        return Err(TextError::vocabulary("tokenizer.json model.vocab", problem));
    }
    let mut pieces: Vec<Option<&str>> = vec![None; size];
    for (name, &id) in &by_name {
        pieces[id as usize] = Some(name);
    }
    let added = hf.get_added_tokens_decoder();
    let mut vocabulary = Vocabulary::default();
    for (id, piece) in pieces.iter().enumerate() {
        let (piece, kind) = match (added.get(&(id as u32)), piece) {
            (Some(token), _) if token.special => (token.content.as_str(), TokenKind::Control),
            (Some(token), _) => (token.content.as_str(), TokenKind::Added),
            (None, Some(piece)) => (*piece, TokenKind::Normal),
            (None, None) => ("", TokenKind::Unused),
        };
        vocabulary.push(piece, kind, spelling);
    }
    Ok(vocabulary)
}
