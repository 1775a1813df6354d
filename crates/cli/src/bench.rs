//! `turbospark bench`: how fast a model runs, and how near that is to what the machine gives.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};
use turbospark_engine::bench::{Amount, Bench, Rate, Sample, Summary, Test, Work, median};
use turbospark_engine::{Engine, EngineError, ExecutorKind, demo_source};
use turbospark_formats::Checkpoint;
use turbospark_program::Tap;

use crate::error::CliError;
use crate::options::{RunArgs, print_memory_line};
use crate::steer_args::SteerArgs;
use crate::terminal::{Bar, bytes};

/// Measure speed: prompts and generation, beside what memory and cores give
#[derive(Args)]
#[command(
    after_help = "Tests are named as llama-bench names them: pp512 reads a prompt of 512 tokens, tg128 generates 128, \
@ d4096 after 4096\nothers. The tokens are random, the same in every run.\n\nThe ceilings are measured between the \
runs, with the same threads: a plain read of memory, which bounds\ngeneration, and multiply-adds of 8-bit integers, \
which bound prompts. Shares are given of the whole time, and\nof the time that linear products take alone. Where experts are streamed, the disk is measured too, and the time\nis told as a multiple of the least: all that is not experts, then experts or the disk, whichever takes longer.\n\n\
Example:\n  turbospark bench model.gguf --prompt 512 --generate 128 --depth 0,4096"
)]
pub struct BenchArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    model: Option<PathBuf>,
    /// Lengths of prompts; 0 for none
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Numbers of tokens to generate; 0 for none
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "128")]
    generate: Vec<usize>,
    /// Positions before them
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,
    /// Runs of each test
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Capture the output of every layer at the last position of each step, to see what that costs
    #[arg(long)]
    capture: bool,
    /// Print one JSON object: results, ceilings
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    steer: SteerArgs,
}

/// A test that was run.
struct Measured {
    test: Test,
    samples: Vec<Sample>,
    summary: Summary,
}

/// Everything that is told of a run.
struct Report<'a> {
    model: String,
    engine: &'a Engine,
    load: Duration,
    work: Work,
    results: Vec<Measured>,
}

impl BenchArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        if self.run.context.is_some() {
            let reason = "--context does nothing here: each test takes the positions it needs; leave it out";
            return Err(CliError::Usage(reason.to_owned()));
        }
        let tests = self.tests()?;
        let mut options = self.run.open_options()?;
        let checkpoint = match &self.model {
            Some(path) => Checkpoint::open(path)?,
            None => Checkpoint::from_gguf(demo_source())?,
        };
        let program =
            turbospark_families::build(&checkpoint, &options.family).map_err(EngineError::from)?.program;
        let possible = program.max_positions();
        if let Some(test) = tests.iter().find(|test| test.positions() > possible) {
            let name = match test {
                Test::Prompt { .. } => "--prompt",
                Test::Generate { .. } => "--generate",
            };
            let needed = test.positions();
            let reason = format!("{test} needs {needed} positions, the model was made for {possible}");
            return Err(CliError::Usage(format!("{reason}; lower --depth or {name}")));
        }
        options.context = tests.iter().map(Test::positions).max();
        let executor = options.executor;
        options.beside = Bench::bytes(&program, &checkpoint, executor)?;
        let start = Instant::now();
        let mut engine = Engine::with_program(&checkpoint, program, options)?;
        let load = start.elapsed();
        self.steer.apply(&mut engine, &checkpoint)?;
        print_memory_line(&engine);
        let work = Work::of(engine.program(), &checkpoint, executor).map_err(EngineError::from)?;
        let results = self.measure(&mut engine, &work, tests)?;
        let model = checkpoint.path.display().to_string();
        let report = Report { model, engine: &engine, load, work, results };
        let out = &mut std::io::stdout().lock();
        match self.json {
            true => Ok(writeln!(out, "{}", report.json())?),
            false => Ok(report.write(out)?),
        }
    }

    /// The tests, all of one depth together.
    fn tests(&self) -> Result<Vec<Test>, CliError> {
        let mut tests = Vec::new();
        for &depth in &self.depth {
            tests.extend(self.prompt.iter().map(|&tokens| Test::Prompt { tokens, depth }));
            tests.extend(self.generate.iter().map(|&tokens| Test::Generate { tokens, depth }));
        }
        tests.retain(|test| test.tokens() > 0);
        match tests.is_empty() {
            true => Err(CliError::Usage("--prompt and --generate are both 0: nothing to measure".to_owned())),
            false => Ok(tests),
        }
    }

    fn measure(&self, engine: &mut Engine, work: &Work, tests: Vec<Test>) -> Result<Vec<Measured>, CliError> {
        let taps: Vec<Tap> = match self.capture {
            true => (0..engine.program().layers()).map(Tap::LayerOutput).collect(),
            false => Vec::new(),
        };
        let mut bench = Bench::new(engine)?;
        bench.capture(&taps)?;
        let repeat = usize::from(self.repeat);
        let measure = |test: Test| {
            let bar = Bar::counting(&test.to_string(), repeat);
            let samples = bench.run(test, repeat, |done| bar.set(done))?;
            let summary = Summary::new(&test, work, &samples);
            Ok(Measured { test, samples, summary })
        };
        tests.into_iter().map(measure).collect()
    }
}

