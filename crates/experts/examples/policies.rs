//! Hit rates of every policy over traces, as a table: `cargo run --release --example policies [TRACE ...]`.
//!
//! Without arguments: the demo model on its held-out stories and three made-up models of gpt-oss 20b's shape. Each
//! trace's first half warms the pool, and the static set is fitted on it; the second half counts.

use std::path::Path;

use turbospark_experts::policy::{LfuAgeing, Policy, PolicyKind, StaticHotSet};
use turbospark_experts::trace::{Belady, Routing, SimulatedPool, Synthetic, Trace, cycle, simulate};

const CYCLES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let half_lives = arguments.first().is_some_and(|first| first == "--half-lives");
    if half_lives {
        arguments.remove(0);
    }
    let traces = if arguments.is_empty() { known()? } else { load(&arguments)? };
    println!("| trace | slots (cycles) | {} |", columns(half_lives).join(" | "));
    println!("|---|---|{}", "---|".repeat(columns(half_lives).len()));
    for (name, trace) in &traces {
        for cycles in CYCLES {
            let slots = (cycle(trace) as f64 * cycles).round() as usize;
            let rates = rates(trace, slots, half_lives);
            let cells: Vec<String> = rates.iter().map(|rate| format!("{:.1}", rate * 100.0)).collect();
            println!("| {name} | {slots} ({cycles}) | {} |", cells.join(" | "));
        }
    }
    Ok(())
}

fn known() -> Result<Vec<(String, Trace)>, Box<dyn std::error::Error>> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo-routing.safetensors");
    let made = |routing| Synthetic::new(routing, 1).trace(1600);
    Ok(vec![
        ("demo".to_owned(), Trace::load(&demo)?),
        ("Zipf 1.0".to_owned(), made(Routing::Zipf { exponent: 1.0 })),
        ("uniform".to_owned(), made(Routing::Uniform)),
        ("drift".to_owned(), made(Routing::Drift { every: 200, hot: 8, share: 0.8 })),
    ])
}

fn load(paths: &[String]) -> Result<Vec<(String, Trace)>, Box<dyn std::error::Error>> {
    paths.iter().map(|path| Ok((path.clone(), Trace::load(Path::new(path))?))).collect()
}

const HALF_LIVES: [f64; 7] = [8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0];

fn columns(half_lives: bool) -> Vec<String> {
    if half_lives {
        return HALF_LIVES.iter().map(|passes| format!("lfu, {passes} passes")).collect();
    }
    let online = PolicyKind::ONLINE.iter().map(|kind| kind.to_string());
    online.chain(["static set".to_owned(), "optimum".to_owned()]).collect()
}

fn rates(trace: &Trace, slots: usize, half_lives: bool) -> Vec<f64> {
    let shape = trace.shape();
    let middle = trace.len() / 2;
    let pool = SimulatedPool::uniform(trace, slots);
    let rate = |policy: Box<dyn Policy>| simulate(trace, &pool, policy, middle).hit_rate();
    if half_lives {
        let made = |&passes: &f64| rate(Box::new(LfuAgeing::with_half_life(&shape, passes)));
        return HALF_LIVES.iter().map(made).collect();
    }
    let (first, _) = trace.split(middle);
    let mut rates: Vec<f64> = PolicyKind::ONLINE.iter().map(|kind| rate(kind.make(&shape))).collect();
    rates.push(rate(Box::new(StaticHotSet::fit(&shape, first.uses()))));
    rates.push(rate(Box::new(Belady::new(trace))));
    rates
}
