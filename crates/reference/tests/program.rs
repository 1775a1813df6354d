//! Programs built by hand: what the families need, and what must be refused.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView};
use turbospark_formats::{Checkpoint, Source};
use turbospark_program::{
    Attention, Batch, BatchError, Builder, Edit, EditKind, Executor, ExpertError, ExpertLayout,
    ExpertRequest, ExpertSource, KvLayer, Limits, Logits, OutputError, Outputs, Program, Reg, States,
    StepError, Tap, TapRows, WeightError, Weights,
};
use turbospark_reference::ReferenceExecutor;

const HIDDEN: usize = 8;
const VOCABULARY: usize = 16;

/// A source for models without routed experts.
struct NoExperts;

impl ExpertSource for NoExperts {
    fn layout(&self, _: usize) -> &ExpertLayout {
        unreachable!("the program has no experts")
    }
    fn begin<'a>(&'a self, layer: usize, _: &[u32]) -> Result<Box<dyn ExpertRequest + 'a>, ExpertError> {
        Err(ExpertError::Unknown { layer, expert: 0, count: 0 })
    }
    fn leases(&self) -> usize {
        1
    }
}

/// Tensors of a small dense model, with values from a fixed linear congruential generator.
fn checkpoint() -> Checkpoint {
    let mut state = 1u32;
    let mut tensors: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    let mut add = |name: &str, shape: &[usize]| {
        let bytes = (0..shape.iter().product::<usize>()).flat_map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_le_bytes()
        });
        tensors.insert(name.to_owned(), (shape.to_vec(), bytes.collect()));
    };
    add("model.embed_tokens.weight", &[VOCABULARY, 2 * HIDDEN]);
    add("lm_head.weight", &[VOCABULARY, HIDDEN]);
    for layer in 0..2 {
        for projection in ["q", "k", "v", "o"] {
            add(&format!("model.layers.{layer}.self_attn.{projection}_proj.weight"), &[HIDDEN, HIDDEN]);
        }
    }
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    let config = br#"{"model_type": "llama", "num_hidden_layers": 2}"#;
    Checkpoint::from_safetensors(Path::new("tiny"), config, &[Source::owned("tiny.safetensors", file)])
        .unwrap()
}

struct Layers {
    builder: Builder,
    stream: Reg,
}

impl Layers {
    /// The left half of the embedding is the stream.
    fn new() -> Layers {
        let mut builder = Builder::new(HIDDEN, 100);
        let table = builder.weight("model.embed_tokens.weight", &[VOCABULARY, 2 * HIDDEN]);
        let whole = builder.embed(table, 1.0);
        let stream = builder.slice(whole, 0, HIDDEN);
        Layers { builder, stream }
    }

    fn project(&mut self, layer: usize, name: &str, x: Reg) -> Reg {
        let name = format!("model.layers.{layer}.self_attn.{name}_proj.weight");
        let weight = self.builder.weight(name, &[HIDDEN, HIDDEN]);
        self.builder.linear(x, weight, None)
    }

    fn cache(&mut self, window: Option<usize>) -> usize {
        self.builder.kv_layer(KvLayer { layer: 0, key_width: HIDDEN, value_width: HIDDEN, window })
    }

    fn attend(&mut self, layer: usize, kv: Option<(Reg, Reg)>, cache: usize, window: Option<usize>) {
        let attention = Attention {
            cache,
            heads: 2,
            kv_heads: 2,
            head: HIDDEN / 2,
            scale: 0.5,
            window,
            sinks: None,
            softcap: Some(5.0),
        };
        let q = self.project(layer, "q", self.stream);
        let a = self.builder.attention(q, kv, attention);
        let o = self.project(layer, "o", a);
        self.stream = self.builder.add(self.stream, o);
    }

    fn finish(mut self) -> Program {
        let x = self.builder.select_rows(self.stream);
        let head = self.builder.weight("lm_head.weight", &[VOCABULARY, HIDDEN]);
        let logits = self.builder.linear(x, head, None);
        self.builder.finish(logits, 2).unwrap()
    }
}

/// Two layers; the second computes keys and values anew or reads those of the first.
fn two_layers(share: bool, window: Option<usize>) -> Program {
    let mut layers = Layers::new();
    let cache = layers.cache(window);
    let (k, v) = (layers.project(0, "k", layers.stream), layers.project(0, "v", layers.stream));
    layers.attend(0, Some((k, v)), cache, window);
    layers.stream = layers.builder.tap(layers.stream, Tap::LayerOutput(0));
    let (kv, cache) = if share { (None, cache) } else { (Some((k, v)), layers.cache(window)) };
    layers.attend(1, kv, cache, window);
    layers.finish()
}

fn step(executor: &mut ReferenceExecutor, states: &mut States, batch: &Batch) -> Result<Vec<f32>, StepError> {
    let mut logits = vec![0.0; batch.wanted() * VOCABULARY];
    executor.step(batch, states, &NoExperts, &mut Outputs::logits(&mut logits))?;
    Ok(logits)
}

