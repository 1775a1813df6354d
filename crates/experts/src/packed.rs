//! Experts packed for an executor when the model is opened, all of them in memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use turbospark_formats::Checkpoint;
use turbospark_program::{
    ExpertError, ExpertLayout, ExpertPacker, ExpertRequest, ExpertSource, Lease, LeasedBytes, Program,
};

use crate::memory::{Block, LINE};
use crate::resident::Ready;
use crate::table::ExpertTable;

/// Every expert in the layout that an executor's kernels read.
///
/// Packing uses all cores and lets go of the mapped file as it goes, so that memory never holds much more than
/// the packed experts.
pub struct PackedExperts {
    table: ExpertTable,
    packing: &'static str,
    /// For each layer, its experts.
    blocks: Vec<Vec<Arc<Block>>>,
}

impl PackedExperts {
    /// Packs the experts of `program` in `checkpoint`. `progress` is told the bytes of experts done, from any
    /// thread.
    pub fn open(
        program: &Program,
        checkpoint: &Checkpoint,
        packer: &dyn ExpertPacker,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<PackedExperts, ExpertError> {
        PackedExperts::new(ExpertTable::find(program, checkpoint)?, packer, progress)
    }

    /// Packs the experts of a table.
    pub fn new(
        table: ExpertTable,
        packer: &dyn ExpertPacker,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<PackedExperts, ExpertError> {
        let keys = || {
            let layers = table.layers().iter().enumerate();
            layers.flat_map(|(index, layer)| (0..layer.experts()).map(move |expert| (index, expert)))
        };
        let sizes: Vec<usize> = table.layers().iter().map(|layer| packer.bytes(layer.layout())).collect();
        let blocks = Block::many(keys().map(|(layer, _)| sizes[layer]), LINE)
            .map_err(|error| ExpertError::Memory { bytes: sizes.iter().sum(), error })?;

        let work = Mutex::new(keys().zip(blocks));
        let done: Mutex<Vec<((usize, usize), Block)>> = Mutex::new(Vec::new());
        let failed = Mutex::new(None);
        let bytes = AtomicUsize::new(0);
        let worker = || {
            loop {
                let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(((layer, expert), mut block)) = next else { break };
                if let Err(error) = pack(&table, layer, expert, packer, block.bytes_mut()) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
                done.lock().unwrap_or_else(PoisonError::into_inner).push(((layer, expert), block));
                let raw = table.layers()[layer].layout().bytes();
                progress(bytes.fetch_add(raw, Ordering::Relaxed) + raw);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(worker);
            }
            worker();
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        drop(work);
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|&(key, _)| key);
        let mut blocks: Vec<Vec<Arc<Block>>> = vec![Vec::new(); table.layers().len()];
        for ((layer, _), block) in done {
            blocks[layer].push(Arc::new(block));
        }
        Ok(PackedExperts { table, packing: packer.id(), blocks })
    }

    /// Bytes of memory that the packed experts take.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().flatten().map(|block| block.bytes().len()).sum()
    }
}

fn pack(
    table: &ExpertTable,
    layer: usize,
    expert: usize,
    packer: &dyn ExpertPacker,
    out: &mut [u8],
) -> Result<(), ExpertError> {
    let layer = &table.layers()[layer];
    let slices = layer.slices(expert);
    let raw = slices.iter().map(|slice| &slice[..]).collect::<Vec<_>>();
    let raw = layer.layout().matrices(&raw).ok_or(ExpertError::Layout { expert: expert as u32 })?;
    packer.pack(&raw, out);
    for slice in slices {
        slice.source().release(slice.offset()..slice.offset() + slice.len());
    }
    Ok(())
}

impl ExpertSource for PackedExperts {
    fn layout(&self, layer: usize) -> &ExpertLayout {
        self.table.layers()[layer].layout()
    }

    fn packing(&self) -> Option<&'static str> {
        Some(self.packing)
    }

    fn begin<'a>(&'a self, layer: usize, ids: &[u32]) -> Result<Box<dyn ExpertRequest + 'a>, ExpertError> {
        self.table.check(layer, ids)?;
        let lease = |&id: &u32| Lease::new(id, Box::new(Packed(self.blocks[layer][id as usize].clone())));
        Ok(Box::new(Ready(ids.iter().map(lease).collect::<Vec<_>>().into_iter())))
    }

    fn leases(&self) -> usize {
        usize::MAX
    }
}

struct Packed(Arc<Block>);

impl LeasedBytes for Packed {
    fn slice(&self, index: usize) -> &[u8] {
        match index {
            0 => self.0.bytes(),
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
        for table in [toy.in_memory(), toy.on_disk(&directory.path().join("toy"))] {
            let seen = AtomicUsize::new(0);
            let largest = |bytes| {
                seen.fetch_max(bytes, Ordering::Relaxed);
            };
            let source = PackedExperts::new(table.clone(), &Join, &largest).unwrap();
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
}
