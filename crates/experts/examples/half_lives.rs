//! At which age should lfu-ageing forget? Hit rates over the second half of traces, as a table:
//! `cargo run --release -p turbospark-experts --example half_lives TRACE ..`; `turbospark experts trace` records them.

use std::path::Path;

use turbospark_experts::policy::LfuAgeing;
use turbospark_experts::trace::{SimulatedPool, Trace, cycle, simulate};

const CYCLES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const HALF_LIVES: [f64; 7] = [8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let columns = HALF_LIVES.map(|passes| format!("{passes} passes"));
    println!("| trace | slots (cycles) | {} |", columns.join(" | "));
    println!("|---|---|{}", "---|".repeat(columns.len()));
    for path in std::env::args().skip(1) {
        let trace = Trace::load(Path::new(&path))?;
        for cycles in CYCLES {
            let slots = (cycle(&trace) as f64 * cycles).round() as usize;
            let pool = SimulatedPool::uniform(&trace, slots);
            let rate = |passes| {
                let policy = Box::new(LfuAgeing::with_half_life(&trace.shape(), passes));
                format!("{:.1}", simulate(&trace, &pool, policy, trace.len() / 2).hit_rate() * 100.0)
            };
            println!("| {path} | {slots} ({cycles}) | {} |", HALF_LIVES.map(rate).join(" | "));
        }
    }
    Ok(())
}
