//! Experts packed for an executor when the model is opened, all of them in memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turbospark_formats::Checkpoint;
use turbospark_program::{
    ExpertError, ExpertLayout, ExpertPacker, ExpertRequest, ExpertSource, Lease, LeasedBytes, Program,
};

use crate::memory::{Block, LINE, PAGE};
use crate::policy::ExpertKey;
use crate::reader::{Files, Loader, ReaderKind};
use crate::resident::Ready;
use crate::table::{ExpertTable, LayerTable};

/// Every expert in the layout that an executor's kernels read.
///
/// Reading and packing use all cores, each with one raw expert at a time, and touch no mapping, so that memory holds
/// little more than the packed experts.
pub struct PackedExperts {
    table: Arc<ExpertTable>,
    packing: String,
    /// For each layer, its experts.
    blocks: Vec<Vec<Arc<Block>>>,
}

/// How experts are brought into memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// How files are read; left open, past the page cache.
    pub reader: ReaderKind,
    /// Whether each expert is compared with its digest; for packed stores.
    pub verify: bool,
}

impl PackedExperts {
    /// Packs the experts of `program` in `checkpoint`. `progress` is told the bytes of experts done, from any
    /// thread.
    pub fn open(
        program: &Program,
        checkpoint: &Checkpoint,
        packer: &dyn ExpertPacker,
        options: LoadOptions,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<PackedExperts, ExpertError> {
        PackedExperts::new(ExpertTable::find(program, checkpoint)?, packer, options, progress)
    }

    /// Packs the experts of a table, unless they lie packed in their file. They are read past the page cache if
    /// nothing else is asked for: filling it costs more time than the disk does, and memory twice.
    pub fn new(
        table: ExpertTable,
        packer: &dyn ExpertPacker,
        LoadOptions { reader, verify }: LoadOptions,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<PackedExperts, ExpertError> {
        let raw = table.needs(packer)?;
        if verify && raw {
            return Err(ExpertError::NoDigests);
        }
        let keys = || {
            let layers = table.layers().iter().enumerate();
            layers
                .flat_map(|(index, layer)| (0..layer.experts() as u32).map(move |e| ExpertKey::new(index, e)))
        };
        let size =
            |layer: &LayerTable| if raw { packer.bytes(layer.layout()) } else { layer.layout().bytes() };
        let sizes: Vec<usize> = table.layers().iter().map(size).collect();
        let sizes = keys().map(|key| sizes[key.layer as usize]);
        // Packed experts are read straight to where they stay, in whole pages.
        let blocks = Block::many(sizes.clone(), if raw { LINE } else { PAGE })
            .map_err(|error| ExpertError::Memory { bytes: sizes.sum(), error })?;
        let work: Vec<(ExpertKey, Block)> = keys().zip(blocks).collect();

        let files = Arc::new(Files::open(&table, reader != ReaderKind::Buffered)?);
        let table = Arc::new(table);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut loaders = Vec::with_capacity(threads);
        for _ in 0..threads {
            let (table, files) = (table.clone(), files.clone());
            let reader = reader.make(&[])?;
            loaders.push(Loader { table, files, reader, staging: None, verify });
        }
        let done = fill(work, loaders, raw.then_some(packer), progress)?;
        let mut blocks: Vec<Vec<Arc<Block>>> = vec![Vec::new(); table.layers().len()];
        for (key, block) in done {
            blocks[key.layer as usize].push(Arc::new(block));
        }
        Ok(PackedExperts { table, packing: packer.id().to_owned(), blocks })
    }

    /// Bytes of memory that the packed experts take.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().flatten().map(|block| block.bytes().len()).sum()
    }
}

/// Loads every expert, in a thread for each loader; sorted by key.
fn fill(
    work: Vec<(ExpertKey, Block)>,
    loaders: Vec<Loader>,
    packer: Option<&dyn ExpertPacker>,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<(ExpertKey, Block)>, ExpertError> {
    let work = Mutex::new(work.into_iter());
    let done = Mutex::new(Vec::new());
    let failed = Mutex::new(None);
    let bytes = AtomicUsize::new(0);
    let worker = |mut loader: Loader| {
        while lock(&failed).is_none() {
            let Some((key, mut block)) = lock(&work).next() else { break };
            match loader.load(key, packer, &mut block) {
                Ok(_) => lock(&done).push((key, block)),
                Err(failure) => *lock(&failed) = Some(failure.error()),
            }
            let raw = loader.table.layers()[key.layer as usize].layout().bytes();
            progress(bytes.fetch_add(raw, Ordering::Relaxed) + raw);
        }
    };
    std::thread::scope(|scope| {
        for loader in loaders {
            scope.spawn(|| worker(loader));
        }
    });
    if let Some(error) = lock(&failed).take() {
        return Err(error);
    }
    let mut done = std::mem::take(&mut *lock(&done));
    done.sort_unstable_by_key(|&(key, _)| key);
    Ok(done)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExpertSource for PackedExperts {
    fn layout(&self, layer: usize) -> &ExpertLayout {
        self.table.layers()[layer].layout()
    }

    fn packing(&self) -> Option<&str> {
        Some(&self.packing)
    }

    fn begin<'a>(&'a self, layer: usize, ids: &[u32]) -> Result<Box<dyn ExpertRequest + 'a>, ExpertError> {
        self.table.check(layer, ids)?;
        let padded = self.table.layers()[layer].packed_bytes();
        let lease = |&id: &u32| {
            let block = self.blocks[layer][id as usize].clone();
            let bytes = padded.unwrap_or(usize::MAX).min(block.bytes().len());
            Lease::new(id, Box::new(Packed { block, bytes }))
        };
        Ok(Box::new(Ready(ids.iter().map(lease).collect::<Vec<_>>().into_iter())))
    }

    fn leases(&self) -> usize {
        usize::MAX
    }
}

struct Packed {
    block: Arc<Block>,
    bytes: usize,
}

impl LeasedBytes for Packed {
    fn slice(&self, index: usize) -> &[u8] {
        match index {
            0 => &self.block.bytes()[..self.bytes],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Join, Toy};

    #[test]
    fn every_expert_is_packed_once_and_aligned() {
        let directory = tempfile::tempdir().unwrap();
        let toy = Toy { intermediate: vec![12, 20], ..Toy::new(2, 16) };
        let on_disk = |name| toy.on_disk(&directory.path().join(name));
        for (table, reader) in [
            (toy.in_memory(), ReaderKind::Buffered),
            (on_disk("a"), ReaderKind::Buffered),
            (on_disk("b"), ReaderKind::Auto),
        ] {
            let seen = AtomicUsize::new(0);
            let largest = |bytes| {
                seen.fetch_max(bytes, Ordering::Relaxed);
            };
            let source =
                PackedExperts::new(table.clone(), &Join, LoadOptions { reader, verify: false }, &largest)
                    .unwrap();
            assert_eq!(seen.into_inner(), table.bytes());
            assert_eq!(source.packing(), Some("join"));
            assert_eq!(source.bytes(), table.bytes() + 2 * 16);
            for layer in 0..2 {
                let mut request = source.begin(layer, &(0..16).collect::<Vec<_>>()).unwrap();
                while let Some(lease) = request.next().unwrap() {
                    assert!(lease.slice(0).as_ptr().addr().is_multiple_of(64));
                    assert_eq!(lease.slice(0), Join::expected(&table, layer, lease.expert));
                }
            }
        }
    }

    #[test]
    fn a_file_that_was_cut_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("toy");
        let table = Toy::new(2, 16).on_disk(&path);
        // Cut behind the first page, which opening looks at: the length gives it away.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(9000).unwrap();
        let error =
            PackedExperts::new(table, &Join, LoadOptions::default(), &|_| {}).err().unwrap().to_string();
        assert!(error.contains("was replaced"), "{error}");
    }
}
