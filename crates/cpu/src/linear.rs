//! Linears: panels of weights times rows of input.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use crate::activations::{Activations, Form, TILE};
use crate::isa::Isa;
use crate::kernels::{Ahead, Task, kernel, together};
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

/// Bytes of panels that one tile after the other is multiplied with: they stay in the second-level cache, and the tile
/// in the first.
const GROUP_BYTES: usize = 384 << 10;

/// Writes the products of some panels with every row of `x`: column 0 of `out` is the first output of the
/// first panel.
///
/// The arithmetic is that of `kernels`'s scalar code, bit by bit, on every instruction set, for any number
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
    if x.rows() == 0 {
        return;
    }
    let group = (GROUP_BYTES / layout.panel_bytes().max(1)).max(2).next_multiple_of(2);
    for first in panels.clone().step_by(group) {
        let group = first..panels.end.min(first + group);
        for tile in 0..x.tiles() {
            pass(isa, weights, group.clone(), x, tile, (panels.start, out));
        }
    }
}

/// A group of panels against one tile; `out` comes with the panel that its first column belongs to.
fn pass(
    isa: Isa,
    weights: &PanelRef<'_>,
    group: Range<usize>,
    x: &Activations,
    tile: usize,
    (origin, out): (usize, &mut Outputs<'_>),
) {
    let layout = weights.layout();
    let kind = layout.kind();
    let (rows, words) = x.tile(tile);
    let together = together(isa, kind, rows);
    let pair = kernel(isa, kind, rows, together);
    let mut results = [[[0.0; LANES]; TILE]; 2];
    let blocks = layout.columns().div_ceil(BLOCK);
    let runs = group.len().div_ceil(together);
    let mut ahead = Ahead::over(weights.panels(group.clone()), blocks, tile, x.tiles(), runs);
    let mut panel = group.start;
    while panel < group.end {
        let (run, count) =
            if panel + together <= group.end { (pair, together) } else { (kernel(isa, kind, rows, 1), 1) };
        let task = Task { kind, panels: weights.panels(panel..panel + count), rows, x: words, ahead };
        // SAFETY: the kernel is that of this kind, these numbers and this instruction set.
        unsafe { run(&task, &mut results) };
        for results in &results[..count] {
            let column = (panel - origin) * LANES;
            let lanes = (layout.rows() - panel * LANES).min(LANES);
            for (r, result) in results[..rows].iter().enumerate() {
                out.row_mut(tile * TILE + r)[column..column + lanes].copy_from_slice(&result[..lanes]);
            }
            panel += 1;
        }
        ahead.advance(blocks);
    }
}
