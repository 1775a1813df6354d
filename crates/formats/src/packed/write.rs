//! Writing a store: file by file, each under a temporary name until it is complete.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::digest::{Digest, Hasher, PIECE};
use super::files::{evict, free_space, sync_folder, write_at};
use super::journal::{Journal, Stamp};
use super::manifest::{FileEntry, Manifest, PartEntry};
use super::plan::{Content, PlannedFile, StorePlan};
use super::verify::is_whole;
use super::{JOURNAL, MANIFEST, PART, PackError};

/// A store that is being written. Dropping it leaves what is complete for the next run.
pub struct StoreWriter {
    folder: PathBuf,
    plan: StorePlan,
    journal: Journal,
    /// The files of a complete store, of which some are damaged: what is written again has to be the same.
    expected: Option<Vec<FileEntry>>,
    /// Held while the folder is written to.
    _lock: Option<File>,
}

/// Where the tensors of a file go, from any thread.
pub struct Sink<'a> {
    file: &'a File,
    path: &'a Path,
    /// Position and length of each.
    places: Vec<(u64, u64)>,
    digests: Mutex<Vec<Option<Digest>>>,
}

impl StoreWriter {
    /// Begins to write `plan` to `folder`, or goes on where an earlier run stopped. `kept` is told the bytes of
    /// files that are kept, after their digests were checked. Of a complete store, damaged files are written again;
    /// none if there are none.
    pub fn begin(
        folder: &Path,
        plan: StorePlan,
        kept: &mut dyn FnMut(u64),
    ) -> Result<Option<StoreWriter>, PackError> {
        std::fs::create_dir_all(folder).map_err(PackError::io(folder))?;
        let lock = lock(folder)?;
        let sources = plan.sources.iter().map(|path| Stamp::of(path)).collect::<Result<Vec<_>, _>>()?;
        let other = |reason| PackError::Other { path: folder.to_owned(), reason };
        let expected = complete(folder, &plan)?;
        let mut files = Vec::new();
        if let Some(expected) = &expected {
            files.clone_from(expected);
        } else if let Some(journal) = Journal::read(folder) {
            if journal.identity != plan.manifest.identity {
                return Err(other("it has the unfinished store of another model, or with other options"));
            }
            if journal.sources != sources {
                return Err(other(
                    "it has an unfinished store, and the model's files changed since or are others",
                ));
            }
            files = journal.files;
        }
        if expected.is_none() {
            check_names(folder, &plan)?;
        }
        files.retain(|entry| {
            let known = plan.files.iter().any(|file| file.name == entry.name && file.bytes() == entry.bytes);
            let whole = known && is_whole(folder, entry);
            if whole {
                kept(entry.bytes);
            }
            whole
        });
        if expected.is_some() && files.len() == plan.files.len() {
            remove_journal(folder)?;
            return Ok(None);
        }
        let needed = plan.bytes() - files.iter().map(|file| file.bytes).sum::<u64>();
        // Parts of an earlier run are written over, so that their space is free as well.
        let parts = plan.files.iter().filter_map(|file| std::fs::metadata(part(folder, &file.name)).ok());
        let parts: u64 = parts.map(|metadata| metadata.len()).sum();
        if let Some(free) = free_space(folder).map(|free| free.saturating_add(parts))
            && free < needed
        {
            return Err(PackError::Space { path: folder.to_owned(), needed, free });
        }
        let journal = Journal { identity: plan.manifest.identity, sources, files };
        let folder = folder.to_owned();
        let writer = StoreWriter { folder, plan, journal, expected, _lock: lock };
        writer.save()?;
        Ok(Some(writer))
    }

