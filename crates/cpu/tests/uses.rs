//! What is told of a tensor without loading it is what the executor then has.

mod support;

use std::collections::BTreeSet;

use support::Model;
use turbospark_cpu::{CpuOptions, WeightUse, weight_uses};

#[test]
fn uses_are_the_kernels_of_an_open_model() {
    for path in support::all() {
        let model = Model::at(&path);
        let uses = weight_uses(&model.program, &model.checkpoint);
        let executor = model.cpu(CpuOptions { threads: 1, pin: false, ..CpuOptions::default() });
        let packed: BTreeSet<(String, String)> =
            executor.kernels().map(|(name, kind)| (name.to_owned(), kind.to_string())).collect();
        let told: BTreeSet<(String, String)> = uses
            .iter()
            .flat_map(|(name, uses)| uses.iter().map(move |how| (name, how)))
            .filter_map(|(name, how)| match how {
                WeightUse::Panels(kind) => Some((name.clone(), kind.to_string())),
                _ => None,
            })
            .collect();
        assert_eq!(told, packed, "{}", model.name);
        // Every weight of the program is read by something, experts as panels.
        for spec in model.program.weights() {
            assert!(uses.contains_key(&spec.name), "{}: {}", model.name, spec.name);
        }
        for layer in model.program.expert_layers() {
            for name in [&layer.gate, &layer.up, &layer.down] {
                assert!(matches!(uses[name][..], [WeightUse::Experts(_)]), "{}: {name}", model.name);
            }
        }
    }
}
