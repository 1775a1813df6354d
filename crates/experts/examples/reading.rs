//! How fast experts are read, by reader and number of threads:
//! `cargo run --release --example reading FILE [LAYERS]`.
//!
//! Makes FILE (gpt-oss 20b's experts, 424 MB a layer, 8 layers if not said otherwise) if it is not there. Every
//! expert is read once, in a random order, so that nothing hits; the page cache is passed by except where it says
//! buffered. The last lines are the cost of a lease that hits.

mod support;

use std::time::Instant;

use support::EXPERTS;
use turbospark_experts::policy::PolicyKind;
use turbospark_experts::reader::ReaderKind;
use turbospark_experts::trace::{Routing, Synthetic};
use turbospark_experts::{ExpertTable, Prefetch, ResidentExperts, StreamOptions, StreamedExperts};
use turbospark_program::ExpertSource;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: reading FILE [LAYERS]")?;
    let layers: usize = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let table = support::experts(&path, layers)?;
    let each = table.layers()[0].layout().bytes();
    println!("{} experts of {:.1} MB", layers * EXPERTS, 1e-6 * each as f64);

    // The first pass finds a disk that sleeps and memory that was never touched.
    rate(&table, ReaderKind::Direct, 2)?;
    println!("| reader | threads | GB/s |\n|---|---|---|");
    for reader in [ReaderKind::Uring, ReaderKind::Direct, ReaderKind::Buffered] {
        for workers in [1, 2, 4] {
            println!("| {reader} | {workers} | {:.2} |", rate(&table, reader, workers)?);
        }
    }
    let start = Instant::now();
    let auto = open(&table, ReaderKind::Auto, 2, 1 << 28)?.reader();
    println!("\nauto chooses {auto} in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    for reader in [ReaderKind::Uring, ReaderKind::Direct] {
        let start = Instant::now();
        open(&table, reader, 2, table.bytes())?;
        println!(
            "a pool for all, {reader}: opened and closed in {:.0} ms",
            start.elapsed().as_secs_f64() * 1e3
        );
    }

    // Few enough experts to fit, so that every lease hits.
    let few = ExpertTable::new(table.layers()[..1].to_vec());
    let streamed = open(&few, ReaderKind::Direct, 2, few.bytes() + (64 << 20))?;
    let resident = ResidentExperts::new(few.clone());
    take(&streamed, 0, &(0..EXPERTS as u32).collect::<Vec<_>>())?;
    for _ in 0..2 {
        println!("a hit: {:.0} ns resident, {:.0} ns streamed", hit(&resident)?, hit(&streamed)?);
    }
    Ok(())
}

/// Nanoseconds of a lease, when four experts are asked for at a time.
fn hit(source: &dyn ExpertSource) -> Result<f64, Box<dyn std::error::Error>> {
    let rounds = 100_000;
    let start = Instant::now();
    for round in 0..rounds {
        let first = round % (EXPERTS as u32 - 4);
        take(source, 0, &[first, first + 1, first + 2, first + 3])?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(rounds) / 4.0)
}

fn take(source: &dyn ExpertSource, layer: usize, ids: &[u32]) -> Result<(), Box<dyn std::error::Error>> {
    let mut request = source.begin(layer, ids)?;
    while request.next()?.is_some() {}
    Ok(())
}

/// Gigabytes a second, every expert once.
fn rate(table: &ExpertTable, reader: ReaderKind, workers: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let source = open(table, reader, workers, 1 << 28)?;
    let layers = table.layers().len();
    // Where a seeded trace without repeats comes from: each token takes the next four of a shuffled order.
    let order = Synthetic { layers: 1, experts: EXPERTS, k: EXPERTS, routing: Routing::Uniform, seed: 3 };
    let order: Vec<u32> = order.trace(1).routes(0, 0).iter().map(|&id| u32::from(id)).collect();
    let start = Instant::now();
    for ids in order.chunks(4) {
        for layer in 0..layers {
            take(&source, layer, ids)?;
        }
    }
    let statistics = source.statistics();
    assert_eq!(statistics.hits, 0);
    Ok(statistics.bytes_read as f64 / start.elapsed().as_secs_f64() * 1e-9)
}

fn open(
    table: &ExpertTable,
    reader: ReaderKind,
    workers: usize,
    budget: usize,
) -> Result<StreamedExperts, Box<dyn std::error::Error>> {
    let mut options = StreamOptions::new(budget);
    (options.reader, options.workers) = (reader, workers);
    (options.policy, options.prefetch) = (PolicyKind::Lru, Prefetch::Off);
    Ok(StreamedExperts::new(table.clone(), None, &options)?)
}
