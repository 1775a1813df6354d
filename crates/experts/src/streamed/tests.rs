//! Streaming from real files, with readers that fail in every way.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::policy::PolicyKind;
use crate::random::Random;
use crate::reader::{Piece, Positioned, ReadError};
use crate::toy::{Join, Toy, is_right};

/// Fails, reads less than asked for, and dawdles, as a seeded schedule says.
struct Faulty {
    seed: u64,
    calls: Arc<AtomicU64>,
    injected: Arc<AtomicU64>,
}

impl Reader for Faulty {
    fn read(&mut self, pieces: &mut [Piece<'_>], arrived: &mut dyn FnMut(usize)) -> Result<(), ReadError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::new(self.seed ^ call.wrapping_mul(0x5851_F42D_4C95_7F2D));
        match random.below(12) {
            0 => std::thread::sleep(Duration::from_micros(random.below(400) as u64)),
            1 => std::thread::yield_now(),
            _ => {}
        }
        if random.one_in(50) {
            self.injected.fetch_add(1, Ordering::Relaxed);
            return match random.below(2) {
                0 => Err(ReadError {
                    piece: random.below(pieces.len()),
                    error: std::io::Error::other("injected"),
                }),
                _ => Ok(()), // The file ends here.
            };
        }
        for (index, piece) in pieces.iter_mut().enumerate().filter(|(_, piece)| !piece.is_complete()) {
            let start = piece.resume();
            let length = piece.buffer.len() - start;
            // At least beyond what has come, so that this is no end of the file.
            let most =
                if random.one_in(4) { piece.filled - start + 1 + random.below(length / 2) } else { length };
            let (offset, need) = (piece.offset + start as u64, most.min(length));
            let buffer = &mut piece.buffer[start..start + need];
            let mut part = [Piece { file: piece.file, offset, buffer, need, filled: 0 }];
            Positioned.read(&mut part, &mut |_| {})?;
            piece.filled = piece.filled.max(start + part[0].filled);
            if piece.is_complete() {
                arrived(index);
            }
        }
        Ok(())
    }
}

/// Fails the test if `work` takes more than a minute: a deadlock.
fn within_a_minute(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock"),
        _ => thread.join().unwrap(),
    }
}

fn toy() -> Toy {
    Toy { hidden: 32, intermediate: vec![40, 40, 72], ..Toy::new(3, 10) }
}

/// Enough for `slots` slots of each size.
fn budget(table: &ExpertTable, packer: Option<&dyn ExpertPacker>, slots: usize, workers: usize) -> usize {
    let one = PoolSizes::fit(table, packer, 1 << 30, workers).unwrap();
    one.classes.iter().map(|class| class.bytes * slots).sum::<usize>() + one.staging * workers
}

fn check(table: &ExpertTable, packed: bool, layer: usize, lease: &Lease) {
    match packed {
        false => assert!(is_right(table, layer, lease)),
        true => assert_eq!(lease.slice(0), Join::expected(table, layer, lease.expert)),
    }
}

/// Opens, takes, keeps and drops at random; how many requests ended with an error.
fn hold(source: &StreamedExperts, packed: bool, most: usize, steps: usize, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut failed = 0;
    let mut requests: Vec<(usize, Vec<u32>, Box<dyn ExpertRequest>)> = Vec::new();
    let mut leases = Vec::new();
    for _ in 0..steps {
        match random.below(8) {
            0 | 1 if requests.len() < 3 => {
                let layer = random.below(3);
                let mut ids: Vec<u32> = (0..10).collect();
                random.shuffle(&mut ids);
                ids.truncate(1 + random.below(9));
                requests.push((layer, ids.clone(), source.begin(layer, &ids).unwrap()));
            }
            2 if random.one_in(4) => source.hint(random.below(3), &[random.below(10) as u32]),
            3 if random.one_in(6) && !requests.is_empty() => {
                requests.swap_remove(random.below(requests.len()));
            }
            4 if !leases.is_empty() => {
                let (layer, lease) = leases.swap_remove(random.below(leases.len()));
                check(source.table(), packed, layer, &lease);
            }
            _ if requests.is_empty() => {}
            _ => {
                while leases.len() >= most {
                    leases.swap_remove(random.below(leases.len()));
                }
                let at = random.below(requests.len());
                let (layer, ids, request) = &mut requests[at];
                match request.next() {
                    Ok(Some(lease)) => {
                        check(source.table(), packed, *layer, &lease);
                        let known = ids.iter().position(|&id| id == lease.expert).unwrap();
                        ids.remove(known);
                        leases.push((*layer, lease));
                    }
                    Ok(None) => {
                        assert!(ids.is_empty());
                        requests.swap_remove(at);
                    }
                    Err(error) => {
                        assert!(matches!(error, ExpertError::Read { .. }), "{error}");
                        failed += 1;
                        requests.swap_remove(at);
                    }
                }
            }
        }
    }
    failed
}

