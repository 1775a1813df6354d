//! Steering on the command line.

use clap::Args;
use turbospark_engine::steering::{Steer, TokenRange, edits};
use turbospark_engine::{Edits, Engine, EngineError, Model, model_kind};
use turbospark_formats::Checkpoint;

use crate::error::CliError;

/// Vectors that change what the model thinks on the way.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Steering")]
pub struct SteerArgs {
    /// Steer with a vector file (GGUF, safetensors, .npz): FILE:mode:strength:layers, all but FILE
    /// optional, as in v.gguf:add:1.5:10-20; modes are add, ablate, clamp=TARGET and renorm, layers count from 0 and are inclusive;
    /// :gate=X, :tokens=prompt|generated|all and :at=layer|attention|feed-forward may follow; repeatable, in order
    #[arg(long, value_name = "FILE[:..]")]
    pub steer: Vec<String>,
    /// A gate for vectors that have none: only rows whose projection on the direction exceeds X are changed
    #[arg(long, value_name = "X", requires = "steer", allow_negative_numbers = true)]
    pub steer_gate: Option<f32>,
    /// Rows that vectors without tokens= change: prompt, generated or all
    #[arg(long, value_name = "ROWS", requires = "steer")]
    pub steer_tokens: Option<String>,
}

impl SteerArgs {
    /// The uses of files, in order.
    pub fn steers(&self) -> Result<Vec<Steer>, CliError> {
        let one = |given: &String| {
            let mut steer = Steer::parse(given).map_err(|error| CliError::Usage(error.to_string()))?;
            if let Some(gate) = self.steer_gate {
                steer.gate.get_or_insert(gate);
            }
            if let Some(rows) = &self.steer_tokens
                && !given.contains(":tokens=")
            {
                steer
                    .option("tokens", rows)
                    .map_err(|reason| CliError::Usage(format!("--steer-{reason}")))?;
            }
            Ok(steer)
        };
        self.steer.iter().map(one).collect()
    }

    /// Edits for generation.
    pub fn edits(&self, model: &Model) -> Result<Edits, CliError> {
        Ok(edits(&self.steers()?, model.kind(), model.engine.program()).map_err(EngineError::from)?)
    }

    /// Makes runs over given tokens, such as evaluations, go under the edits.
    pub fn apply(&self, engine: &mut Engine, checkpoint: &Checkpoint) -> Result<(), CliError> {
        let steers = self.steers()?;
        if let Some(steer) = steers.iter().find(|steer| steer.tokens == TokenRange::Generated) {
            let reason = "tokens=generated steers nothing here: every token is given, none is generated";
            return Err(CliError::Usage(format!("--steer {}: {reason}", steer.file.display())));
        }
        let edits = edits(&steers, model_kind(checkpoint), engine.program()).map_err(EngineError::from)?;
        engine.set_edits(edits.prompt);
        Ok(())
    }
}
