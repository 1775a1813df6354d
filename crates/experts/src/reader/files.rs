//! The files of a model, opened for reading by position.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use turbospark_formats::Source;
use turbospark_program::ExpertError;

use super::positioned::read_at;
use crate::memory::{Block, PAGE};
use crate::table::ExpertTable;

/// A file of the model.
#[derive(Debug)]
pub struct OpenFile {
    source: Arc<Source>,
    /// None for bytes that are in memory anyway.
    disk: Option<Disk>,
}

#[derive(Debug)]
struct Disk {
    file: File,
    direct: bool,
    stamp: Stamp,
}

/// What changes when a file is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        let metadata = file.metadata()?;
        Ok(Stamp { length: metadata.len(), modified: metadata.modified().ok() })
    }
}

impl OpenFile {
    fn open(source: &Arc<Source>, direct: bool) -> io::Result<OpenFile> {
        if !source.is_file() {
            return Ok(OpenFile { source: source.clone(), disk: None });
        }
        let opened = if direct { open_direct(source.path()) } else { Err(io::ErrorKind::Unsupported.into()) };
        // Some file systems have no direct reads: then the page cache must serve.
        let (file, direct) = match opened {
            Ok(file) => (file, true),
            Err(_) => (File::open(source.path())?, false),
        };
        let stamp = Stamp::of(&file)?;
        let disk = Disk { file, direct, stamp };
        let replaced = || io::Error::other("the file was replaced since the model was opened; open it again");
        if stamp.length != source.bytes().len() as u64 || !begins_alike(&disk.file, source)? {
            return Err(replaced());
        }
        Ok(OpenFile { source: source.clone(), disk: Some(disk) })
    }

    /// The path, or the name of what is in memory.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// The handle; none for bytes in memory.
    pub fn handle(&self) -> Option<&File> {
        self.disk.as_ref().map(|disk| &disk.file)
    }

    /// Whether reads pass by the page cache.
    pub fn is_direct(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.direct)
    }

    /// Fails if the file was written to since it was opened.
    pub(super) fn check_unchanged(&self) -> io::Result<()> {
        match &self.disk {
            Some(disk) if Stamp::of(&disk.file)? != disk.stamp => {
                Err(io::Error::other("the file changed while the model was in use"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the file that was opened by path is the one that is mapped: they share the header.
fn begins_alike(file: &File, source: &Source) -> io::Result<bool> {
    let mut head = Block::many([PAGE].into_iter(), PAGE)?;
    let Some(head) = head.first_mut() else { return Ok(false) };
    let known = &source.bytes()[..source.bytes().len().min(PAGE)];
    let mut filled = 0;
    while filled < known.len() {
        // Direct reads begin at a page, so a short read begins anew.
        match read_at(file, head.bytes_mut(), 0)? {
            n if n <= filled => return Ok(false),
            n => filled = n,
        }
    }
    Ok(&head.bytes()[..known.len()] == known)
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

#[cfg(target_os = "macos")]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let file = OpenOptions::new().read(true).open(path)?;
    // SAFETY: the descriptor is open, and F_NOCACHE takes a plain integer.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(file),
    }
}

#[cfg(windows)]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_FLAG_NO_BUFFERING: u32 = 0x2000_0000;
    OpenOptions::new().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path)
}

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The files that a table's experts are in.
#[derive(Debug)]
pub(crate) struct Files {
    files: Vec<OpenFile>,
    /// By the address of the source, which the table keeps alive.
    index: HashMap<usize, usize>,
}

impl Files {
    /// Opens every file that `table` names.
    pub fn open(table: &ExpertTable, direct: bool) -> Result<Files, ExpertError> {
        let mut files = Files { files: Vec::new(), index: HashMap::new() };
        for layer in table.layers() {
            for slice in (0..layer.experts()).flat_map(|expert| layer.slices(expert)) {
                let source = slice.source();
                let address = Arc::as_ptr(source).addr();
                if files.index.contains_key(&address) {
                    continue;
                }
                let opened = OpenFile::open(source, direct)
                    .map_err(|error| ExpertError::Open { path: source.path().to_owned(), error })?;
                files.index.insert(address, files.files.len());
                files.files.push(opened);
            }
        }
        Ok(files)
    }

    /// The file behind a source of the table.
    pub fn get(&self, source: &Arc<Source>) -> Option<&OpenFile> {
        self.index.get(&Arc::as_ptr(source).addr()).map(|&index| &self.files[index])
    }

    /// All files.
    pub fn iter(&self) -> impl Iterator<Item = &OpenFile> {
        self.files.iter()
    }
}
