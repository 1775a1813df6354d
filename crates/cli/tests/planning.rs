//! `plan` and `experts` as a user runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn turbospark(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turbospark")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output of a command that works.
fn done(arguments: &[&str]) -> String {
    let output = turbospark(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Standard error of a command that does not.
fn refused(arguments: &[&str]) -> String {
    let output = turbospark(arguments);
    let stderr = text(&output.stderr);
    assert!(!output.status.success() && stderr.starts_with("error: "), "{arguments:?}: {stderr}");
    stderr
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(arguments)).unwrap()
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name).display().to_string()
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_plan_adds_up() {
    let plan = json(&["plan", "--memory", "1GiB", "--slots", "24", "--context", "512", "--json"]);
    let memory = &plan["memory"];
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    let parts = ["resident_bytes", "kv_bytes", "scratch_bytes", "process_bytes", "expert_bytes"];
    assert_eq!(parts.iter().map(|name| bytes(name)).sum::<u64>(), bytes("total_bytes"));
    assert_eq!((bytes("slots"), bytes("experts"), bytes("context")), (24, 96, 512));
    assert_eq!((&memory["placement"], &plan["policy"]), (&"streamed".into(), &"forecast".into()));
    assert_eq!(plan["token"]["experts"], 24);
    assert_eq!(plan["hits_from"], "uniform");
    let estimate = |name: &str| plan["estimate"][name].as_f64().unwrap();
    let seconds = estimate("shared_seconds") + estimate("expert_seconds").max(estimate("disk_seconds"));
    assert!((estimate("tokens_per_second") * seconds - 1.0).abs() < 1e-9);
    assert!(plan["rates"]["disk"]["bytes_per_second"].as_f64().unwrap() > 0.0);
    let budgets = plan["budgets"].as_array().unwrap();
    assert!(budgets.len() > 2 && budgets.iter().filter(|row| row["this_plan"] == true).count() == 1);
}

#[test]
fn plans_are_told_or_refused_with_the_arithmetic() {
    let told = done(&["plan", "--memory", "72MiB"]);
    for what in ["slots for 96", "in a slot", "liked alike", "GB/s", "tokens/s", "this plan", "all"] {
        assert!(told.contains(what), "{what}: {told}");
    }
    let small = refused(&["plan", "--memory", "3MiB"]);
    assert!(small.contains("keys and values") && small.contains("--memory "), "{small}");
    let dense = done(&["plan", &fixture("llama3/hf")]);
    assert!(dense.contains("weights that every token needs") && !dense.contains("slot"), "{dense}");
    let (dense, trace) = (fixture("llama3/hf"), fixture("demo/golden.json"));
    assert!(refused(&["plan", &dense, "--trace", &trace]).contains("no routed experts"));
    assert!(refused(&["plan", "--trace", &trace]).contains("not a routing trace"));
    assert!(refused(&["plan", "--executor", "reference"]).contains("CPU executor"));
    assert!(refused(&["plan", "--expert-residency", "resident", "--slots", "9"]).contains("--slots 9"));
    assert!(refused(&["plan", "--slots", "97"]).contains("1 to 96"));
}

#[test]
fn a_trace_is_recorded_reported_and_planned_with() {
    let folder = folder("experts");
    let path = |name: &str| folder.join(name).display().to_string();
    let (alone, chunks, out) = (path("alone.routing"), path("chunks.routing"), path("report"));
    let heldout = fixture("demo/heldout.txt");
    let options = ["experts", "trace", "--text", &heldout, "--limit", "300", "--context", "200", "--out"];
    done(&[&options[..], &[&alone]].concat());
    done(&[&options[..], &[&chunks, "--no-predictions"]].concat());

    let report = json(&["experts", "report", &alone, "--out", &out, "--model", "demo", "--json"]);
    let other = json(&["experts", "report", &chunks, "--json"]);
    assert_eq!((&report["tokens"], &report["experts_per_token"]), (&300.into(), &4.into()));
    let layers = report["layers"].as_array().unwrap();
    for (index, (layer, other)) in layers.iter().zip(other["layers"].as_array().unwrap()).enumerate() {
        assert_eq!((&layer["counts"], &layer["co_occurrence"]), (&other["counts"], &other["co_occurrence"]));
        assert!(other.get("recall_of_prediction").is_none());
        let recall = layer.get("recall_of_prediction").map(|recall| recall.as_f64().unwrap());
        // Chance gives a quarter; nothing foretells the first layer.
        assert_eq!(recall.is_some(), index > 0);
        assert!(recall.is_none_or(|recall| recall > 0.4 && recall < 1.0), "{recall:?}");
        assert!(layer["top_tokens"][0][0]["text"].is_string());
    }
    let hits = &report["hits"];
    assert_eq!((&hits["cycle"], &hits["experts"]), (&24.into(), &96.into()));
    assert_eq!(hits["hit_rates"]["optimum"].as_array().unwrap().last().unwrap(), &Value::from(1.0));

    let plots = ["load", "overlap", "recall", "entropy", "hit-rate", "co-occurrence"];
    let page = std::fs::read_to_string(folder.join("report/report.html")).unwrap();
    for name in plots {
        let svg = std::fs::read_to_string(folder.join(format!("report/{name}.svg"))).unwrap();
        assert!(
            svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>") && page.contains(&svg),
            "{name}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
    }
    let saved = std::fs::read_to_string(folder.join("report/report.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&saved).unwrap(), report);

    let told = done(&["experts", "report", &alone]);
    assert!(told.contains("recall") && told.contains("| optimum |") && told.contains("96 (4)"), "{told}");

    let plan = json(&["plan", "--slots", "24", "--trace", &alone, "--json"]);
    assert_eq!(plan["hits_from"]["trace"]["tokens"], 300);
    let at = hits["slots"].as_array().unwrap().iter().position(|slots| *slots == 24).unwrap();
    let difference =
        plan["estimate"]["hit_rate"].as_f64().unwrap() - hits["hit_rates"]["forecast"][at].as_f64().unwrap();
    assert!(difference.abs() < 1e-9, "{difference}");
}

#[test]
fn prompts_are_recorded_with_what_is_generated() {
    let folder = folder("experts-prompts");
    let path = |name: &str| folder.join(name).display().to_string();
    let (prompts, out) = (path("prompts.jsonl"), path("prompts.routing"));
    std::fs::write(&prompts, "{\"text\": \"Once upon a time\"}\n{\"prompt\": \"Tell me a story.\"}\n")
        .unwrap();
    let options = ["experts", "trace", "--prompts", &prompts, "--temperature", "0", "--out", &out];
    let tokens = || json(&["experts", "report", &out, "--json"])["tokens"].as_u64().unwrap();
    done(&options);
    let of_prompts = tokens();
    done(&[&options[..], &["--generate", "9"]].concat());
    // The last token of an answer is never computed.
    assert_eq!(tokens(), of_prompts + 2 * 8);
}

#[test]
fn made_up_traces_are_replayed() {
    let folder = folder("experts-synthetic");
    let path = |name: &str| folder.join(name).display().to_string();
    let (skewed, again) = (path("skewed.routing"), path("again.routing"));
    let make = ["experts", "trace", "--synthetic", "skewed", "--shape", "4x8x2", "--length", "200", "--out"];
    done(&[&make[..], &[&skewed]].concat());
    done(&[&make[..], &[&again, "--seed", "1"]].concat());
    assert_eq!(std::fs::read(&skewed).unwrap(), std::fs::read(&again).unwrap());

    let table = done(&["experts", "simulate", &skewed, "--policy", "lru", "--cycles", "0.5,1"]);
    assert!(table.contains("lru | optimum |"), "{table}");
    assert!(table.contains("| skewed | 4 (0.5)        |   0.0 |"), "{table}");
    let all = json(&["experts", "simulate", &skewed, "--slots", "8,32", "--json"]);
    let hits = &all["traces"][0]["hits"];
    assert_eq!(hits["slots"], serde_json::json!([8, 32]));
    assert_eq!(hits["hit_rates"].as_object().unwrap().len(), 7);
    assert!(hits["hit_rates"].as_object().unwrap().values().all(|rates| rates[1] == 1.0));

    for (options, named) in [
        (&["--policy", "mru"][..], "static-set"),
        (&["--slots", "0"], "--slots 0"),
        (&["--slots", "33"], "1 to 32"),
        (&["--cycles=-1"], "--cycles -1"),
        (&["--cycles", "nan"], "--cycles NaN"),
    ] {
        let error = refused(&[&["experts", "simulate", &skewed][..], options].concat());
        assert!(error.contains(named), "{options:?}: {error}");
    }
    for shape in ["4x8", "0x8x2", "4x8x9", "2x5000x1", "99999999999x8x2"] {
        let error =
            refused(&["experts", "trace", "--synthetic", "uniform", "--shape", shape, "--out", &again]);
        assert!(error.contains("--shape"), "{error}");
    }
    refused(&["experts", "trace", "--out", &again]);
}

#[test]
fn files_that_are_no_traces_are_named() {
    let folder = folder("experts-broken");
    let path = |name: &str| folder.join(name).display().to_string();
    let (whole, broken) = (path("whole.routing"), path("broken.routing"));
    done(&["experts", "trace", "--synthetic", "uniform", "--length", "9", "--out", &whole]);
    let bytes = std::fs::read(&whole).unwrap();
    for bytes in [&b""[..], b"a text", &bytes[..bytes.len() / 2], &[255; 64]] {
        std::fs::write(&broken, bytes).unwrap();
        for command in [&["experts", "report", &broken][..], &["experts", "simulate", &broken]] {
            assert!(refused(command).contains("broken.routing"));
        }
    }
    let (empty, missing) = (path("empty.routing"), path("none.routing"));
    done(&["experts", "trace", "--synthetic", "uniform", "--length", "0", "--out", &empty]);
    assert!(refused(&["experts", "report", &empty]).contains("empty"));
    assert!(refused(&["experts", "simulate", &missing]).contains("none.routing"));
}
