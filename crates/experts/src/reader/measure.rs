//! Which reader is fastest here.

use std::time::Instant;

use super::{Files, Piece, Positioned, Reader, ReaderKind, read_all};
use crate::memory::{Block, PAGE};
use crate::table::ExpertTable;

/// Most bytes that one reader reads to be measured: some 30 milliseconds of a common disk.
const SAMPLE: usize = 48 << 20;

/// Readers differ by less than this from run to run.
const NOISE: f64 = 1.05;

/// The fastest reader that passes by the page cache: a cached read would measure memory, and a page cache that
/// grows takes the memory that the budget promises to others.
pub(crate) fn fastest(files: &Files, table: &ExpertTable, threads: usize) -> ReaderKind {
    if files.iter().all(|file| !file.is_direct()) {
        return ReaderKind::Buffered;
    }
    #[cfg(target_os = "linux")]
    {
        // Another part of the file for each, and the second one is not favoured by a disk that had to wake up.
        let uring = || super::Uring::new().ok().map(|uring| Box::new(uring) as Box<dyn Reader>);
        let direct = || Some(Box::new(Positioned) as Box<dyn Reader>);
        let _ = rate(files, table, threads, 2, &direct);
        let (Some(ring), Some(plain)) =
            (rate(files, table, threads, 0, &uring), rate(files, table, threads, 1, &direct))
        else {
            return ReaderKind::Direct;
        };
        if ring * NOISE > plain { ReaderKind::Uring } else { ReaderKind::Direct }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (table, threads, rate, SAMPLE, NOISE);
        ReaderKind::Direct
    }
}

/// Bytes a second of `threads` readers over a sample of experts, a third of the model for each `part`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn rate(
    files: &Files,
    table: &ExpertTable,
    threads: usize,
    part: usize,
    make: &(dyn Fn() -> Option<Box<dyn Reader>> + Sync),
) -> Option<f64> {
    let all: Vec<(usize, usize)> = table
        .layers()
        .iter()
        .enumerate()
        .flat_map(|(index, layer)| (0..layer.experts()).map(move |expert| (index, expert)))
        .filter(|(layer, expert)| (layer + expert) % 3 == part)
        .collect();
    // A stride that visits the whole model, so that no two experts are neighbours.
    let stride = (all.len() / 64).max(1) | 1;
    let mut left = SAMPLE;
    let mut sample = Vec::new();
    for &(layer, expert) in all.iter().step_by(stride) {
        left = match left.checked_sub(table.layers()[layer].layout().bytes()) {
            Some(left) => left,
            None => break,
        };
        sample.push((layer, expert));
    }
    let bytes = SAMPLE - left;
    let started = Instant::now();
    let share = sample.len().div_ceil(threads).max(1);
    let complete = std::thread::scope(|scope| {
        let reads = sample.chunks(share).map(|share| {
            scope.spawn(move || {
                let mut reader = make()?;
                share
                    .iter()
                    .try_for_each(|&(layer, expert)| read(files, table, layer, expert, reader.as_mut()))
            })
        });
        let reads: Vec<_> = reads.collect();
        reads.into_iter().all(|read| matches!(read.join(), Ok(Some(()))))
    });
    complete.then(|| bytes as f64 / started.elapsed().as_secs_f64().max(1e-9))
}

fn read(
    files: &Files,
    table: &ExpertTable,
    layer: usize,
    expert: usize,
    reader: &mut dyn Reader,
) -> Option<()> {
    for slice in table.layers()[layer].slices(expert) {
        let file = files.get(slice.source())?;
        let edge = slice.offset() % PAGE;
        let need = edge + slice.len();
        let mut block = Block::many(std::iter::once(need.next_multiple_of(PAGE)), PAGE).ok()?;
        let buffer = block.first_mut()?.bytes_mut();
        let offset = (slice.offset() - edge) as u64;
        read_all(reader, &mut [Piece { file, offset, buffer, need, filled: 0 }]).ok()?;
    }
    Some(())
}
