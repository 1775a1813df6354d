//! What choosing the expert that leaves costs, by policy and number of slots, as a table:
//! `cargo run --release -p turbospark-experts --example evicting`.
//!
//! A made-up trace of Qwen3-30B's shape is replayed without a disk; a pool that holds every expert gives what the
//! replay costs without misses, which is taken off.

use std::time::Instant;

use turbospark_experts::policy::PolicyKind;
use turbospark_experts::trace::{Routing, Synthetic, Trace, simulate_kind};

const SLOTS: [usize; 3] = [200, 750, 2750];

fn main() {
    let model =
        Synthetic { layers: 48, experts: 128, k: 8, routing: Routing::Zipf { exponent: 1.0 }, seed: 1 };
    let trace = model.trace(200);
    let columns = SLOTS.map(|slots| format!("{slots} slots"));
    println!("| µs a miss | {} | µs a layer, all held |\n|---|{}---|", columns.join(" | "), "---|".repeat(3));
    for kind in PolicyKind::ONLINE {
        let (all, first) = replay(&trace, 48 * 128, kind);
        let costs = SLOTS.map(|slots| {
            let (seconds, misses) = replay(&trace, slots, kind);
            format!("{:.2}", 1e6 * (seconds - all) / (misses - first))
        });
        println!("| {kind} | {} | {:.2} |", costs.join(" | "), 1e6 * all / (trace.len() * 48) as f64);
    }
}

/// Seconds, the best of three, and misses.
fn replay(trace: &Trace, slots: usize, kind: PolicyKind) -> (f64, f64) {
    let runs = (0..3).map(|_| {
        let start = Instant::now();
        let simulated = simulate_kind(trace, slots, kind, 0);
        let misses = simulated.asked.iter().sum::<u64>() - simulated.hits.iter().sum::<u64>();
        (start.elapsed().as_secs_f64(), misses as f64)
    });
    runs.fold((f64::INFINITY, 0.0), |best, run| if run.0 < best.0 { run } else { best })
}
