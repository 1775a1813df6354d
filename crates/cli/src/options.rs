//! Options that several commands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use turbospark_engine::{ExecutorKind, Model, OpenOptions};
use turbospark_families::{FamilyOptions, YarnRounding};

use crate::error::CliError;

/// How a model is opened and run.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Positions that prompt and answer may take together [default: what the model allows, at most 4096]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Prompt positions computed at a time; the result does not depend on it
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub prefill_chunk: usize,
    /// What runs the model
    #[arg(long, value_enum, default_value_t = Executor::Reference)]
    pub executor: Executor,
    /// Ends of YaRN's ramp: as the checkpoint says, or rounded as llama.cpp has them
    #[arg(long, value_enum, default_value_t = Yarn::Checkpoint)]
    pub yarn: Yarn,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Executor {
    /// Plain f32 loops: slow, exact
    Reference,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Yarn {
    Checkpoint,
    Rounded,
}

impl RunArgs {
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions {
            context: self.context,
            prefill_chunk: self.prefill_chunk.max(1),
            executor: match self.executor {
                Executor::Reference => ExecutorKind::Reference,
            },
            family: FamilyOptions {
                yarn: match self.yarn {
                    Yarn::Checkpoint => YarnRounding::Checkpoint,
                    Yarn::Rounded => YarnRounding::Rounded,
                },
                ..FamilyOptions::default()
            },
        }
    }

    /// Opens the model at `path`, or the demo model.
    pub fn open(&self, path: Option<&PathBuf>) -> Result<Model, CliError> {
        Ok(match path {
            Some(path) => Model::open(path, self.open_options())?,
            None => Model::demo(self.open_options())?,
        })
    }
}
