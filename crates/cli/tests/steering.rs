//! Steering and capture as a user runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name).display().to_string()
}

fn turbospark(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turbospark")).args(args).output().unwrap()
}

fn done(args: &[&str]) {
    let output = turbospark(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn tensor(path: &Path, name: &str) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }
}

#[test]
fn captured_rows_are_those_of_eval_logits() {
    let folder = Folder::new("capture");
    let model = fixture("qwen3_moe/hf");
    let tokens = folder.write("ids.json", "[3, 1, 4, 1, 5, 9, 2]");
    let prompts = folder.write("prompts.jsonl", "{\"tokens\": [3, 1, 4, 1, 5, 9, 2]}\n");
    let (logits, rows) = (folder.path("logits.safetensors"), folder.path("rows.safetensors"));
    let (logits_name, rows_name) = (logits.display().to_string(), rows.display().to_string());
    done(&["eval", "logits", &model, "--tokens", &tokens, "--out", &logits_name, "--taps"]);
    let capture = [
        "capture",
        &model,
        "--prompts",
        &prompts,
        "--layers",
        "1",
        "--positions",
        "all",
        "--out",
        &rows_name,
    ];
    done(&capture);
    assert!(tensor(&rows, "layer_output") == tensor(&logits, "hidden.2"));
}

#[test]
fn samples_are_answers_as_run_shows_them() {
    let folder = Folder::new("samples");
    let positive = folder.write("p.jsonl", &"{\"prompt\": \"Tell me a happy story.\"}\n".repeat(4));
    let question = "Tell me a story about a fox and a lantern.";
    let negative = folder.write("n.jsonl", &format!("{{\"prompt\": \"{question}\"}}\n").repeat(4));
    let vector = folder.path("v.safetensors").display().to_string();
    let train = [
        "steer",
        "train",
        "--positive",
        &positive,
        "--negative",
        &negative,
        "--sample-tokens",
        "24",
        "--out",
        &vector,
    ];
    let trained = turbospark(&train);
    let trained = String::from_utf8_lossy(&trained.stdout).into_owned();
    let swept = turbospark(&[
        "steer",
        "sweep",
        "--vector",
        &vector,
        "--strengths",
        "0",
        "--prompts",
        &negative,
        "--tokens",
        "24",
        "--json",
    ]);
    let swept: serde_json::Value = serde_json::from_slice(&swept.stdout).unwrap();
    let run = turbospark(&["run", question, "--temperature", "0", "--max-tokens", "24", "--json"]);
    let run: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let answer = run["text"].as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(answer.starts_with("Once"), "{answer}");
    assert_eq!(swept["lines"][0]["sample"], answer.as_str());
    assert!(trained.contains(&format!("before: {answer}\n")), "{trained}");
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    let folder = Folder::new("steer");
    let file = folder.write("v.safetensors", "no vectors");
    let refused = |args: &[&str], part: &str| {
        let output = turbospark(args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(part), "{message}");
    };
    refused(&["run", "hi", "--steer", &file], "v.safetensors");
    refused(&["run", "hi", "--steer", &format!("{file}:push")], "unknown mode");
    refused(&["run", "hi", "--steer", "nowhere.gguf:add"], "no file nowhere.gguf");
    let prompts = folder.write("p.jsonl", "\"once\"\n");
    let out = folder.path("out.safetensors").display().to_string();
    refused(&["capture", "--prompts", &prompts, "--layers", "0-99", "--out", &out], "layers 0-");
    refused(&["capture", "--prompts", &prompts, "--taps", "routed", "--out", &out], "routed_output");
}
