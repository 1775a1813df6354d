//! Exact conversion of every storage format to f32.
//!
//! The order of operations is part of each format (a product, then a sum, both rounded to f32), so that every
//! reader of a block gets the same bits.

mod blocks;
mod floats;
mod k_quants;
mod microscaling;
mod mlx;

use crate::{Float, Format, MatrixRef};

/// The 16 values of IQ4_NL and IQ4_XS codes.
const NON_LINEAR: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Writes logical row `row` of `matrix` into `out`.
pub(crate) fn row(matrix: &MatrixRef<'_>, row: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    if layout.transposed {
        return column(matrix, row, out);
    }
    let bytes = matrix.row_bytes(0, row);
    match layout.format {
        Format::Float(Float::F32) => floats::f32_row(bytes, out),
        Format::Float(Float::F16) => floats::f16_row(bytes, out),
        Format::Float(Float::BF16) => floats::bf16_row(bytes, out),
        Format::Q4_0 => blocks::q4_0(bytes, out),
        Format::Q4_1 => blocks::q4_1(bytes, out),
        Format::Q5_0 => blocks::q5_0(bytes, out),
        Format::Q5_1 => blocks::q5_1(bytes, out),
        Format::Q8_0 => blocks::q8_0(bytes, out),
        Format::IQ4_NL => blocks::iq4_nl(bytes, out),
        Format::Q2_K => k_quants::q2_k(bytes, out),
        Format::Q3_K => k_quants::q3_k(bytes, out),
        Format::Q4_K => k_quants::q4_k(bytes, out),
        Format::Q5_K => k_quants::q5_k(bytes, out),
        Format::Q6_K => k_quants::q6_k(bytes, out),
        Format::IQ4_XS => k_quants::iq4_xs(bytes, out),
        Format::MXFP4 => microscaling::mxfp4(bytes, out),
        Format::Mxfp4Split => microscaling::mxfp4_split(bytes, matrix.row_bytes(1, row), out),
        Format::MlxAffine { bits, group, scales } => mlx::affine(
            mlx::Row { codes: bytes, scales: matrix.row_bytes(1, row), biases: matrix.row_bytes(2, row) },
            mlx::Width { bits, group, scales },
            out,
        ),
    }
}

/// A row of a matrix that is stored transposed: one element of each stored line.
fn column(matrix: &MatrixRef<'_>, row: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    let Format::Float(float) = layout.format else {
        unreachable!("only floats are stored transposed");
    };
    assert!(row < layout.rows);
    let stored = layout.row_map.stored(row);
    let size = float.bytes();
    let lines = matrix.part(0).chunks_exact(layout.stored_rows * size);
    for (x, line) in out.iter_mut().zip(lines) {
        *x = floats::element(float, &line[stored * size..(stored + 1) * size]);
    }
}

/// An IEEE half at the start of `bytes`.
#[inline]
fn half_at(bytes: &[u8], offset: usize) -> f32 {
    floats::half(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]))
}
