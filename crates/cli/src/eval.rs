//! `turbospark eval`: what a model computes, as numbers.

mod logits;
mod perplexity;

use clap::Subcommand;

use crate::error::CliError;

/// Measure what a model computes
#[derive(Subcommand)]
pub enum Eval {
    Logits(logits::LogitsArgs),
    Perplexity(perplexity::PerplexityArgs),
}

impl Eval {
    pub fn execute(&self) -> Result<(), CliError> {
        match self {
            Eval::Logits(args) => args.execute(),
            Eval::Perplexity(args) => args.execute(),
        }
    }
}
