//! Small extracts that run always: parts of real vocabularies and templates of our own, with what the Python packages
//! make of them (make_expected.py).

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use serde_json::Value;
use turbospark_formats::{GgufMetadata, GgufValue};
use turbospark_text::{ChatTemplate, Message, RenderOptions, Special, Tokenizer};

fn vocabularies() -> Vec<Value> {
    serde_json::from_str(include_str!("data/vocabularies.json")).expect("JSON")
}

fn tokenizer(extract: &Value) -> Tokenizer {
    let list = |key: &str, one: fn(&Value) -> GgufValue| {
        let items = extract[key].as_array()?;
        Some((
            format!("tokenizer.ggml.{}", if key == "types" { "token_type" } else { key }),
            GgufValue::Array(items.iter().map(one).collect()),
        ))
    };
    let string = |v: &Value| GgufValue::String(v.as_str().expect("a string").into());
    let mut pairs = vec![
        ("tokenizer.ggml.model".to_owned(), string(&extract["model"])),
        ("tokenizer.ggml.pre".to_owned(), string(&extract["pre"])),
    ];
    pairs.extend(list("tokens", |v| GgufValue::String(v.as_str().expect("a string").into())));
    pairs.extend(list("merges", |v| GgufValue::String(v.as_str().expect("a string").into())));
    pairs.extend(list("types", |v| GgufValue::Signed(v.as_i64().expect("a type"))));
    pairs.extend(list("scores", |v| GgufValue::Float(v.as_f64().expect("a score"))));
    Tokenizer::from_gguf(&GgufMetadata::from_pairs(pairs)).expect("opens")
}

#[test]
fn ids_of_real_vocabularies() {
    for extract in vocabularies() {
        let tokenizer = tokenizer(&extract);
        for case in extract["cases"].as_array().expect("cases") {
            let text = case[0].as_str().expect("a text");
            let expected: Vec<u32> = serde_json::from_value(case[1].clone()).expect("ids");
            let ids = tokenizer.encode(text, Special::Parse).expect("encodes");
            assert_eq!(ids, expected, "{}: {text:?}", extract["name"]);
            // The real Qwen tokenizer composes characters, so its text comes back composed.
            if extract["pre"] != "qwen2" {
                assert_eq!(tokenizer.decode(&ids).expect("decodes"), text, "{}", extract["name"]);
            }
        }
    }
}

#[test]
fn small_templates_render_as_in_transformers() {
    let data: Value = serde_json::from_str(include_str!("data/templates.json")).expect("JSON");
    let messages: Vec<Message> = serde_json::from_value(data["messages"].clone()).expect("messages");
    let options = RenderOptions {
        tools: data["tools"].as_array().expect("tools").clone(),
        now: Some(UNIX_EPOCH + Duration::from_secs(data["now"].as_u64().expect("now"))),
        ..RenderOptions::prompt()
    };
    for case in data["cases"].as_array().expect("cases") {
        let source = case["source"].as_str().expect("source");
        let mut template = ChatTemplate::new(source).expect(source);
        template.set_token("bos_token", "<BOS>");
        let result = template.render(&messages, &options);
        match case["text"].as_str() {
            Some(text) => assert_eq!(result.expect(source), text, "{source}"),
            None => {
                let error = result.expect_err(source).to_string();
                assert!(error.contains(case["error"].as_str().expect("error")), "{error}");
            }
        }
    }
}

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-zA-Z' ]{0,12}",
        "[0-9]{1,7}",
        "[ \\n\\t]{1,9}",
        "\\PC{0,6}",
        Just("<|end|>".to_owned()),
        Just("👩‍👩‍👧é🦙".to_owned()),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// decode(encode(t)) == t, and the stream's text does not depend on how it is fed.
    #[test]
    fn text_comes_back(text in any_text()) {
        for extract in vocabularies() {
            let tokenizer = tokenizer(&extract);
            for special in [Special::Parse, Special::AsText] {
                let ids = tokenizer.encode(&text, special).unwrap();
                let decoded = tokenizer.decode(&ids).unwrap();
                if extract["pre"] != "qwen2" {
                    prop_assert_eq!(&decoded, &text, "{}", &extract["name"]);
                }
            }
        }
    }

    /// Any ids at all: what streams out piece by piece is the whole decoding, and every piece is whole characters.
    #[test]
    fn a_stream_equals_the_whole(ids in proptest::collection::vec(0u32..700, 0..60)) {
        for extract in vocabularies() {
            let tokenizer = tokenizer(&extract);
            let ids: Vec<u32> = ids.iter().map(|id| id % tokenizer.vocabulary_size() as u32).collect();
            let mut stream = tokenizer.detokenizer();
            let mut streamed = String::new();
            for &id in &ids {
                let mut piece = String::new();
                stream.push(id, &mut piece).unwrap();
                streamed.push_str(&piece);
            }
            stream.flush(&mut streamed);
            prop_assert_eq!(&streamed, &tokenizer.decode(&ids).unwrap());

            // Without control tokens, the bytes decide.
            let mut bytes = Vec::new();
            let plain: Vec<u32> = ids.into_iter().filter(|&id| !tokenizer.is_special(id)).collect();
            for &id in &plain {
                bytes.extend_from_slice(tokenizer.token_bytes(id).unwrap());
            }
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            let mut stream = tokenizer.continuation();
            let mut streamed = String::new();
            for &id in &plain {
                stream.push(id, &mut streamed).unwrap();
            }
            stream.flush(&mut streamed);
            prop_assert_eq!(streamed, whole);
        }
    }
}

/// Fewer control tokens than names: marks of one dialect never fall on one id.
#[test]
fn ids_are_found_by_name() {
    for extract in vocabularies() {
        let tokenizer = tokenizer(&extract);
        let tokens = extract["tokens"].as_array().expect("tokens");
        let ids: BTreeSet<u32> = tokens.iter().filter_map(|t| tokenizer.id(t.as_str()?)).collect();
        assert_eq!(ids.len(), tokens.len());
        assert_eq!(tokenizer.vocabulary_size(), tokens.len());
        assert!(tokenizer.token_bytes(tokens.len() as u32).is_err());
    }
}