/// Logits of every token of one sequence, computed in chunks.
fn all_logits(program: &Program, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut executor = ReferenceExecutor::open(program.clone(), &checkpoint()).unwrap();
    let mut states = States::new(program, None);
    let id = states.create();
    tokens
        .chunks(chunk)
        .flat_map(|tokens| {
            let mut batch = Batch::append(&states, id, tokens);
            batch.rows.iter_mut().for_each(|row| row.logits = true);
            step(&mut executor, &mut states, &batch).unwrap()
        })
        .collect()
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + i * i * 3 + seed) % VOCABULARY as u32).collect()
}

#[test]
fn shared_keys_and_values_equal_computed_ones() {
    let tokens = tokens(90, 1);
    for window in [None, Some(9)] {
        let own = all_logits(&two_layers(false, window), &tokens, 90);
        assert_eq!(own, all_logits(&two_layers(true, window), &tokens, 90));
    }
}

#[test]
fn chunks_do_not_move_a_bit() {
    let tokens = tokens(150, 2);
    for window in [None, Some(5), Some(70)] {
        let program = two_layers(true, window);
        let whole = all_logits(&program, &tokens, 150);
        for chunk in [1, 7, 64] {
            assert_eq!(whole, all_logits(&program, &tokens, chunk), "window {window:?}, chunk {chunk}");
        }
    }
}

#[test]
fn a_window_hides_what_is_before_it() {
    let program = two_layers(false, Some(4));
    let (mut a, mut b) = (tokens(40, 1), tokens(40, 2));
    // Two layers of window 4 see six positions back.
    a.splice(33.., tokens(7, 5));
    b.splice(33.., tokens(7, 5));
    let last = 39 * VOCABULARY..;
    assert_eq!(all_logits(&program, &a, 40)[last.clone()], all_logits(&program, &b, 40)[last.clone()]);
    let full = two_layers(false, None);
    assert_ne!(all_logits(&full, &a, 40)[last.clone()], all_logits(&full, &b, 40)[last]);
}

#[test]
fn sequences_of_a_batch_do_not_see_each_other() {
    let program = two_layers(true, None);
    let mut executor = ReferenceExecutor::open(program.clone(), &checkpoint()).unwrap();
    let mut states = States::new(&program, None);
    let (a, b) = (states.create(), states.create());
    let (ta, tb) = (tokens(20, 3), tokens(30, 4));
    let mut batch = Batch::append(&states, a, &ta);
    let second = Batch::append(&states, b, &tb);
    // Interleave the two.
    for (i, row) in second.rows.into_iter().enumerate() {
        batch.rows.insert((2 * i + 1).min(batch.rows.len()), row);
    }
    let first = batch.rows.iter().filter(|row| row.logits).map(|row| row.sequence).next();
    let logits = step(&mut executor, &mut states, &batch).unwrap();
    let (la, lb) = logits.split_at(VOCABULARY);
    let (la, lb) = if first == Some(a) { (la, lb) } else { (lb, la) };
    assert_eq!(la, &all_logits(&program, &ta, 20)[19 * VOCABULARY..]);
    assert_eq!(lb, &all_logits(&program, &tb, 30)[29 * VOCABULARY..]);
}

#[test]
fn edits_are_of_their_row_alone() {
    let program = two_layers(false, None);
    let mut executor = ReferenceExecutor::open(program.clone(), &checkpoint()).unwrap();
    let tokens = tokens(10, 6);
    let direction: Arc<[f32]> = (0..HIDDEN).map(|i| i as f32 - 3.0).collect();
    let edit = |kind, strength| Edit {
        tap: Tap::LayerOutput(0),
        kind,
        direction: direction.clone(),
        strength,
        gate: None,
    };
    // One sequence alone, with the given edits; returns the tap and the logits.
    let mut alone = |edits: Vec<Edit>| {
        let mut states = States::new(&program, None);
        let id = states.create();
        let mut batch = Batch::append(&states, id, &tokens);
        batch.edits = vec![edits];
        batch.rows.iter_mut().for_each(|row| (row.edits, row.capture) = (Some(0), true));
        let (mut rows, mut logits) = (vec![0.0; 10 * HIDDEN], vec![0.0; VOCABULARY]);
        let taps = vec![TapRows { tap: Tap::LayerOutput(0), rows: &mut rows }];
        let mut outputs = Outputs { logits: Logits::All(&mut logits), taps, routes: None };
        executor.step(&batch, &mut states, &NoExperts, &mut outputs).unwrap();
        (rows, logits)
    };
    let (plain, plain_logits) = alone(vec![]);
    let (added, added_logits) = alone(vec![edit(EditKind::Add, 0.5)]);
    for (row, (x, y)) in plain.chunks(HIDDEN).zip(added.chunks(HIDDEN)).enumerate() {
        let expected: Vec<f32> = x.iter().zip(&*direction).map(|(x, d)| x + 0.5 * d).collect();
        assert_eq!(y, expected, "row {row}");
    }
    assert_ne!(plain_logits, added_logits);
    assert_eq!(alone(vec![edit(EditKind::Ablate, 0.0)]), (plain, plain_logits.clone()));

    let mut states = States::new(&program, None);
    let (a, b) = (states.create(), states.create());
    let mut batch = Batch::append(&states, a, &tokens);
    let mut second = Batch::append(&states, b, &tokens);
    second.rows.iter_mut().for_each(|row| row.edits = Some(0));
    batch.rows.append(&mut second.rows);
    batch.edits = vec![vec![edit(EditKind::Add, 0.5)]];
    let logits = step(&mut executor, &mut states, &batch).unwrap();
    assert_eq!(logits, [plain_logits, added_logits].concat());
}

