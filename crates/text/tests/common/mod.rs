//! What the tests share.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};

use turbospark_formats::{GgufFile, GgufMetadata, Source};

/// A folder within TURBOSPARK_TEXT_SWEEP, if that is set and has it.
pub fn sweep(name: &str) -> Option<PathBuf> {
    let folder = Path::new(&std::env::var_os("TURBOSPARK_TEXT_SWEEP")?).join(name);
    if !folder.is_dir() {
        println!("no folder {}", folder.display());
        return None;
    }
    Some(folder)
}

/// Files of a folder by extension, sorted.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == extension));
    files.sort();
    files
}

/// The key-value pairs of a GGUF file.
pub fn metadata(path: &Path) -> GgufMetadata {
    let source = Source::open(path).expect("opens");
    GgufFile::read(&source).expect("a GGUF file").metadata
}
