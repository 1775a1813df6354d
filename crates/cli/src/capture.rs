//! `turbospark capture`: rows of the residual stream and what is added to it, as a safetensors file.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use turbospark_engine::capture::{
    CaptureError, CaptureFile, CaptureHeader, CapturedPrompt, Positions, TapKind,
};
use turbospark_engine::{Engine, Model};

use crate::error::CliError;
use crate::options::RunArgs;
use crate::prompts;
use crate::router_trace::RouterTraceArgs;
use crate::steer_args::SteerArgs;
use crate::terminal::Bar;

/// Write rows of the model's taps for a list of prompts to a safetensors file
#[derive(Args)]
#[command(
    after_help = "Prompts are JSON lines: a string or {\"text\": ..} is taken as it is, {\"prompt\": ..} and \
{\"messages\": [..]} go through\nthe chat template, {\"tokens\": [..]} are ids. The file has one tensor a tap, f32 \
[rows, layers, width], and `prompt` and\n`position` of each row; the metadata has layers, prompts and token ids. Rows \
are written as they come.\n\nExample:\n  turbospark capture model.gguf --prompts prompts.jsonl --taps layer_output \
--layers 0-23 --positions last --out rows.safetensors"
)]
pub struct CaptureArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    model: Option<PathBuf>,
    /// The prompts, as JSON lines
    #[arg(long, value_name = "FILE.jsonl")]
    prompts: PathBuf,
    /// Taps: embedding, attention_output, feed_forward_output, routed_output, dense_output, layer_output
    #[arg(long, value_delimiter = ',', default_value = "layer_output", value_parser = tap)]
    taps: Vec<TapKind>,
    /// Layers, from 0 and inclusive [default: all]
    #[arg(long, value_name = "A-B", value_parser = layers)]
    layers: Option<RangeInclusive<usize>>,
    /// Positions of each prompt: last, all, or one by its number from 0
    #[arg(long, default_value = "last", value_parser = positions)]
    positions: Positions,
    /// The file to write
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    #[command(flatten)]
    trace: RouterTraceArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    steer: SteerArgs,
}

fn tap(name: &str) -> Result<TapKind, String> {
    TapKind::ALL.into_iter().find(|tap| tap.name() == name).ok_or_else(|| {
        let names = TapKind::ALL.map(TapKind::name).join(", ");
        format!("there are {names}")
    })
}

/// `a-b` or `a`.
pub fn layers(text: &str) -> Result<RangeInclusive<usize>, String> {
    let range = match text.split_once('-') {
        Some((first, last)) => first.parse().ok().zip(last.parse().ok()),
        None => text.parse().ok().map(|layer| (layer, layer)),
    };
    let range = range.filter(|(first, last)| first <= last);
    range.map(|(first, last)| first..=last).ok_or_else(|| "expected layers such as 0-23 or 7".to_owned())
}

fn positions(text: &str) -> Result<Positions, String> {
    match text {
        "last" => Ok(Positions::Last),
        "all" => Ok(Positions::All),
        number => {
            number.parse().map(Positions::At).map_err(|_| "expected last, all or a position".to_owned())
        }
    }
}

impl CaptureArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let mut model = self.run.open(self.model.as_ref())?;
        self.steer.apply(&mut model.engine, &model.checkpoint)?;
        let header = self.header(&model)?;
        let taps: Vec<_> = header.taps.iter().flat_map(|tap| tap.over(&self.range(&model.engine))).collect();
        let mut file = CaptureFile::create(&self.out, &header).map_err(capture_error)?;
        self.trace.start(&mut model)?;
        let bar = Bar::counting("capturing", header.prompts.len());
        for (index, prompt) in header.prompts.iter().enumerate() {
            let sink = |position: usize, row: &[f32]| file.push(index, position, row);
            model.engine.capture(&prompt.ids, &taps, self.positions, sink).map_err(capture_error)?;
            bar.set(index + 1);
        }
        file.finish().map_err(capture_error)?;
        self.trace.finish(&mut model)
    }

    fn range(&self, engine: &Engine) -> RangeInclusive<usize> {
        self.layers.clone().unwrap_or(0..=engine.program().layers().saturating_sub(1))
    }

    fn header(&self, model: &Model) -> Result<CaptureHeader, CliError> {
        let program = model.engine.program();
        let (range, end) = (self.range(&model.engine), program.layers().saturating_sub(1));
        if *range.end() > end {
            let reason = format!("--layers {}-{}: the model has layers 0-{end}", range.start(), range.end());
            return Err(CliError::Usage(reason));
        }
        if self.taps.iter().enumerate().any(|(at, tap)| self.taps[..at].contains(tap)) {
            return Err(CliError::Usage("--taps names one twice".to_owned()));
        }
        for tap in self.taps.iter().flat_map(|tap| tap.over(&range)) {
            if program.tap_width(tap) != Some(program.hidden()) {
                return Err(CliError::Usage(format!("--taps: this model has no {tap}")));
            }
        }
        let mut prompts = Vec::new();
        for prompt in prompts::read(&self.prompts, model)? {
            let rows = self.positions.of(prompt.ids.len()).len();
            if rows == 0 {
                let (prompt, length) = (prompts.len() + 1, prompt.ids.len());
                let reason =
                    format!("prompt {prompt} has {length} tokens, and not the position that is asked for");
                return Err(CliError::file(&self.prompts, reason));
            }
            prompts.push(CapturedPrompt { text: prompt.text, ids: prompt.ids, rows });
        }
        Ok(CaptureHeader {
            model: model.kind().to_owned(),
            taps: self.taps.clone(),
            layers: range.collect(),
            width: program.hidden(),
            prompts,
        })
    }
}

fn capture_error(error: CaptureError) -> CliError {
    match error {
        CaptureError::Engine(error) => error.into(),
        other => CliError::Usage(other.to_string()),
    }
}
