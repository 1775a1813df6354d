//! Linears: panels of weights times rows of input.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use crate::activations::{Activations, Form, TILE};
use crate::isa::Isa;
use crate::kernels::{Ahead, Results, Task, kernel, together};
use crate::panels::{BLOCK, LANES, PanelRef};

/// Columns of a row-major matrix that one thread writes, while others write others.
///
/// It comes from an exclusive borrow of the matrix and is divided by columns only, so no two hold the same element.
#[derive(Debug)]
pub struct Outputs<'a> {
    start: NonNull<f32>,
    rows: usize,
    columns: usize,
    stride: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for exclusive borrows of its elements, and f32 may be sent.
unsafe impl Send for Outputs<'_> {}

impl<'a> Outputs<'a> {
    /// All columns of a matrix whose rows begin `stride` elements apart.
    pub fn new(matrix: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Outputs<'a> {
        assert!(columns <= stride || rows <= 1, "rows of {columns} overlap at a stride of {stride}");
        let needed = if rows == 0 {
            Some(0)
        } else {
            (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(columns))
        };
        assert!(needed.is_some_and(|n| n <= matrix.len()), "{rows} rows of {columns} do not fit the memory");
        let start = NonNull::from(matrix).cast();
        Outputs { start, rows, columns, stride, matrix: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Divides the columns before `at`.
    pub fn split_at(self, at: usize) -> (Outputs<'a>, Outputs<'a>) {
        assert!(at <= self.columns);
        // SAFETY: both ranges are within the columns and they do not overlap.
        unsafe { (self.part(0..at), self.part(at..self.columns)) }
    }

    /// The same elements, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> Outputs<'_> {
        // SAFETY: `self` cannot be used while the result lives.
        unsafe { self.part(0..self.columns) }
    }

    /// Some of the columns, for a thread that knows its share by its index.
    ///
    /// # Safety
    ///
    /// Ranges that live at the same time must not overlap.
    pub unsafe fn part(&self, columns: Range<usize>) -> Outputs<'a> {
        assert!(columns.start <= columns.end && columns.end <= self.columns);
        // With no rows there is no memory to point into.
        let offset = if self.rows == 0 { 0 } else { columns.start };
        // SAFETY: the offset is within the first row or just past it.
        let start = unsafe { self.start.add(offset) };
        Outputs { start, columns: columns.len(), ..*self }
    }

    /// The elements of one row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: row and columns are within the matrix, and these elements belong to `self` alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride).as_ptr(), self.columns) }
    }
}

// SAFETY: sharing it gives away no element: `part` asks its caller to divide them.
unsafe impl Sync for Outputs<'_> {}

/// Bytes of input tiles that are kept near while panels pass by: half of a small second-level cache.
const CHUNK_BYTES: usize = 512 << 10;

/// Writes the products of some panels with every row of `x`: column 0 of `out` is the first output of the
/// first panel.
///
/// The arithmetic is that of [`crate::kernels`]'s scalar code, bit by bit, on every instruction set, for any number
/// of rows and any range of panels.
pub fn linear(
    isa: Isa,
    weights: &PanelRef<'_>,
    panels: Range<usize>,
    x: &Activations,
    out: &mut Outputs<'_>,
) {
    let layout = weights.layout();
    assert!(panels.start <= panels.end && panels.end <= layout.panels());
    assert_eq!(layout.columns(), x.columns(), "the input is as wide as the weights");
    assert_eq!(
        layout.kind().is_dense(),
        x.form() == Form::Floats,
        "dense weights take floats, others blocks"
    );
    assert_eq!((out.rows(), out.columns()), (x.rows(), layout.outputs(panels.clone()).len()));
    let (rows, tiles) = (x.rows(), x.tiles());
    if rows == 0 || panels.is_empty() {
        return;
    }
    let tile_bytes = (x.tile(0).1.len() * 4).max(1);
    let chunk = (CHUNK_BYTES / tile_bytes).clamp(1, tiles);
    let together = together(isa, layout.kind(), TILE.min(rows));
    for first in (0..tiles).step_by(chunk) {
        let tiles = first..tiles.min(first + chunk);
        let mut panel = panels.start;
        while panel < panels.end {
            let count = together.min(panels.end - panel);
            pass(isa, weights, panel..panel + count, x, tiles.clone(), panels.start, out);
            panel += count;
        }
    }
}

/// One or two panels against some tiles.
fn pass(
    isa: Isa,
    weights: &PanelRef<'_>,
    panels: Range<usize>,
    x: &Activations,
    tiles: Range<usize>,
    origin: usize,
    out: &mut Outputs<'_>,
) {
    let layout = weights.layout();
    let kind = layout.kind();
    let mut results = [[[0.0; LANES]; TILE]; 2];
    for (index, tile) in tiles.clone().enumerate() {
        let (rows, words) = x.tile(tile);
        let together = together(isa, kind, rows).min(panels.len());
        for panel in panels.clone().step_by(together) {
            let bytes = weights.panels(panel..panel + together);
            let ahead = ahead(bytes, layout.columns(), index, tiles.len());
            let task = Task { kind, panels: bytes, rows, x: words, ahead };
            // SAFETY: the kernel is that of this kind, these numbers and this instruction set.
            unsafe { kernel(isa, kind, rows, together)(&task, &mut results) };
            for (panel, results) in (panel..).zip(&results[..together]) {
                let column = (panel - origin) * LANES;
                let lanes = (layout.rows() - panel * LANES).min(LANES);
                for (r, result) in results[..rows].iter().enumerate() {
                    out.row_mut(tile * TILE + r)[column..column + lanes].copy_from_slice(&result[..lanes]);
                }
            }
        }
    }
}

/// The part of the panels after `bytes` that pass `index` of `passes` asks for.
fn ahead(bytes: &[u8], columns: usize, index: usize, passes: usize) -> Ahead {
    let step = bytes.len() / (columns.div_ceil(BLOCK) * passes).max(1);
    let start = bytes.as_ptr().wrapping_add(bytes.len() + index * bytes.len() / passes);
    Ahead { start, step, lines: step.div_ceil(64) }
}

const _: () = assert!(size_of::<Results>() == 2 * TILE * LANES * 4);
