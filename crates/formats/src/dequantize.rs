//! Exact conversion of every storage format to f32.

use crate::MatrixRef;

/// Writes logical row `row` of `matrix` into `out`.
pub(crate) fn row(_matrix: &MatrixRef<'_>, _row: usize, _out: &mut [f32]) {
    unimplemented!()
}
