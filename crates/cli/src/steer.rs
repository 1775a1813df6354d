//! `turbospark steer`: making steering vectors and trying them.

mod sweep;
mod train;

use clap::Subcommand;

use turbospark_engine::steering::Steer;
use turbospark_engine::steering::SteeringVectors;
use turbospark_engine::steering::train::Pooling;
use turbospark_engine::{AnswerOptions, Edits, Model};
use turbospark_sampling::SamplingOptions;

use crate::error::CliError;
use crate::prompts::Prompt;

/// Make steering vectors and try them
#[derive(Subcommand)]
pub enum SteerCommand {
    Train(train::TrainArgs),
    Sweep(sweep::SweepArgs),
}

impl SteerCommand {
    pub fn execute(&self) -> Result<(), CliError> {
        match self {
            SteerCommand::Train(args) => args.execute(),
            SteerCommand::Sweep(args) => args.execute(),
        }
    }
}

/// Which rows of a prompt are its sample.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Rows {
    /// The last
    Last,
    /// The mean of all but the first
    Mean,
}

impl Rows {
    fn pooling(self) -> Pooling {
        match self {
            Rows::Last => Pooling::Last,
            Rows::Mean => Pooling::Mean,
        }
    }
}

/// The edits of one use of vectors.
fn edits(steer: &Steer, vectors: &SteeringVectors, model: &Model) -> Result<Edits, CliError> {
    let mut edits = Edits::default();
    steer
        .add_vectors(vectors, &mut edits, model.kind(), model.engine.program())
        .map_err(|fault| CliError::file(&steer.file, fault))?;
    Ok(edits)
}

/// What the model greedily writes after `prompt` under `edits`: token ids, and the text as `run` shows it, in one line.
fn generate(
    model: &mut Model,
    prompt: &Prompt,
    edits: &Edits,
    max_tokens: usize,
) -> Result<(Vec<u32>, String), CliError> {
    let options = AnswerOptions {
        sampling: SamplingOptions { temperature: 0.0, ..SamplingOptions::default() },
        max_tokens: Some(max_tokens),
        raw: !prompt.rendered,
        edits: edits.clone(),
        ..AnswerOptions::default()
    };
    let session = model.engine.open_session();
    let answer = model.answer(session, prompt.ids.clone(), &options, |_| std::ops::ControlFlow::Continue(()));
    model.engine.close(session)?;
    let answer = answer?;
    let text = match (&*answer.text, &*answer.reasoning) {
        ("", "") => String::new(),
        ("", reasoning) => format!("(reasoning) {}", one_line(reasoning)),
        (text, _) => one_line(text),
    };
    Ok((answer.token_ids, text))
}

/// The projection of a layer's rows on the direction of length 1, as a fresh and unsteered run over prompt and answer
/// has them, mean over the answer.
fn projection(
    model: &mut Model,
    prompt: &[u32],
    answer: &[u32],
    vectors: &SteeringVectors,
    layer: usize,
) -> Result<f64, CliError> {
    let tokens = [prompt, answer].concat();
    let sample = model.engine.sample_from(&tokens, prompt.len(), Pooling::Mean)?;
    Ok(along(&sample.layers[layer], vectors, layer))
}

/// A row's projection on the direction of a layer, of length 1.
fn along(row: &[f32], vectors: &SteeringVectors, layer: usize) -> f64 {
    let Some(direction) = vectors.direction(layer) else { return 0.0 };
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    product(row, direction) / product(direction, direction).sqrt().max(f64::MIN_POSITIVE)
}

/// One line of a text for a table or a comparison.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
