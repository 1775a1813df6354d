//! The executor against the reference: op by op on the reference's inputs, and in whole.

mod support;

use std::collections::HashMap;

use support::Model;
use turbospark_cpu::{CpuOptions, KvFormat, Probe};
use turbospark_program::{Batch, Op, Outputs, Precision, Program, States};
use turbospark_reference::Observed;

/// What the reference wrote, by op.
#[derive(Default)]
struct Recorded {
    values: HashMap<usize, Vec<f32>>,
    routes: HashMap<usize, (Vec<u32>, Vec<f32>)>,
}

/// Compares every op with the reference and goes on with the reference's result.
struct Compare<'a> {
    program: &'a Program,
    recorded: &'a Recorded,
    /// For each op the largest error, over the root mean square of the reference's row.
    errors: Vec<(usize, f32)>,
}

impl Probe for Compare<'_> {
    fn values(&mut self, op: usize, values: &mut [f32]) {
        let expected = &self.recorded.values[&op];
        assert_eq!(values.len(), expected.len(), "op {op}");
        let width = self.program.register(self.program.ops()[op].out().unwrap()).width;
        let mut worst = 0.0f32;
        for (found, expected) in values.chunks_exact(width).zip(expected.chunks_exact(width)) {
            let square: f32 = expected.iter().map(|x| x * x).sum();
            let rms = (square / width as f32).sqrt().max(1e-6);
            for (found, expected) in found.iter().zip(expected) {
                let error = (found - expected).abs() / rms;
                worst = if error > worst || error.is_nan() { error } else { worst };
            }
        }
        self.errors.push((op, worst));
        values.copy_from_slice(expected);
    }

    fn routes(&mut self, op: usize, ids: &mut [u32], weights: &mut [f32]) {
        let (expected_ids, expected_weights) = &self.recorded.routes[&op];
        assert_eq!(ids, &expected_ids[..], "op {op}: the same logits lead to the same experts");
        for (found, expected) in weights.iter().zip(expected_weights) {
            assert!((found - expected).abs() <= 2e-6, "op {op}: {found} {expected}");
        }
        weights.copy_from_slice(expected_weights);
    }
}

/// Bound of an op's largest error over the root mean square of its row.
///
/// Rounding an element to 8 bits errs by at most half a step, evenly spread: a root mean square of 0.29 steps. A
/// block of 32 has 127 steps to its largest magnitude, which is 2.4 times the root mean square of normal values: 0.54
/// % of an element's. The error of a product over many elements has that share of the product's own root mean square,
/// and the largest of some hundred thousand is 5 times as far out, 2.7 %. Rows whose outputs cancel, and outputs of
/// few inputs, are given three times that.
fn bound(program: &Program, op: usize) -> f32 {
    match &program.ops()[op] {
        Op::Linear { precision: Precision::Block, .. } => 0.08,
        // Gate, up and down each err, independently: less than the root of three times as far.
        Op::Experts { .. } => 0.12,
        Op::Embed { .. } | Op::Slice { .. } | Op::SelectRows { .. } => 0.0,
        Op::Attention { .. } => 2e-5,
        _ => 1e-5,
    }
}

#[test]
fn every_op_is_near_the_reference() {
    let mut worst: HashMap<String, (f32, String)> = HashMap::new();
    let mut failures = Vec::new();
    for path in support::all() {
        let model = Model::at(&path);
        let (mut reference, experts) = model.reference();
        let tokens = model.tokens(40, 3);
        let mut states = States::new(&model.program, None);
        let sequence = states.create();
        let batch = Batch { rows: support::rows(&states, sequence, &tokens), edits: Vec::new() };
        let mut logits = vec![0.0; tokens.len() * model.program.vocabulary()];
        let mut recorded = Recorded::default();
        let observe = &mut |op: usize, observed: Observed<'_>| match observed {
            Observed::Values(values) => _ = recorded.values.insert(op, values.to_vec()),
            Observed::Routes { ids, weights } => {
                _ = recorded.routes.insert(op, (ids.to_vec(), weights.to_vec()))
            }
        };
        let mut before = states.clone();
        reference
            .step_observed(&batch, &mut states, &experts, &mut Outputs::logits(&mut logits), observe)
            .unwrap();
        let options = CpuOptions { kv: KvFormat::F32, fuse: false, threads: 2, ..CpuOptions::default() };
        let mut cpu = model.cpu(options);
        let packed = model.packed();
        let mut probe = Compare { program: &model.program, recorded: &recorded, errors: Vec::new() };
        let outputs = &mut Outputs::logits(&mut logits);
        cpu.step_with_probe(&batch, &mut before, &packed, outputs, &mut probe).unwrap();
        for (op, error) in probe.errors {
            let kind = format!("{:?}", model.program.ops()[op]).split([' ', '(']).next().unwrap().to_owned();
            if error.is_nan() || error > bound(&model.program, op) {
                failures.push(format!("{}, op {op}: {error} in {:?}", model.name, model.program.ops()[op]));
            }
            let entry = worst.entry(kind).or_default();
            if error > entry.0 {
                *entry = (error, model.name.clone());
            }
        }
    }
    let mut worst: Vec<_> = worst.into_iter().collect();
    worst.sort_by(|a, b| a.0.cmp(&b.0));
    for (kind, (error, name)) in worst {
        println!("{kind:12} {error:.2e} ({name})");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
