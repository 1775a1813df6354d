//! Which reader is fastest here, and how fast that is.

use std::time::{Duration, Instant};

use turbospark_program::{ExpertError, ExpertPacker};

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
        let Some(rate) = rate(files, table, threads, part, None, &ring) else { return ReaderKind::Direct };
        ringed = ringed.max(rate.bytes_per_second());
        plain = plain.max(
            self::rate(files, table, threads, part + 1, None, &direct)
                .map_or(0.0, |read| read.bytes_per_second()),
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
/// and at least a few tens of megabytes; with a packer each thread packs what it has read before it reads on.
///
/// # Errors
/// Files that cannot be opened or read, a reader that the system does not have.
pub fn disk_rate(
    table: &ExpertTable,
    reader: ReaderKind,
    threads: usize,
    packer: Option<&dyn ExpertPacker>,
    time: Duration,
) -> Result<DiskRate, ExpertError> {
    let threads = threads.max(1);
    let files = Files::open(table, reader != ReaderKind::Buffered)?;
    let reader = match reader {
        ReaderKind::Auto => fastest(&files, table, threads),
        kind => kind,
    };
    let path = || {
        table
            .layers()
            .first()
            .map_or_else(Default::default, |layer| layer.slices(0)[0].source().path().to_owned())
    };
    reader.make(&[])?;
    let direct = files.iter().all(|file| file.is_direct());
    let mut total = DiskRate { reader, direct, bytes: 0, time: Duration::ZERO };
    for part in 0.. {
        // A small model has nothing in some of the parts.
        let read = rate(&files, table, threads, part % 4, packer, &|| reader.make(&[]).ok());
        total.bytes += read.as_ref().map_or(0, |read| read.bytes);
        total.time += read.as_ref().map_or(Duration::ZERO, |read| read.time);
        if read.is_none() || (part >= 3 && total.bytes == 0) {
            let error = std::io::Error::other("its experts could not be read to measure the disk");
            return Err(ExpertError::Open { path: path(), error });
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

/// Reads by `threads` readers of a sample of experts, from another quarter of the model for each `part`.
fn rate(
    files: &Files,
    table: &ExpertTable,
    threads: usize,
    part: usize,
    packer: Option<&dyn ExpertPacker>,
    make: &(dyn Fn() -> Option<Box<dyn Reader>> + Sync),
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
    let packed = |packer: &dyn ExpertPacker| table.layers().iter().map(|l| packer.bytes(l.layout())).max();
    let packed = packer.and_then(packed).unwrap_or(0);
    // Memory and readers first: they are made once for a run.
    let mut readers = Vec::new();
    let blocks = Block::many([largest, packed].into_iter().cycle().take(2 * threads), PAGE).ok()?;
    let mut blocks = blocks.into_iter();
    while let (Some(mut raw), Some(mut packed)) = (blocks.next(), blocks.next()) {
        for block in [&mut raw, &mut packed] {
            block.bytes_mut().iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        }
        readers.push((make()?, raw, packed));
    }
    let share = sample.len().div_ceil(threads).max(1);
    let started = Instant::now();
    let complete = std::thread::scope(|scope| {
        type Own = (Box<dyn Reader>, Block, Block);
        let run = |((mut reader, mut raw, mut packed), keys): (Own, &[ExpertKey])| {
            let keys = keys.to_vec();
            let mut one = move |&key: &ExpertKey| {
                let ranges = read(table, files, reader.as_mut(), key, &mut raw).ok()?;
                let Some(packer) = packer else { return Some(()) };
                let layout = table.layers()[key.layer as usize].layout();
                let slices: Vec<&[u8]> = ranges.into_iter().map(|range| &raw.bytes()[range]).collect();
                let out = packed.bytes_mut().get_mut(..packer.bytes(layout))?;
                packer.pack(&layout.matrices(&slices)?, out);
                Some(())
            };
            scope.spawn(move || keys.iter().all(|key| one(key).is_some()))
        };
        let threads: Vec<_> = readers.into_iter().zip(sample.chunks(share)).map(run).collect();
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
            for packer in [None, Some(&Join as &dyn ExpertPacker)] {
                let rate = disk_rate(&table, ReaderKind::Auto, 2, packer, Duration::ZERO).unwrap();
                assert!(rate.bytes > 0 && rate.bytes_per_second() > 0.0 && rate.reader != ReaderKind::Auto);
            }
        }
        let none = ExpertTable::new(Vec::new());
        assert!(disk_rate(&none, ReaderKind::Auto, 2, None, Duration::ZERO).is_err());
    }
}
