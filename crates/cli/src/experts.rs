//! `turbospark experts`: recording routing, and what it means for memory.

mod report;
mod simulate;
mod trace;

use clap::Subcommand;

use crate::error::CliError;

/// Record which experts a model uses, report on it, and replay it through pools of any policy and size
#[derive(Subcommand)]
pub enum ExpertsCommand {
    Trace(Box<trace::TraceArgs>),
    Report(report::ReportArgs),
    Simulate(simulate::SimulateArgs),
}

impl ExpertsCommand {
    pub fn execute(&self) -> Result<(), CliError> {
        match self {
            ExpertsCommand::Trace(trace) => trace.execute(),
            ExpertsCommand::Report(report) => report.execute(),
            ExpertsCommand::Simulate(simulate) => simulate.execute(),
        }
    }
}
