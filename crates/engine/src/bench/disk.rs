//! How fast the disk gives experts, measured beside the samples.

use std::time::Duration;

use turbospark_experts::ExpertTable;
use turbospark_experts::reader::{ReaderKind, disk_rate};
use turbospark_formats::Checkpoint;
use turbospark_program::{ExpertError, Program};

use crate::engine::Engine;

/// Time to try one way of reading.
const TRY: Duration = Duration::from_millis(150);
/// Time of a reading beside a sample.
const READING: Duration = Duration::from_millis(300);
/// Ways of reading that are tried.
const READERS: [ReaderKind; 2] = [ReaderKind::Uring, ReaderKind::Direct];
const THREADS: [usize; 3] = [1, 2, 4];

/// Reads experts of the model's own files, in the way that was fastest.
pub(super) struct Disk {
    table: ExpertTable,
    reader: ReaderKind,
    threads: usize,
}

impl Disk {
    /// Bytes that reading takes: an expert a thread.
    pub fn bytes(program: &Program, checkpoint: &Checkpoint) -> Result<usize, ExpertError> {
        let table = ExpertTable::find(program, checkpoint)?;
        let largest = table.layers().iter().map(|layer| layer.layout().bytes()).max().unwrap_or(0);
        Ok(largest * THREADS.iter().max().unwrap_or(&1))
    }

    /// Tries all readers and several threads; none if experts are not streamed, or not past the page cache.
    pub fn find(engine: &Engine) -> Option<Disk> {
        let table = engine.streamed()?.table().clone();
        let ways = READERS.iter().flat_map(|&reader| THREADS.map(|threads| (reader, threads)));
        let rate = |(reader, threads)| rate(&table, reader, threads, TRY).map(|rate| (rate, reader, threads));
        let best = ways.filter_map(rate).max_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, reader, threads)| Disk { table, reader, threads })
    }

    /// Bytes a second.
    pub fn rate(&self) -> Option<f64> {
        rate(&self.table, self.reader, self.threads, READING)
    }
}

fn rate(table: &ExpertTable, reader: ReaderKind, threads: usize, time: Duration) -> Option<f64> {
    let rate = disk_rate(table, reader, threads, time).ok()?;
    rate.direct.then(|| rate.bytes_per_second())
}
