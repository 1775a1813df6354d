//! Tokens per second of a model on the CPU executor, and what share of a plain read of the same bytes that is.
//!
//!     cargo run --release -p turbospark-cpu --example tokens -- MODEL [--prompt N] [--generate N] [--depth N]
//!         [--threads N] [--repeat N] [--chunk N] [--no-fuse] [--scalar-kv]
//!
//! The token stream is a fixed random one. Weights are read between the runs, with as many threads, so that both
//! figures are of one moment.

use std::path::Path;
use std::time::Instant;

use turbospark_cpu::{CpuExecutor, CpuOptions, KvFormat, PanelPacker};
use turbospark_experts::{LoadOptions, PackedExperts};
use turbospark_families::{FamilyOptions, build};
use turbospark_formats::Checkpoint;
use turbospark_program::{Batch, Executor, Logits, Outputs, SequenceId, States};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: usize| {
        let at = arguments.iter().position(|a| a == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let Some(path) = arguments.first() else { panic!("usage: tokens MODEL") };
    let mut options = CpuOptions { fuse: !has("--no-fuse"), pin: !has("--no-pin"), ..CpuOptions::default() };
    options.threads = value("--threads", options.threads);
    if has("--f32") {
        options.kv = KvFormat::F32;
    }
    let start = Instant::now();
    let checkpoint = Checkpoint::open(Path::new(path)).expect("a model");
    let program = build(&checkpoint, &FamilyOptions::default()).expect("a known family").program;
    let executor = CpuExecutor::open(program.clone(), &checkpoint, options).expect("an executor");
    let packer = PanelPacker::new(options.isa);
    let experts = PackedExperts::open(&program, &checkpoint, &packer, LoadOptions::default(), &|_| {})
        .expect("experts");
    println!("loaded in {:.2} s, {}", start.elapsed().as_secs_f64(), peak());

    let (prompt, generate, depth) = (value("--prompt", 512), value("--generate", 64), value("--depth", 0));
    let chunk = value("--chunk", 512);
    let mut bench = Bench { executor, experts, program, seed: 1, logits: Vec::new() };
    for _ in 0..value("--repeat", 3) {
        let mut states = States::new(&bench.program, None);
        let sequence = states.create();
        if prompt > 0 {
            let seconds = bench.prefill(&mut states, sequence, prompt, chunk);
            println!("pp{prompt} {:8.2} t/s", prompt as f64 / seconds);
            bench.timings(prompt);
            states.truncate(sequence, 0).ok();
        }
        if generate > 0 {
            let mut states = States::new(&bench.program, None);
            let sequence = states.create();
            bench.prefill(&mut states, sequence, depth, chunk);
            bench.executor.take_timings();
            let start = Instant::now();
            for _ in 0..generate {
                let token = bench.tokens(1);
                bench.step(&mut states, sequence, &token, true);
            }
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "tg{generate} @ {depth} {:8.2} t/s, {:.2} ms",
                generate as f64 / seconds,
                seconds / generate as f64 * 1e3
            );
            bench.timings(generate);
        }
    }
    println!("{}", peak());
}

struct Bench {
    executor: CpuExecutor,
    experts: PackedExperts,
    program: turbospark_program::Program,
    seed: u32,
    logits: Vec<f32>,
}

impl Bench {
    fn tokens(&mut self, count: usize) -> Vec<u32> {
        let next = |_| {
            self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.seed >> 8) % self.program.vocabulary() as u32
        };
        (0..count).map(next).collect()
    }

    /// Microseconds a token, by kind of work.
    fn timings(&mut self, tokens: usize) {
        let t = self.executor.take_timings();
        let each = |d: std::time::Duration| d.as_secs_f64() * 1e6 / tokens as f64;
        println!(
            "    us: linears {:.0} experts {:.0} attention {:.0} rows {:.0} routing {:.0} waiting {:.0} ends {:.0}",
            each(t.linears),
            each(t.experts),
            each(t.attention),
            each(t.rows),
            each(t.routing),
            each(t.waiting),
            each(t.ends)
        );
    }

    fn step(&mut self, states: &mut States, sequence: SequenceId, tokens: &[u32], logits: bool) {
        let mut batch = Batch::append(states, sequence, tokens);
        batch.rows.last_mut().unwrap().logits = logits;
        self.logits.resize(self.program.vocabulary(), 0.0);
        let wanted = if logits { self.program.vocabulary() } else { 0 };
        let mut outputs = Outputs { logits: Logits::All(&mut self.logits[..wanted]), ..Outputs::default() };
        self.executor.step(&batch, states, &self.experts, &mut outputs).expect("a step");
    }

    fn prefill(&mut self, states: &mut States, sequence: SequenceId, count: usize, chunk: usize) -> f64 {
        let tokens = self.tokens(count);
        let start = Instant::now();
        let mut chunks = tokens.chunks(chunk).peekable();
        while let Some(tokens) = chunks.next() {
            self.step(states, sequence, tokens, chunks.peek().is_none());
        }
        start.elapsed().as_secs_f64()
    }
}

/// Largest resident size so far.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name: &str| {
        status.lines().find(|line| line.starts_with(name)).unwrap_or_default().replace('\t', " ")
    };
    format!("{}; {}", line("VmHWM"), line("VmRSS"))
}
