//! The program as a user runs it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::SafeTensors;
use serde_json::Value;

fn turbospark(args: &[&str]) -> Output {
    with_input(args, "")
}

fn with_input(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_turbospark"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Status 1 or 2, nothing on standard output, and a message that holds all of these.
fn refused(output: &Output, status: i32, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn demo() -> String {
    root("crates/engine/assets/tiny-storyteller-mxfp4.gguf").display().to_string()
}

const GREEDY: [&str; 4] = ["--temperature", "0", "--max-tokens", "60"];

#[test]
fn the_demo_model_tells_a_story() {
    let args = [&["run", "Tell me a story about a fox and a lantern."], &GREEDY[..]].concat();
    let output = turbospark(&args);
    let story = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(story.contains("fox") && story.ends_with('\n') && !story.contains("<|"), "{story}");
    let closing = text(&output.stderr);
    assert!(closing.contains("prompt tokens at") && closing.contains("ended by length"), "{closing}");
    // The same from standard input, and again: greedy is repeatable.
    let piped = with_input(&[&["run"], &GREEDY[..]].concat(), "Tell me a story about a fox and a lantern.\n");
    assert_eq!(text(&piped.stdout), story);
}

#[test]
fn a_seed_makes_an_answer_repeatable() {
    let run = |seed| {
        text(
            &turbospark(&["run", "Hello!", "--seed", seed, "--temperature", "1.5", "--max-tokens", "30"])
                .stdout,
        )
    };
    assert_eq!(run("4"), run("4"));
    assert_ne!(run("4"), run("5"));
}

#[test]
fn json_has_what_a_program_needs() {
    let answer = json(&turbospark(&[&["run", "--json", "Tell me a bedtime story."], &GREEDY[..]].concat()));
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["token_ids"].as_array().unwrap().len(), 60);
    assert_eq!(answer["reasoning"], "");
    assert!(answer["text"].as_str().unwrap().len() > 50);
    assert_eq!(answer["timings"]["generated_tokens"], 60);
    assert!(answer["timings"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn raw_text_is_gone_on_with() {
    let output =
        turbospark(&[&["run", "--raw", "Once upon a time, a playful bat named"], &GREEDY[..]].concat());
    assert!(
        text(&output.stdout).starts_with("Once upon a time, a playful bat named "),
        "{}",
        text(&output.stdout)
    );
    let stopped = turbospark(&[&["run", "--raw", "Once upon a time", "--stop", "."], &GREEDY[..]].concat());
    assert!(!text(&stopped.stdout).contains('.'));
}

#[test]
fn a_model_without_a_template_goes_on_with_the_prompt() {
    // The same length, so that the file is the demo model in all else.
    let (key, other) = (b"tokenizer.chat_template", b"tokenizer.chat_temp1ate");
    let mut bytes = std::fs::read(demo()).unwrap();
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    bytes[at..at + key.len()].copy_from_slice(other);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base.gguf").display().to_string();
    std::fs::write(&path, bytes).unwrap();
    let prompt = "Once upon a time, a playful bat named";
    let asked = turbospark(&[&["run", "-m", &path, prompt], &GREEDY[..]].concat());
    let raw = turbospark(&[&["run", "-m", &path, "--raw", prompt], &GREEDY[..]].concat());
    assert!(text(&asked.stderr).contains("no chat template"), "{}", text(&asked.stderr));
    assert!(text(&asked.stdout).starts_with(prompt) && asked.stdout == raw.stdout);
    refused(&turbospark(&["run", "-m", &path, "--system", "x", "Hi"]), 2, &["no chat template", "--raw"]);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    refused(&turbospark(&["run", "-m", "no/such.gguf", "Hi"]), 1, &["no/such.gguf", "No such file"]);
    refused(&turbospark(&["run", "Hi", "--temperature", "-1"]), 2, &["temperature"]);
    refused(&turbospark(&["run", "Hi", "--logit-bias", "x"]), 2, &["--logit-bias x", "13=-1.5"]);
    refused(
        &turbospark(&["run", "Hi", "--context", "4"]),
        1,
        &["prompt has", "the context is 4", "--context"],
    );
    refused(&turbospark(&["run", "Hi", "--context", "9999"]), 1, &["9999", "2048 positions"]);
    refused(&turbospark(&["run", "--raw", "--system", "x", "Hi"]), 2, &["--raw", "--system"]);
    let both = turbospark(&["run", "Hi", "--executor", "reference", "--threads", "2"]);
    refused(&both, 2, &["--threads", "reference"]);
    refused(&turbospark(&["run", "Hi", "--isa", "neon"]), 2, &["neon", "it has scalar"]);
    refused(&turbospark(&["frobnicate"]), 2, &["frobnicate"]);
    let tiny = root("tests/fixtures/llama3/hf").display().to_string();
    refused(&turbospark(&["run", "-m", &tiny, "Hi"]), 1, &["token ids", "tokenizer.json"]);
}

#[test]
fn a_model_that_is_cut_short_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let whole = std::fs::read(demo()).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1000]).unwrap();
    let output = turbospark(&["show", path.to_str().unwrap()]);
    refused(&output, 1, &["cut.gguf", "truncated", "tensor blk.5.ffn_down_exps.bias"]);
}

#[test]
fn show_describes_a_checkpoint() {
    let output = turbospark(&["show", &demo(), "--tensors", "--program"]);
    let shown = text(&output.stdout);
    for part in
        ["gpt-oss", "MXFP4", "model.layers.5.mlp.experts.down_proj.weight", "window 128", "clamped_swiglu"]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let shown = json(&turbospark(&["show", "--json", "--program"]));
    assert_eq!(shown["family"], "gpt-oss");
    assert_eq!(shown["max_positions"], 2048);
    assert!(shown["program"].as_array().unwrap().len() > 50);
}

#[test]
fn show_says_which_kernel_a_tensor_takes() {
    let shown = json(&turbospark(&["show", &demo(), "--tensors", "--json", "--isa", "scalar"]));
    assert_eq!((&shown["executor"], &shown["isa"]), (&"cpu".into(), &"scalar".into()));
    let read_as = |shown: &serde_json::Value, name: &str| {
        let tensors = shown["tensors"].as_array().unwrap();
        tensors.iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("no {name}"))["read_as"].clone()
    };
    for (name, expected) in [
        ("model.layers.5.mlp.experts.down_proj.weight", "expert panels Mxfp4"),
        ("model.layers.5.mlp.experts.down_proj.bias", "vector F32"),
        ("model.layers.0.mlp.router.weight", "panels dense F32"),
        ("model.layers.0.self_attn.q_proj.weight", "panels Q8_0"),
        ("model.layers.0.self_attn.sinks", "vector F32"),
        ("model.norm.weight", "vector F32"),
    ] {
        assert_eq!(read_as(&shown, name), serde_json::json!([expected]), "{name}");
    }
    let tensors = shown["tensors"].as_array().unwrap();
    assert!(tensors.iter().all(|t| !t["read_as"].as_array().unwrap().is_empty()), "{tensors:?}");
    // An embedding that is the head too: read by row, and packed.
    let tied = root("tests/fixtures/gemma3_4b/gguf-q8_0.gguf").display().to_string();
    let tied = json(&turbospark(&["show", &tied, "--tensors", "--json"]));
    assert_eq!(read_as(&tied, "model.embed_tokens.weight"), serde_json::json!(["rows Q8_0", "panels Q8_0"]));
    let table = turbospark(&["show", &demo(), "--tensors", "--isa", "scalar"]);
    let table = text(&table.stdout);
    assert!(table.contains("read as (kernels: scalar)") && table.contains("expert panels Mxfp4"), "{table}");
    let shown = json(&turbospark(&["show", &demo(), "--tensors", "--json", "--executor", "reference"]));
    assert_eq!(read_as(&shown, "model.norm.weight"), serde_json::json!(["f32 loops"]));
}

