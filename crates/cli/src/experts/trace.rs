//! `turbospark experts trace`: routing, recorded from a model or made up.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, ValueEnum};
use turbospark_engine::{AnswerOptions, Model, Trace};
use turbospark_experts::trace::{MOST_EXPERTS, MOST_EXPERTS_OF_A_LAYER, Routing, Synthetic, TraceStatistics};
use turbospark_text::Special;

use crate::error::CliError;
use crate::eval::{read_tokens, record};
use crate::options::RunArgs;
use crate::prompts;
use crate::sampling::SamplingArgs;
use crate::steer_args::SteerArgs;
use crate::terminal::Bar;

/// Record which experts every token uses in every layer, and which of them the layer before foretold
#[derive(Args)]
#[command(
    group = ArgGroup::new("source").required(true).args(["text", "tokens", "prompts", "synthetic"]),
    after_help = "Tokens are computed one by one, as generated ones are, because only then is foretold what the next \
layer will use;\nwith --no-predictions in chunks, which is faster. The file is safetensors; docs/experts-tracing.md \
has its tensors.\n\nExamples:\n  turbospark experts trace model.gguf --text book.txt --out book.routing\n  turbospark \
experts trace model.gguf --prompts questions.jsonl --generate 200 --out answers.routing\n  turbospark experts trace \
--synthetic drifting --shape 24x32x4 --length 1600 --out drifting.routing"
)]
pub struct TraceArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    #[arg(conflicts_with = "synthetic")]
    model: Option<PathBuf>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// A text, UTF-8, computed in windows of the context's length
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// A JSON list of token ids, in windows of the context's length
    #[arg(long, value_name = "FILE.json")]
    tokens: Option<PathBuf>,
    /// Prompts as `capture` reads them, each on its own
    #[arg(long, value_name = "FILE.jsonl")]
    prompts: Option<PathBuf>,
    /// Generate and record so many tokens after each prompt
    #[arg(long, value_name = "N", requires = "prompts", value_parser = clap::value_parser!(u32).range(1..))]
    generate: Option<u32>,
    /// Record at most so many tokens of a text or of token ids
    #[arg(long, value_name = "N", conflicts_with_all = ["prompts", "synthetic"])]
    limit: Option<usize>,
    /// Compute in chunks: faster, without what layers foretell
    #[arg(long, conflicts_with = "synthetic")]
    no_predictions: bool,
    /// Make routing up instead, from --seed [default: 1]
    #[arg(long, value_enum)]
    synthetic: Option<Kind>,
    /// Layers, experts of each and experts a token of made-up routing
    #[arg(long, value_name = "LxExK", default_value = "24x32x4", requires = "synthetic")]
    shape: Shape,
    /// Tokens of made-up routing
    #[arg(long, value_name = "N", default_value_t = 1600, requires = "synthetic")]
    length: u32,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    steer: SteerArgs,
}

/// How made-up tokens choose.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Every expert is as likely as any other
    Uniform,
    /// The r-th most popular expert of a layer has weight 1/r
    Skewed,
    /// 80 % of the choices fall into a quarter of a layer's experts, another one every 200 tokens
    Drifting,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    layers: usize,
    experts: usize,
    k: usize,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        let Ok([layers, experts, k]) = numbers.as_deref() else {
            return Err("expected layers, experts and experts a token, such as 24x32x4".to_owned());
        };
        let (layers, experts, k) = (*layers, *experts, *k);
        if layers == 0 || k == 0 || k > experts {
            return Err(
                "layers and experts a token are at least one, and there are as many experts".to_owned()
            );
        }
        if experts > MOST_EXPERTS_OF_A_LAYER || layers.saturating_mul(experts) > MOST_EXPERTS {
            return Err(format!(
                "at most {MOST_EXPERTS_OF_A_LAYER} experts a layer and {MOST_EXPERTS} in all"
            ));
        }
        Ok(Shape { layers, experts, k })
    }
}

