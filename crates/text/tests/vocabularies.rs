//! Token ids of GGUF vocabularies against the test vectors that llama.cpp ships beside them.
//!
//! Reads `ggml-vocab-*.gguf` with their `.inp` and `.out` files from the folder that TURBOSPARK_TEXT_SWEEP names;
//! see docs/development/text-sweeps.md.

mod common;

use std::path::Path;

use turbospark_text::{Special, Tokenizer};

#[test]
fn ids_equal_the_test_vectors() {
    let Some(folder) = common::sweep("vocabularies") else { return };
    let mut failures = Vec::new();
    let mut pairs = 0;
    for path in common::files(&folder, "gguf") {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let metadata = common::metadata(&path);
        let tokenizer = match Tokenizer::from_gguf(&metadata) {
            Ok(tokenizer) => tokenizer,
            Err(e) => {
                println!("{name}: refused: {}", e.to_string().chars().take(120).collect::<String>());
                continue;
            }
        };
        let vectors = vectors(&path);
        let mut equal = 0;
        for (text, expected) in &vectors {
            let ids = tokenizer.encode(text, Special::AsText).expect("encodes");
            if ids == *expected {
                equal += 1;
            } else {
                failures.push(format!("{name}: {text:?}: {ids:?}, expected {expected:?}"));
            }
        }
        pairs += equal;
        println!("{name}: {equal} of {} pairs equal", vectors.len());
        round_trip(&name, &tokenizer);
    }
    println!("{pairs} pairs equal in all");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn vectors(path: &Path) -> Vec<(String, Vec<u32>)> {
    let read = |suffix: &str| std::fs::read_to_string(format!("{}{suffix}", path.display()));
    let (Ok(texts), Ok(ids)) = (read(".inp"), read(".out")) else { return Vec::new() };
    let texts = texts.split("\n__ggml_vocab_test__\n").map(str::to_owned);
    let ids = ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().expect("an id")).collect());
    texts.zip(ids).collect()
}

fn round_trip(name: &str, tokenizer: &Tokenizer) {
    for text in [
        "Hello world",
        " two  spaces\n\n\ttab",
        "naïve café 中文 🦙",
        "fn main() { println!(\"{}\", 1 + 22 + 333); }",
    ] {
        let ids = tokenizer.encode(text, Special::AsText).expect("encodes");
        assert_eq!(tokenizer.decode(&ids).expect("decodes"), text, "{name}");
    }
}
