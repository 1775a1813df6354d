//! Reading the bytes of experts from files, by position and past the page cache where the system can.

mod arrivals;
mod files;
mod loader;
mod measure;
mod positioned;
#[cfg(target_os = "linux")]
mod uring;

use std::fmt;
use std::io;
use std::str::FromStr;

pub use files::OpenFile;
pub use measure::{DiskRate, disk_rate, packed_rate};
pub use positioned::Positioned;
#[cfg(target_os = "linux")]
pub use uring::Uring;

pub(crate) use files::Files;
pub(crate) use loader::Loader;
pub(crate) use measure::fastest;

use turbospark_program::ExpertError;

use crate::memory::{Block, PAGE};

/// A range of a file on its way into memory.
///
/// Offset, address and length are multiples of 4096, as direct reads need; at the end of a file fewer bytes than
/// the buffer holds may exist.
pub struct Piece<'a> {
    /// The file.
    pub file: &'a OpenFile,
    /// Position of the buffer's first byte in the file.
    pub offset: u64,
    /// Where the bytes go.
    pub buffer: &'a mut [u8],
    /// Bytes that must come.
    pub need: usize,
    /// Bytes that have come.
    pub filled: usize,
}

impl Piece<'_> {
    /// Whether all that is needed has come.
    pub fn is_complete(&self) -> bool {
        self.filled >= self.need
    }

    /// Where the next read of this piece begins: direct reads go on from a page.
    pub fn resume(&self) -> usize {
        self.filled / PAGE * PAGE
    }
}

/// A piece that could not be read.
#[derive(Debug)]
pub struct ReadError {
    /// Which piece.
    pub piece: usize,
    /// What the system says.
    pub error: io::Error,
}

/// Reads pieces of files. Each reading thread has one of its own.
pub trait Reader: Send {
    /// Reads once what each incomplete piece still needs, and raises its `filled` by what came, which may be less
    /// than asked for, or nothing at the end of the file. `arrived` is told the index of each piece that becomes
    /// complete, as soon as it does.
    fn read(&mut self, pieces: &mut [Piece<'_>], arrived: &mut dyn FnMut(usize)) -> Result<(), ReadError>;
}

/// Reads until every piece is complete.
pub(crate) fn read_all(
    reader: &mut dyn Reader,
    pieces: &mut [Piece<'_>],
    arrived: &mut dyn FnMut(usize),
) -> Result<(), ReadError> {
    loop {
        let Some(first) = pieces.iter().position(|piece| !piece.is_complete()) else { return Ok(()) };
        let before: usize = pieces.iter().map(|piece| piece.filled).sum();
        reader.read(pieces, arrived)?;
        if pieces.iter().map(|piece| piece.filled).sum::<usize>() <= before {
            // Nothing came: this is where the file ends.
            let piece = &pieces[first];
            let end = piece.offset + piece.filled as u64;
            let reason = format!(
                "the file ends at byte {end}, {} bytes early: it was cut or is incomplete",
                piece.need - piece.filled
            );
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, reason);
            return Err(ReadError { piece: first, error });
        }
    }
}

/// How experts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ReaderKind {
    /// The fastest on this machine, by a short measurement when the model is opened.
    #[default]
    Auto,
    /// io_uring past the page cache; Linux.
    Uring,
    /// Positioned reads past the page cache.
    Direct,
    /// Positioned reads through the page cache, which then competes with the slots for memory.
    Buffered,
}

impl ReaderKind {
    /// The name as an option spells it.
    pub fn name(self) -> &'static str {
        match self {
            ReaderKind::Auto => "auto",
            ReaderKind::Uring => "uring",
            ReaderKind::Direct => "direct",
            ReaderKind::Buffered => "buffered",
        }
    }

    /// A reader of this kind that reads into the blocks of `memory`, and into any other. Whether it passes by the
    /// page cache was decided when the files were opened; left open, it is the plain one.
    pub(crate) fn make(self, memory: &[Block]) -> Result<Box<dyn Reader>, ExpertError> {
        if self != ReaderKind::Uring {
            return Ok(Box::new(Positioned));
        }
        #[cfg(target_os = "linux")]
        let made = Uring::with_memory(memory.iter()).map(|uring| Box::new(uring) as Box<dyn Reader>);
        #[cfg(not(target_os = "linux"))]
        let made = {
            let _ = memory;
            let reason = "only Linux has it; choose the reader direct or auto";
            Err(io::Error::new(io::ErrorKind::Unsupported, reason))
        };
        made.map_err(|error| ExpertError::Open { path: "io_uring".into(), error })
    }
}

impl fmt::Display for ReaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no reader has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no reader is called {0}: auto, uring, direct and buffered are")]
pub struct UnknownReader(String);

impl FromStr for ReaderKind {
    type Err = UnknownReader;

    fn from_str(name: &str) -> Result<ReaderKind, UnknownReader> {
        let kinds = [ReaderKind::Auto, ReaderKind::Uring, ReaderKind::Direct, ReaderKind::Buffered];
        kinds.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownReader(name.to_owned()))
    }
}
