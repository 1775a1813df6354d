//! What reading ahead wins and costs: `cargo run --release --example prefetch FILE [LAYERS]`, with the file of
//! the example `reading`.
//!
//! Tokens of made-up routing run through a pool of two cycles. Each layer computes for a given time after its
//! experts have come, and hints the next layer's, of which three in four are right.

mod support;

use std::time::{Duration, Instant};

use turbospark_experts::trace::{Routing, Synthetic, Trace};
use turbospark_experts::{Prefetch, StreamOptions, StreamedExperts};
use turbospark_program::ExpertSource;

const K: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: prefetch FILE [LAYERS]")?;
    let layers: usize = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let table = support::experts(&path, layers)?;
    let slot = table.layers()[0].layout().bytes() + 3 * 8192;
    let model = Synthetic { layers, experts: 32, k: K, routing: Routing::Zipf { exponent: 0.7 }, seed: 1 };
    let trace = model.trace(60);
    println!("| compute a layer | prefetch | ms a token | waiting | hit rate | read ahead | of it used |");
    println!("|---|---|---|---|---|---|---|");
    for milliseconds in [0, 3, 10, 30] {
        for prefetch in [Prefetch::Off, Prefetch::Auto, Prefetch::On] {
            let mut options = StreamOptions::new(2 * layers * K * slot);
            options.prefetch = prefetch;
            let source = StreamedExperts::new(table.clone(), None, &options)?;
            run(&source, &trace, 0..15, Duration::from_millis(milliseconds))?;
            let before = source.statistics();
            let start = Instant::now();
            run(&source, &trace, 15..trace.len(), Duration::from_millis(milliseconds))?;
            let tokens = (trace.len() - 15) as f64;
            let done = source.statistics().since(&before);
            println!(
                "| {milliseconds} ms | {prefetch} | {:.1} | {:.1} | {:.1} % | {} | {} |",
                start.elapsed().as_secs_f64() * 1e3 / tokens,
                done.waited.as_secs_f64() * 1e3 / tokens,
                done.hit_rate() * 100.0,
                done.hints_read,
                done.hints_used,
            );
        }
    }
    Ok(())
}

fn run(
    source: &StreamedExperts,
    trace: &Trace,
    tokens: std::ops::Range<usize>,
    compute: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let ids = |token: usize, layer: usize| {
        trace.routes(token, layer).iter().map(|&id| u32::from(id)).collect::<Vec<_>>()
    };
    for token in tokens {
        for layer in 0..trace.layers().len() {
            let mut request = source.begin(layer, &ids(token, layer))?;
            // The next layer's router, asked early, errs in one of four.
            let next = (layer + 1) % trace.layers().len();
            let after = token + usize::from(next == 0);
            if after < trace.len() {
                let mut guess = ids(after, next);
                guess[K - 1] = (guess[K - 1] + 7) % 32;
                source.hint(next, &guess);
            }
            while request.next()?.is_some() {}
            std::thread::sleep(compute);
        }
    }
    Ok(())
}
