use std::fs::File;
use std::io;

use super::{Piece, ReadError, Reader};

/// One positioned read after another.
///
/// Whether they pass by the page cache was decided when the files were opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Positioned;

impl Reader for Positioned {
    fn read(&mut self, pieces: &mut [Piece<'_>], arrived: &mut dyn FnMut(usize)) -> Result<(), ReadError> {
        for (index, piece) in pieces.iter_mut().enumerate() {
            let Some(file) = piece.file.handle().filter(|_| !piece.is_complete()) else { continue };
            let start = piece.resume();
            let came = read_at(file, &mut piece.buffer[start..], piece.offset + start as u64);
            let came = came.map_err(|error| ReadError { piece: index, error })?;
            piece.filled = piece.filled.max(start + came);
            if piece.is_complete() {
                arrived(index);
            }
        }
        Ok(())
    }
}

/// Reads once, again only when a signal interrupts.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        #[cfg(unix)]
        let result = std::os::unix::fs::FileExt::read_at(file, buffer, offset);
        #[cfg(windows)]
        let result = std::os::windows::fs::FileExt::seek_read(file, buffer, offset);
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Windows says so instead of giving no bytes.
            Err(error) if cfg!(windows) && error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
            result => return result,
        }
    }
}
