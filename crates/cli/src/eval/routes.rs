//! `turbospark eval routes`: which experts a text uses.

use std::path::PathBuf;

use clap::Args;
use turbospark_engine::routes::RouteStatistics;
use turbospark_engine::{Keep, Model, Trace};
use turbospark_text::Special;

use crate::error::CliError;
use crate::options::RunArgs;
use crate::steer_args::SteerArgs;
use crate::terminal::Bar;

/// Count which experts a text uses: counts, co-occurrence, entropy, top tokens
#[derive(Args)]
#[command(
    after_help = "The text is computed in windows of the context's length (--context), each on its own.\n\nExample:\n  \
turbospark eval routes model.gguf --text wiki.txt --json > routes.json"
)]
pub struct RoutesArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store
    model: PathBuf,
    /// The text, UTF-8
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Print one JSON object with everything
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    steer: SteerArgs,
}

impl RoutesArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let text = std::fs::read_to_string(&self.text).map_err(|error| CliError::file(&self.text, error))?;
        let mut model = self.run.open(Some(&self.model))?;
        self.steer.apply(&mut model.engine, &model.checkpoint)?;
        let tokens = model.text()?.tokenizer.encode_prompt(&text, Special::Parse)?;
        if tokens.is_empty() {
            return Err(CliError::file(&self.text, "the text has no tokens"));
        }
        let Some(trace) = record(&mut model, &tokens)? else { return Ok(()) };
        let statistics = RouteStatistics::of(&trace, model.text().ok());
        if self.json {
            println!("{}", serde_json::to_string(&statistics).map_err(std::io::Error::from)?);
            return Ok(());
        }
        println!("layer  experts  unused  entropy (bits, of at most)  overlap  most used");
        for layer in &statistics.layers {
            let unused = layer.counts.iter().filter(|&&count| count == 0).count();
            let most = layer.counts.iter().enumerate().max_by_key(|(_, count)| **count);
            let (expert, count) = most.map_or((0, 0), |(expert, &count)| (expert, count));
            println!(
                "{:5}  {:7}  {unused:6}  {:15.3} {:10.3}  {:6.1} %  expert {expert}, {count} of {} tokens",
                layer.layer,
                layer.counts.len(),
                layer.entropy_bits,
                (layer.counts.len() as f64).log2(),
                100.0 * layer.overlap_with_previous,
                statistics.tokens
            );
        }
        Ok(())
    }
}

/// Records the routes of tokens, in windows of the context's length.
pub fn record(model: &mut Model, tokens: &[u32]) -> Result<Option<Trace>, CliError> {
    model.engine.start_trace()?;
    let window = model.engine.context();
    let bar = Bar::counting("routing", tokens.len());
    let mut done = 0;
    for piece in tokens.chunks(window) {
        model.engine.evaluate(piece, &Keep { logits: Some(0..0), ..Keep::default() })?;
        done += piece.len();
        bar.set(done);
    }
    Ok(model.engine.take_trace())
}
