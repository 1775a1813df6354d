//! `turbospark eval perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use turbospark_engine::{Likelihood, Model};
use turbospark_text::Special;

use crate::error::CliError;
use crate::options::RunArgs;
use crate::steer_args::SteerArgs;
use crate::terminal::Bar;

/// Measure how well a model predicts a text
#[derive(Args)]
#[command(
    after_help = "Three ways to cut the text:\n  --context N    whole windows of N tokens, each scored on its \
second half, as llama-perplexity\n                 does (the default, N = 512)\n  --stride S     windows of --context \
tokens every S, each scoring what is new, as Hugging Face's\n                 documentation does\n  --documents    \
each document (they are separated by blank lines) on its own, first token\n                 excluded, pooled\n\n\
Example:\n  turbospark eval perplexity model.gguf --text wiki.txt --context 512 --json"
)]
pub struct PerplexityArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store
    model: PathBuf,
    /// The text, UTF-8
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens between the beginnings of windows
    #[arg(long, value_name = "S", conflicts_with = "documents")]
    stride: Option<usize>,
    /// Score each document on its own
    #[arg(long)]
    documents: bool,
    /// Print one JSON object: perplexity, tokens, nll
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    steer: SteerArgs,
}

#[derive(Serialize)]
struct Report {
    perplexity: f64,
    tokens: usize,
    nll: f64,
}

impl PerplexityArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        if self.window() < 2 || self.stride == Some(0) {
            return Err(CliError::Usage(
                "a window needs at least two tokens, a stride at least one".to_owned(),
            ));
        }
        let text = std::fs::read_to_string(&self.text).map_err(|error| CliError::file(&self.text, error))?;
        let mut model = self.run.open_to_evaluate(Some(&self.model))?;
        self.steer.apply(&mut model.engine, &model.checkpoint)?;
        let likelihood = if self.documents {
            self.documents(&mut model, &text)?
        } else {
            let tokens = model.text()?.tokenizer.encode_prompt(&text, Special::Parse)?;
            self.windows(&mut model, &tokens)?
        };
        if likelihood.tokens == 0 {
            return Err(CliError::file(&self.text, "too short: not one token could be scored"));
        }
        let Likelihood { nll, tokens } = likelihood;
        let report = Report { perplexity: likelihood.perplexity(), tokens, nll };
        if self.json {
            println!("{}", serde_json::to_string(&report).map_err(std::io::Error::from)?);
        } else {
            println!("perplexity {:.4} over {tokens} tokens", report.perplexity);
        }
        Ok(())
    }

    /// Tokens of a window.
    fn window(&self) -> usize {
        self.run.context.unwrap_or(512)
    }

    fn windows(&self, model: &mut Model, tokens: &[u32]) -> Result<Likelihood, CliError> {
        let window = self.window();
        let bar = Bar::counting("scoring", tokens.len());
        let report = |done: usize, _| bar.set(done);
        Ok(match self.stride {
            Some(stride) => model.engine.perplexity_with_stride(tokens, window, stride, report)?,
            None => {
                if tokens.len() < 2 * window {
                    let reason =
                        format!("{} tokens; at least two windows of {} are needed", tokens.len(), window);
                    return Err(CliError::file(&self.text, reason));
                }
                let bos = model.text()?.tokenizer.prefix().first().copied();
                model.engine.perplexity_of_windows(tokens, window, bos, report)?
            }
        })
    }

    fn documents(&self, model: &mut Model, text: &str) -> Result<Likelihood, CliError> {
        let documents: Vec<&str> = blank_line_separated(text);
        let bar = Bar::counting("scoring documents", documents.len());
        let mut total = Likelihood::default();
        for (index, document) in documents.iter().enumerate() {
            let tokens = model.text()?.tokenizer.encode_prompt(document, Special::Parse)?;
            let context = model.engine.context();
            if tokens.len() > context {
                let reason =
                    format!("document {} has {} tokens, the context {context}", index + 1, tokens.len());
                return Err(CliError::file(&self.text, reason + "; raise --context, or measure in windows"));
            }
            total += model.engine.score(&tokens, 1..tokens.len())?;
            bar.set(index + 1);
        }
        Ok(total)
    }
}

/// The pieces of a text between blank lines, without the line ends around them.
fn blank_line_separated(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim().is_empty() {
            documents.push(&text[start..at]);
            start = at + line.len();
        }
        at += line.len();
    }
    documents.push(&text[start..]);
    documents.iter().map(|d| d.trim_matches(['\n', '\r'])).filter(|d| !d.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_end_at_blank_lines() {
        let text = "one\nstill one\n\n \ntwo\r\n\r\nthree\n";
        assert_eq!(blank_line_separated(text), ["one\nstill one", "two", "three"]);
        assert!(blank_line_separated("\n\n").is_empty());
    }
}
