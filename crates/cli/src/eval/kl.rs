//! `turbospark eval kl`: what faster arithmetic, or another quantisation, changes of a model's predictions.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use turbospark_engine::{Divergence, Engine, ExecutorKind, MemoryOptions};
use turbospark_text::Special;

use crate::error::CliError;
use crate::options::{Executor, RunArgs};
use crate::steer_args::SteerArgs;
use crate::terminal::Bar;

/// Measure how far a model's predictions are from those of the reference, or of another file
#[derive(Args)]
#[command(
    after_help = "The text is cut into windows of --context tokens (512 without it); every position counts. The \
divergence is sum p ln(p / q), in\nnats, with p of what is compared against. Perplexities are of the same positions. \
--steer steers the model, not what it is\ncompared against.\n\n\
Example:\n  turbospark eval kl model-q4.gguf --text wiki.txt --against model-bf16.gguf --json"
)]
pub struct KlArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store
    model: PathBuf,
    /// The text, UTF-8
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// `reference` for the same file on the reference executor, or another model of the same vocabulary
    #[arg(long, value_name = "MODEL2", default_value = "reference")]
    against: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    steer: SteerArgs,
}

#[derive(Serialize)]
struct Report {
    mean_kl: f64,
    p99_kl: f32,
    max_kl: f32,
    top1_agreement: f64,
    positions: usize,
    perplexity: f64,
    against_perplexity: f64,
}

impl KlArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        if self.run.context.is_some_and(|window| window < 2) {
            return Err(CliError::Usage("--context: a window needs at least two tokens".to_owned()));
        }
        let text = std::fs::read_to_string(&self.text).map_err(|error| CliError::file(&self.text, error))?;
        let itself = self.against.as_os_str() == "reference";
        if itself && matches!(self.run.executor, Executor::Reference) {
            let reason = "--executor reference --against reference compares the reference with itself";
            return Err(CliError::Usage(format!("{reason}; name another executor or another model")));
        }
        let mut model = self.run.open_to_evaluate(Some(&self.model))?;
        self.steer.apply(&mut model.engine, &model.checkpoint)?;
        let tokens = model.text()?.tokenizer.encode_prompt(&text, Special::Parse)?;
        if tokens.len() < 2 {
            return Err(CliError::file(&self.text, "too short: two tokens at least are needed"));
        }
        let window = self.run.context.unwrap_or(512.min(model.engine.context()));
        let bos = model.text()?.tokenizer.prefix().first().copied();
        let mut judge = if itself {
            let mut options = self.run.open_options()?;
            options.executor = ExecutorKind::Reference;
            // The budget and streaming are of the model under test.
            options.memory = MemoryOptions::default();
            Engine::new(&model.checkpoint, options)?
        } else {
            self.run.open_to_evaluate(Some(&self.against))?.engine
        };
        let bar = Bar::counting("comparing", tokens.len());
        let engine = &mut model.engine;
        let divergence = Divergence::measure(engine, &mut judge, &tokens, window, bos, |done| bar.set(done))?;
        drop(bar);
        let report = Report::new(&divergence);
        if self.json {
            println!("{}", serde_json::to_string(&report).map_err(std::io::Error::from)?);
        } else {
            report.print();
        }
        Ok(())
    }
}

impl Report {
    fn new(divergence: &Divergence) -> Report {
        Report {
            mean_kl: divergence.mean(),
            p99_kl: divergence.quantile(0.99),
            max_kl: divergence.quantile(1.0),
            top1_agreement: divergence.top1_agreement(),
            positions: divergence.values.len(),
            perplexity: divergence.likelihood.perplexity(),
            against_perplexity: divergence.judge_likelihood.perplexity(),
        }
    }

    fn print(&self) {
        println!(
            "divergence   mean {:.3e}, 99th percentile {:.3e}, largest {:.3e} nats",
            self.mean_kl, self.p99_kl, self.max_kl
        );
        println!(
            "likeliest    the same at {:.2} % of {} positions",
            self.top1_agreement * 100.0,
            self.positions
        );
        let change = (self.perplexity / self.against_perplexity - 1.0) * 100.0;
        println!(
            "perplexity   {:.4} against {:.4}, {change:+.3} %",
            self.perplexity, self.against_perplexity
        );
    }
}
