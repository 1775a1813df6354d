//! Comparing a store with its manifest.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::digest::{Digest, Hasher};
use super::error::{PackedError, PackedFault};
use super::files::{evict, read_at};
use super::manifest::{FileEntry, Manifest};
use super::{JOURNAL, MANIFEST};
use crate::OpenError;
use crate::checkpoint::files::{self, MAX_INDEX};

/// Bytes that are read at a time.
const BUFFER: usize = 1 << 20;

/// What [`verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Files of the manifest, itself included.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What is not as it was written, in the order of the manifest.
    pub damage: Vec<Damage>,
    /// Files that the manifest does not name; nothing reads them.
    pub extra: Vec<String>,
}

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The tensor, if it is one.
    pub tensor: Option<String>,
    /// What happened to it.
    pub kind: DamageKind,
}

/// What happened to a file or a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// Not there.
    Missing,
    /// The file has another length.
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// The file ends before the tensor does.
    CutOff,
    /// Other bytes than were written.
    Changed,
    /// The bytes before the first tensor are not those that were written.
    Header,
    /// The system cannot read it.
    Unreadable(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(tensor) = &self.tensor {
            write!(f, ": tensor {tensor}")?;
        }
        match &self.kind {
            DamageKind::Missing => f.write_str(": missing"),
            DamageKind::Length { found, expected } if found < expected => {
                write!(f, ": cut: it has {found} of {expected} bytes")
            }
            DamageKind::Length { found, expected } => {
                write!(f, ": it has {found} bytes, {} more than were written", found - expected)
            }
            DamageKind::CutOff => f.write_str(": cut off by the end of the file"),
            DamageKind::Changed => f.write_str(": damaged: its digest is not the manifest's"),
            DamageKind::Header => f.write_str(": its header is damaged: its digest is not the manifest's"),
            DamageKind::Unreadable(reason) => write!(f, ": cannot be read: {reason}"),
        }
    }
}

/// A range of a file that has a digest.
struct Range<'a> {
    file: usize,
    tensor: Option<&'a str>,
    start: u64,
    bytes: u64,
    digest: Digest,
}

