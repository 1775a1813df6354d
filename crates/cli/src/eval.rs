//! `turbospark eval`: what a model computes, as numbers.

mod kl;
mod logits;
mod perplexity;
mod routes;

use clap::Subcommand;

pub use logits::read_tokens;
pub use routes::record;

use crate::error::CliError;

/// Measure what a model computes
#[derive(Subcommand)]
pub enum Eval {
    Kl(kl::KlArgs),
    Logits(logits::LogitsArgs),
    Perplexity(perplexity::PerplexityArgs),
    Routes(routes::RoutesArgs),
}

impl Eval {
    pub fn execute(&self) -> Result<(), CliError> {
        match self {
            Eval::Kl(args) => args.execute(),
            Eval::Logits(args) => args.execute(),
            Eval::Perplexity(args) => args.execute(),
            Eval::Routes(args) => args.execute(),
        }
    }
}
