//! Models of tests/fixtures, run on the CPU executor and on the reference.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use turbospark_cpu::{CpuExecutor, CpuOptions, Isa, PanelPacker};
use turbospark_experts::{LoadOptions, PackedExperts, ResidentExperts};
use turbospark_families::{FamilyOptions, build};
use turbospark_formats::Checkpoint;
use turbospark_program::{Batch, Executor, ExpertSource, Outputs, Program, Row, SequenceId, States};
use turbospark_reference::ReferenceExecutor;

/// A checkpoint and its program.
pub struct Model {
    pub name: String,
    pub checkpoint: Checkpoint,
    pub program: Program,
}

/// tests/fixtures
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

impl Model {
    /// A model below tests/fixtures.
    pub fn open(name: &str) -> Model {
        Model::at(&fixtures().join(name))
    }

    pub fn at(path: &Path) -> Model {
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let built = build(&checkpoint, &FamilyOptions::default());
        let program = built.unwrap_or_else(|e| panic!("{}: {e}", path.display())).program;
        let name = path.strip_prefix(fixtures()).unwrap_or(path).display().to_string();
        Model { name, checkpoint, program }
    }

    pub fn reference(&self) -> (ReferenceExecutor, ResidentExperts) {
        let executor = ReferenceExecutor::open(self.program.clone(), &self.checkpoint).unwrap();
        (executor, ResidentExperts::open(&self.program, &self.checkpoint).unwrap())
    }

    pub fn cpu(&self, options: CpuOptions) -> CpuExecutor {
        CpuExecutor::open(self.program.clone(), &self.checkpoint, options)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    pub fn packed(&self) -> PackedExperts {
        let packer = PanelPacker::new(Isa::detect());
        PackedExperts::open(&self.program, &self.checkpoint, &packer, LoadOptions::default(), &|_| {})
            .unwrap()
    }

    /// Tokens from a fixed generator.
    pub fn tokens(&self, count: usize, seed: u32) -> Vec<u32> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % self.program.vocabulary() as u32
        };
        (0..count).map(next).collect()
    }
}

/// Every model of tests/fixtures: folders with a config and GGUF files.
pub fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for model in std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(entries) = std::fs::read_dir(&model) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|e| e == "gguf") || path.join("model.safetensors").exists() {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() >= 30, "only {} models in {}", found.len(), fixtures().display());
    found
}

/// Rows of one sequence; logits of all are wanted.
pub fn rows(states: &States, sequence: SequenceId, tokens: &[u32]) -> Vec<Row> {
    let mut batch = Batch::append(states, sequence, tokens);
    batch.rows.iter_mut().for_each(|row| row.logits = true);
    batch.rows
}

/// Logits of every token of one sequence, computed in chunks.
pub fn run(
    executor: &mut dyn Executor,
    experts: &dyn ExpertSource,
    tokens: &[u32],
    chunk: usize,
) -> Vec<f32> {
    let program = executor.program().clone();
    let mut states = States::new(&program, None);
    let sequence = states.create();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let batch = Batch { rows: rows(&states, sequence, tokens), edits: Vec::new() };
        let mut logits = vec![0.0; tokens.len() * program.vocabulary()];
        executor.step(&batch, &mut states, experts, &mut Outputs::logits(&mut logits)).unwrap();
        all.extend(logits);
    }
    all
}
