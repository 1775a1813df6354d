//! Tensors as views: where the bytes are and how a logical row is found in them.

use crate::dequantize;
use crate::{ByteSlice, Format};

/// Most byte slices that one matrix is made of.
pub const MAX_PARTS: usize = 3;

/// Which stored row holds a logical row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowMap {
    /// Row r is stored as row r.
    Identity,
    /// Row r is stored as row start + r * step: one half of a fused matrix (step 1) or of an interleaved one
    /// (step 2).
    Strided {
        /// Stored row of logical row 0.
        start: usize,
        /// Distance between the stored rows of neighbours.
        step: usize,
    },
    /// Heads of `head` rows whose rotary pairs are stored side by side: logical row b * head/2 + j of a head is
    /// stored as its row 2j + b (llama architecture in GGUF).
    PairedHeads {
        /// Rows of a head, even.
        head: usize,
    },
}

impl RowMap {
    /// The stored row of logical row `r`.
    pub fn stored(self, r: usize) -> usize {
        match self {
            RowMap::Identity => r,
            RowMap::Strided { start, step } => start + r * step,
            RowMap::PairedHeads { head } => {
                let (base, within) = (r / head * head, r % head);
                base + 2 * (within % (head / 2)) + within / (head / 2)
            }
        }
    }
}

/// How a matrix of [rows, columns] lies in its byte slices.
///
/// Vectors (norm weights, biases, sinks) are matrices of one column, so that a row map applies to them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    /// Storage format.
    pub format: Format,
    /// Logical rows: outputs of a linear.
    pub rows: usize,
    /// Logical columns: inputs of a linear.
    pub columns: usize,
    /// Rows in storage, at least `rows` (a fused matrix stores those of its siblings too).
    pub stored_rows: usize,
    /// Where a logical row is stored.
    pub row_map: RowMap,
    /// Storage is [columns, stored_rows] instead of [stored_rows, columns]; floats only.
    pub transposed: bool,
}

impl MatrixLayout {
    /// A matrix stored row by row as it is.
    pub fn plain(format: Format, rows: usize, columns: usize) -> MatrixLayout {
        MatrixLayout {
            format,
            rows,
            columns,
            stored_rows: rows,
            row_map: RowMap::Identity,
            transposed: false,
        }
    }

    /// Bytes of the whole storage in `part`, or `None` if a row is not whole blocks or a product overflows.
    pub fn part_bytes(&self, part: usize) -> Option<usize> {
        match self.format {
            Format::Float(f) => self.stored_rows.checked_mul(self.columns)?.checked_mul(f.bytes()),
            format => format.row_bytes(part, self.columns)?.checked_mul(self.stored_rows),
        }
    }
}

/// A matrix borrowed from wherever its bytes are: a mapping, a slot of the expert pool.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a> {
    layout: &'a MatrixLayout,
    parts: [&'a [u8]; MAX_PARTS],
}

impl<'a> MatrixRef<'a> {
    /// Joins a layout with its bytes. `None` if a part has not the length that the layout asks for.
    pub fn new(layout: &'a MatrixLayout, parts: &[&'a [u8]]) -> Option<MatrixRef<'a>> {
        if parts.len() != layout.format.parts() {
            return None;
        }
        let mut own = [&[][..]; MAX_PARTS];
        for (i, part) in parts.iter().enumerate() {
            if layout.part_bytes(i)? != part.len() {
                return None;
            }
            own[i] = part;
        }
        Some(MatrixRef { layout, parts: own })
    }

    /// The layout.
    pub fn layout(&self) -> &'a MatrixLayout {
        self.layout
    }

    /// Logical rows.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Logical columns.
    pub fn columns(&self) -> usize {
        self.layout.columns
    }

    /// The storage of `part`.
    pub fn part(&self, part: usize) -> &'a [u8] {
        self.parts[part]
    }

    /// The bytes in `part` of the stored row that holds logical row `row`; not for transposed matrices.
    pub fn row_bytes(&self, part: usize, row: usize) -> &'a [u8] {
        assert!(!self.layout.transposed && row < self.layout.rows);
        let n = self.parts[part].len() / self.layout.stored_rows;
        let stored = self.layout.row_map.stored(row);
        &self.parts[part][stored * n..(stored + 1) * n]
    }

    /// Writes logical row `row` as f32 into `out`, which has `columns` elements.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.layout.columns);
        dequantize::row(self, row, out);
    }

    /// All rows as f32, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows() * self.columns()];
        for (row, chunk) in out.chunks_exact_mut(self.columns().max(1)).enumerate() {
            self.dequantize_row(row, chunk);
        }
        out
    }
}

/// A named tensor of a checkpoint: one matrix, or a stack of matrices of one layout (experts).
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) layout: MatrixLayout,
    /// The parts of each matrix, `layout.format.parts()` of them in a row.
    pub(crate) slices: Vec<ByteSlice>,
}

impl Tensor {
    /// Logical shape: `[n]` of a vector, [rows, columns] of a matrix, [count, rows, columns] of a stack,
    /// [count, rows] of a stack of vectors.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Layout of each matrix.
    pub fn layout(&self) -> &MatrixLayout {
        &self.layout
    }

    /// Number of matrices: 1 unless the tensor is a stack; 0 of experts in a packed store, which are elsewhere.
    pub fn count(&self) -> usize {
        self.slices.len() / self.layout.format.parts()
    }

    /// The byte slices of matrix `index`.
    pub fn slices(&self, index: usize) -> &[ByteSlice] {
        let parts = self.layout.format.parts();
        &self.slices[index * parts..(index + 1) * parts]
    }

    /// Matrix `index`.
    pub fn matrix(&self, index: usize) -> MatrixRef<'_> {
        let mut parts = [&[][..]; MAX_PARTS];
        for (part, slice) in parts.iter_mut().zip(self.slices(index)) {
            *part = slice;
        }
        MatrixRef { layout: &self.layout, parts }
    }

    /// The whole tensor as f32 in logical order.
    pub fn to_f32(&self) -> Vec<f32> {
        (0..self.count()).flat_map(|i| self.matrix(i).to_f32()).collect()
    }

    /// Bytes of storage that belong to the tensor's logical rows (a half of a fused matrix counts half); of packed
    /// experts, what they took before.
    pub fn bytes(&self) -> usize {
        if self.slices.is_empty() {
            let parts = (0..self.layout.format.parts()).filter_map(|part| self.layout.part_bytes(part));
            return parts.sum::<usize>().saturating_mul(self.shape[0]);
        }
        let stored: usize = self.slices.iter().map(|s| s.len()).sum();
        (stored as u128 * self.layout.rows as u128 / self.layout.stored_rows.max(1) as u128) as usize
    }
}
