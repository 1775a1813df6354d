//! One open request.

use std::collections::VecDeque;
use std::path::PathBuf;

use turbospark_program::ExpertError;

/// A read that failed; every request that waited for it is told.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Model layer.
    pub layer: usize,
    pub expert: u32,
    pub path: PathBuf,
    pub kind: std::io::ErrorKind,
    pub reason: String,
}

impl Failure {
    pub fn error(&self) -> ExpertError {
        ExpertError::Read {
            layer: self.layer,
            expert: self.expert,
            path: self.path.clone(),
            error: std::io::Error::new(self.kind, self.reason.clone()),
        }
    }
}

/// The experts of a request by where they are.
#[derive(Debug)]
pub(super) struct Request {
    pub layer: usize,
    /// Experts without a slot.
    pub pending: VecDeque<u32>,
    /// Slots being read into.
    pub reading: Vec<usize>,
    /// Slots whose expert was not taken yet.
    pub ready: VecDeque<usize>,
    /// Whether its holder waits in `next`.
    pub waiting: bool,
    pub failure: Option<Failure>,
}

impl Request {
    /// In what order requests get slots: those whose holder waits, then the one that was served last (its holder
    /// works on what it got), then the oldest.
    pub fn rank(&self, id: u64, served: Option<u64>) -> (bool, bool, u64) {
        (!self.waiting, served != Some(id), id)
    }

    /// Whether nothing is on its way, so that it must get a slot even from another request.
    pub fn starves(&self) -> bool {
        self.waiting && self.reading.is_empty() && self.ready.is_empty()
    }
}