#[test]
fn ten_thousand_steps_with_a_faulty_reader() {
    within_a_minute(|| {
        let directory = tempfile::tempdir().unwrap();
        for (round, kind) in PolicyKind::ONLINE.into_iter().enumerate() {
            let packed = round % 2 == 1;
            let packer: Option<Arc<dyn ExpertPacker>> = if packed { Some(Arc::new(Join)) } else { None };
            let table = toy().on_disk(&directory.path().join(round.to_string()));
            let slots = 3 + round;
            let mut options = StreamOptions::new(budget(&table, packer.as_deref(), slots, 1 + round % 3));
            options.policy = kind;
            options.workers = 1 + round % 3;
            options.prefetch = if round % 2 == 0 { Prefetch::On } else { Prefetch::Auto };
            let files = Files::open(&table, false).unwrap();
            let (calls, injected) = (Arc::default(), Arc::new(AtomicU64::new(0)));
            let make = |_: &[Block]| -> Result<Box<dyn Reader>, ExpertError> {
                let (calls, injected) = (Arc::clone(&calls), injected.clone());
                Ok(Box::new(Faulty { seed: round as u64, calls, injected }))
            };
            let source =
                StreamedExperts::with_readers(table, packer, &options, ReaderKind::Buffered, files, make);
            let source = source.unwrap();
            let slots = source.leases();
            assert!(slots >= 2);

            let failed = hold(&source, packed, slots, 2000, 7 + round as u64);
            // Two threads that share the leases.
            let failed = failed
                + std::thread::scope(|scope| {
                    let other = scope.spawn(|| hold(&source, packed, slots / 2, 500, 77));
                    hold(&source, packed, slots / 2, 500, 78) + other.join().unwrap()
                });
            assert!(failed > 0 && injected.load(Ordering::Relaxed) > 0, "no fault was injected");
            // Afterwards everything is there, once no more faults come up.
            let tries = (0..100).find(|_| whole_layer(&source, packed, 2).is_ok());
            assert!(tries.is_some());
        }
    });
}

fn whole_layer(source: &StreamedExperts, packed: bool, layer: usize) -> Result<(), ExpertError> {
    let ids: Vec<u32> = (0..source.table().layers()[layer].experts() as u32).collect();
    let mut request = source.begin(layer, &ids)?;
    let mut count = 0;
    while let Some(lease) = request.next()? {
        check(source.table(), packed, layer, &lease);
        count += 1;
    }
    assert_eq!(count, ids.len());
    Ok(())
}

const READERS: [ReaderKind; 4] =
    [ReaderKind::Auto, ReaderKind::Uring, ReaderKind::Direct, ReaderKind::Buffered];

fn open(path: &Path, packed: bool, slots: usize, reader: ReaderKind) -> StreamedExperts {
    let packer: Option<Arc<dyn ExpertPacker>> = if packed { Some(Arc::new(Join)) } else { None };
    let table = toy().on_disk(path);
    let mut options = StreamOptions::new(budget(&table, packer.as_deref(), slots, 2));
    options.reader = reader;
    StreamedExperts::new(table, packer, &options).unwrap()
}

