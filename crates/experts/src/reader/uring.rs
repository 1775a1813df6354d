//! io_uring: all pieces of an expert in flight at once, into memory that the kernel has pinned beforehand.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::{Piece, ReadError, Reader};
use crate::memory::Block;

/// Pieces in flight at once; an expert has at most nine.
const ENTRIES: u32 = 16;

/// Reads through a ring of its own.
pub struct Uring {
    ring: IoUring,
    /// Registered memory by address: start, end.
    regions: Vec<(usize, usize, u16)>,
    /// Set when the ring failed with reads queued: it is not entered again.
    broken: bool,
}

impl Uring {
    /// A ring that knows no memory yet.
    pub fn new() -> io::Result<Uring> {
        Ok(Uring { ring: IoUring::new(ENTRIES)?, regions: Vec::new(), broken: false })
    }

    /// A ring with the blocks registered, as far as the system's limit on pinned memory allows.
    pub(crate) fn with_memory<'a>(blocks: impl Iterator<Item = &'a Block>) -> io::Result<Uring> {
        let mut uring = Uring::new()?;
        let spans = || blocks.map(|block| block.bytes()).filter(|bytes| !bytes.is_empty());
        let spans: Vec<_> = spans().collect();
        let vectors: Vec<libc::iovec> = spans
            .iter()
            .map(|bytes| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
            .collect();
        if vectors.is_empty() || vectors.len() > usize::from(u16::MAX) {
            return Ok(uring);
        }
        // SAFETY: the vectors describe memory that the pool keeps mapped for as long as its readers live; the
        // kernel pins the pages, and writes to them only for the reads of `Reader::read`.
        if unsafe { uring.ring.submitter().register_buffers(&vectors) }.is_ok() {
            let range = |(index, bytes): (usize, &&[u8])| {
                let start = bytes.as_ptr().addr();
                (start, start + bytes.len(), index as u16)
            };
            uring.regions = spans.iter().enumerate().map(range).collect();
            uring.regions.sort_unstable();
        }
        Ok(uring)
    }

    /// Whether memory was registered.
    pub fn is_registered(&self) -> bool {
        !self.regions.is_empty()
    }

    /// The registered region that holds `length` bytes from `start`.
    fn region(&self, start: usize, length: usize) -> Option<u16> {
        let after = self.regions.partition_point(|&(first, ..)| first <= start);
        let (_, end, index) = *self.regions.get(after.checked_sub(1)?)?;
        (start + length <= end).then_some(index)
    }

    /// Queues the rest of a piece; whether there was room.
    fn push(&mut self, index: usize, piece: &mut Piece<'_>) -> bool {
        let Some(file) = piece.file.handle() else { return true };
        let start = piece.resume();
        let buffer = &mut piece.buffer[start..];
        let length = u32::try_from(buffer.len()).unwrap_or(1 << 30);
        let region = self.region(buffer.as_ptr().addr(), buffer.len());
        let (fd, at, offset) =
            (types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), piece.offset + start as u64);
        let entry = match region {
            Some(region) => opcode::ReadFixed::new(fd, at, length, region).offset(offset).build(),
            None => opcode::Read::new(fd, at, length).offset(offset).build(),
        };
        // SAFETY: `read` does not return before every entry that it pushed has completed or can no longer be
        // submitted, and holds the buffers and the files borrowed until then.
        unsafe { self.ring.submission().push(&entry.user_data(index as u64)) }.is_ok()
    }

    /// Takes completions; how many.
    fn reap(&mut self, pieces: &mut [Piece<'_>], failed: &mut Option<ReadError>) -> usize {
        let mut count = 0;
        for entry in self.ring.completion() {
            count += 1;
            let index = entry.user_data() as usize;
            let Some(piece) = pieces.get_mut(index) else { continue };
            match entry.result() {
                n if n >= 0 => piece.filled = piece.filled.max(piece.resume() + n as usize),
                n if matches!(-n, libc::EINTR | libc::EAGAIN) => {
                    *failed = failed.take().or(Some(retry(index)));
                }
                n => *failed = Some(ReadError { piece: index, error: io::Error::from_raw_os_error(-n) }),
            }
        }
        count
    }
}

fn retry(piece: usize) -> ReadError {
    ReadError { piece, error: io::ErrorKind::Interrupted.into() }
}

impl Reader for Uring {
    fn read(&mut self, pieces: &mut [Piece<'_>]) -> Result<(), ReadError> {
        loop {
            match self.read_once(pieces) {
                Err(failed) if failed.error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Uring {
    fn read_once(&mut self, pieces: &mut [Piece<'_>]) -> Result<(), ReadError> {
        if self.broken {
            return super::Positioned.read(pieces);
        }
        let mut failed = None;
        let mut flying = 0;
        for (index, piece) in pieces.iter_mut().enumerate() {
            if piece.is_complete() || piece.file.handle().is_none() {
                continue;
            }
            if !self.push(index, piece) {
                break; // More pieces than entries: the next call reads the rest.
            }
            flying += 1;
        }
        while flying > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => {
                    // What the kernel did not take will never be: the ring is not entered again. What it took
                    // still writes to the buffers, so it is waited for.
                    self.broken = true;
                    flying -= self.ring.submission().len().min(flying);
                    failed = Some(ReadError { piece: 0, error });
                    while flying > 0 {
                        flying -= self.reap(pieces, &mut failed).min(flying);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    break;
                }
            }
            flying -= self.reap(pieces, &mut failed).min(flying);
        }
        failed.map_or(Ok(()), Err)
    }
}
