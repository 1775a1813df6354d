//! `turbospark steer sweep`: what vectors do at several strengths in several ranges of layers.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use turbospark_engine::Model;
use turbospark_engine::steering::{Steer, SteeringVectors, TokenRange};
use turbospark_text::Special;

use super::{edits, generate, projection};
use crate::capture::layers;
use crate::error::CliError;
use crate::options::RunArgs;
use crate::prompts::{self, Prompt};
use crate::terminal::Bar;

/// Try vectors at several strengths in several ranges of layers
#[derive(Args)]
#[command(
    after_help = "For each strength and range: the projection of what the model writes on the direction of --probe (a \
fresh, unsteered\nrun over prompt and answer, mean over the answers), the perplexity of --text under steering, and how an \
answer begins.\n\nExample:\n  turbospark steer sweep model.gguf --vector happy.gguf --strengths 0,0.5,1 --layers 2-4 \
--layers 3 \\\n    --prompts neutral.jsonl --text heldout.txt"
)]
pub struct SweepArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    model: Option<PathBuf>,
    /// The vectors, spelled as for --steer without strength and layers
    #[arg(long, value_name = "FILE[:mode]")]
    vector: String,
    /// Strengths
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, default_value = "0,0.25,0.5,1")]
    strengths: Vec<f32>,
    /// A range of layers, from 0 and inclusive; repeatable [default: all layers of the file]
    #[arg(long, value_name = "A-B", value_parser = layers)]
    layers: Vec<RangeInclusive<usize>>,
    /// Prompts to go on from
    #[arg(long, value_name = "FILE.jsonl")]
    prompts: PathBuf,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 60)]
    tokens: usize,
    /// Layer whose direction answers are projected on [default: the middle one of the file]
    #[arg(long, value_name = "LAYER")]
    probe: Option<usize>,
    /// A text whose perplexity is measured, in windows of --context or 512 tokens
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Line {
    strength: f32,
    layers: String,
    projection: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    perplexity: Option<f64>,
    sample: String,
}

#[derive(Serialize)]
struct Report {
    probe: usize,
    lines: Vec<Line>,
}

impl SweepArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let mut model = self.run.open(self.model.as_ref())?;
        let steer = Steer::parse(&self.vector).map_err(|error| CliError::Usage(error.to_string()))?;
        if steer.layers.is_some() || steer.strength != 1.0 {
            return Err(CliError::Usage(
                "--vector takes no strength and layers: --strengths and --layers do".into(),
            ));
        }
        if self.text.is_some() && steer.tokens == TokenRange::Generated {
            let reason =
                "--text is given, not generated: with tokens=generated its perplexity does not change";
            return Err(CliError::Usage(reason.to_owned()));
        }
        if let Some(strength) = self.strengths.iter().find(|strength| !strength.is_finite()) {
            return Err(CliError::Usage(format!("--strengths: {strength} is not a finite number")));
        }
        let vectors = SteeringVectors::load(&steer.file).map_err(turbospark_engine::EngineError::from)?;
        let probe = self.probe(&vectors)?;
        let prompts = prompts::read(&self.prompts, &model)?;
        let text = self.tokens_of_text(&model)?;
        let ranges: Vec<Option<_>> = match self.layers.is_empty() {
            true => vec![None],
            false => self.layers.iter().cloned().map(Some).collect(),
        };
        let uses: Vec<Steer> = ranges
            .iter()
            .flat_map(|layers| self.strengths.iter().map(move |&strength| (layers.clone(), strength)))
            .map(|(layers, strength)| Steer { layers, strength, ..steer.clone() })
            .collect();
        let bar = Bar::counting("sweeping", uses.len());
        let mut lines = Vec::new();
        for (index, steer) in uses.iter().enumerate() {
            lines.push(self.line(&mut model, steer, &vectors, probe, &prompts, text.as_deref())?);
            bar.set(index + 1);
        }
        drop(bar);
        self.print(&Report { probe, lines })
    }

    fn probe(&self, vectors: &SteeringVectors) -> Result<usize, CliError> {
        let layers: Vec<usize> = vectors.directions().map(|(layer, _)| layer).collect();
        let probe = self.probe.unwrap_or(layers[layers.len() / 2]);
        match vectors.direction(probe) {
            Some(_) => Ok(probe),
            None => Err(CliError::Usage(format!(
                "--probe {probe}: the file has no direction for it; it has {}",
                vectors.layer_list()
            ))),
        }
    }

    fn tokens_of_text(&self, model: &Model) -> Result<Option<Vec<u32>>, CliError> {
        let Some(path) = &self.text else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(|error| CliError::file(path, error))?;
        let tokens = model.text()?.tokenizer.encode_prompt(&text, Special::Parse)?;
        if tokens.len() < 2 {
            return Err(CliError::file(path, "too short: not one token could be scored"));
        }
        Ok(Some(tokens))
    }

    fn line(
        &self,
        model: &mut Model,
        steer: &Steer,
        vectors: &SteeringVectors,
        probe: usize,
        prompts: &[Prompt],
        text: Option<&[u32]>,
    ) -> Result<Line, CliError> {
        let edits = edits(steer, vectors, model)?;
        let (mut sum, mut sample) = (0.0, None);
        for prompt in prompts {
            let (ids, text) = generate(model, prompt, &edits, self.tokens)?;
            sum += projection(model, &prompt.ids, &ids, vectors, probe)?;
            sample.get_or_insert(text);
        }
        let mut perplexity = None;
        if let Some(text) = text {
            model.engine.set_edits(edits.prompt);
            let window = self.run.context.unwrap_or(512).min(model.engine.context());
            let score = model.engine.perplexity_with_stride(text, window, window, |_, _| {});
            model.engine.set_edits(Vec::new());
            perplexity = Some(score?.perplexity());
        }
        Ok(Line {
            strength: steer.strength,
            layers: match &steer.layers {
                Some(range) => format!("{}-{}", range.start(), range.end()),
                None => vectors.layer_list().replace("layers ", ""),
            },
            projection: sum / prompts.len() as f64,
            perplexity,
            sample: sample.unwrap_or_default(),
        })
    }

    fn print(&self, report: &Report) -> Result<(), CliError> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report).map_err(std::io::Error::from)?);
            return Ok(());
        }
        println!("projection of answers on the direction of layer {}", report.probe);
        println!("layers    strength  projection  perplexity  an answer");
        for line in &report.lines {
            let perplexity = line.perplexity.map_or("-".to_owned(), |perplexity| format!("{perplexity:.3}"));
            println!(
                "{:8}  {:8}  {:10.3}  {perplexity:>10}  {}",
                line.layers, line.strength, line.projection, line.sample
            );
        }
        Ok(())
    }
}
