//! Options of memory as a user types them.

use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turbospark"));
    command.args(["run", "Tell me a story.", "--max-tokens", "12", "--temperature", "0"]);
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn dense() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama3/hf");
    path.to_str().unwrap().to_owned()
}

#[test]
fn streaming_gives_the_same_answer_and_says_how_memory_is_used() {
    let resident = run(&[]);
    assert!(resident.status.success(), "{}", text(&resident.stderr));
    assert!(!text(&resident.stderr).contains("memory:"));
    for options in [
        &["--expert-residency", "stream"][..],
        &["--slots", "8", "--policy", "lru", "--reader", "buffered", "--prefetch", "on", "--stats"],
    ] {
        let streamed = run(options);
        let stderr = text(&streamed.stderr);
        assert!(streamed.status.success(), "{stderr}");
        assert_eq!(text(&streamed.stdout), text(&resident.stdout));
        assert!(stderr.contains("memory:") && stderr.contains("slots for 96 experts"), "{stderr}");
        assert_eq!(options.contains(&"--stats"), stderr.contains("misses"), "{stderr}");
    }
}

#[test]
fn statistics_are_part_of_the_json() {
    let output = run(&["--json", "--slots", "8"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for phase in ["prefill", "decode"] {
        let phase = &value["statistics"][phase];
        assert!(
            phase["misses"].as_u64().unwrap() > 0 && phase["bytes_read"].as_u64().unwrap() > 0,
            "{phase}"
        );
    }
}

#[test]
fn the_smallest_memory_that_is_named_works() {
    let refused = run(&["--memory", "3MiB"]);
    let stderr = text(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("keys and values"), "{stderr}");
    let (_, least) = stderr.trim().rsplit_once("--memory ").unwrap();
    let works = run(&["--memory", least]);
    assert!(works.status.success(), "{least}: {}", text(&works.stderr));
}

#[test]
fn options_that_do_nothing_are_refused_by_name() {
    let dense = dense();
    for (options, named) in [
        (&["-m", &dense, "--raw", "--expert-residency", "stream"][..], "--expert-residency stream"),
        (&["-m", &dense, "--raw", "--policy", "lru"], "--policy lru"),
        (&["--executor", "reference", "--memory", "1GiB"], "--memory 1GiB"),
        (&["--executor", "reference", "--prefetch", "on"], "--prefetch on"),
        (&["--expert-residency", "resident", "--slots", "9"], "--slots 9"),
        (&["--expert-residency", "mapped"], "--expert-residency mapped"),
        (&["--slots", "97"], "--slots 97"),
        (&["--policy", "mru"], "least-stale"),
        (&["--reader", "tape"], "buffered"),
        (&["--memory", "much"], "8GiB"),
    ] {
        let output = run(options);
        let stderr = text(&output.stderr);
        assert!(!output.status.success() && stderr.contains(named), "{options:?}: {stderr}");
    }
}
