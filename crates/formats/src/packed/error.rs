//! What can be wrong with a packed store, and with writing one.

use std::path::{Path, PathBuf};

/// A packed store that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct PackedError {
    /// The file, or the folder.
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: Box<PackedFault>,
}

impl PackedError {
    pub(super) fn new(file: &Path, fault: PackedFault) -> PackedError {
        PackedError { file: file.to_owned(), fault: Box::new(fault) }
    }
}

/// The faults of a packed store.
#[derive(Debug, thiserror::Error)]
pub enum PackedFault {
    /// A folder without a manifest.
    #[error("not a packed store: it has no turbospark.json; `turbospark pack MODEL -o DIR` makes one")]
    NotAStore,
    /// Packing was interrupted.
    #[error(
        "the packed store is not finished; run the same `turbospark pack` again: it goes on where it stopped"
    )]
    Unfinished,
    /// A file that cannot be read.
    #[error("{0}")]
    Io(std::io::Error),
    /// A manifest whose own digest is wrong.
    #[error(
        "the manifest is damaged: its text has another digest than it states; remove the folder and pack the model again"
    )]
    Manifest,
    /// A manifest that is no manifest.
    #[error("not the manifest of a packed store: {0}")]
    Json(serde_json::Error),
    /// A version that is not read.
    #[error("a packed store of version {found}, this program reads version {known}; pack the model again")]
    Version {
        /// In the manifest.
        found: u64,
        /// Of this program.
        known: u64,
    },
    /// A file outside the folder.
    #[error("the manifest names the file {0:?}, expected a plain name within the folder")]
    FileName(String),
    /// A file that is not there.
    #[error("the file is missing; `turbospark pack` into the same folder writes it anew")]
    Missing,
    /// A file of another length.
    #[error(
        "the file has {found} bytes, the manifest says {expected}: it was cut or replaced; \
         `turbospark pack` into the same folder writes it anew"
    )]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Bytes that are not those that were written.
    #[error(
        "{what} is damaged: its digest is not the manifest's; `turbospark pack` into the same folder writes it anew"
    )]
    Damaged {
        /// A tensor, the header, the file.
        what: String,
    },
    /// A manifest that contradicts itself or the files.
    #[error("the manifest is wrong: {what} {reason}")]
    Invalid {
        /// A file, tensor or layer.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A packed store that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file or folder that cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The source is a packed store already.
    #[error("{}: this is a packed store already; pack the original model", .0.display())]
    Packed(PathBuf),
    /// A model without routed experts.
    #[error("{}: the model has no routed experts, so there is nothing to pack; run it as it is", .0.display())]
    Dense(PathBuf),
    /// Experts that cannot be quantised as asked.
    #[error("experts of layer {layer} cannot be quantised to {format}: {reason}")]
    Quantize {
        /// Model layer.
        layer: usize,
        /// The format.
        format: crate::Format,
        /// Why, and what to do.
        reason: String,
    },
    /// A folder with something else in it.
    #[error("{}: the folder has other files ({found}); name a new or an empty folder", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
        /// One of the files.
        found: String,
    },
    /// A store of another model or with other options.
    #[error("{}: {reason}; remove the folder, or name another one", path.display())]
    Other {
        /// The folder.
        path: PathBuf,
        /// What it is.
        reason: &'static str,
    },
    /// Another process writes there.
    #[error("{}: another process is writing there", .0.display())]
    Busy(PathBuf),
    /// The disk is too full.
    #[error(
        "{}: the store needs {} MiB more, the file system has {} MiB free; free some, or name a folder elsewhere",
        path.display(),
        needed.div_ceil(1 << 20),
        free >> 20
    )]
    Space {
        /// The folder.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes there are.
        free: u64,
    },
}

impl PackError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> PackError + '_ {
        |error| PackError::Io { path: path.to_owned(), error }
    }
}
