//! From the bytes of files to an expert in a slot.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turbospark_formats::packed::Digest;
use turbospark_program::ExpertPacker;

use super::arrivals::{Arrived, RowsOf};
use super::{Files, OpenFile, Piece, Reader, read_all};
use crate::memory::{Block, PAGE};
use crate::policy::ExpertKey;
use crate::pool::Failure;
use crate::pool::sizes::{edge, raw_bytes};
use crate::table::{ExpertTable, LayerTable};

/// Bytes that are read before what they complete is packed, while the next are on their way.
///
/// Tests read a page at a time, so that small experts come in pieces too.
const PIECE: usize = if cfg!(test) { PAGE } else { 128 << 10 };

/// What loading needs, in each thread that does it.
pub(crate) struct Loader {
    pub table: Arc<ExpertTable>,
    pub files: Arc<Files>,
    pub reader: Box<dyn Reader>,
    /// Where raw experts wait to be packed.
    pub staging: Option<Block>,
    /// Whether what was read is compared with its digest.
    pub verify: bool,
}

/// An expert that was loaded.
pub(crate) struct Loaded {
    /// Where its slices lie in the slot.
    pub slices: Vec<Range<usize>>,
    pub reading: Duration,
    /// Packing it, or comparing it with its digest.
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
            let mut slices =
                read(&self.table, &self.files, self.reader.as_mut(), key, slot).map_err(failure)?;
            let reading = started.elapsed();
            if self.verify {
                verify(layer, key, &slices, slot).map_err(failure)?;
            }
            if let (Some(bytes), [slice]) = (layer.packed_bytes(), &mut slices[..]) {
                // The rest of the page is padding.
                slice.end = slice.end.min(slice.start + bytes);
            }
            return Ok(Loaded { slices, reading, packing: started.elapsed() - reading });
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
        let bytes = packer.bytes(layer.layout());
        let misfit = || {
            let path = layer.slices(key.expert as usize)[0].source().path().to_owned();
            (path, io::Error::new(io::ErrorKind::InvalidData, "the bytes do not fit the layout"))
        };
        let out = slot.bytes_mut().get_mut(..bytes).ok_or_else(misfit).map_err(failure)?;
        let slices = std::iter::once(0..bytes).collect();
        if let Some(packer) = packer.by_rows() {
            let mut rows = RowsOf::new(layer.layout(), packer);
            let (mut packing, mut fits) = (Duration::ZERO, true);
            let mut pack = |arrived: &Arrived<'_>| {
                let started = Instant::now();
                fits &= rows.pack(arrived, out);
                packing += started.elapsed();
            };
            let reader = self.reader.as_mut();
            read_in_pieces(&self.table, &self.files, reader, key, staging, PIECE, &mut pack)
                .map_err(failure)?;
            if !fits || !rows.is_complete() {
                return Err(failure(misfit()));
            }
            return Ok(Loaded { slices, reading: started.elapsed().saturating_sub(packing), packing });
        }
        let ranges = read(&self.table, &self.files, self.reader.as_mut(), key, staging).map_err(failure)?;
        let reading = started.elapsed();
        let raw: Vec<&[u8]> = ranges.iter().map(|range| &staging.bytes()[range.clone()]).collect();
        let raw = layer.layout().matrices(&raw).ok_or_else(misfit).map_err(failure)?;
        packer.pack(&raw, out);
        let packing = started.elapsed() - reading;
        Ok(Loaded { slices, reading, packing })
    }
}

/// Compares an expert that was read with its digest.
fn verify(
    layer: &LayerTable,
    key: ExpertKey,
    slices: &[Range<usize>],
    slot: &Block,
) -> Result<(), (PathBuf, io::Error)> {
    let read = slices.first().and_then(|range| slot.bytes().get(range.clone()));
    if read.map(Digest::of) == layer.digest(key.expert) && read.is_some() {
        return Ok(());
    }
    let path = layer.slices(key.expert as usize)[0].source().path().to_owned();
    let reason =
        "its digest is not the manifest's: the file is damaged; `turbospark verify` names all that is";
    Err((path, io::Error::new(io::ErrorKind::InvalidData, reason)))
}

