//! f32 rows to ggml blocks: the inverse of `dequantize`.
//!
//! Scales are searched for the least squared error of the values that the blocks give back. A row that a format
//! holds exactly comes back with the same values: its grid is looked for before a scale is searched.

mod microscaling;
mod q4_k;
mod symmetric;

use crate::Format;

/// A row that cannot be stored.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum QuantizeError {
    /// A format that is only read.
    #[error("{0} is read and not written; quantize to MXFP4, Q4_0, Q8_0 or Q4_K")]
    Format(Format),
    /// A row that is not whole blocks.
    #[error(
        "a row of {found} elements is not whole {format} blocks of {block}; choose a format of smaller blocks"
    )]
    Length {
        /// The format.
        format: Format,
        /// Elements of a block.
        block: usize,
        /// Elements of the row.
        found: usize,
    },
    /// An output that is not as long as the row's blocks.
    #[error("{columns} elements of {format} take {expected} bytes, but the output has {found}")]
    Output {
        /// The format.
        format: Format,
        /// Elements of the row.
        columns: usize,
        /// Bytes of the row's blocks.
        expected: usize,
        /// Bytes of the output.
        found: usize,
    },
    /// An infinity or a NaN.
    #[error("element {index} is {value}; only finite values can be quantized")]
    NotFinite {
        /// The element within the row.
        index: usize,
        /// What stands there.
        value: f32,
    },
    /// Values whose scale is above the largest half.
    #[error(
        "the block of {format} at element {index} needs a scale above 65504, the largest that the format holds; \
         quantize to MXFP4"
    )]
    Range {
        /// The format.
        format: Format,
        /// The block's first element within the row.
        index: usize,
    },
}

/// The formats that [`quantize_row`] writes.
pub const QUANTIZED: [Format; 4] = [Format::MXFP4, Format::Q4_0, Format::Q8_0, Format::Q4_K];

/// Writes `values` (a row, or any number of whole blocks of one) as blocks of `format` into `out`, which is
/// `format.row_bytes(0, values.len())` long.
///
/// The blocks' values are near the least squared error that the format allows, and equal to `values` where the
/// format holds them; in Q4_K a block of 256 whose sums are rounded to f32 may come back a rounding off.
///
/// # Errors
///
/// A format other than those of [`QUANTIZED`], a row that is not whole blocks, an output of another length, a value
/// that is not finite, and a block whose scale is too large for the format's half. `out` then holds nothing of use.
pub fn quantize_row(format: Format, values: &[f32], out: &mut [u8]) -> Result<(), QuantizeError> {
    if !QUANTIZED.contains(&format) {
        return Err(QuantizeError::Format(format));
    }
    let (block, columns) = (format.block(), values.len());
    let expected =
        format.row_bytes(0, columns).ok_or(QuantizeError::Length { format, block, found: columns })?;
    if out.len() != expected {
        return Err(QuantizeError::Output { format, columns, expected, found: out.len() });
    }
    if let Some(index) = values.iter().position(|x| !x.is_finite()) {
        return Err(QuantizeError::NotFinite { index, value: values[index] });
    }
    let failed = match format {
        Format::MXFP4 => blocks(values, out, microscaling::mxfp4),
        Format::Q4_0 => blocks(values, out, symmetric::q4_0),
        Format::Q8_0 => blocks(values, out, symmetric::q8_0),
        _ => blocks(values, out, q4_k::q4_k),
    };
    match failed {
        None => Ok(()),
        Some(index) => Err(QuantizeError::Range { format, index: index * block }),
    }
}

/// A block whose scale is above the largest half.
struct TooLarge;

/// Writes every block; the index of the first that is too large.
fn blocks<const N: usize, const B: usize>(
    values: &[f32],
    out: &mut [u8],
    one: impl Fn(&[f32; N], &mut [u8; B]) -> Result<(), TooLarge>,
) -> Option<usize> {
    let mut blocks = values.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<B>().0);
    blocks.position(|(values, out)| one(values, out).is_err())
}

/// The nearest integer, halves to even, of `x` between -2^22 and 2^22: loops over it vectorise on every target.
#[inline]
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// Element j in the low and element j + 16 in the high nibble of byte j.
#[inline]
fn pack_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    for (j, byte) in out.iter_mut().enumerate() {
        *byte = codes[j] | codes[j + 16] << 4;
    }
}