impl Report<'_> {
    /// Medians of the ceilings of all samples: bytes and multiply-adds in 10^9 a second.
    fn ceilings(&self) -> Option<(f64, f64)> {
        let all = |of: fn(&Sample) -> &Vec<f64>| {
            let samples = self.results.iter().flat_map(|result| &result.samples);
            samples.flat_map(of).copied().collect::<Vec<f64>>()
        };
        let read = all(|sample| &sample.read);
        let measured = !read.is_empty();
        measured.then(|| (median(read) / 1e9, median(all(|sample| &sample.multiply_adds)) / 1e9))
    }

    /// Executor, and how it was run.
    fn how(&self) -> Map<String, Value> {
        let options = self.engine.options();
        let mut how = Map::new();
        match options.executor {
            ExecutorKind::Reference => {
                how.insert("executor".to_owned(), "reference".into());
            }
            ExecutorKind::Cpu => {
                how.insert("executor".to_owned(), "cpu".into());
                how.insert("threads".to_owned(), options.cpu.threads.into());
                how.insert("isa".to_owned(), options.cpu.isa.to_string().into());
                how.insert("kv".to_owned(), format!("{:?}", options.cpu.kv).to_lowercase().into());
            }
        }
        how.insert("prefill_chunk".to_owned(), self.engine.memory().chunk.into());
        how
    }

    fn json(&self) -> Value {
        let mut value = Map::new();
        value.insert("model".to_owned(), self.model.clone().into());
        value.extend(self.how());
        value.insert("load_seconds".to_owned(), self.load.as_secs_f64().into());
        let Amount { bytes, multiply_adds, .. } = self.work.token();
        value.insert("bytes_per_token".to_owned(), bytes.into());
        value.insert("multiply_adds_per_token".to_owned(), multiply_adds.into());
        value.insert("results".to_owned(), self.results.iter().map(result).collect());
        let ceilings = self.ceilings().map(|(read, multiply_adds)| {
            json!({"read_gigabytes_per_second": read, "giga_multiply_adds_per_second": multiply_adds})
        });
        value.insert("ceilings".to_owned(), ceilings.unwrap_or_else(|| json!({})));
        value.into()
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "{}, ready after {:.2} s", self.model, self.load.as_secs_f64())?;
        let how = self.how();
        let how: Vec<String> = how.iter().map(|(name, value)| format!("{name} {value}")).collect();
        writeln!(out, "{}", how.join(", ").replace('"', ""))?;
        let Amount { bytes: touched, multiply_adds, .. } = self.work.token();
        let rate = multiply_adds as f64 / 1e9;
        writeln!(out, "a token touches {} of weights, {rate:.2} G multiply-adds", bytes(touched as usize))?;
        if let Some((read, multiply_adds)) = self.ceilings() {
            let isa = self.engine.options().cpu.isa;
            writeln!(out, "ceilings: read {read:.1} GB/s, {isa} {multiply_adds:.0} G multiply-adds/s")?;
        }
        writeln!(
            out,
            "\n{:16} {:>19}  {:>26}  {:>26}",
            "test", "tokens/s", "whole", "linear products alone"
        )?;
        for Measured { test, summary, .. } in &self.results {
            let (mean, stddev) = (summary.tokens_per_second.mean, summary.tokens_per_second.stddev);
            let tokens = format!("{mean:.2} ± {stddev:.2}");
            let whole = text(test, &summary.whole);
            let linears = summary.linears.map(|rate| text(test, &rate)).unwrap_or_default();
            let name = test.to_string();
            writeln!(out, "{name:16} {tokens:>19}  {whole:>26}  {linears:>26}")?;
            if let Some(streamed) = &summary.streamed {
                let (hits, rate) = (streamed.hit_rate * 100.0, streamed.gigabytes_read_per_second);
                let waiting = summary.time.iter().find(|(name, _)| *name == "waiting");
                let waiting = waiting.map_or(0.0, |(_, share)| share * 100.0);
                let read = bytes(streamed.bytes_read_per_token as usize);
                writeln!(
                    out,
                    "{:16} experts: {hits:.1} % in slots, {read} a token read at {rate:.2} GB/s, {waiting:.0} % of \
the time waited",
                    ""
                )?;
                if let (Some(disk), Some(over)) = (streamed.disk_gigabytes_per_second, streamed.time_to_bound)
                {
                    writeln!(out, "{:16} {over:.2} x the least time: the disk gives {disk:.2} GB/s", "")?;
                }
            }
        }
        Ok(())
    }
}

fn text(test: &Test, rate: &Rate) -> String {
    let unit = match test {
        Test::Prompt { .. } => "G/s",
        Test::Generate { .. } => "GB/s",
    };
    let share = rate.share.map(|share| format!(", {:.0} % of the ceiling", share * 100.0));
    format!("{:.1} {unit}{}", rate.giga_per_second, share.unwrap_or_default())
}

fn result(measured: &Measured) -> Value {
    let Measured { test, summary, .. } = measured;
    let name = match test {
        Test::Prompt { .. } => "giga_multiply_adds_per_second",
        Test::Generate { .. } => "gigabytes_per_second",
    };
    let rate = |rate: &Rate| json!({name: rate.giga_per_second, "share_of_ceiling": rate.share});
    let time: Map<String, Value> =
        summary.time.iter().map(|&(name, share)| (name.to_owned(), share.into())).collect();
    json!({
        "test": test.to_string(),
        "tokens_per_second": summary.tokens_per_second.mean,
        "stddev": summary.tokens_per_second.stddev,
        "samples": summary.samples,
        "whole": rate(&summary.whole),
        "linears": summary.linears.as_ref().map(rate),
        "time": time,
        "streamed": summary.streamed,
    })
}
