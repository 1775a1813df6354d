//! Files and templates made to hurt end in an error that names the field.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use turbospark_formats::{GgufMetadata, GgufValue, TokenizerFiles};
use turbospark_text::{ChatTemplate, Message, RenderOptions, Special, TextError, Tokenizer};

fn text(s: &str) -> GgufValue {
    GgufValue::String(s.into())
}

fn list(items: &[&str]) -> GgufValue {
    GgufValue::Array(items.iter().map(|s| text(s)).collect())
}

fn pairs(model: &str, more: &[(&str, GgufValue)]) -> GgufMetadata {
    let mut pairs = vec![("tokenizer.ggml.model".to_owned(), text(model))];
    pairs.extend(more.iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value.clone())));
    GgufMetadata::from_pairs(pairs)
}

fn error(metadata: &GgufMetadata) -> String {
    match Tokenizer::from_gguf(metadata) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn bad_vocabularies_are_named() {
    let tokens = ("tokens", list(&["a", "b", "ab"]));
    let merges = ("merges", list(&["a b"]));
    let pre = ("pre", text("gpt-2"));
    let with = |more: &[(&str, GgufValue)]| {
        let mut all = vec![tokens.clone(), merges.clone(), pre.clone()];
        for pair in more {
            all.retain(|have| have.0 != pair.0);
            all.push(pair.clone());
        }
        error(&pairs("gpt2", &all))
    };
    assert!(Tokenizer::from_gguf(&pairs("gpt2", &[tokens.clone(), merges.clone(), pre.clone()])).is_ok());
    assert_eq!(error(&GgufMetadata::default()), TextError::NoTokenizer.to_string());
    assert!(error(&pairs("bert", std::slice::from_ref(&tokens))).contains("`bert` is not supported"));
    assert!(
        with(&[("pre", text("no-such"))])
            .contains("tokenizer.ggml.pre `no-such` is not supported; supported: default")
    );
    assert!(with(&[("tokens", list(&[]))]).contains("tokens: 0 tokens"));
    assert!(with(&[("tokens", list(&["a", "b", "a"]))]).contains("token \"a\" is listed twice, as 0 and 2"));
    assert!(with(&[("merges", list(&["a c"]))]).contains("merge 0 \"a c\": \"c\" is not a token"));
    assert!(with(&[("merges", list(&["a b", "b a"]))]).contains("merge 1 \"b a\": \"ba\" is not a token"));
    assert!(with(&[("merges", list(&["ab"]))]).contains("no space between two tokens"));
    assert!(with(&[("merges", list(&["ab ab"]))]).contains("\"abab\" is not a token"));
    assert!(with(&[("merges", GgufValue::Unsigned(3))]).contains("merges"));
    let types = |n| GgufValue::Array(vec![GgufValue::Signed(1); n]);
    assert!(with(&[("token_type", types(2))]).contains("token_type: 2 entries for 3 tokens"));
    assert!(
        with(&[("token_type", GgufValue::Array(vec![text("x"), text("y"), text("z")]))])
            .contains("not integers")
    );
    assert!(
        with(&[("bos_token_id", GgufValue::Unsigned(3))])
            .contains("bos_token_id is 3, the vocabulary has 3 tokens")
    );
    assert!(with(&[("eos_token_id", GgufValue::Unsigned(u64::MAX))]).contains("eos_token_id"));

    let spm = |scores: GgufValue| error(&pairs("llama", &[tokens.clone(), ("scores", scores)]));
    assert!(spm(GgufValue::Array(vec![GgufValue::Float(0.0)])).contains("scores: 1 entries for 3 tokens"));
    assert!(spm(GgufValue::Array(vec![GgufValue::Float(f64::NAN); 3])).contains("score NaN of token 0"));
    assert!(error(&pairs("llama", std::slice::from_ref(&tokens))).contains("scores: missing"));
}

fn json_error(json: &str) -> String {
    let files = TokenizerFiles { tokenizer: Some(json.as_bytes().to_vec()), ..TokenizerFiles::default() };
    match Tokenizer::from_files(&files) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn bad_tokenizer_files_are_named() {
    let file = |vocab: &str, merges: &str, decoder: &str| {
        format!(
            r#"{{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": {decoder}, "model": {{"type": "BPE", "vocab": {vocab}, "merges": {merges}}}}}"#
        )
    };
    let byte_level =
        r#"{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}"#;
    assert!(json_error("{").starts_with("tokenizer.json: EOF"));
    assert!(json_error("[]").starts_with("tokenizer.json"));
    assert!(
        json_error(&file(r#"{"a": 0, "b": 1}"#, r#"["a b"]"#, byte_level))
            .contains("merge 0 makes a token of 2 bytes")
    );
    assert!(
        json_error(&file(r#"{"a": 0, "b": 1}"#, r#"[["a", "b"]]"#, byte_level))
            .contains("merge 0 makes a token of 2 bytes")
    );
    assert!(
        json_error(&file(r#"{"a": 0, "bb": 1}"#, r#"[["a", "x"]]"#, byte_level)).contains("tokenizer.json")
    );
    assert!(
        json_error(&file(r#"{"a": 0, "b": 4000000000}"#, "[]", byte_level))
            .contains("largest id 4000000000 with only 2 tokens")
    );
    assert!(
        json_error(&file(r#"{"a": 0}"#, "[]", r#"{"type": "WordPiece", "prefix": "", "cleanup": true}"#))
            .contains("`WordPiece` is not supported")
    );
    assert!(json_error(&file(r#"{"a": 0}"#, "[]", "null")).contains("decoder `null` is not supported"));
}

fn render(source: &str) -> Result<String, TextError> {
    let start = Instant::now();
    let result = ChatTemplate::new(source)
        .and_then(|t| t.render(&[Message::new("user", "Hi")], &RenderOptions::prompt()));
    assert!(start.elapsed() < Duration::from_secs(20), "{source}");
    result
}

#[test]
fn templates_cannot_run_away() {
    let too_much = [
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxxxxxxxxxx') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='x') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(90) %}{% set z = ns.x + ns.y %}{% set ns.x = ns.y %}{% set ns.y = z %}{% endfor %}",
        "{% set x = [1] * 1000000000 %}{% set x = x + [1] %}",
        "{% set ns = namespace(x=range(60000)) %}{% for i in range(100000) %}{% set ns.x = ns.x + [] %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x | chain(ns.x) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | string }}",
        "{{ messages | tojson(indent=1000000000) }}",
        "{{ 'a'.replace('', 'b' * 100000).replace('', 'c' * 100000) }}",
        "{{ ('a,' * 100000).split(',') | map('upper') | join('x' * 100000) }}",
    ];
    for source in too_much {
        let start = Instant::now();
        let error = render(source).expect_err(source).to_string();
        println!("{:?} {source}: {error}", start.elapsed());
        assert!(error.starts_with("chat template: "), "{error}");
    }
    assert!(
        render("{{ raise_exception('no system role') }}").unwrap_err().to_string().contains("no system role")
    );
    assert!(render("{% if %}").unwrap_err().to_string().contains("line 1"));
    assert!(matches!(ChatTemplate::new("{{ a"), Err(TextError::TemplateSyntax(_))));
}

/// The bounds leave room for the longest conversations.
#[test]
fn a_long_conversation_renders() {
    let role = |i| if i % 2 == 0 { "user" } else { "assistant" };
    let messages: Vec<Message> = (0..4000).map(|i| Message::new(role(i), "word ".repeat(200))).collect();
    let source = "{% set ns = namespace(kept=[]) %}{% for m in messages %}\
        {% if m.content is string and m.content | trim | length > 0 %}{% set ns.kept = ns.kept + [m] %}{% endif %}{% endfor %}\
        {% for m in ns.kept %}{% set content = m.content.strip().split('</think>')[-1].lstrip('\\n') %}\
        {{ '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>' }}{% endfor %}";
    let rendered =
        ChatTemplate::new(source).and_then(|t| t.render(&messages, &RenderOptions::prompt())).unwrap();
    assert!(rendered.len() > 4_000_000);
}

#[test]
fn deep_nesting_is_an_error() {
    let _ = render(
        "{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    );
    let nested =
        "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x] %}{% endfor %}";
    assert!(
        render(&format!("{nested}{{{{ ns.x | tojson }}}}")).unwrap_err().to_string().contains("levels deep")
    );
    let _ = render(&"{% set x=[x] %}".repeat(69_000));
    assert!(render(&("(".repeat(100_000))).is_ok());
    assert!(render(&format!("{{{{ {} }}}}", "(".repeat(100_000))).is_err());
    assert!(render(&"{% if 1 %}".repeat(100_000)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever stands in the file, opening it ends.
    #[test]
    fn any_vocabulary_ends_in_a_tokenizer_or_an_error(
        model in prop_oneof![Just("gpt2"), Just("llama"), Just("gemma4")],
        tokens in proptest::collection::vec("[ab<>|▁Ġ ]{0,4}", 0..12),
        merges in proptest::collection::vec("[ab▁Ġ]{0,2} ?[ab▁Ġ]{0,2}", 0..6),
        types in proptest::option::of(proptest::collection::vec(0i64..8, 0..12)),
        scores in proptest::collection::vec(-9.0f64..0.0, 0..12),
        bos in proptest::option::of(0u64..14),
        input in "[ab<>|▁ é\n]{0,20}",
    ) {
        let strings = |items: &[String]| GgufValue::Array(items.iter().map(|s| text(s)).collect());
        let mut more = vec![
            ("tokens", strings(&tokens)),
            ("merges", strings(&merges)),
            ("scores", GgufValue::Array(scores.iter().map(|x| GgufValue::Float(*x)).collect())),
        ];
        if let Some(types) = types {
            more.push(("token_type", GgufValue::Array(types.iter().map(|x| GgufValue::Signed(*x)).collect())));
        }
        if let Some(bos) = bos {
            more.push(("bos_token_id", GgufValue::Unsigned(bos)));
        }
        if let Ok(tokenizer) = Tokenizer::from_gguf(&pairs(model, &more)) {
            for special in [Special::Parse, Special::AsText] {
                let ids = tokenizer.encode_document(&input, special).unwrap();
                tokenizer.decode_all(&ids).unwrap();
            }
        }
    }

    #[test]
    fn any_template_ends(source in "(\\{%|%\\}|\\{\\{|\\}\\}|-| |if|for|x|in|messages|endfor|endif|generation|\\n|'|\\(|\\)|\\||tojson|\\.|a){0,30}") {
        let _ = render(&source);
    }
}
