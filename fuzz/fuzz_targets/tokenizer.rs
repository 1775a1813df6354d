//! Any vocabulary in a GGUF's metadata, and a text through it.
//!
//! The input is four parts between zero bytes: model and pre-tokenizer, tokens (one a line, after a digit that is their
//! type), merges (one a line), text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_formats::{GgufMetadata, GgufValue};
use turbospark_text::{Special, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(4, |&b| b == 0).map(String::from_utf8_lossy);
    let mut part = || parts.next().unwrap_or_default().into_owned();
    let (names, tokens, merges, text) = (part(), part(), part(), part());
    let (model, pre) = names.split_once(' ').unwrap_or((&names, "default"));
    let string = |s: &str| GgufValue::String(s.to_owned());
    let kind = |line: &str| line.bytes().next().map_or(1, |b| i64::from(b.wrapping_sub(b'0')));
    let pairs = [
        ("model", string(model)),
        ("pre", string(pre)),
        ("tokens", GgufValue::Array(tokens.lines().map(|line| string(line.get(1..).unwrap_or(""))).collect())),
        ("token_type", GgufValue::Array(tokens.lines().map(|line| GgufValue::Signed(kind(line))).collect())),
        ("scores", GgufValue::Array((0..tokens.lines().count()).map(|i| GgufValue::Float(-(i as f64))).collect())),
        ("merges", GgufValue::Array(merges.lines().map(string).collect())),
    ];
    let pairs = pairs.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
    let Ok(tokenizer) = Tokenizer::from_gguf(&GgufMetadata::from_pairs(pairs)) else { return };
    for special in [Special::Parse, Special::AsText] {
        if let Ok(ids) = tokenizer.encode_prompt(&text, special) {
            tokenizer.decode_all(&ids).expect("ids of an encoding are in the vocabulary");
        }
    }
});
