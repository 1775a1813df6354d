//! `turbospark bench` and `turbospark eval kl` as a user runs them.

use std::process::{Command, Output};

use serde_json::Value;

fn turbospark(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turbospark")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = turbospark(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Status 2 and a message that holds all of these.
fn refused(args: &[&str], parts: &[&str]) {
    let output = turbospark(args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

fn demo() -> String {
    format!("{}/../engine/assets/tiny-storyteller-mxfp4.gguf", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn results_are_named_as_llama_bench_names_them() {
    let args = "bench --prompt 8,0 --generate 3 --depth 0,70 --repeat 2 --threads 2 --json";
    let report = json(&args.split(' ').collect::<Vec<_>>());
    let results = report["results"].as_array().unwrap();
    let tests: Vec<&str> = results.iter().map(|result| result["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp8", "tg3", "pp8 @ d70", "tg3 @ d70"]);
    for result in results {
        let samples = result["samples"].as_array().unwrap();
        let rates: Vec<f64> = samples.iter().map(|sample| sample.as_f64().unwrap()).collect();
        let mean = result["tokens_per_second"].as_f64().unwrap();
        assert!(rates.len() == 2 && (mean - (rates[0] + rates[1]) / 2.0).abs() < 1e-6 * mean);
        assert!(result["stddev"].as_f64().is_some());
        let name = match result["test"].as_str().unwrap().starts_with("pp") {
            true => "giga_multiply_adds_per_second",
            false => "gigabytes_per_second",
        };
        for part in ["whole", "linears"] {
            assert!(result[part][name].as_f64().unwrap() > 0.0, "{result}");
            assert!(result[part]["share_of_ceiling"].as_f64().unwrap() > 0.0, "{result}");
        }
        assert!(result["time"]["experts"].as_f64().unwrap() > 0.0, "{result}");
    }
    for name in ["read_gigabytes_per_second", "giga_multiply_adds_per_second"] {
        assert!(report["ceilings"][name].as_f64().unwrap() > 0.0);
    }
    assert_eq!(report["threads"], 2);
}

#[test]
fn a_token_touches_what_it_is_routed_to() {
    let report = json(&["bench", &demo(), "--prompt", "0", "--generate", "1", "--repeat", "1", "--json"]);
    let bytes = report["bytes_per_token"].as_f64().unwrap();
    // 4 of 16 experts: less than the file, more than a fifth of it.
    let file = std::fs::metadata(demo()).unwrap().len() as f64;
    assert!(file * 0.2 < bytes && bytes < file * 0.6, "{bytes} of {file}");
}

#[test]
fn the_reference_has_no_ceilings() {
    let args = "bench --prompt 4 --generate 0 --repeat 1 --executor reference --json";
    let report = json(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(report["executor"], "reference");
    assert_eq!(report["ceilings"], serde_json::json!({}));
    let result = &report["results"][0];
    assert!(result["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(result["whole"]["share_of_ceiling"].is_null() && result["linears"].is_null(), "{result}");
}

#[test]
fn streamed_experts_are_counted() {
    let demo = demo();
    let args = ["bench", &demo, "--prompt", "0", "--generate", "20", "--repeat", "1"];
    let resident = json(&[&args[..], &["--json"]].concat());
    assert!(resident["results"][0]["streamed"].is_null());
    let report = json(&[&args[..], &["--slots", "40", "--json"]].concat());
    let streamed = &report["results"][0]["streamed"];
    let hits = streamed["hit_rate"].as_f64().unwrap();
    assert!(0.0 < hits && hits < 1.0, "{streamed}");
    assert!(streamed["bytes_read_per_token"].as_f64().unwrap() > 0.0, "{streamed}");
    let table = turbospark(&[&args[..], &["--slots", "40"]].concat());
    assert!(String::from_utf8_lossy(&table.stdout).contains("% in slots"));
}

#[test]
fn a_table_is_printed_for_people() {
    let output = turbospark(&["bench", "--prompt", "4", "--generate", "2", "--repeat", "1"]);
    let table = String::from_utf8(output.stdout).unwrap();
    for part in ["pp4", "tg2", "ceilings: read", "% of the ceiling", "a token touches"] {
        assert!(table.contains(part), "{part:?} is not in {table}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    refused(
        &["bench", "--prompt", "0", "--generate", "0"],
        &["--prompt", "--generate", "nothing to measure"],
    );
    refused(&["bench", "--depth", "100000"], &["pp512 @ d100000", "--depth"]);
    refused(&["bench", "--context", "512"], &["--context"]);
    refused(&["bench", "--repeat", "0"], &["--repeat"]);
    refused(&["bench", "--prompt", "many"], &["--prompt", "many"]);
    refused(&["bench", "--executor", "reference", "--threads", "1"], &["--threads"]);
}

#[test]
fn divergence_from_the_reference_is_small_and_from_itself_nothing() {
    let text = std::env::temp_dir().join(format!("turbospark-kl-{}.txt", std::process::id()));
    std::fs::write(&text, "Once upon a time there was a small fox who lived in a wood. ".repeat(4)).unwrap();
    let (demo, path) = (demo(), text.display().to_string());
    let report = json(&["eval", "kl", &demo, "--text", &path, "--context", "32", "--json"]);
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(0.0 < number("mean_kl") && number("mean_kl") < 0.05, "{report}");
    assert!(number("mean_kl") <= number("p99_kl") && number("p99_kl") <= number("max_kl"), "{report}");
    assert!(number("top1_agreement") > 0.8 && number("positions") > 32.0, "{report}");
    assert!((number("perplexity") / number("against_perplexity") - 1.0).abs() < 0.05, "{report}");
    let same = json(&["eval", "kl", &demo, "--text", &path, "--against", &demo, "--json"]);
    assert_eq!((same["mean_kl"].as_f64(), same["top1_agreement"].as_f64()), (Some(0.0), Some(1.0)));
    refused(&["eval", "kl", &demo, "--text", &path, "--executor", "reference"], &["--executor", "--against"]);
    std::fs::remove_file(text).unwrap();
}
