//! Which reader is fastest here.

use std::time::Instant;

use super::loader::read;
use super::{Files, Positioned, Reader, ReaderKind};
use crate::memory::{Block, PAGE};
use crate::policy::ExpertKey;
use crate::pool::sizes::raw_bytes;
use crate::table::ExpertTable;

/// What one reader reads to be measured: at least some experts, and at least so many bytes of them; some tens of
/// milliseconds of a common disk.
const SAMPLE: (usize, usize) = (6, 32 << 20);

/// Readers differ by this much from run to run.
const NOISE: f64 = 1.1;

/// The fastest reader that passes by the page cache: a cached read would measure memory, and a page cache that
/// grows takes the memory that the budget promises to others.
pub(crate) fn fastest(files: &Files, table: &ExpertTable, threads: usize) -> ReaderKind {
    if files.iter().all(|file| !file.is_direct()) {
        return ReaderKind::Buffered;
    }
    let direct = || Some(Box::new(Positioned) as Box<dyn Reader>);
    // On Windows and macOS there is no choice to measure.
    if !cfg!(target_os = "linux") {
        return ReaderKind::Direct;
    }
    // The better of two samples each, from different parts of the model: others use the disk too.
    let [mut ringed, mut plain] = [0.0f64; 2];
    for part in [0, 2] {
        let Some(rate) = rate(files, table, threads, part, &ring) else { return ReaderKind::Direct };
        ringed = ringed.max(rate);
        plain = plain.max(self::rate(files, table, threads, part + 1, &direct).unwrap_or(0.0));
    }
    if ringed * NOISE > plain { ReaderKind::Uring } else { ReaderKind::Direct }
}

#[cfg(target_os = "linux")]
fn ring() -> Option<Box<dyn Reader>> {
    super::Uring::new().ok().map(|uring| Box::new(uring) as Box<dyn Reader>)
}

#[cfg(not(target_os = "linux"))]
fn ring() -> Option<Box<dyn Reader>> {
    None
}

/// Bytes a second of `threads` readers over a sample of experts, from another quarter of the model for each `part`.
fn rate(
    files: &Files,
    table: &ExpertTable,
    threads: usize,
    part: usize,
    make: &(dyn Fn() -> Option<Box<dyn Reader>> + Sync),
) -> Option<f64> {
    let keys = table.layers().iter().enumerate();
    let keys = keys.flat_map(|(layer, of)| (0..of.experts()).map(move |e| ExpertKey::new(layer, e as u32)));
    let keys: Vec<_> = keys.filter(|key| (key.layer + key.expert) as usize % 4 == part).collect();
    let bytes_of = |key: &ExpertKey| table.layers()[key.layer as usize].layout().bytes();
    // A stride through the whole model, so that no two experts are neighbours.
    let mut sample = Vec::new();
    let mut bytes = 0;
    for key in keys.iter().step_by((keys.len() / 64).max(1) | 1) {
        if sample.len() >= SAMPLE.0 && bytes >= SAMPLE.1 {
            break;
        }
        bytes += bytes_of(key);
        sample.push(*key);
    }
    let largest = table.layers().iter().map(raw_bytes).max()?;
    // Memory and readers first: they are made once for a run.
    let mut readers = Vec::new();
    for block in Block::many(std::iter::repeat_n(largest, threads), PAGE).ok()? {
        readers.push((make()?, block));
    }
    for (_, block) in &mut readers {
        block.bytes_mut().iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    }
    let share = sample.len().div_ceil(threads).max(1);
    let started = Instant::now();
    let complete = std::thread::scope(|scope| {
        let run = |((mut reader, mut block), keys): ((Box<dyn Reader>, Block), &[ExpertKey])| {
            let keys = keys.to_vec();
            scope.spawn(move || {
                keys.iter().all(|&key| read(table, files, reader.as_mut(), key, &mut block).is_ok())
            })
        };
        let threads: Vec<_> = readers.into_iter().zip(sample.chunks(share)).map(run).collect();
        threads.into_iter().all(|thread| thread.join().is_ok_and(|complete| complete))
    });
    complete.then(|| bytes as f64 / started.elapsed().as_secs_f64().max(1e-9))
}
