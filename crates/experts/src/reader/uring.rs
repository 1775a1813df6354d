//! io_uring: all pieces of an expert in flight at once, into memory that the kernel keeps pinned.

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::{Piece, ReadError, Reader};
use crate::memory::Block;

/// Pieces in flight at once: an expert has at most nine slices, and long ones come in pieces.
const ENTRIES: u32 = 16;

/// Reads through a ring of its own.
pub struct Uring {
    ring: IoUring,
    /// Memory that reads go to, by address; its index is that in the kernel's table.
    regions: Vec<Region>,
    /// Set when the ring failed with reads queued: it is not entered again.
    broken: bool,
}

struct Region {
    start: usize,
    end: usize,
    registered: bool,
}

impl Uring {
    /// A ring that knows no memory.
    pub fn new() -> io::Result<Uring> {
        Ok(Uring { ring: IoUring::new(ENTRIES)?, regions: Vec::new(), broken: false })
    }

    /// A ring that registers each block when it is first read into, as far as the kernel's limit on pinned memory
    /// allows. All at once would touch the whole pool when a model is opened: seconds for some gigabytes.
    pub(crate) fn with_memory<'a>(blocks: impl Iterator<Item = &'a Block>) -> io::Result<Uring> {
        let mut uring = Uring::new()?;
        let spans = blocks.map(|block| block.bytes().as_ptr_range()).filter(|span| !span.is_empty());
        let region = |span: Range<*const u8>| Region {
            start: span.start.addr(),
            end: span.end.addr(),
            registered: false,
        };
        let mut regions: Vec<Region> = spans.map(region).collect();
        regions.sort_unstable_by_key(|region| region.start);
        let room = regions.len() <= usize::from(u16::MAX) && !regions.is_empty();
        if room && uring.ring.submitter().register_buffers_sparse(regions.len() as u32).is_ok() {
            uring.regions = regions;
        }
        Ok(uring)
    }

    /// The registered region that `buffer` lies in.
    fn region(&mut self, buffer: &mut [u8]) -> Option<u16> {
        let start = buffer.as_ptr().addr();
        let index = self.regions.partition_point(|region| region.start <= start).checked_sub(1)?;
        let region = self.regions.get_mut(index)?;
        let before = start - region.start;
        if start + buffer.len() > region.end {
            return None;
        }
        if !region.registered {
            let base = buffer.as_mut_ptr().wrapping_sub(before);
            let vector = libc::iovec { iov_base: base.cast(), iov_len: region.end - region.start };
            // SAFETY: the vector is the block that the buffer is part of, which the pool keeps mapped for as long
            // as its readers live; the kernel pins the pages, and writes to them only for the reads pushed below.
            let result =
                unsafe { self.ring.submitter().register_buffers_update(index as u32, &[vector], None) };
            if result.is_err() {
                // The limit on pinned memory: from here on all reads do without.
                self.regions.clear();
                return None;
            }
            region.registered = true;
        }
        Some(index as u16)
    }

    /// Queues the rest of a piece; whether there was room.
    fn push(&mut self, index: usize, piece: &mut Piece<'_>) -> bool {
        let Some(file) = piece.file.handle() else { return true };
        let start = piece.resume();
        let buffer = &mut piece.buffer[start..];
        let length = u32::try_from(buffer.len()).unwrap_or(1 << 30);
        let region = self.region(buffer);
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

    /// Takes completions; how many. Pieces that are complete are added to `complete`.
    fn reap(
        &mut self,
        pieces: &mut [Piece<'_>],
        complete: &mut Vec<usize>,
        failed: &mut Option<ReadError>,
    ) -> usize {
        let mut count = 0;
        for entry in self.ring.completion() {
            count += 1;
            let index = entry.user_data() as usize;
            let Some(piece) = pieces.get_mut(index) else { continue };
            match entry.result() {
                n if n >= 0 => {
                    piece.filled = piece.filled.max(piece.resume() + n as usize);
                    if piece.is_complete() {
                        complete.push(index);
                    }
                }
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
    fn read(&mut self, pieces: &mut [Piece<'_>], arrived: &mut dyn FnMut(usize)) -> Result<(), ReadError> {
        loop {
            match self.read_once(pieces, arrived) {
                Err(failed) if failed.error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Uring {
    fn read_once(
        &mut self,
        pieces: &mut [Piece<'_>],
        arrived: &mut dyn FnMut(usize),
    ) -> Result<(), ReadError> {
        if self.broken {
            return super::Positioned.read(pieces, arrived);
        }
        let mut failed = None;
        let mut complete = Vec::with_capacity(pieces.len());
        let mut told = 0;
        let (mut next, mut flying) = (0, 0);
        loop {
            while failed.is_none() && flying < ENTRIES as usize && next < pieces.len() {
                let piece = &mut pieces[next];
                if !piece.is_complete() && piece.file.handle().is_some() {
                    if !self.push(next, piece) {
                        break;
                    }
                    flying += 1;
                }
                next += 1;
            }
            if flying == 0 {
                break;
            }
            // What is complete is worked on while the next pieces are on their way, which takes no waiting then.
            let wait = usize::from(told == complete.len());
            match self.ring.submit_and_wait(wait) {
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
                        flying -= self.reap(pieces, &mut complete, &mut failed).min(flying);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    break;
                }
            }
            if let Some(&index) = complete.get(told) {
                arrived(index);
                told += 1;
            }
            flying -= self.reap(pieces, &mut complete, &mut failed).min(flying);
        }
        complete[told..].iter().for_each(|&index| arrived(index));
        failed.map_or(Ok(()), Err)
    }
}
