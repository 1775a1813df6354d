//! The tiny models of tests/fixtures, one of every family and variant.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use turbospark_engine::{Engine, MemoryOptions, OpenOptions, Residency};
use turbospark_formats::Checkpoint;

/// Models that have a golden of residuals and one of edits.
pub const MODELS: [&str; 15] = [
    "llama3",
    "tinyllama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gpt_oss",
    "gemma3",
    "gemma3_4b",
    "gemma3_27b",
    "gemma4_dense",
    "gemma4_e2b",
    "gemma4_e4b",
    "gemma4_moe",
];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

pub fn folder(model: &str) -> PathBuf {
    fixture(model).join("hf")
}

pub fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The model, and the prompt of its golden.
pub fn open(model: &str, options: OpenOptions) -> (Engine, Vec<u32>) {
    let engine = Engine::new(&Checkpoint::open(&folder(model)).unwrap(), options).unwrap();
    let golden = std::fs::read(folder(model).join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let ids = ids.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect();
    (engine, ids)
}

/// Options that stream the experts of this model through 1 slot, one token cycle and 1.3 of them; none for a dense one.
pub fn streamed(engine: &Engine, options: &OpenOptions) -> Vec<OpenOptions> {
    let layers = engine.program().expert_layers();
    let cycle: usize = layers.iter().map(|layer| layer.k).sum();
    let pools = [1, cycle, cycle * 13 / 10];
    let with = |slots| {
        let memory =
            MemoryOptions { residency: Residency::Stream, slots: Some(slots), ..MemoryOptions::default() };
        OpenOptions { memory, ..options.clone() }
    };
    if layers.is_empty() { vec![] } else { pools.into_iter().map(with).collect() }
}