#[test]
fn logits_and_taps_come_as_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (folder.path().join("ids.json"), folder.path().join("out.safetensors"));
    std::fs::write(&ids, "[411, 433, 258, 371]").unwrap();
    let (ids, file) = (ids.display().to_string(), out.display().to_string());
    let output = turbospark(&[
        "eval",
        "logits",
        &demo(),
        "--tokens",
        &ids,
        "--out",
        &file,
        "--taps",
        "--executor",
        "reference",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let bytes = std::fs::read(out).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| tensors.tensor(name).unwrap().shape().to_vec();
    assert_eq!(shape("logits"), [4, 4096]);
    assert_eq!(shape("hidden.0"), [4, 256]);
    assert_eq!(shape("hidden.6"), [4, 256]);
    assert_eq!(shape("router_idx.5"), [4, 4]);
    assert_eq!(shape("router_w.0"), [4, 4]);

    std::fs::write(&ids, "[411, 5000]").unwrap();
    let output = turbospark(&["eval", "logits", &demo(), "--tokens", &ids, "--out", &file]);
    refused(&output, 1, &["token 5000", "vocabulary of 4096"]);
    std::fs::write(&ids, "{}").unwrap();
    let output = turbospark(&["eval", "logits", &demo(), "--tokens", &ids, "--out", &file]);
    refused(&output, 1, &["ids.json", "a JSON list of token ids"]);
}

#[test]
fn perplexity_of_documents_is_the_models_own() {
    let stories = std::fs::read_to_string(root("tests/fixtures/demo/heldout.txt")).unwrap();
    let first: Vec<&str> = stories.split("\n\n").take(8).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stories.txt");
    std::fs::write(&path, first.join("\n\n")).unwrap();
    let path = path.display().to_string();
    let run = |more: &[&str]| {
        json(&turbospark(&[&["eval", "perplexity", &demo(), "--text", &path, "--json"], more].concat()))
    };
    let reference = run(&["--documents", "--executor", "reference"]);
    let fast = run(&["--documents"]);
    let (a, b) = (reference["perplexity"].as_f64().unwrap(), fast["perplexity"].as_f64().unwrap());
    assert!(a > 2.0 && a < 4.5, "{a}");
    assert!((b / a - 1.0).abs() < 0.01, "{a} {b}");
    assert_eq!(reference["tokens"], fast["tokens"]);
    let windows = run(&["--context", "64"]);
    assert!(windows["perplexity"].as_f64().unwrap() > a, "windows cut stories apart");
    let strided = run(&["--context", "256", "--stride", "64"]);
    assert!(strided["tokens"].as_u64().unwrap() > windows["tokens"].as_u64().unwrap());
    let output = turbospark(&["eval", "perplexity", &demo(), "--text", &path, "--context", "2048"]);
    refused(&output, 1, &["at least two windows of 2048"]);
}

#[test]
fn tokens_go_there_and_back() {
    let there = json(&turbospark(&["tokenize", &demo(), "--json", "Once upon a time<|end|>"]));
    let ids: Vec<String> = there["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(ids.last().unwrap(), "4093");
    let back = turbospark(&["tokenize", &demo(), "--decode", &ids.join(" ")]);
    assert_eq!(text(&back.stdout), "Once upon a time<|end|>\n");
    let plain = json(&turbospark(&["tokenize", &demo(), "--json", "--no-special", "<|end|>"]));
    assert!(plain["ids"].as_array().unwrap().len() > 1);
    refused(&turbospark(&["tokenize", &demo(), "--decode", "1 two"]), 2, &["\"two\" is not a token id"]);
}

#[test]
fn every_command_has_an_example() {
    for command in [
        &["run"][..],
        &["chat"],
        &["show"],
        &["tokenize"],
        &["plan"],
        &["experts", "trace"],
        &["experts", "report"],
        &["experts", "simulate"],
        &["eval", "logits"],
        &["eval", "perplexity"],
        &[],
    ] {
        let help = text(&turbospark(&[command, &["--help"]].concat()).stdout);
        assert!(help.contains("Example"), "{command:?}: {help}");
    }
}
