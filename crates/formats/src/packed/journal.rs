//! What is complete of a store that is being written.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::manifest::FileEntry;
use super::{JOURNAL, PackError};

/// The state, written anew whenever a file is complete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    /// That of the manifest.
    pub identity: Digest,
    /// The model's own files.
    pub sources: Vec<Stamp>,
    /// Complete files.
    pub files: Vec<FileEntry>,
}

/// What changes when a file is replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Stamp {
    path: PathBuf,
    bytes: u64,
    modified: u128,
}

impl Stamp {
    pub fn of(path: &Path) -> Result<Stamp, PackError> {
        let look = || {
            let metadata = std::fs::metadata(path)?;
            let modified = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
            Ok(Stamp { path: path.canonicalize()?, bytes: metadata.len(), modified })
        };
        look().map_err(PackError::io(path))
    }
}

impl Journal {
    /// The journal of `folder`; none if there is none, or none that can be read: then all is done again.
    pub fn read(folder: &Path) -> Option<Journal> {
        serde_json::from_slice(&std::fs::read(folder.join(JOURNAL)).ok()?).ok()
    }
}
