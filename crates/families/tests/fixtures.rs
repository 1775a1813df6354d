//! Every rendering of every small checkpoint gives a program whose weights are there, and the same one.

use std::path::{Path, PathBuf};

use turbospark_families::{FamilyOptions, Model, build};
use turbospark_formats::{Checkpoint, Metadata};
use turbospark_program::{RopeTable, Weights};

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn is_model(path: &Path) -> bool {
    path.join("model.safetensors").exists() || path.extension().is_some_and(|end| end == "gguf")
}

/// Divisors of rotary frequencies are rounded to f32 in a GGUF.
fn close(a: &RopeTable, b: &RopeTable) -> bool {
    a.amplitude == b.amplitude
        && a.frequencies.len() == b.frequencies.len()
        && a.frequencies.iter().zip(&b.frequencies).all(|(a, b)| (a - b).abs() <= 2e-7 * b.abs())
}

/// The ops; in Gemma 3 the formats differ in what they add to norm weights.
fn text(model: &Model) -> String {
    model.program.to_string().replace(", 1 + model.", ", model.")
}

#[test]
fn every_rendering_is_the_same_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let mut renderings = 0;
    for model_folder in entries(&folder).iter().filter(|path| path.is_dir()) {
        let mut first: Option<Model> = None;
        for path in entries(model_folder).iter().filter(|path| is_model(path)) {
            let name = path.display();
            let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{name}: {error}"));
            let model = build(&checkpoint, &FamilyOptions::default());
            let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
            Weights::bind(&model.program, &checkpoint).unwrap_or_else(|error| panic!("{name}: {error}"));
            let is_gguf = matches!(checkpoint.metadata, Metadata::Gguf(_));
            if model.family == "gemma3" {
                assert_eq!(model.config["norm_offset"], if is_gguf { 0.0 } else { 1.0 }, "{name}");
            }
            if let Some(first) = &first {
                assert_eq!(text(&model), text(first), "{name}");
                let (found, expected) = (model.program.ropes(), first.program.ropes());
                assert!(found.len() == expected.len(), "{name}");
                assert!(found.iter().zip(expected).all(|(a, b)| close(a, b)), "{name}");
                assert_eq!(model.program.kv_layers(), first.program.kv_layers(), "{name}");
            }
            first.get_or_insert(model);
            renderings += 1;
        }
    }
    assert!(renderings >= 50, "only {renderings} checkpoints found");
}