#[test]
fn batches_that_cannot_be_right_are_refused() {
    let program = two_layers(false, None);
    let mut executor = ReferenceExecutor::open(program.clone(), &checkpoint()).unwrap();
    let mut states = States::new(&program, None);
    let id = states.create();
    let good = Batch::append(&states, id, &[1, 2, 3]);

    let mut skipped = good.clone();
    skipped.rows[1].position = 2;
    let error = step(&mut executor, &mut states, &skipped).unwrap_err();
    let StepError::Batch(error @ BatchError::Position { row: 1, expected: 1, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(error.to_string(), "row 1: position 2 of sequence 0 is out of order, the next is 1");

    let mut unknown = good.clone();
    unknown.rows[2].token = VOCABULARY as u32;
    let error = step(&mut executor, &mut states, &unknown).unwrap_err();
    assert_eq!(error.to_string(), "row 2: token 16 is not below the vocabulary of 16");

    let mut short = vec![0.0; VOCABULARY - 1];
    let error = executor.step(&good, &mut states, &NoExperts, &mut Outputs::logits(&mut short)).unwrap_err();
    assert!(
        matches!(error, StepError::Output(OutputError::Length { found: 15, expected: 16, .. })),
        "{error}"
    );
    assert_eq!(error.to_string(), "the logits slice has room for 15 elements, the batch needs 16");

    let error = step(&mut executor, &mut states, &Batch::default()).unwrap_err();
    assert!(matches!(error, StepError::Batch(BatchError::Empty)));

    let mut edited = good.clone();
    let edit = Edit {
        tap: Tap::LayerOutput(0),
        kind: EditKind::Add,
        direction: vec![1.0; 3].into(),
        strength: 1.0,
        gate: None,
    };
    edited.edits.push(vec![edit]);
    let error = step(&mut executor, &mut states, &edited).unwrap_err();
    assert!(
        matches!(error, StepError::Batch(BatchError::EditWidth { found: 3, expected: 8, .. })),
        "{error}"
    );

    // None of them left a trace.
    assert_eq!(states.length(id), Some(0));
    step(&mut executor, &mut states, &good).unwrap();
    states.remove(id).unwrap();
    let error = step(&mut executor, &mut states, &good).unwrap_err();
    assert!(matches!(error, StepError::Batch(BatchError::Sequence { row: 0, .. })), "{error}");
}

#[test]
fn weights_are_checked_against_the_program() {
    let mut layers = Layers::new();
    let missing = layers.builder.weight("model.layers.7.mlp.up_proj.weight", &[HIDDEN, HIDDEN]);
    layers.stream = layers.builder.linear(layers.stream, missing, None);
    let error = Weights::bind(&layers.finish(), &checkpoint()).unwrap_err();
    assert_eq!(error, WeightError::Missing { name: "model.layers.7.mlp.up_proj.weight".into() });

    let mut builder = Builder::new(HIDDEN, 100);
    let table = builder.weight("lm_head.weight", &[VOCABULARY, HIDDEN + 1]);
    let x = builder.embed(table, 1.0);
    let x = builder.select_rows(x);
    let logits = builder.linear(x, table, None);
    let error = Weights::bind(&builder.finish(logits, 0).unwrap(), &checkpoint()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor lm_head.weight has shape [16, 8], the model's config asks for [16, 9]"
    );
}

#[test]
fn the_builder_names_the_op_that_does_not_fit() {
    let mut layers = Layers::new();
    let wrong = layers.builder.weight("wrong", &[4, HIDDEN + 1]);
    let y = layers.builder.linear(layers.stream, wrong, None);
    let error = layers.builder.finish(y, 0).unwrap_err();
    assert_eq!(error.to_string(), "op 2 (linear): wrong takes 9 inputs, its register has 8");
}

#[test]
fn memory_is_known_before_the_first_step() {
    let program = two_layers(false, None);
    let executor = ReferenceExecutor::open(program, &checkpoint()).unwrap();
    let need = executor.memory(&Limits { rows: 4, context: 100, sequences: 2, wanted: 4 });
    assert_eq!(need.kv, 2 * 2 * HIDDEN * 4 * 200);
    let matrices = 2 * 2 + 2; // q and o of both layers, k and v of the first
    assert_eq!(need.resident, 4 * (VOCABULARY * 3 * HIDDEN + matrices * HIDDEN * HIDDEN));
}