impl TraceArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let trace = match self.synthetic {
            Some(kind) => self.made_up(kind)?,
            None => self.recorded()?,
        };
        trace.save(&self.out).map_err(|error| CliError::file(&self.out, error))?;
        let statistics = TraceStatistics::of(&trace);
        let recalls: Vec<f64> = statistics.layers.iter().filter_map(|layer| layer.recall).collect();
        let (tokens, layers, k) = (trace.len(), trace.layers().len(), trace.k());
        eprint!("{tokens} tokens, {layers} layers, {k} experts a token in each");
        if !recalls.is_empty() {
            let mean = recalls.iter().sum::<f64>() / recalls.len() as f64;
            eprint!("; {:.1} % of them foretold by the layer before", mean * 100.0);
        }
        eprintln!();
        Ok(())
    }

    fn made_up(&self, kind: Kind) -> Result<Trace, CliError> {
        let Shape { layers, experts, k } = self.shape;
        if (self.length as usize).saturating_mul(layers * k) > 1 << 28 {
            let reason = format!("--length {}: that many tokens make more than half a gigabyte", self.length);
            return Err(CliError::Usage(reason));
        }
        let routing = match kind {
            Kind::Uniform => Routing::Uniform,
            Kind::Skewed => Routing::Zipf { exponent: 1.0 },
            Kind::Drifting => Routing::Drift { every: 200, hot: (experts / 4).max(1), share: 0.8 },
        };
        let seed = self.sampling.seed.unwrap_or(1);
        Ok(Synthetic { layers, experts, k, routing, seed }.trace(self.length as usize))
    }

    fn recorded(&self) -> Result<Trace, CliError> {
        let mut options = self.run.open_options()?;
        if !self.no_predictions {
            options.prefill_chunk.get_or_insert(1);
            options.cpu.predict = true;
        }
        let mut model = self.run.open_for(self.model.as_ref(), options)?;
        self.steer.apply(&mut model.engine, &model.checkpoint)?;
        let trace = match (&self.text, &self.tokens, &self.prompts) {
            (Some(path), _, _) => {
                let text = std::fs::read_to_string(path).map_err(|error| CliError::file(path, error))?;
                let tokens = model.text()?.tokenizer.encode_prompt(&text, Special::Parse)?;
                if tokens.is_empty() {
                    return Err(CliError::file(path, "the text has no tokens"));
                }
                record(&mut model, self.limited(&tokens))?
            }
            (_, Some(path), _) => {
                let tokens = read_tokens(path)?;
                record(&mut model, self.limited(&tokens))?
            }
            (_, _, Some(path)) => self.prompted(path, &mut model)?,
            // The group asks for one of them.
            _ => None,
        };
        trace.ok_or_else(|| CliError::Usage("nothing was recorded".to_owned()))
    }

    fn limited<'t>(&self, tokens: &'t [u32]) -> &'t [u32] {
        &tokens[..self.limit.unwrap_or(tokens.len()).min(tokens.len())]
    }

    fn prompted(&self, path: &std::path::Path, model: &mut Model) -> Result<Option<Trace>, CliError> {
        let prompts = prompts::read(path, model)?;
        let edits = self.steer.edits(model)?;
        let sampling = self.sampling.over(&model.sampling)?;
        model.engine.start_trace()?;
        let bar = Bar::counting("routing", prompts.len());
        for (index, prompt) in prompts.iter().enumerate() {
            let options = AnswerOptions {
                sampling: sampling.clone(),
                max_tokens: Some(self.generate.unwrap_or(1) as usize),
                // How the answer would be read does not matter here.
                raw: true,
                edits: edits.clone(),
                ..AnswerOptions::default()
            };
            let session = model.engine.open_session();
            match self.generate {
                Some(_) => {
                    let ids = prompt.ids.clone();
                    model.answer(session, ids, &options, |_| std::ops::ControlFlow::Continue(()))?;
                }
                None => {
                    let keep = turbospark_engine::Keep { logits: Some(0..0), ..Default::default() };
                    model.engine.evaluate(&prompt.ids, &keep)?;
                }
            }
            model.engine.close(session)?;
            bar.set(index + 1);
        }
        Ok(model.engine.take_trace())
    }
}
