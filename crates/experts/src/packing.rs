//! Packing the experts of a layer for a store, a few at a time.

use std::sync::{Arc, Mutex, PoisonError};

use turbospark_formats::packed::PACKED_ALIGNMENT;
use turbospark_program::{ExpertError, ExpertPacker};

use crate::memory::{Block, PAGE};
use crate::policy::ExpertKey;
use crate::reader::{Files, Loader, ReaderKind};
use crate::table::ExpertTable;

const _: () = assert!(PACKED_ALIGNMENT == PAGE);

/// Threads that read and pack experts, each with one at a time.
pub struct LayerPacker {
    table: Arc<ExpertTable>,
    /// With the memory that each packs into.
    loaders: Vec<(Loader, Block)>,
}

impl LayerPacker {
    /// Opens the files of a table's experts for `threads` threads.
    pub fn open(
        table: ExpertTable,
        packer: &dyn ExpertPacker,
        threads: usize,
    ) -> Result<LayerPacker, ExpertError> {
        let padded = |bytes: usize| bytes.next_multiple_of(PACKED_ALIGNMENT);
        let largest = table.layers().iter().map(|layer| padded(packer.bytes(layer.layout()))).max();
        let bytes = largest.unwrap_or(0);
        let files = Arc::new(Files::open(&table, true)?);
        let table = Arc::new(table);
        let mut loaders = Vec::new();
        for _ in 0..threads.max(1) {
            let memory = |error| ExpertError::Memory { bytes, error };
            let block = Block::many(std::iter::once(bytes), PAGE).map_err(memory)?;
            let reader = ReaderKind::Direct.make(&[])?;
            let (table, files) = (table.clone(), files.clone());
            let loader = Loader { table, files, reader, staging: None, verify: false };
            loaders.extend(block.into_iter().next().map(|block| (loader, block)));
        }
        Ok(LayerPacker { table, loaders })
    }

    /// Packs every expert of the layer of that index. `sink` is given each from the thread that packed it, with zeros
    /// up to a multiple of [`PACKED_ALIGNMENT`]; the first error ends the work.
    pub fn pack<E, F>(&mut self, layer: usize, packer: &dyn ExpertPacker, sink: F) -> Result<(), E>
    where
        E: From<ExpertError> + Send,
        F: Fn(usize, &[u8]) -> Result<(), E> + Sync,
    {
        let table = &self.table.layers()[layer];
        let bytes = packer.bytes(table.layout());
        let padded = bytes.next_multiple_of(PACKED_ALIGNMENT);
        let next = Mutex::new(0..table.experts());
        let failed = Mutex::new(None);
        let work = |loader: &mut Loader, block: &mut Block| {
            while lock(&failed).is_none() {
                let Some(expert) = lock(&next).next() else { break };
                let loaded = loader.load(ExpertKey::new(layer, expert as u32), Some(packer), block);
                let stored = loaded.map_err(|failure| E::from(failure.error())).and_then(|_| {
                    // The memory has had larger experts of other layers.
                    block.bytes_mut()[bytes..padded].fill(0);
                    sink(expert, &block.bytes()[..padded])
                });
                if let Err(error) = stored {
                    *lock(&failed) = Some(error);
                }
            }
        };
        std::thread::scope(|scope| {
            for (loader, block) in &mut self.loaders {
                scope.spawn(|| work(loader, block));
            }
        });
        lock(&failed).take().map_or(Ok(()), Err)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
