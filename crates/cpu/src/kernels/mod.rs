//! The arithmetic of linears: one panel of weights against one tile of input rows.
//!
//! [`scalar`] defines it; the others give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod scalar;
mod spec;
#[cfg(test)]
mod tests;

use crate::activations::TILE;
use crate::isa::{Isa, Level};
use crate::panels::{LANES, PanelKind};

/// One panel, or two neighbours, against one tile.
pub(crate) struct Task<'a> {
    pub kind: PanelKind,
    /// The bytes of the panels.
    pub panels: &'a [u8],
    /// Rows of the tile, 1 to 8.
    pub rows: usize,
    /// The tile's words.
    pub x: &'a [u32],
    /// Bytes that will be wanted soon.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub ahead: Ahead,
}

/// Up to so many rows weights stream through faster than they are computed with.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) const FEW: usize = 4;
/// How far ahead of a stream its bytes are asked for. Without it Zen 5 reads at two thirds of its bandwidth, because
/// the kernels' instructions leave the machine few loads to look ahead to.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) const DISTANCE: usize = 8192;

/// What is brought to the second-level cache while a tile of more rows is computed: at every block of weights
/// `lines` cache lines, the first at `start`, then `step` bytes further.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub start: *const u8,
    pub step: usize,
    pub lines: usize,
}

impl Ahead {
    /// The part of the group of panels after `group` that tile `index` of `tiles` asks for, panels having `blocks`.
    pub(crate) fn over(group: &[u8], blocks: usize, index: usize, tiles: usize, runs: usize) -> Ahead {
        let step = group.len() / (blocks * runs * tiles).max(1);
        let start = group.as_ptr().wrapping_add(group.len() + index * group.len() / tiles);
        Ahead { start, step, lines: step.div_ceil(64) }
    }

    /// Goes on to the part of the next run of a kernel, after one of so many blocks.
    pub(crate) fn advance(&mut self, blocks: usize) {
        self.start = self.start.wrapping_add(blocks * self.step);
    }

    /// Asks for the lines of one block, `at` being where they begin.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn block(&self, at: *const u8) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        for line in 0..self.lines {
            // SAFETY: a prefetch of any address is allowed and touches nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(64 * line).cast()) };
        }
    }
}

/// Outputs of a task, [panel][row][lane]; what is beyond the task's panels and rows is not touched.
pub(crate) type Results = [[[f32; LANES]; TILE]; 2];

/// A kernel for one kind of panel and certain numbers of rows and panels. It may be called only on a machine with the
/// instructions it was chosen for, with a task of that kind and those numbers.
pub(crate) type Kernel = unsafe fn(&Task<'_>, &mut Results);

/// Panels that a kernel best takes together, 1 or 2.
///
/// Many rows: each value of the input is loaded once for both. Dense with few: the chains of dependent sums
/// overlap.
pub(crate) fn together(isa: Isa, kind: PanelKind, rows: usize) -> usize {
    let pairs = match kind.shape() {
        None => true,
        // With addends or two scales a block there are too few registers for two panels.
        Some(shape) => rows == TILE && !shape.addend() && !shape.factors.halves(),
    };
    if pairs && isa.level() == Level::Avx512 { 2 } else { 1 }
}

/// The kernel for tiles of `rows` rows and for 1 panel, or for as many as [`together`] says.
pub(crate) fn kernel(isa: Isa, kind: PanelKind, rows: usize, panels: usize) -> Kernel {
    debug_assert!(panels == 1 || panels == together(isa, kind, rows));
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::kernel(kind, rows, panels),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::kernel(kind, rows),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => neon::kernel(kind),
        _ => scalar::task,
    }
}
