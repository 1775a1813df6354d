//! Which of a model's small files go along, and reading and writing by position.

use std::fs::File;
use std::path::Path;

use super::{GGUF_METADATA, PackError};
use crate::checkpoint::files::{self, MAX_TOKENIZER};
use crate::{Checkpoint, Metadata, OpenError};

/// Names of configuration and tokenizer files in Hugging Face and MLX folders.
const SMALL: [&str; 14] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
];

/// The configuration and tokenizer of a model as files.
pub(super) fn small(checkpoint: &Checkpoint) -> Result<Vec<(String, Vec<u8>)>, OpenError> {
    if let (Metadata::Gguf(_), Some(pairs)) = (&checkpoint.metadata, &checkpoint.gguf_pairs) {
        return Ok(vec![(GGUF_METADATA.to_owned(), pairs.without_tensors())]);
    }
    let folder = match checkpoint.path.parent() {
        Some(parent) if !checkpoint.path.is_dir() => parent,
        _ => &checkpoint.path,
    };
    let mut found = Vec::new();
    for name in SMALL {
        if let Some(bytes) = files::read(&folder.join(name), MAX_TOKENIZER)? {
            found.push((name.to_owned(), bytes));
        }
    }
    if found.first().is_none_or(|(name, _)| name != "config.json") {
        let found = "there is no config.json to go along".to_owned();
        return Err(OpenError::NotAModel { path: folder.to_owned(), found });
    }
    Ok(found)
}

/// Reads once at `offset`; how many bytes came.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    loop {
        #[cfg(unix)]
        let result = std::os::unix::fs::FileExt::read_at(file, buffer, offset);
        #[cfg(windows)]
        let result = std::os::windows::fs::FileExt::seek_read(file, buffer, offset);
        match result {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Writes all of `bytes` at `offset`.
pub(super) fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        #[cfg(unix)]
        let result = std::os::unix::fs::FileExt::write_at(file, bytes, offset);
        #[cfg(windows)]
        let result = std::os::windows::fs::FileExt::seek_write(file, bytes, offset);
        match result {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes that may be written to the file system of `folder`, where the system says.
pub(super) fn free_space(folder: &Path) -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
        let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path ends with a zero, and the call fills the structure if it returns 0.
        let found =
            unsafe { (libc::statvfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| found.assume_init()) }?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        None
    }
}

/// Makes names that were given in `folder` last.
pub(super) fn sync_folder(folder: &Path) -> Result<(), PackError> {
    #[cfg(unix)]
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(PackError::io(folder))?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// Lets the page cache go of `bytes` bytes of a file that is on disk, or of all behind `start` if they are 0.
pub(super) fn evict(file: &File, start: u64, bytes: u64) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let (Ok(start), Ok(bytes)) = (start.try_into(), bytes.try_into()) else { return };
        // SAFETY: the descriptor is open, and the call touches no memory of this process. It is advice: its result
        // only tells whether it was taken.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), start, bytes, libc::POSIX_FADV_DONTNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, start, bytes);
}
