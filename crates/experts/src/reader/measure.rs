//! Which reader is fastest here, and how fast that is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use turbospark_program::{ExpertError, ExpertPacker};

use super::loader::read;
use super::{Files, Loader, Positioned, Reader, ReaderKind};
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
        ringed = ringed.max(rate.bytes_per_second());
        plain = plain.max(
            self::rate(files, table, threads, part + 1, &direct).map_or(0.0, |read| read.bytes_per_second()),
        );
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

/// How fast experts come from where they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskRate {
    /// How they were read.
    pub reader: ReaderKind,
    /// Whether the reads passed by the page cache: else this may be the rate of memory.
    pub direct: bool,
    /// Bytes read.
    pub bytes: usize,
    /// In so long.
    pub time: Duration,
}

impl DiskRate {
    /// The rate.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Reads experts of a model as streaming would, by `reader` and with `threads` threads, for about as long as `time`
/// and at least a few tens of megabytes.
///
/// # Errors
/// Files that cannot be opened or read, a reader that the system does not have.
pub fn disk_rate(
    table: &ExpertTable,
    reader: ReaderKind,
    threads: usize,
    time: Duration,
) -> Result<DiskRate, ExpertError> {
    measure(table, reader, threads, None, time)
}

/// As [`disk_rate`], with experts packed by the threads that read them, as streaming does it; those of a packed store
/// are only read.
pub fn packed_rate(
    table: &ExpertTable,
    reader: ReaderKind,
    threads: usize,
    packer: &dyn ExpertPacker,
    time: Duration,
) -> Result<DiskRate, ExpertError> {
    measure(table, reader, threads, Some(packer), time)
}

fn measure(
    table: &ExpertTable,
    reader: ReaderKind,
    threads: usize,
    packer: Option<&dyn ExpertPacker>,
    time: Duration,
) -> Result<DiskRate, ExpertError> {
    let threads = threads.max(1);
    let packer = packer.filter(|_| table.packing().is_none());
    let files = Arc::new(Files::open(table, reader != ReaderKind::Buffered)?);
    let reader = match reader {
        ReaderKind::Auto => fastest(&files, table, threads),
        kind => kind,
    };
    reader.make(&[])?;
    let direct = files.iter().all(|file| file.is_direct());
    let shared = Arc::new(table.clone());
    let packed = packer.and_then(|packer| table.layers().iter().map(|l| packer.bytes(l.layout())).max());
    let work = |memory: Block, mut slot: Block| {
        let reader = reader.make(&[]).ok()?;
        let Some(packer) = packer else { return Some(reads(&files, table, reader, memory)) };
        let (table, files) = (shared.clone(), files.clone());
        let mut loader = Loader { table, files, reader, staging: Some(memory), verify: false };
        Some(Box::new(move |key| loader.load(key, Some(packer), &mut slot).is_ok()) as Work<'_>)
    };
    let mut total = DiskRate { reader, direct, bytes: 0, time: Duration::ZERO };
    for part in 0.. {
        // A small model has nothing in some of the parts.
        let read = timed(table, threads, part % 4, packed.unwrap_or(0), &work);
        total.bytes += read.as_ref().map_or(0, |read| read.bytes);
        total.time += read.as_ref().map_or(Duration::ZERO, |read| read.time);
        if read.is_none() || (part >= 3 && total.bytes == 0) {
            let path = table.layers().first().map(|layer| layer.slices(0)[0].source().path().to_owned());
            let error = std::io::Error::other("its experts could not be read to measure the disk");
            return Err(ExpertError::Open { path: path.unwrap_or_default(), error });
        }
        if total.bytes > 0 && total.time >= time {
            break;
        }
    }
    Ok(total)
}

/// What was read in how long.
struct Read {
    bytes: usize,
    time: Duration,
}

impl Read {
    fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Reads an expert; false if that fails.
type Work<'a> = Box<dyn FnMut(ExpertKey) -> bool + Send + 'a>;

/// Reading into `memory` and no more.
fn reads<'a>(
    files: &'a Files,
    table: &'a ExpertTable,
    mut reader: Box<dyn Reader>,
    mut memory: Block,
) -> Work<'a> {
    Box::new(move |key| read(table, files, reader.as_mut(), key, &mut memory).is_ok())
}

/// Reads by `threads` readers of a sample of experts.
fn rate(
    files: &Files,
    table: &ExpertTable,
    threads: usize,
    part: usize,
    make: &dyn Fn() -> Option<Box<dyn Reader>>,
) -> Option<Read> {
    timed(table, threads, part, 0, &|memory, _| Some(reads(files, table, make()?, memory)))
}

/// The time that `threads` workers take for a sample of experts, from another quarter of the model for each `part`.
/// `make` is given memory for a raw expert and `packed` bytes.
fn timed<'a>(
    table: &ExpertTable,
    threads: usize,
    part: usize,
    packed: usize,
    make: &dyn Fn(Block, Block) -> Option<Work<'a>>,
) -> Option<Read> {
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
    let mut workers = Vec::new();
    let mut blocks =
        Block::many([largest, packed].into_iter().cycle().take(2 * threads), PAGE).ok()?.into_iter();
    while let (Some(mut memory), Some(mut slot)) = (blocks.next(), blocks.next()) {
        for block in [&mut memory, &mut slot] {
            block.bytes_mut().iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        }
        workers.push(make(memory, slot)?);
    }
    let share = sample.len().div_ceil(threads).max(1);
    let started = Instant::now();
    let complete = std::thread::scope(|scope| {
        let run = |(mut work, keys): (Work<'a>, &[ExpertKey])| {
            let keys = keys.to_vec();
            scope.spawn(move || keys.into_iter().all(&mut work))
        };
        let threads: Vec<_> = workers.into_iter().zip(sample.chunks(share)).map(run).collect();
        threads.into_iter().all(|thread| thread.join().is_ok_and(|complete| complete))
    });
    complete.then(|| Read { bytes, time: started.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Join, Toy};

    #[test]
    fn what_is_read_has_a_rate() {
        let toy = Toy::new(3, 8);
        let directory = tempfile::tempdir().unwrap();
        let on_disk = toy.on_disk(&directory.path().join("toy"));
        for table in [toy.in_memory(), on_disk, Toy::new(1, 1).in_memory()] {
            let raw = disk_rate(&table, ReaderKind::Auto, 2, Duration::ZERO).unwrap();
            let packed = packed_rate(&table, ReaderKind::Auto, 2, &Join, Duration::ZERO).unwrap();
            for rate in [raw, packed] {
                assert!(rate.bytes > 0 && rate.bytes_per_second() > 0.0 && rate.reader != ReaderKind::Auto);
            }
        }
        let none = ExpertTable::new(Vec::new());
        assert!(disk_rate(&none, ReaderKind::Auto, 2, Duration::ZERO).is_err());
    }
}