#[test]
fn every_reader_gives_the_bytes_of_the_file() {
    within_a_minute(|| {
        let directory = tempfile::tempdir().unwrap();
        for reader in READERS.into_iter().filter(|&r| cfg!(target_os = "linux") || r != ReaderKind::Uring) {
            for (packed, slots) in [(false, 1), (true, 1), (false, 3), (true, 20)] {
                let source = open(&directory.path().join("toy"), packed, slots, reader);
                for layer in [0, 1, 2, 0, 1, 2] {
                    whole_layer(&source, packed, layer).unwrap();
                }
                let statistics = source.statistics();
                assert_eq!(statistics.hits + statistics.misses, 60);
                assert_eq!(statistics.failures, 0);
                assert!(slots < 20 || statistics.hits == 30, "{statistics:?}");
            }
        }
        // Bytes in memory stream as well: a model inside the program under a small budget.
        let table = toy().in_memory();
        let options = StreamOptions::new(budget(&table, None, 1, 2));
        whole_layer(&StreamedExperts::new(table, None, &options).unwrap(), false, 1).unwrap();
    });
}

#[test]
fn a_file_that_is_cut_or_changed_is_an_error_and_not_the_end() {
    within_a_minute(|| {
        let directory = tempfile::tempdir().unwrap();
        for reader in READERS {
            let path = directory.path().join("toy");
            let source = open(&path, false, 1, reader);
            whole_layer(&source, false, 0).unwrap();
            // The end of the file, and with it part of the last layer.
            let length = std::fs::metadata(&path).unwrap().len();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(length / 2).unwrap();
            let mut request = source.begin(2, &[9]).unwrap();
            let error = request.next().err().unwrap().to_string();
            assert!(error.contains("expert 9 of layer 2") && error.contains("the file ends at"), "{error}");
            assert!(request.next().is_err(), "an ended request stays ended");
            drop(request);
            // What the file still has is not what was opened either.
            let mut request = source.begin(0, &[1]).unwrap();
            let error = request.next().err().unwrap().to_string();
            assert!(error.contains("the file changed"), "{error}");
        }
    });
}

#[test]
fn a_file_replaced_before_it_is_opened_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("toy");
    let table = toy().on_disk(&path);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"another model").unwrap();
    let error = StreamedExperts::new(table, None, &StreamOptions::new(1 << 20)).err().unwrap().to_string();
    assert!(error.contains("was replaced"), "{error}");
}

#[test]
fn a_file_replaced_while_open_does_not_matter() {
    within_a_minute(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("toy");
        let source = open(&path, false, 1, ReaderKind::Auto);
        std::fs::write(directory.path().join("other"), vec![7; 100_000]).unwrap();
        std::fs::rename(directory.path().join("other"), &path).unwrap();
        whole_layer(&source, false, 1).unwrap();
    });
}

struct Panics;

impl ExpertPacker for Panics {
    fn id(&self) -> &'static str {
        "panics"
    }
    fn bytes(&self, raw: &ExpertLayout) -> usize {
        raw.bytes()
    }
    fn pack(&self, _raw: &turbospark_program::ExpertRef<'_>, _out: &mut [u8]) {
        panic!("as the test wants it");
    }
}

#[test]
fn a_packer_that_panics_ends_the_request_only() {
    within_a_minute(|| {
        let options = StreamOptions::new(1 << 22);
        let source = StreamedExperts::new(toy().in_memory(), Some(Arc::new(Panics)), &options).unwrap();
        for _ in 0..3 {
            let mut request = source.begin(0, &[1, 2]).unwrap();
            assert!(request.next().err().unwrap().to_string().contains("panicked"));
        }
    });
}

#[test]
fn leases_outlive_the_source() {
    within_a_minute(|| {
        let source = StreamedExperts::new(toy().in_memory(), None, &StreamOptions::new(1 << 22)).unwrap();
        let table = source.table().clone();
        let lease = source.begin(1, &[3]).unwrap().next().unwrap().unwrap();
        drop(source);
        check(&table, false, 1, &lease);
    });
}

#[test]
fn too_small_a_budget_is_refused_with_the_least_that_works() {
    let error = StreamedExperts::new(toy().in_memory(), None, &StreamOptions::new(5000)).err().unwrap();
    let ExpertError::Budget { least, .. } = error else { panic!("{error}") };
    assert!(StreamedExperts::new(toy().in_memory(), None, &StreamOptions::new(least)).is_ok());
}
