//! Experts that stay in their file and pass through a pool of slots.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use turbospark_formats::Checkpoint;
use turbospark_program::{
    ExpertError, ExpertLayout, ExpertPacker, ExpertRequest, ExpertSource, Lease, LeasedBytes, Program,
};

use crate::memory::{Block, PAGE};
use crate::options::{Prefetch, StreamOptions};
use crate::policy::{ExpertKey, Shape};
use crate::pool::residency::Residency;
use crate::pool::{Failure, Held, Next, PoolSizes, Prefetching, State, Statistics, Work};
use crate::reader::{Files, Loader, Reader, ReaderKind};
use crate::table::ExpertTable;

/// Routed experts read from disk as they are wanted, within a budget of memory.
///
/// Threads of its own read and pack; all of them and the holders of requests share one state under one lock, held
/// only for bookkeeping.
pub struct StreamedExperts {
    table: Arc<ExpertTable>,
    sizes: PoolSizes,
    packing: Option<String>,
    reader: ReaderKind,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Share of the time in which requests keep the disk busy, from which on hints only get in their way: measured with
/// the example `prefetch`, reading ahead still pays at 0.7 and costs at 1.
const BUSY: f64 = 0.85;

/// Share of what was read ahead that must then be asked for. A read in vain takes the disk, a processor to pack it and
/// a slot from something that may be wanted; one in use saves a wait.
const USED: f64 = 0.5;

/// What threads, requests and leases share.
struct Shared {
    state: Mutex<State>,
    /// There may be something to read, or the source was dropped.
    work: Condvar,
    /// An expert arrived, or failed to.
    arrived: Condvar,
}

impl Shared {
    /// A panic under the lock can only come from a policy or an allocation; the state is consistent before and
    /// after each of its methods' steps, so that others go on.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamedExperts {
    /// Streams the experts of `program` from the files of `checkpoint`, packed by `packer` as they are read unless
    /// they lie packed in their file.
    pub fn open(
        program: &Program,
        checkpoint: &Checkpoint,
        packer: Option<Arc<dyn ExpertPacker>>,
        options: &StreamOptions,
    ) -> Result<StreamedExperts, ExpertError> {
        StreamedExperts::new(ExpertTable::find(program, checkpoint)?, packer, options)
    }

    /// Streams the experts of a table.
    pub fn new(
        table: ExpertTable,
        packer: Option<Arc<dyn ExpertPacker>>,
        options: &StreamOptions,
    ) -> Result<StreamedExperts, ExpertError> {
        let files = Files::open(&table, options.reader != ReaderKind::Buffered)?;
        let kind = match options.reader {
            ReaderKind::Auto => crate::reader::fastest(&files, &table, options.workers.max(1)),
            kind => kind,
        };
        StreamedExperts::with_readers(table, packer, options, kind, files, |memory| kind.make(memory))
    }

    /// Streams with readers that `make` builds, one for each thread; it is given the memory that reads go to.
    pub(crate) fn with_readers(
        table: ExpertTable,
        packer: Option<Arc<dyn ExpertPacker>>,
        options: &StreamOptions,
        kind: ReaderKind,
        files: Files,
        make: impl Fn(&[Block]) -> Result<Box<dyn Reader>, ExpertError>,
    ) -> Result<StreamedExperts, ExpertError> {
        let workers = options.workers.max(1);
        let packing = table.packing().or(packer.as_ref().map(|packer| packer.id())).map(str::to_owned);
        let packer = match packer {
            Some(packer) if !table.needs(&*packer)? => None,
            packer => packer,
        };
        if options.verify && table.packing().is_none() {
            return Err(ExpertError::NoDigests);
        }
        let sizes = PoolSizes::fit(&table, packer.as_deref(), options.budget, workers)?;
        let memory = |bytes: usize| move |error| ExpertError::Memory { bytes, error };
        let slots = sizes.classes.iter().flat_map(|class| std::iter::repeat_n(class.bytes, class.slots));
        let blocks = Block::many(slots, PAGE).map_err(memory(sizes.bytes(0)))?;

        let table = Arc::new(table);
        let files = Arc::new(files);
        let mut loaders = Vec::with_capacity(workers);
        for _ in 0..workers {
            let staging = match packer {
                Some(_) => {
                    Block::many(std::iter::once(sizes.staging), PAGE).map_err(memory(sizes.staging))?
                }
                None => Vec::new(),
            };
            let reader = make(if packer.is_some() { &staging } else { &blocks })?;
            let staging = staging.into_iter().next();
            let (table, files) = (table.clone(), files.clone());
            loaders.push(Loader { table, files, reader, staging, verify: options.verify });
        }

        let shape = Shape { experts: table.layers().iter().map(|layer| layer.experts()).collect() };
        let policy = options.policy.make(&shape);
        let residency = Residency::new(&shape, sizes.class_of.clone(), &sizes.classes, policy);
        let ahead = (workers - 1).max(1);
        let prefetching = match options.prefetch {
            Prefetch::Off => None,
            Prefetch::On => Some(Prefetching { busy: f64::INFINITY, used: 0.0, reads: ahead }),
            Prefetch::Auto => Some(Prefetching { busy: BUSY, used: USED, reads: ahead }),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(residency, blocks, prefetching)),
            work: Condvar::new(),
            arrived: Condvar::new(),
        });
        let mut source = StreamedExperts {
            table,
            sizes,
            packing,
            reader: kind,
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for loader in loaders {
            let (shared, packer) = (shared.clone(), packer.clone());
            let thread = std::thread::Builder::new().name("experts".to_owned());
            let thread = thread.spawn(move || run(&shared, loader, packer.as_deref()));
            let error = |error| ExpertError::Open { path: "a reading thread".into(), error };
            source.threads.push(thread.map_err(error)?);
        }
        Ok(source)
    }

