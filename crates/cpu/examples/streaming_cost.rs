//! What the machinery of streaming costs where every expert has a slot: the same model with resident experts and with
//! streamed ones that have all arrived, in one process, in turns.
//!
//!     cargo run --release -p turbospark-cpu --example streaming_cost MODEL [ROUNDS]
//!
//! Each round opens both sources anew, the first of them in turns, so that neither always has the better memory, and
//! gives the mean ratio of its pairs; told are the geometric mean of the rounds and its standard error.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use turbospark_cpu::{CpuExecutor, CpuOptions, PanelPacker};
use turbospark_experts::{LoadOptions, PackedExperts, StreamOptions, StreamedExperts};
use turbospark_families::{FamilyOptions, build};
use turbospark_formats::Checkpoint;
use turbospark_program::{Batch, Executor, ExpertSource, Logits, Outputs, Program, States};

/// Tokens generated in each half of a pair, and pairs of a round.
const GENERATED: (usize, usize) = (32, 24);
/// Tokens of a prompt in each half of a pair, and pairs of a round.
const PROMPT: (usize, usize) = (512, 4);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: streaming_cost MODEL [ROUNDS]")?;
    let rounds: usize = arguments.next().map_or(Ok(6), |text| text.parse())?;

    let checkpoint = Checkpoint::open(Path::new(&path))?;
    let program = build(&checkpoint, &FamilyOptions::default())?.program;
    let options = CpuOptions::default();
    let packer = PanelPacker::new(options.isa);
    let mut executor = CpuExecutor::open(program.clone(), &checkpoint, options)?;
    let mut tests = [("prompt", PROMPT, Vec::new()), ("generated", GENERATED, Vec::new())];
    for round in 0..rounds {
        let resident =
            || PackedExperts::open(&program, &checkpoint, &packer, LoadOptions::default(), &|_| {});
        let streamed = |bytes: usize| {
            // All experts, and what reading them takes.
            let pool = StreamOptions::new(bytes + bytes / 2);
            StreamedExperts::open(&program, &checkpoint, Some(Arc::new(PanelPacker::new(options.isa))), &pool)
        };
        let (resident, streamed) = if round % 2 == 0 {
            let resident = resident()?;
            let streamed = streamed(resident.bytes())?;
            read_all(&program, &streamed)?;
            (resident, streamed)
        } else {
            let bytes = resident()?.bytes();
            let streamed = streamed(bytes)?;
            read_all(&program, &streamed)?;
            (resident()?, streamed)
        };
        for (name, (tokens, pairs), logs) in &mut tests {
            let mut run = |source: &dyn ExpertSource| {
                seconds(&mut executor, &program, source, *tokens, *name == "prompt")
            };
            run(&resident)?;
            run(&streamed)?;
            let misses = streamed.statistics().misses;
            let mut sum = 0.0;
            for pair in 0..*pairs {
                let (of_resident, of_streamed);
                if pair % 2 == 0 {
                    of_resident = run(&resident)?;
                    of_streamed = run(&streamed)?;
                } else {
                    of_streamed = run(&streamed)?;
                    of_resident = run(&resident)?;
                }
                sum += (of_resident / of_streamed).ln();
            }
            if streamed.statistics().misses != misses {
                return Err("experts were read again".into());
            }
            let mean = sum / *pairs as f64;
            println!("round {round}, {name}: {:.4}", mean.exp());
            logs.push(mean);
        }
    }
    for (name, _, logs) in &tests {
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (logs.len() as f64 - 1.0);
        let error = (variance / logs.len() as f64).sqrt();
        println!("{name}: streamed is {:.4} as fast as resident, standard error {error:.4}", mean.exp());
    }
    Ok(())
}

/// Brings every expert into a slot.
fn read_all(program: &Program, source: &StreamedExperts) -> Result<(), Box<dyn std::error::Error>> {
    for (layer, experts) in program.expert_layers().iter().enumerate() {
        for id in 0..experts.experts as u32 {
            source.begin(layer, &[id])?.next()?;
        }
    }
    Ok(())
}

/// Time for a prompt, or for tokens one after the other, from an empty sequence on.
fn seconds(
    executor: &mut CpuExecutor,
    program: &Program,
    source: &dyn ExpertSource,
    count: usize,
    at_once: bool,
) -> Result<f64, Box<dyn std::error::Error>> {
    let mut states = States::new(program, None);
    let sequence = states.create();
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % program.vocabulary() as u32
    };
    let tokens: Vec<u32> = (0..count).map(|_| next()).collect();
    let mut logits = vec![0.0; program.vocabulary()];
    let start = Instant::now();
    for tokens in tokens.chunks(if at_once { count } else { 1 }) {
        let mut batch = Batch::append(&states, sequence, tokens);
        if let Some(last) = batch.rows.last_mut() {
            last.logits = true;
        }
        let mut outputs = Outputs { logits: Logits::All(&mut logits), ..Outputs::default() };
        executor.step(&batch, &mut states, source, &mut outputs)?;
    }
    Ok(start.elapsed().as_secs_f64())
}
