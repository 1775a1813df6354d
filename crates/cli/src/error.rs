//! What a command ends with when it cannot do its work.

use std::path::PathBuf;

/// An error for standard error; `Usage` ends with status 2, the others with 1.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Engine(#[from] turbospark_engine::EngineError),
    #[error(transparent)]
    Open(#[from] turbospark_formats::OpenError),
    #[error(transparent)]
    Text(#[from] turbospark_text::TextError),
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("writing the output: {0}")]
    Output(#[from] std::io::Error),
    #[error("{0}")]
    Usage(String),
}

impl CliError {
    pub fn file(path: &std::path::Path, reason: impl std::fmt::Display) -> CliError {
        CliError::File { path: path.to_owned(), reason: reason.to_string() }
    }

    pub fn status(&self) -> u8 {
        match self {
            CliError::Usage(_) => 2,
            _ => 1,
        }
    }
}