    /// How the budget was cut.
    pub fn sizes(&self) -> &PoolSizes {
        &self.sizes
    }

    /// How files are read, after a measurement if it was left open.
    pub fn reader(&self) -> ReaderKind {
        self.reader
    }

    /// What has been done since the source was opened.
    pub fn statistics(&self) -> Statistics {
        self.shared.lock().statistics
    }

    /// Which bytes each expert is made of.
    pub fn table(&self) -> &ExpertTable {
        &self.table
    }
}

impl Drop for StreamedExperts {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to clean up.
            let _ = thread.join();
        }
    }
}

impl ExpertSource for StreamedExperts {
    fn layout(&self, layer: usize) -> &ExpertLayout {
        self.table.layers()[layer].layout()
    }

    fn packing(&self) -> Option<&str> {
        self.packing.as_deref()
    }

    fn begin<'a>(&'a self, layer: usize, ids: &[u32]) -> Result<Box<dyn ExpertRequest + 'a>, ExpertError> {
        self.table.check(layer, ids)?;
        let mut state = self.shared.lock();
        let id = state.begin(layer, ids);
        let work = state.has_work();
        drop(state);
        if work {
            self.shared.work.notify_all();
        }
        Ok(Box::new(Open { shared: &self.shared, id }))
    }

    fn hint(&self, layer: usize, ids: &[u32]) {
        if self.table.check(layer, ids).is_err() {
            return;
        }
        let mut state = self.shared.lock();
        state.hint(layer, ids, Instant::now());
        if state.has_work() {
            self.shared.work.notify_all();
        }
    }

    fn leases(&self) -> usize {
        self.sizes.fewest()
    }
}

/// An open request.
struct Open<'a> {
    shared: &'a Arc<Shared>,
    id: u64,
}

impl ExpertRequest for Open<'_> {
    fn next(&mut self) -> Result<Option<Lease>, ExpertError> {
        let mut since = None;
        let mut state = self.shared.lock();
        let result = loop {
            match state.next(self.id) {
                Next::Lease { slot, expert, held } => {
                    let bytes = Leased { shared: self.shared.clone(), slot, held: Some(held) };
                    break Ok(Some(Lease::new(expert, Box::new(bytes))));
                }
                Next::Done => break Ok(None),
                Next::Failed(failure) => break Err(failure.error()),
                Next::Wait => {
                    since.get_or_insert_with(Instant::now);
                    // A request that waits may take a slot that it could not take before.
                    self.shared.work.notify_all();
                    state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        if let Some(since) = since {
            state.waited(since.elapsed());
        }
        result
    }

    fn is_ready(&self) -> bool {
        self.shared.lock().is_ready(self.id)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.cancel(self.id);
        if state.has_work() {
            self.shared.work.notify_all();
        }
    }
}

/// A leased slot.
struct Leased {
    shared: Arc<Shared>,
    slot: usize,
    /// None only while it is dropped.
    held: Option<Arc<Held>>,
}

impl LeasedBytes for Leased {
    fn slice(&self, index: usize) -> &[u8] {
        let Some(held) = &self.held else { return &[] };
        held.slices.get(index).and_then(|range| held.block.bytes().get(range.clone())).unwrap_or(&[])
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        // Under the lock, so that the slot's memory is free of us before the lease counts as ended.
        self.held = None;
        state.give_back(self.slot);
        if state.has_work() {
            self.shared.work.notify_all();
        }
    }
}

/// A reading thread.
fn run(shared: &Shared, mut loader: Loader, packer: Option<&dyn ExpertPacker>) {
    let mut state = shared.lock();
    loop {
        if state.closed {
            return;
        }
        let (work, woken) = state.next_read(Instant::now());
        if woken {
            shared.arrived.notify_all();
        }
        let Some(Work { slot, key, mut block, ahead }) = work else {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        // A packer that panics must not leave the slot's memory lost and the request's holder waiting.
        let loaded = catch_unwind(AssertUnwindSafe(|| loader.load(key, packer, &mut block)));
        let loaded = loaded.unwrap_or_else(|_| Err(panicked(&loader.table, key)));
        state = shared.lock();
        let result = match loaded {
            Ok(loaded) => {
                let statistics = &mut state.statistics;
                statistics.reading += loaded.reading;
                statistics.packing += loaded.packing;
                statistics.bytes_read += loader.table.layers()[key.layer as usize].layout().bytes() as u64;
                Ok(Held { block, slices: loaded.slices })
            }
            Err(failure) => Err((block, failure)),
        };
        state.arrived(slot, ahead, result, Instant::now());
        shared.arrived.notify_all();
    }
}

fn panicked(table: &ExpertTable, key: ExpertKey) -> Failure {
    let layer = &table.layers()[key.layer as usize];
    let slice = layer.slices(key.expert as usize).first();
    Failure {
        layer: layer.layer(),
        expert: key.expert,
        path: slice.map_or_else(PathBuf::new, |slice| slice.source().path().to_owned()),
        kind: std::io::ErrorKind::Other,
        reason: "the thread that packed it panicked".to_owned(),
    }
}

#[cfg(test)]
mod tests;
