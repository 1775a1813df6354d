//! Ids of real tokenizer.json files against the Python `tokenizers` package.
//!
//! Reads what make_expected.py wrote into the folder that TURBOSPARK_TEXT_SWEEP names; see
//! docs/development/text-sweeps.md.

mod common;

use std::time::Instant;

use serde_json::Value;
use turbospark_formats::TokenizerFiles;
use turbospark_text::{Special, Tokenizer};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

#[test]
fn ids_equal_the_python_package() {
    let Some(folder) = common::sweep("tokenizers") else { return };
    let text = std::fs::read_to_string(folder.join("../text.txt")).expect("text.txt");
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let read = |name: &str| std::fs::read(path.join(name)).expect(name);
        let expected: Value = serde_json::from_slice(&read("ids.json")).expect("ids.json");
        let files = TokenizerFiles {
            tokenizer: Some(read("tokenizer.json")),
            config: Some(
                serde_json::from_slice(&read("tokenizer_config.json")).expect("tokenizer_config.json"),
            ),
            ..TokenizerFiles::default()
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let start = Instant::now();
        let tokenizer = Tokenizer::from_files(&files).expect("opens");
        let opened = start.elapsed();

        let start = Instant::now();
        let found = tokenizer.encode(&text, Special::Parse).expect("encodes");
        let encoded = start.elapsed();
        let wanted = ids(&expected["ids"]);
        let same = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
        let around = |ids: &[u32]| ids[same.min(ids.len())..(same + 8).min(ids.len())].to_vec();
        assert!(
            found == wanted,
            "{name}: ids differ from {same} on: {:?}, expected {:?}",
            around(&found),
            around(&wanted)
        );
        assert_eq!(tokenizer.encode(&text, Special::AsText).expect("encodes"), wanted, "{name}: as text");

        let decoded = tokenizer.decode(&found).expect("decodes");
        assert_eq!(decoded, expected["decoded"].as_str().expect("decoded"), "{name}");
        let identity = decoded == text;

        let special = expected["special_text"].as_str().expect("special_text");
        let found = tokenizer.encode_document(special, Special::Parse).expect("encodes");
        assert_eq!(found, ids(&expected["special_ids"]), "{name}: special tokens");
        println!(
            "{name}: {} bytes, {} ids equal, decode(encode(t)) == t: {identity}, opened in {opened:?}, encoded in {encoded:?}",
            text.len(),
            wanted.len()
        );
    }
}

/// Encoding is about linear in the text, also for one long word and one long run of spaces.
#[test]
fn a_megabyte_takes_little_time() {
    let Some(folder) = common::sweep("tokenizers") else { return };
    let text = std::fs::read_to_string(folder.join("../text.txt")).expect("text.txt");
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let files = TokenizerFiles {
            tokenizer: Some(std::fs::read(path.join("tokenizer.json")).expect("tokenizer.json")),
            ..TokenizerFiles::default()
        };
        let tokenizer = Tokenizer::from_files(&files).expect("opens");
        let texts = [
            ("text", text.repeat(5)),
            ("letters", "a".repeat(1 << 20)),
            ("capitals", "AB".repeat(1 << 19)),
            ("spaces", " ".repeat(1 << 20)),
            ("spaces before a word", " ".repeat(1 << 20) + "x"),
            ("digits", "7".repeat(1 << 20)),
            ("newlines", "\n".repeat(1 << 20)),
            ("spaces and newlines", " \n".repeat(1 << 19)),
            ("emoji", "🦙".repeat(1 << 18)),
            ("punctuation", "!?".repeat(1 << 19)),
        ];
        for (what, text) in texts {
            let start = Instant::now();
            let ids = tokenizer.encode(&text, Special::Parse).expect("encodes");
            let took = start.elapsed();
            println!("{}: {what}: {} ids in {took:?}", path.display(), ids.len());
            assert!(took.as_secs() < 20, "{what}");
            // Qwen composes characters.
            let composes = what == "text" && path.ends_with("qwen3");
            assert!(composes || tokenizer.decode(&ids).expect("decodes") == text, "{what}");
        }
    }
}
