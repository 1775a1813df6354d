//! MLX affine groups: value = scale * code + bias, codes as a little-endian stream of bits.

use super::floats;
use crate::Float;

/// The bytes of one row.
pub(super) struct Row<'a> {
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub biases: &'a [u8],
}

/// What [`crate::Format::MlxAffine`] says.
#[derive(Clone, Copy)]
pub(super) struct Width {
    pub bits: u8,
    pub group: u16,
    pub scales: Float,
}

pub(super) fn affine(row: Row<'_>, width: Width, out: &mut [f32]) {
    match width.bits {
        2 => groups::<2>(row, width, out),
        3 => groups::<3>(row, width, out),
        4 => groups::<4>(row, width, out),
        5 => groups::<5>(row, width, out),
        6 => groups::<6>(row, width, out),
        8 => groups::<8>(row, width, out),
        bits => unreachable!("{bits} bits are refused when a file is opened"),
    }
}

/// Eight codes of BITS bits are BITS bytes, whatever BITS is.
fn groups<const BITS: usize>(row: Row<'_>, width: Width, out: &mut [f32]) {
    let group = usize::from(width.group);
    let size = width.scales.bytes();
    let codes = row.codes.chunks_exact(group * BITS / 8);
    let scales = row.scales.chunks_exact(size).zip(row.biases.chunks_exact(size));
    for ((codes, (scale, bias)), out) in codes.zip(scales).zip(out.chunks_exact_mut(group)) {
        let (scale, bias) = (floats::element(width.scales, scale), floats::element(width.scales, bias));
        for (codes, out) in codes.as_chunks::<BITS>().0.iter().zip(out.as_chunks_mut::<8>().0) {
            let mut word = [0; 8];
            word[..BITS].copy_from_slice(codes);
            let word = u64::from_le_bytes(word);
            for (i, x) in out.iter_mut().enumerate() {
                let code = word >> (i * BITS) & ((1 << BITS) - 1);
                *x = scale * code as f32 + bias;
            }
        }
    }
}
