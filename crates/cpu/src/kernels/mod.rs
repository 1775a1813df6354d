//! The arithmetic of linears: one panel of weights against one tile of input rows.
//!
//! [`scalar`] defines it; the others give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod scalar;
mod spec;
#[cfg(test)]
mod tests;

use crate::isa::{Isa, Level};
use crate::panels::{LANES, PanelKind};

/// One panel against one tile.
pub(crate) struct Task<'a> {
    pub kind: PanelKind,
    /// The panel's bytes.
    pub panel: &'a [u8],
    /// Rows of the tile, 1 to 8.
    pub rows: usize,
    /// The tile's words.
    pub x: &'a [u32],
    /// Where bytes that will be wanted soon begin, and how many cache lines of them to ask for at every block.
    pub ahead: *const u8,
    pub ahead_lines: usize,
}

/// Outputs of a task, [row][lane]; rows beyond the tile's are not touched.
pub(crate) type Results = [[f32; LANES]; crate::activations::TILE];

/// A kernel for one kind of panel and one number of rows. It may be called only on a machine with the
/// instructions it was chosen for, with a task of that kind and number of rows.
pub(crate) type Kernel = unsafe fn(&Task<'_>, &mut Results);

/// The kernel for tiles of `rows` rows.
pub(crate) fn kernel(isa: Isa, kind: PanelKind, rows: usize) -> Kernel {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::kernel(kind, rows),
        _ => scalar::task,
    }
}