    /// Writes the configuration, the tokenizer and the resident tensors, unless they are there. `progress` is told
    /// the bytes that were written.
    pub fn write_resident(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), PackError> {
        for index in 0..self.plan.files.len() {
            if matches!(self.plan.files[index].content, Content::Experts(_)) {
                continue;
            }
            self.write(index, |sink, content| {
                let Content::Resident(tensors) = content else { return Ok(()) };
                for (index, slices) in tensors.iter().enumerate() {
                    sink.put_slices(index, slices, progress)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Writes the experts of the layer of that index, unless they are there: `fill` puts each into its sink.
    pub fn write_experts<E: From<PackError>>(
        &mut self,
        layer: usize,
        fill: impl FnOnce(&Sink<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_layer = |file: &PlannedFile| matches!(file.content, Content::Experts(index) if index == layer);
        match self.plan.files.iter().position(is_layer) {
            Some(index) => self.write(index, |sink, _| fill(sink)),
            None => Ok(()),
        }
    }

    /// Writes the manifest, which makes the store complete.
    pub fn finish(self) -> Result<(), PackError> {
        if self.expected.is_some() {
            // It has its manifest, which is right again.
            remove_journal(&self.folder)?;
            return sync_folder(&self.folder);
        }
        let entry =
            |file: &PlannedFile| self.journal.files.iter().find(|entry| entry.name == file.name).cloned();
        let mut manifest: Manifest = self.plan.manifest.clone();
        manifest.files = self.plan.files.iter().filter_map(entry).collect();
        if let Some(file) = self.plan.files.iter().find(|file| entry(file).is_none()) {
            let error = std::io::Error::other("the file was not written");
            return Err(PackError::Io { path: self.folder.join(&file.name), error });
        }
        let path = self.folder.join(MANIFEST);
        let text = manifest.seal().map_err(|error| PackError::io(&path)(error.into()))?;
        replace(&self.folder, MANIFEST, &text)?;
        remove_journal(&self.folder)?;
        sync_folder(&self.folder)
    }

    fn save(&self) -> Result<(), PackError> {
        if self.expected.is_some() {
            return Ok(());
        }
        let path = self.folder.join(JOURNAL);
        let text = serde_json::to_vec(&self.journal).map_err(|error| PackError::io(&path)(error.into()))?;
        replace(&self.folder, JOURNAL, &text)
    }

    fn write<E: From<PackError>>(
        &mut self,
        index: usize,
        fill: impl FnOnce(&Sink<'_>, &Content) -> Result<(), E>,
    ) -> Result<(), E> {
        let planned = &self.plan.files[index];
        if self.journal.files.iter().any(|entry| entry.name == planned.name) {
            return Ok(());
        }
        let path = part(&self.folder, &planned.name);
        let io = |error| E::from(PackError::io(&path)(error));
        let file = File::create(&path).map_err(io)?;
        file.set_len(planned.bytes()).map_err(io)?;
        write_at(&file, &planned.head, 0).map_err(io)?;
        let mut at = planned.head.len() as u64;
        let places = planned.tensors.iter().map(|&(_, bytes)| {
            at += bytes;
            (at - bytes, bytes)
        });
        let places: Vec<_> = places.collect();
        let digests = Mutex::new(vec![None; places.len()]);
        let sink = Sink { file: &file, path: &path, places, digests };
        fill(&sink, &planned.content)?;
        let digests = sink.digests.into_inner().unwrap_or_else(PoisonError::into_inner);
        let tensors = planned.tensors.iter().zip(digests).map(|((name, bytes), digest)| {
            Some(PartEntry { name: name.clone(), bytes: *bytes, digest: digest? })
        });
        let missing = || io(std::io::Error::other("a tensor was not written"));
        let tensors = tensors.collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        file.sync_all().map_err(io)?;
        evict(&file, 0, 0);
        drop(file);
        let name = planned.name.clone();
        let entry = FileEntry { name, bytes: planned.bytes(), digest: Digest::of(&planned.head), tensors };
        if self.expected.as_ref().is_some_and(|expected| !expected.contains(&entry)) {
            std::fs::remove_file(&path).map_err(io)?;
            let reason = "the model is not the one that this store was packed from";
            return Err(PackError::Other { path: self.folder.clone(), reason }.into());
        }
        std::fs::rename(&path, self.folder.join(&entry.name)).map_err(io)?;
        self.journal.files.push(entry);
        self.save().map_err(E::from)
    }
}

impl Sink<'_> {
    /// Writes tensor `index`, which has the bytes that were planned.
    pub fn put(&self, index: usize, bytes: &[u8]) -> Result<(), PackError> {
        self.put_pieces(index, std::iter::once(bytes))
    }

    fn put_slices(
        &self,
        index: usize,
        slices: &[crate::ByteSlice],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), PackError> {
        let pieces = slices.iter().flat_map(|slice| {
            slice.chunks(PIECE).enumerate().map(move |(i, piece)| (slice, slice.offset() + i * PIECE, piece))
        });
        let mut last = None;
        self.put_pieces(
            index,
            pieces.map(|(slice, at, piece)| {
                // The piece before was written: its pages are no longer needed.
                if let Some((source, range)) = last.replace((slice.source(), at..at + piece.len())) {
                    source.evict(range);
                }
                progress(piece.len() as u64);
                piece
            }),
        )
    }

    fn put_pieces<'b>(&self, index: usize, pieces: impl Iterator<Item = &'b [u8]>) -> Result<(), PackError> {
        let wrong =
            || PackError::io(self.path)(std::io::Error::other("a tensor has other bytes than planned"));
        let &(start, length) = self.places.get(index).ok_or_else(wrong)?;
        let mut hasher = Hasher::default();
        let mut done = 0;
        for piece in pieces {
            if piece.len() as u64 > length - done {
                return Err(wrong());
            }
            hasher.add(piece);
            write_at(self.file, piece, start + done).map_err(PackError::io(self.path))?;
            done += piece.len() as u64;
        }
        if done != length {
            return Err(wrong());
        }
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests[index] = Some(hasher.digest());
        Ok(())
    }
}

fn part(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{PART}"))
}

/// Writes a small file at once: it is there as a whole or not at all.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), PackError> {
    let path = part(folder, name);
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        std::fs::rename(&path, folder.join(name))
    };
    write().map_err(PackError::io(&path))
}

/// Keeps other processes from writing to the folder, where folders can be locked.
fn lock(folder: &Path) -> Result<Option<File>, PackError> {
    if !cfg!(unix) {
        return Ok(None);
    }
    let file = File::open(folder).map_err(PackError::io(folder))?;
    match file.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => Err(PackError::Busy(folder.to_owned())),
        _ => Ok(Some(file)),
    }
}

fn remove_journal(folder: &Path) -> Result<(), PackError> {
    let path = folder.join(JOURNAL);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(PackError::io(&path)(error)),
        _ => Ok(()),
    }
}

/// The files of the complete store in `folder`, if there is one; it has to be the planned one.
fn complete(folder: &Path, plan: &StorePlan) -> Result<Option<Vec<FileEntry>>, PackError> {
    let path = folder.join(MANIFEST);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(PackError::io(&path)(error)),
    };
    let other = |reason| PackError::Other { path: folder.to_owned(), reason };
    let manifest =
        Manifest::parse(&text).map_err(|_| other("it has a packed store whose manifest is damaged"))?;
    if manifest.identity != plan.manifest.identity {
        return Err(other("it has the packed store of another model, or with other options"));
    }
    Ok(Some(manifest.files))
}

/// Refuses a folder with files that are not of this store.
fn check_names(folder: &Path, plan: &StorePlan) -> Result<(), PackError> {
    let begun = folder.join(JOURNAL).exists();
    for entry in std::fs::read_dir(folder).map_err(PackError::io(folder))? {
        let found = entry.map_err(PackError::io(folder))?.file_name().to_string_lossy().into_owned();
        let whole = found.strip_suffix(PART).unwrap_or(&found);
        let planned = plan.files.iter().any(|file| file.name == whole);
        // Complete files stand beside a journal; without one, a folder with such names is someone's.
        let own = [JOURNAL, MANIFEST].contains(&whole) || planned && (begun || found != whole);
        if !own {
            return Err(PackError::NotEmpty { path: folder.to_owned(), found });
        }
    }
    Ok(())
}