/// Reads every byte of the store in `folder` with `threads` threads. `progress` is told the bytes that were read and
/// all there are, from any thread.
///
/// An error is a folder that is no store, or one that is not finished; a damaged manifest is damage.
pub fn verify(
    folder: &Path,
    threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Verification, PackedError> {
    let path = folder.join(MANIFEST);
    let Some(text) = read_small(&path)? else {
        let fault =
            if folder.join(JOURNAL).exists() { PackedFault::Unfinished } else { PackedFault::NotAStore };
        return Err(PackedError::new(folder, fault));
    };
    let mut found = Verification { files: 1, bytes: text.len() as u64, ..Verification::default() };
    let manifest = match Manifest::parse(&text) {
        Ok(manifest) => manifest,
        Err(PackedFault::Manifest) => {
            found.damage.push(Damage { file: MANIFEST.to_owned(), tensor: None, kind: DamageKind::Changed });
            return Ok(found);
        }
        Err(fault) => return Err(PackedError::new(&path, fault)),
    };
    found.files += manifest.files.len();
    found.bytes = manifest.files.iter().map(|file| file.bytes).fold(found.bytes, u64::saturating_add);
    let damage = check(folder, &manifest.files, threads, &|done| progress(done, found.bytes));
    found.damage.extend(damage);
    let known: HashSet<&str> = manifest.files.iter().map(|file| &file.name[..]).chain([MANIFEST]).collect();
    let entries =
        std::fs::read_dir(folder).map_err(|error| PackedError::new(folder, PackedFault::Io(error)))?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    found.extra = names.filter(|name| !known.contains(&name[..])).collect();
    found.extra.sort();
    Ok(found)
}

/// The bytes of a manifest, `None` if there is no such file.
pub(super) fn read_small(path: &Path) -> Result<Option<Vec<u8>>, PackedError> {
    files::read(path, MAX_INDEX).map_err(|error| {
        let fault = match error {
            OpenError::Io { error, .. } => PackedFault::Io(error),
            other => PackedFault::Io(std::io::Error::other(other.to_string())),
        };
        PackedError::new(path, fault)
    })
}

/// Whether a file has the bytes that its entry says.
pub(super) fn is_whole(folder: &Path, entry: &FileEntry) -> bool {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    entry.head().is_some() && check(folder, std::slice::from_ref(entry), threads, &|_| {}).is_empty()
}

/// Compares files whose tensors have no more bytes than they.
fn check(folder: &Path, files: &[FileEntry], threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Vec<Damage> {
    let mut damage: Vec<(usize, Damage)> = Vec::new();
    let mut opened = Vec::with_capacity(files.len());
    let mut ranges = Vec::new();
    for (index, entry) in files.iter().enumerate() {
        let mut report = |tensor: Option<&str>, kind| {
            let tensor = tensor.map(str::to_owned);
            damage.push((index, Damage { file: entry.name.clone(), tensor, kind }));
        };
        let file = File::open(folder.join(&entry.name));
        let file = file.and_then(|file| file.metadata().map(|metadata| (file, metadata)));
        let length = match &file {
            Ok((_, metadata)) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                report(None, DamageKind::Missing);
                opened.push(None);
                continue;
            }
            Err(error) => {
                report(None, DamageKind::Unreadable(error.to_string()));
                opened.push(None);
                continue;
            }
        };
        opened.push(file.ok().map(|(file, _)| file));
        if length != entry.bytes {
            report(None, DamageKind::Length { found: length, expected: entry.bytes });
        }
        let head = entry.head().unwrap_or(0);
        let mut start = 0;
        let parts = entry.tensors.iter().map(|part| (Some(&part.name[..]), part.bytes, part.digest));
        for (tensor, bytes, digest) in std::iter::once((None, head, entry.digest)).chain(parts) {
            if start + bytes <= length {
                ranges.push(Range { file: index, tensor, start, bytes, digest });
            } else if tensor.is_some() {
                report(tensor, DamageKind::CutOff);
            }
            start += bytes;
        }
    }
    let next = AtomicUsize::new(0);
    let done = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    let work = || {
        let mut buffer = vec![0; BUFFER];
        while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(file) = opened.get(range.file).and_then(Option::as_ref) else { continue };
            let read =
                |bytes: usize| progress(done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64);
            let kind = match digest(file, range, &mut buffer, read) {
                Ok(digest) if digest == range.digest => continue,
                Ok(_) if range.tensor.is_none() && !files[range.file].tensors.is_empty() => {
                    DamageKind::Header
                }
                Ok(_) => DamageKind::Changed,
                Err(error) => DamageKind::Unreadable(error.to_string()),
            };
            let (file, tensor) = (files[range.file].name.clone(), range.tensor.map(str::to_owned));
            let damage = (range.file, Damage { file, tensor, kind });
            found.lock().unwrap_or_else(PoisonError::into_inner).push((range.start, damage));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(start, (file, _))| (*file, *start));
    damage.extend(found.into_iter().map(|(_, damage)| damage));
    damage.sort_by_key(|(file, _)| *file);
    damage.into_iter().map(|(_, damage)| damage).collect()
}

fn digest(
    file: &File,
    range: &Range<'_>,
    buffer: &mut [u8],
    read: impl Fn(usize),
) -> std::io::Result<Digest> {
    let mut hasher = Hasher::default();
    let mut done = 0;
    while done < range.bytes {
        let want = usize::try_from(range.bytes - done).unwrap_or(usize::MAX).min(buffer.len());
        match read_at(file, &mut buffer[..want], range.start + done)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            came => {
                hasher.add(&buffer[..came]);
                done += came as u64;
                read(came);
            }
        }
    }
    // Read once: it need not push out what others use.
    evict(file, range.start, range.bytes);
    Ok(hasher.digest())
}
