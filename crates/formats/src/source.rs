//! Bytes of a model file: mapped, embedded in the program or held in memory.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

/// A model file whose bytes can be viewed without copying.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    bytes: Backing,
}

#[derive(Debug)]
enum Backing {
    /// The file is kept to advise the system about its cache.
    Mapped(Mmap, File),
    Embedded(&'static [u8]),
    Owned(Vec<u8>),
}

impl Source {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> std::io::Result<Arc<Source>> {
        let file = File::open(path)?;
        // SAFETY: the mapping is read-only and private to this process. A file that another process cuts short
        // while it is mapped can still raise SIGBUS; model files are not modified while in use.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Arc::new(Source { path: path.to_owned(), bytes: Backing::Mapped(map, file) }))
    }

    /// A file that is part of the program; `name` stands in for its path in messages.
    pub fn embedded(name: &str, bytes: &'static [u8]) -> Arc<Source> {
        Arc::new(Source { path: name.into(), bytes: Backing::Embedded(bytes) })
    }

    /// A file held in memory; `name` stands in for its path in messages.
    pub fn owned(name: &str, bytes: Vec<u8>) -> Arc<Source> {
        Arc::new(Source { path: name.into(), bytes: Backing::Owned(bytes) })
    }

    /// The path, or the name given in its place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole content.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Backing::Mapped(map, _) => map,
            Backing::Embedded(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
        }
    }

    /// Lets the system take back the memory that `range` of a mapped file occupies; touching it reads it again.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Backing::Mapped(map, _) = &self.bytes
            && range.start < range.end
            && range.end <= map.len()
        {
            // SAFETY: the mapping is of a file and never written, so that a page which is dropped comes back with
            // the same bytes.
            let advised = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // It is advice: a system that does not take it only uses more memory.
            let _ = advised;
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// As [`Source::release`]; the page cache lets go of the range too, so that it counts for nobody.
    pub fn evict(&self, range: Range<usize>) {
        self.release(range.clone());
        #[cfg(target_os = "linux")]
        if let Backing::Mapped(map, file) = &self.bytes
            && range.start < range.end
            && range.end <= map.len()
            && let (Ok(start), Ok(length)) = (range.start.try_into(), range.len().try_into())
        {
            use std::os::fd::AsRawFd;
            // SAFETY: the descriptor is open as long as `file` is, and the call touches no memory of this process.
            // It is advice: its result only tells whether it was taken.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), start, length, libc::POSIX_FADV_DONTNEED) };
        }
    }

    /// Tells the system that `range` of a mapped file is read here and there: nothing around what is touched is read.
    pub fn expect_random_reads(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Backing::Mapped(map, _) = &self.bytes
            && range.start < range.end
            && range.end <= map.len()
        {
            // It is advice: a system that does not take it only reads more.
            let _ = map.advise_range(memmap2::Advice::Random, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Fails if the mapped file was cut since it was opened. Until it is, its bytes can be touched.
    pub fn check_whole(&self) -> std::io::Result<()> {
        if let Backing::Mapped(map, file) = &self.bytes {
            let length = file.metadata()?.len();
            if length < map.len() as u64 {
                let reason =
                    format!("the file was cut to {length} of {} bytes while it was in use", map.len());
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, reason));
            }
        }
        Ok(())
    }

    /// Whether the bytes come from a file on disk, so that they can be read by position.
    pub fn is_file(&self) -> bool {
        matches!(self.bytes, Backing::Mapped(..))
    }
}

/// A range of a [`Source`]; the range is within the source by construction.
#[derive(Clone, Debug)]
pub struct ByteSlice {
    source: Arc<Source>,
    start: usize,
    length: usize,
}

impl ByteSlice {
    /// The bytes `range` of `source`, or `None` if the source is shorter.
    pub fn new(source: &Arc<Source>, range: Range<usize>) -> Option<ByteSlice> {
        source.bytes().get(range.clone())?;
        Some(ByteSlice { source: source.clone(), start: range.start, length: range.len() })
    }

    /// The `index`-th of `count` equal pieces; the length must be a multiple of `count`.
    pub fn piece(&self, index: usize, count: usize) -> ByteSlice {
        assert!(index < count && self.length.is_multiple_of(count));
        let length = self.length / count;
        ByteSlice { source: self.source.clone(), start: self.start + index * length, length }
    }

    /// The file the bytes are in.
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// Position of the first byte in the file.
    pub fn offset(&self) -> usize {
        self.start
    }
}

impl Deref for ByteSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.source.bytes()[self.start..self.start + self.length]
    }
}
