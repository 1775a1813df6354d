//! Rows captured and edited in a batch of several sequences are those that each sequence has alone.

mod support;

use std::sync::Arc;

use support::Model;
use turbospark_cpu::{CpuExecutor, CpuOptions};
use turbospark_experts::PackedExperts;
use turbospark_program::{Batch, Edit, EditKind, EditSet, Executor, Outputs, Program, States, Tap, TapRows};

/// Every tap that the model has.
fn taps(program: &Program) -> Vec<Tap> {
    let of_layer = |l| {
        use Tap::{AttentionOutput, DenseOutput, FeedForwardOutput, LayerOutput, RoutedOutput};
        [AttentionOutput(l), FeedForwardOutput(l), RoutedOutput(l), DenseOutput(l), LayerOutput(l)]
    };
    let all = std::iter::once(Tap::Embedding).chain((0..program.layers()).flat_map(of_layer));
    all.filter(|tap| program.tap_width(*tap).is_some()).collect()
}

/// Edits of sequence `index` at the outputs of all layers; the first has none.
fn edits(program: &Program, index: usize) -> EditSet {
    let kinds = [EditKind::Add, EditKind::Ablate, EditKind::Clamp { target: 0.5 }];
    let Some(kind) = index.checked_sub(1).map(|i| kinds[i]) else { return vec![] };
    let width = program.hidden();
    let direction: Arc<[f32]> = (0..width)
        .map(|i| ((i * 37 + index * 11) % 17) as f32 / 8.0 - 1.0)
        .map(|x| x / (width as f32).sqrt())
        .collect();
    let layers = 0..program.layers();
    let edit = |layer| Edit {
        tap: Tap::LayerOutput(layer),
        kind,
        direction: direction.clone(),
        strength: 0.75,
        gate: (index == 2).then_some(-0.1),
    };
    layers.map(edit).collect()
}

/// Runs the sequences that `chosen` names, `rows` of each in a batch: of each its captured rows, tap after tap for
/// each token, and its logits.
fn run(
    executor: &mut CpuExecutor,
    experts: &PackedExperts,
    sequences: &[Vec<u32>],
    chosen: &[usize],
    rows: usize,
) -> Vec<Vec<f32>> {
    let program = executor.program().clone();
    let taps = taps(&program);
    let mut states = States::new(&program, None);
    let ids: Vec<_> = chosen.iter().map(|_| states.create()).collect();
    let mut all = vec![Vec::new(); chosen.len()];
    let longest = chosen.iter().map(|&i| sequences[i].len()).max().unwrap();
    for start in (0..longest).step_by(rows) {
        let mut batch =
            Batch { rows: Vec::new(), edits: chosen.iter().map(|&i| edits(&program, i)).collect() };
        let mut owners = Vec::new();
        for (slot, &index) in chosen.iter().enumerate() {
            let tokens = &sequences[index];
            let piece = &tokens[start.min(tokens.len())..tokens.len().min(start + rows)];
            for mut row in support::rows(&states, ids[slot], piece) {
                row.capture = true;
                row.edits = (!batch.edits[slot].is_empty()).then_some(slot as u16);
                batch.rows.push(row);
                owners.push(slot);
            }
        }
        let count = owners.len();
        let mut logits = vec![0.0; count * program.vocabulary()];
        let mut captured: Vec<Vec<f32>> =
            taps.iter().map(|tap| vec![0.0; count * program.tap_width(*tap).unwrap()]).collect();
        let mut outputs = Outputs::logits(&mut logits);
        outputs.taps =
            taps.iter().zip(&mut captured).map(|(tap, rows)| TapRows { tap: *tap, rows }).collect();
        executor.step(&batch, &mut states, experts, &mut outputs).unwrap();
        for (row, owner) in owners.iter().enumerate() {
            for rows in captured.iter().chain([&logits]) {
                let width = rows.len() / count;
                all[*owner].extend_from_slice(&rows[row * width..(row + 1) * width]);
            }
        }
    }
    all
}

#[test]
fn rows_do_not_depend_on_the_sequences_beside() {
    for path in support::all().into_iter().filter(|path| path.ends_with("hf")) {
        let model = Model::at(&path);
        let experts = model.packed();
        let sequences = [20, 9, 31, 16].map(|length| model.tokens(length, length as u32));
        let mut executor = model.cpu(CpuOptions { threads: 2, pin: false, ..CpuOptions::default() });
        let alone: Vec<Vec<f32>> =
            (0..4).map(|i| run(&mut executor, &experts, &sequences, &[i], 512).remove(0)).collect();
        for rows in [1, 3, 16] {
            let together = run(&mut executor, &experts, &sequences, &[0, 1, 2, 3], rows);
            for (index, (found, alone)) in together.iter().zip(&alone).enumerate() {
                let same = found.len() == alone.len()
                    && found.iter().zip(alone).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{}: sequence {index}, {rows} rows of each", model.name);
            }
        }
        // The edits do something.
        let plain = support::run(&mut executor, &experts, &sequences[1], 512);
        assert!(!alone[1].ends_with(&plain[plain.len() - model.program.vocabulary()..]), "{}", model.name);
    }
}
