//! Whole logits with `==`, however the work is cut: batches, chunks, threads, instruction sets, fusion, sequences.
//!
//! `TURBOSPARK_SWEEP=1` walks every combination on longer sequences; the usual test walks each choice alone.

mod support;

use support::Model;
use turbospark_cpu::{CpuExecutor, CpuOptions, Isa, KvFormat};
use turbospark_experts::PackedExperts;
use turbospark_program::{Batch, Executor, Outputs, States};

const MODELS: [&str; 5] = [
    "gpt_oss/gguf-mxfp4.gguf",
    "gemma4_moe/gguf-q4_k_m.gguf",
    "qwen3_moe/gguf-bf16.gguf",
    "llama3/gguf-q8_0.gguf",
    "llama_wide/gguf-zoo.gguf",
];

fn sweep() -> bool {
    std::env::var_os("TURBOSPARK_SWEEP").is_some()
}

fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let different = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(at) = different {
        panic!("{what}: element {at} is {:e} instead of {:e}", found[at], expected[at]);
    }
}

fn options(threads: usize) -> CpuOptions {
    CpuOptions { threads, pin: false, ..CpuOptions::default() }
}

/// Four sequences in turn, `rows` of each in a batch: the logits of each sequence.
fn together(
    executor: &mut CpuExecutor,
    experts: &PackedExperts,
    sequences: &[Vec<u32>],
    rows: usize,
) -> Vec<Vec<f32>> {
    let program = executor.program().clone();
    let vocabulary = program.vocabulary();
    let mut states = States::new(&program, None);
    let ids: Vec<_> = sequences.iter().map(|_| states.create()).collect();
    let mut all = vec![Vec::new(); sequences.len()];
    let longest = sequences.iter().map(Vec::len).max().unwrap();
    for start in (0..longest).step_by(rows) {
        let mut batch = Batch::default();
        let mut owners = Vec::new();
        for (i, tokens) in sequences.iter().enumerate() {
            let piece = &tokens[start.min(tokens.len())..tokens.len().min(start + rows)];
            batch.rows.extend(support::rows(&states, ids[i], piece));
            owners.extend(piece.iter().map(|_| i));
        }
        // A sequence's rows need not stand together.
        if start % 2 == 1 {
            let mut order: Vec<usize> = (0..owners.len()).collect();
            order.sort_by_key(|&i| (batch.rows[i].position, owners[i]));
            batch.rows = order.iter().map(|&i| batch.rows[i]).collect();
            owners = order.iter().map(|&i| owners[i]).collect();
        }
        let mut logits = vec![0.0; owners.len() * vocabulary];
        executor.step(&batch, &mut states, experts, &mut Outputs::logits(&mut logits)).unwrap();
        for (owner, row) in owners.iter().zip(logits.chunks_exact(vocabulary)) {
            all[*owner].extend_from_slice(row);
        }
    }
    all
}

#[test]
fn bits_do_not_depend_on_how_the_work_is_cut() {
    for name in MODELS {
        let model = Model::open(name);
        let experts = model.packed();
        let tokens = model.tokens(if sweep() { 600 } else { 150 }, 11);
        let expected = support::run(&mut model.cpu(options(1)), &experts, &tokens, 1);
        let check = |options: CpuOptions, chunks: &[usize]| {
            let mut executor = model.cpu(options);
            for &chunk in chunks {
                let found = support::run(&mut executor, &experts, &tokens, chunk);
                assert_same(&found, &expected, &format!("{name}, chunks of {chunk}, {options:?}"));
            }
        };
        let chunks = [1, 2, 3, 5, 7, 16, 32, 64, 512];
        if sweep() {
            for isa in Isa::all() {
                for threads in [1, 2, 3] {
                    for fuse in [true, false] {
                        check(CpuOptions { isa, fuse, ..options(threads) }, &chunks);
                    }
                }
            }
        } else {
            check(options(2), &chunks);
            check(options(3), &[1, 32]);
            check(CpuOptions { fuse: false, ..options(2) }, &[1, 7, 512]);
            for isa in Isa::all() {
                check(CpuOptions { isa, ..options(2) }, &[5, 512]);
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_sequences_beside() {
    for name in MODELS {
        let model = Model::open(name);
        let experts = model.packed();
        let lengths = if sweep() { [300, 220, 64, 500] } else { [70, 40, 64, 100] };
        let sequences: Vec<_> =
            lengths.iter().enumerate().map(|(i, &length)| model.tokens(length, i as u32 + 1)).collect();
        let mut executor = model.cpu(options(2));
        let alone: Vec<_> =
            sequences.iter().map(|tokens| support::run(&mut executor, &experts, tokens, 512)).collect();
        for rows in [1, 3, 16, 33] {
            for (found, alone) in together(&mut executor, &experts, &sequences, rows).iter().zip(&alone) {
                assert_same(found, alone, &format!("{name}, four sequences, {rows} rows of each"));
            }
        }
    }
}

#[test]
fn keys_and_values_of_every_format_keep_the_promise() {
    for kv in [KvFormat::F32, KvFormat::Q8] {
        for name in ["gpt_oss/gguf-mxfp4.gguf", "gemma4_moe/gguf-q4_k_m.gguf"] {
            let model = Model::open(name);
            let experts = model.packed();
            let tokens = model.tokens(150, 5);
            let expected =
                support::run(&mut model.cpu(CpuOptions { kv, ..options(1) }), &experts, &tokens, 1);
            for isa in Isa::all() {
                let mut executor = model.cpu(CpuOptions { kv, isa, ..options(2) });
                let found = support::run(&mut executor, &experts, &tokens, 64);
                assert_same(&found, &expected, &format!("{name}, {kv:?}, {isa}"));
            }
        }
    }
}

/// A long context is divided by tiles among threads, a short one by heads.
#[test]
fn bits_do_not_depend_on_how_a_long_row_is_divided() {
    let model = Model::open("gemma4_e2b/gguf-bf16.gguf");
    let experts = model.packed();
    let tokens = model.tokens(900, 2);
    let expected = support::run(&mut model.cpu(options(1)), &experts, &tokens, 512);
    for threads in [2, 3, 5] {
        let mut executor = model.cpu(options(threads));
        let found = support::run(&mut executor, &experts, &tokens, 1);
        assert_same(&found, &expected, &format!("{threads} threads"));
    }
}
