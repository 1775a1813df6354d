//! How a budget is cut into slots.

use turbospark_program::{ExpertError, ExpertPacker};

use super::residency::SizeClass;
use crate::memory::PAGE;
use crate::table::{ExpertTable, LayerTable};

/// The slots of a pool, and what else reading takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Slots by size. Layers of unlike sizes get slots in proportion to their bytes.
    pub classes: Vec<SizeClass>,
    /// Size class of each layer.
    pub class_of: Vec<usize>,
    /// Bytes that each reading thread needs to pack an expert: 0 if experts stay raw.
    pub staging: usize,
}

impl PoolSizes {
    /// The most slots that `budget` bytes hold, `workers` times the staging memory included; at most one for each
    /// expert, at least one of each size.
    pub fn fit(
        table: &ExpertTable,
        packer: Option<&dyn ExpertPacker>,
        budget: usize,
        workers: usize,
    ) -> Result<PoolSizes, ExpertError> {
        let mut sizes = PoolSizes::least(table, packer);
        let wanted = sizes.wanted(table);
        let least = sizes.bytes(workers);
        let Some(mut left) = budget.checked_sub(least) else {
            return Err(ExpertError::Budget { budget, least });
        };
        // The class that has the smallest part of its experts is served first, in steps that keep this loop short.
        loop {
            let open = |class: &usize| {
                sizes.classes[*class].slots < wanted[*class] && sizes.classes[*class].bytes <= left
            };
            let part = |class: usize| sizes.classes[class].slots as f64 / wanted[class] as f64;
            let poorest = (0..wanted.len()).filter(open).min_by(|&a, &b| part(a).total_cmp(&part(b)));
            let Some(class) = poorest else { return Ok(sizes) };
            let SizeClass { bytes, slots } = &mut sizes.classes[class];
            let step =
                (wanted[class] / 64).clamp(1, wanted[class] - *slots).min(left / (*bytes).max(1)).max(1);
            *slots += step;
            left -= step * *bytes;
        }
    }

    /// The smallest pool: one slot of each size. Experts that lie packed in their file do not go through `packer`.
    pub fn least(table: &ExpertTable, packer: Option<&dyn ExpertPacker>) -> PoolSizes {
        let packer = packer.filter(|_| table.packing().is_none());
        let mut sizes = PoolSizes { classes: Vec::new(), class_of: Vec::new(), staging: 0 };
        for layer in table.layers() {
            let raw = raw_bytes(layer);
            let bytes = match packer {
                None => raw,
                Some(packer) => {
                    sizes.staging = sizes.staging.max(raw);
                    packer.bytes(layer.layout()).next_multiple_of(PAGE)
                }
            };
            let known = sizes.classes.iter().position(|class| class.bytes == bytes);
            sizes.class_of.push(known.unwrap_or(sizes.classes.len()));
            if known.is_none() {
                sizes.classes.push(SizeClass { bytes, slots: 1 });
            }
        }
        sizes
    }

    /// Experts of each class.
    fn wanted(&self, table: &ExpertTable) -> Vec<usize> {
        let mut wanted = vec![0; self.classes.len()];
        for (layer, &class) in table.layers().iter().zip(&self.class_of) {
            wanted[class] += layer.experts();
        }
        wanted
    }

    /// Bytes of all slots and of the staging memory of `workers` threads.
    pub fn bytes(&self, workers: usize) -> usize {
        let slots = self.classes.iter().map(|class| class.bytes.saturating_mul(class.slots));
        slots.fold(self.staging.saturating_mul(workers), usize::saturating_add)
    }

    /// Slots that a layer can use, of the class that has fewest.
    pub fn fewest(&self) -> usize {
        self.classes.iter().map(|class| class.slots).min().unwrap_or(0)
    }
}

/// Memory that an expert of this layer is read into: each slice from the page of the file it begins in to the one
/// it ends in.
pub(crate) fn raw_bytes(layer: &LayerTable) -> usize {
    let aligned = (0..layer.experts()).flat_map(|e| layer.slices(e)).all(|slice| edge(slice.offset()) == 0);
    let slack = if aligned { 0 } else { PAGE - 1 };
    let slices = layer.layout().slice_bytes.iter();
    slices.map(|bytes| (bytes + slack).next_multiple_of(PAGE)).sum()
}

/// Bytes between the start of a page of the file and `offset`.
pub(crate) fn edge(offset: usize) -> usize {
    offset % PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Join, Toy};

    #[test]
    fn budgets_are_used_and_kept() {
        let toy = Toy { intermediate: vec![12, 12, 900], lead: 4096, ..Toy::new(3, 16) };
        let table = toy.in_memory();
        let least = PoolSizes::least(&table, None).bytes(2);
        for extra in [0, 1, 5000, 100_000, 1 << 20, 1 << 30] {
            let sizes = PoolSizes::fit(&table, None, least + extra, 2).unwrap();
            assert!(sizes.bytes(2) <= least + extra);
            let full = sizes.classes.iter().map(|c| c.slots).eq([32, 16]);
            assert!(full || sizes.bytes(2) + 30 * 4096 > least + extra, "{sizes:?}");
        }
        let refused = PoolSizes::fit(&table, None, least - 1, 2).unwrap_err().to_string();
        assert!(refused.contains(&least.to_string()), "{refused}");
    }

    #[test]
    fn packing_needs_staging_memory_for_each_worker() {
        let table = Toy { intermediate: vec![200], ..Toy::new(1, 4) }.in_memory();
        let sizes = PoolSizes::fit(&table, Some(&Join), 1 << 20, 3).unwrap();
        assert_eq!(sizes.staging, 3 * (6400 + 4095usize).next_multiple_of(4096));
        assert_eq!(
            sizes.classes,
            [SizeClass { bytes: (3 * 6400 + 1usize).next_multiple_of(4096), slots: 4 }]
        );
    }
}
