//! From the bytes of files to an expert in a slot.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turbospark_program::ExpertPacker;

use super::{Files, Piece, Reader, read_all};
use crate::memory::{Block, PAGE};
use crate::policy::ExpertKey;
use crate::pool::Failure;
use crate::pool::sizes::{edge, raw_bytes};
use crate::table::ExpertTable;

/// What loading needs, in each thread that does it.
pub(crate) struct Loader {
    pub table: Arc<ExpertTable>,
    pub files: Arc<Files>,
    pub reader: Box<dyn Reader>,
    /// Where raw experts wait to be packed.
    pub staging: Option<Block>,
}

/// An expert that was loaded.
pub(crate) struct Loaded {
    /// Where its slices lie in the slot.
    pub slices: Vec<Range<usize>>,
    pub reading: Duration,
    pub packing: Duration,
}

impl Loader {
    /// Reads an expert into `slot`, packed if there is a packer.
    pub fn load(
        &mut self,
        key: ExpertKey,
        packer: Option<&dyn ExpertPacker>,
        slot: &mut Block,
    ) -> Result<Loaded, Failure> {
        let layer = &self.table.layers()[key.layer as usize];
        let failure = |(path, error): (PathBuf, io::Error)| Failure {
            layer: layer.layer(),
            expert: key.expert,
            path,
            kind: error.kind(),
            reason: error.to_string(),
        };
        let started = Instant::now();
        let Some(packer) = packer else {
            let slices = read(&self.table, &self.files, self.reader.as_mut(), key, slot).map_err(failure)?;
            return Ok(Loaded { slices, reading: started.elapsed(), packing: Duration::ZERO });
        };
        let memory = |error| failure((PathBuf::from("memory"), error));
        let staging = match &mut self.staging {
            Some(staging) if staging.bytes().len() >= raw_bytes(layer) => staging,
            staging => {
                let made = Block::many(std::iter::once(raw_bytes(layer)), PAGE).map_err(memory)?;
                let made = made.into_iter().next().ok_or(io::ErrorKind::OutOfMemory);
                staging.insert(made.map_err(|kind| memory(kind.into()))?)
            }
        };
        let ranges = read(&self.table, &self.files, self.reader.as_mut(), key, staging).map_err(failure)?;
        let reading = started.elapsed();
        let bytes = packer.bytes(layer.layout());
        let raw: Vec<&[u8]> = ranges.iter().map(|range| &staging.bytes()[range.clone()]).collect();
        let misfit = || {
            let path = layer.slices(key.expert as usize)[0].source().path().to_owned();
            (path, io::Error::new(io::ErrorKind::InvalidData, "the bytes do not fit the layout"))
        };
        let raw = layer.layout().matrices(&raw).ok_or_else(misfit).map_err(failure)?;
        let out = slot.bytes_mut().get_mut(..bytes).ok_or_else(misfit).map_err(failure)?;
        packer.pack(&raw, out);
        let packing = started.elapsed() - reading;
        Ok(Loaded { slices: std::iter::once(0..bytes).collect(), reading, packing })
    }
}

/// Reads the slices of an expert, each from the page it begins in; where they lie in `into`.
pub(super) fn read(
    table: &ExpertTable,
    files: &Files,
    reader: &mut dyn Reader,
    key: ExpertKey,
    into: &mut Block,
) -> Result<Vec<Range<usize>>, (PathBuf, io::Error)> {
    let slices = table.layers()[key.layer as usize].slices(key.expert as usize);
    let mut ranges = Vec::with_capacity(slices.len());
    let mut pieces = Vec::with_capacity(slices.len());
    let mut owners = Vec::with_capacity(slices.len());
    let mut rest = into.bytes_mut();
    let mut at = 0;
    for slice in slices {
        let path = || slice.source().path().to_owned();
        let file = files.get(slice.source()).ok_or_else(|| (path(), io::ErrorKind::NotFound.into()))?;
        let edge = edge(slice.offset());
        let need = edge + slice.len();
        let length = need.next_multiple_of(PAGE);
        let short = || (path(), io::Error::new(io::ErrorKind::InvalidData, "the slot is too small"));
        let (buffer, after) = rest.split_at_mut_checked(length).ok_or_else(short)?;
        rest = after;
        ranges.push(at + edge..at + need);
        at += length;
        if file.handle().is_some() {
            let offset = (slice.offset() - edge) as u64;
            pieces.push(Piece { file, offset, buffer, need, filled: 0 });
            owners.push(file);
        } else {
            buffer[edge..need].copy_from_slice(slice);
        }
    }
    read_all(reader, &mut pieces).map_err(|failed| (owners[failed.piece].path().to_owned(), failed.error))?;
    for (i, file) in owners.iter().enumerate() {
        // Once for each file: the slices of an expert mostly share one.
        if !owners[..i].iter().any(|known| std::ptr::eq(*known, *file)) {
            file.check_unchanged().map_err(|error| (file.path().to_owned(), error))?;
        }
    }
    Ok(ranges)
}
