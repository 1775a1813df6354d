//! `turbospark pack` and `verify` as a user runs them, and as a machine that fails interrupts them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn turbospark(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turbospark")).args(args).output().unwrap()
}

/// What it prints.
fn succeeds(args: &[&str]) -> String {
    let output = turbospark(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors
}

/// Fails with that status; what it prints.
fn fails(args: &[&str], status: i32) -> String {
    let output = turbospark(args);
    let both = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {both}");
    both.into_owned()
}

fn demo() -> String {
    format!("{}/../engine/assets/tiny-storyteller-mxfp4.gguf", env!("CARGO_MANIFEST_DIR"))
}

fn fixture(name: &str) -> String {
    format!("{}/../../tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    });
    entries.collect()
}

#[test]
fn a_store_runs_wherever_a_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let said = succeeds(&["pack", &demo(), "-o", text(&store)]);
    assert!(said.contains("experts ready to compute"), "{said}");
    let run = |more: &[&str]| {
        let args = ["run", "--raw", "Once upon a time", "--max-tokens", "12", "--temperature", "0"];
        let output = turbospark(&[&args, more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let (path, expected) = (text(&store), run(&[]));
    for options in [
        &[][..],
        &["--expert-residency", "mapped"],
        &["--expert-residency", "stream", "--slots", "9", "--verify-reads"],
        &["--expert-residency", "resident", "--verify-reads"],
    ] {
        assert!(run(&[&["-m", path], options].concat()) == expected, "{options:?}");
    }
    assert!(succeeds(&["show", path]).contains("packed"));
    assert!(succeeds(&["plan", path]).contains("experts"));
    assert!(succeeds(&["bench", path, "--prompt", "8", "--generate", "2", "--repeat", "1"]).contains("pp8"));
    let reference = fails(&["run", "-m", path, "--executor", "reference", "Hello"], 1);
    assert!(reference.contains("--executor reference cannot read a packed store"), "{reference}");
    let reads = fails(&["run", "--verify-reads", "Hello"], 1);
    assert!(reads.contains("--verify-reads"), "{reads}");
}

#[test]
fn verify_names_what_is_damaged_and_ends_with_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    succeeds(&["pack", &fixture("gpt_oss/hf-mxfp4"), "-o", text(&store)]);
    assert!(succeeds(&["verify", text(&store)]).contains("all as written"));
    let again = succeeds(&["pack", &fixture("gpt_oss/hf-mxfp4"), "-o", text(&store)]);
    assert!(again.contains("complete already"), "{again}");
    let path = store.join("experts-00001.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 5] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let named = fails(&["verify", text(&store)], 1);
    assert!(named.contains("experts-00001.safetensors: tensor layers.1.experts.0: damaged"), "{named}");
    let json = turbospark(&["verify", text(&store), "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["damage"][0]["tensor"], "layers.1.experts.0");
    let none = fails(&["verify", &fixture("gpt_oss/hf-mxfp4")], 1);
    assert!(none.contains("not a packed store") && none.contains("turbospark pack"), "{none}");
    let dense = fails(&["pack", &fixture("llama3/hf"), "-o", text(&folder.path().join("dense"))], 1);
    assert!(dense.contains("no routed experts"), "{dense}");
    let taken = fails(&["pack", &demo(), "-o", text(folder.path())], 1);
    assert!(taken.contains("other files (store)"), "{taken}");
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % n
    }
}

#[test]
fn killed_at_any_moment_and_run_again_it_writes_the_same_bytes() {
    const KILLS: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let started = Instant::now();
    succeeds(&["pack", &demo(), "-o", text(&whole)]);
    let undisturbed = started.elapsed();
    let expected = files(&whole);
    let mut random = Random(6);
    let (mut kills, mut states) = (0, BTreeSet::new());
    for round in 0.. {
        assert!(round < 10 * KILLS, "{kills} of {KILLS} kills came in time");
        if kills >= KILLS {
            break;
        }
        let store = folder.path().join(format!("store-{round}"));
        // Some are killed again and again before they may end.
        for _ in 0..=random.below(3) {
            let mut child = Command::new(env!("CARGO_BIN_EXE_turbospark"))
                .args(["pack", &demo(), "-o", text(&store)])
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_micros(random.below(undisturbed.as_micros() as u64)));
            child.kill().unwrap();
            let ended = child.wait().unwrap();
            if ended.code().is_none() {
                // No code: ended by the signal.
                kills += 1;
                let whole = |name: &&String| !name.ends_with(".part");
                states.insert(if store.exists() { files(&store).keys().filter(whole).count() } else { 0 });
            }
        }
        succeeds(&["pack", &demo(), "-o", text(&store)]);
        assert!(files(&store) == expected, "round {round}");
        std::fs::remove_dir_all(&store).unwrap();
    }
    // They came at moments that differ in what was complete.
    assert!(states.len() >= 3, "{states:?}");
}
