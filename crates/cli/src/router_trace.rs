//! `--router-trace`: which experts the routers chose.

use std::path::PathBuf;

use clap::Args;
use turbospark_engine::Model;
use turbospark_engine::routes::RouteStatistics;

use crate::error::CliError;

/// Recording of routes.
#[derive(Args, Clone, Debug, Default)]
pub struct RouterTraceArgs {
    /// Record which experts every token used: .json gets counts, co-occurrence, entropy and top tokens, any other
    /// name the trace itself (safetensors)
    #[arg(long, value_name = "FILE")]
    router_trace: Option<PathBuf>,
}

impl RouterTraceArgs {
    pub fn is_given(&self) -> bool {
        self.router_trace.is_some()
    }

    pub fn start(&self, model: &mut Model) -> Result<(), CliError> {
        match self.router_trace {
            Some(_) => Ok(model.engine.start_trace()?),
            None => Ok(()),
        }
    }

    pub fn finish(&self, model: &mut Model) -> Result<(), CliError> {
        let (Some(path), Some(trace)) = (&self.router_trace, model.engine.take_trace()) else {
            return Ok(());
        };
        if path.extension().is_none_or(|extension| extension != "json") {
            return trace.save(path).map_err(|error| CliError::file(path, error));
        }
        let statistics = RouteStatistics::of(&trace, model.text().ok());
        let text = serde_json::to_string(&statistics).map_err(std::io::Error::from)?;
        std::fs::write(path, text + "\n").map_err(|error| CliError::file(path, error))
    }
}