/// Reads the slices of an expert; where they lie in `into`.
pub(super) fn read(
    table: &ExpertTable,
    files: &Files,
    reader: &mut dyn Reader,
    key: ExpertKey,
    into: &mut Block,
) -> Result<Vec<Range<usize>>, (PathBuf, io::Error)> {
    read_in_pieces(table, files, reader, key, into, usize::MAX, &mut |_| {})
}

/// Reads the slices of an expert, each from the page it begins in and `piece` bytes at a time; where they lie in
/// `into`. `progress` is told what is there, each time that more is.
fn read_in_pieces(
    table: &ExpertTable,
    files: &Files,
    reader: &mut dyn Reader,
    key: ExpertKey,
    into: &mut Block,
    piece: usize,
    progress: &mut dyn FnMut(&Arrived<'_>),
) -> Result<Vec<Range<usize>>, (PathBuf, io::Error)> {
    let slices = table.layers()[key.layer as usize].slices(key.expert as usize);
    let mut ranges = Vec::with_capacity(slices.len());
    let mut at = 0;
    for slice in slices {
        let need = edge(slice.offset()) + slice.len();
        ranges.push(at + edge(slice.offset())..at + need);
        at += need.next_multiple_of(PAGE);
    }
    let memory = into.bytes_mut();
    if at > memory.len() {
        let path = slices.first().map_or_else(PathBuf::new, |slice| slice.source().path().to_owned());
        return Err((path, io::Error::new(io::ErrorKind::InvalidData, "the slot is too small")));
    }
    let memory = memory.as_mut_ptr();
    // SAFETY: the block is borrowed until this function ends, all slices end before it does, and a piece's bytes are
    // no longer written to when the reader says that it is complete.
    let mut arrived = unsafe { Arrived::new(memory, &ranges) };
    let mut pieces = Vec::with_capacity(slices.len());
    let mut owners = Vec::with_capacity(slices.len());
    for (index, (slice, range)) in slices.iter().zip(&ranges).enumerate() {
        let path = || slice.source().path().to_owned();
        let file = files.get(slice.source()).ok_or_else(|| (path(), io::ErrorKind::NotFound.into()))?;
        let edge = edge(slice.offset());
        let (start, need) = (range.start - edge, edge + slice.len());
        let length = need.next_multiple_of(PAGE);
        // SAFETY: `at` bytes are in the block, and the pages of one slice end before those of the next begin.
        let buffer = unsafe { std::slice::from_raw_parts_mut(memory.add(start), length) };
        if file.handle().is_none() {
            buffer[edge..need].copy_from_slice(slice);
            arrived.come(index, slice.len());
            continue;
        }
        for (i, buffer) in buffer.chunks_mut(piece).enumerate() {
            let before = i * piece.min(length);
            let need = buffer.len().min(need - before);
            pieces.push(Piece {
                file,
                offset: (slice.offset() - edge + before) as u64,
                buffer,
                need,
                filled: 0,
            });
            owners.push(Owner { file, slice: index, end: (before + need).saturating_sub(edge) });
        }
    }
    let mut complete = vec![false; pieces.len()];
    let mut first = 0;
    let mut come = |piece: usize| {
        complete[piece] = true;
        // Pieces of a slice count once all before them are there, and slices come in order.
        while let (Some(true), Some(owner)) = (complete.get(first), owners.get(first)) {
            arrived.come(owner.slice, owner.end);
            first += 1;
        }
        progress(&arrived);
    };
    read_all(reader, &mut pieces, &mut come)
        .map_err(|failed| (owners[failed.piece].file.path().to_owned(), failed.error))?;
    if owners.is_empty() {
        progress(&arrived);
    }
    for (i, owner) in owners.iter().enumerate() {
        // Once for each file: the slices of an expert mostly share one.
        if !owners[..i].iter().rev().take(1).any(|known| std::ptr::eq(known.file, owner.file)) {
            owner.file.check_unchanged().map_err(|error| (owner.file.path().to_owned(), error))?;
        }
    }
    Ok(ranges)
}

/// What a piece is part of.
struct Owner<'a> {
    file: &'a OpenFile,
    slice: usize,
    /// Where it ends in the slice.
    end: usize,
}
