//! Memory for weights: page-aligned, zeroed, on huge pages where the system has them.

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions};

/// Alignment of slots, and of direct reads: the largest logical block of common disks.
pub(crate) const PAGE: usize = 4096;

/// Alignment of packed experts.
pub(crate) const LINE: usize = 64;

/// Transparent huge pages start at multiples of this.
const HUGE: usize = 2 << 20;

/// Exclusive memory within a region that was mapped at once.
///
/// Slots next to each other share a mapping so that huge pages may span them: the region never takes more
/// memory than the sum of its blocks, rounded up to a huge page.
#[derive(Debug)]
pub(crate) struct Block {
    start: NonNull<u8>,
    length: usize,
    /// Keeps the memory mapped.
    _region: Arc<MmapMut>,
}

// SAFETY: a block owns its bytes, which no other block overlaps, and the region is only kept, never accessed.
unsafe impl Send for Block {}
// SAFETY: as above; shared references give shared bytes only.
unsafe impl Sync for Block {}

impl Block {
    /// Blocks of the sizes given, each aligned to `align` (a power of two up to a page).
    pub fn many(sizes: impl Iterator<Item = usize> + Clone, align: usize) -> std::io::Result<Vec<Block>> {
        debug_assert!(align.is_power_of_two() && align <= PAGE);
        let overflow = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let padded = |size: usize| size.checked_next_multiple_of(align);
        let total = sizes.clone().try_fold(0usize, |sum, size| sum.checked_add(padded(size)?));
        let total = total.ok_or_else(overflow)?;
        if total == 0 {
            let empty = MmapOptions::new().len(PAGE).map_anon()?;
            return Ok(carve(empty, 0, sizes.map(|_| (0, 0))));
        }
        let slack = if total >= HUGE { HUGE } else { 0 };
        let length = total.checked_add(slack).ok_or_else(overflow)?;
        let map = MmapOptions::new().len(length).map_anon()?;
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // Advice: a kernel without huge pages refuses it, and runs slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        // The mapping starts at a page; the first block starts at a huge page.
        let first = if slack > 0 { map.as_ptr().align_offset(HUGE).min(slack) } else { 0 };
        let mut at = 0;
        let ranges = sizes.map(|size| {
            let start = at;
            at += size.next_multiple_of(align);
            (start, size)
        });
        Ok(carve(map, first, ranges))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is within the mapped region, initialised (zeroed by the system), and only this block
        // refers to it; `&self` excludes a writer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// Cuts disjoint, rising ranges (start after `first`, length) out of a region.
fn carve(mut map: MmapMut, first: usize, ranges: impl Iterator<Item = (usize, usize)>) -> Vec<Block> {
    let length = map.len();
    let base = map.as_mut_ptr();
    let region = Arc::new(map);
    let mut end = 0;
    let block = |(start, size): (usize, usize)| {
        // What makes the `unsafe` of this module sound: checked here, once for every block.
        assert!(start >= end && first + start + size <= length);
        end = start + size;
        // SAFETY: within the mapping by the assertion.
        let start = unsafe { base.add(first + start) };
        // A mapping is never at address zero.
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        Block { start, length: size, _region: region.clone() }
    };
    ranges.map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_zeroed_and_apart() {
        for (sizes, align) in
            [(vec![1, 4096, 5000, 0, 3 << 20], PAGE), (vec![7, 64, 65], LINE), (vec![], PAGE)]
        {
            let mut blocks = Block::many(sizes.iter().copied(), align).unwrap();
            assert_eq!(blocks.iter().map(|b| b.bytes().len()).collect::<Vec<_>>(), sizes);
            for (i, block) in blocks.iter_mut().enumerate() {
                assert!(block.bytes().iter().all(|&b| b == 0));
                assert!(block.bytes().is_empty() || block.bytes().as_ptr().addr().is_multiple_of(align));
                block.bytes_mut().fill(i as u8 + 1);
            }
            for (i, block) in blocks.iter().enumerate() {
                assert!(block.bytes().iter().all(|&b| b == i as u8 + 1));
            }
        }
    }

    #[test]
    fn sizes_beyond_the_address_space_are_refused() {
        assert!(Block::many([usize::MAX, 2].into_iter(), PAGE).is_err());
        assert!(Block::many([usize::MAX / 2].into_iter(), PAGE).is_err());
    }
}
