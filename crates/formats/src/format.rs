//! How the elements of a matrix are stored: the number formats and their block geometry.

use std::fmt;

/// A plain floating-point element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
}

impl Float {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::BF16 => 2,
        }
    }
}

/// The storage format of a matrix.
///
/// The block layouts are those of ggml (names in upper case as ggml spells them), of Hugging Face's MXFP4
/// checkpoints and of MLX's quantised checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum Format {
    /// One float an element.
    Float(Float),
    /// ggml, 32 elements in 18 bytes: d * (q - 8).
    Q4_0,
    /// ggml, 32 elements in 20 bytes: d * q + m.
    Q4_1,
    /// ggml, 32 elements in 22 bytes: d * (q - 16).
    Q5_0,
    /// ggml, 32 elements in 24 bytes: d * q + m.
    Q5_1,
    /// ggml, 32 elements in 34 bytes: d * q.
    Q8_0,
    /// ggml, 256 elements in 84 bytes.
    Q2_K,
    /// ggml, 256 elements in 110 bytes.
    Q3_K,
    /// ggml, 256 elements in 144 bytes.
    Q4_K,
    /// ggml, 256 elements in 176 bytes.
    Q5_K,
    /// ggml, 256 elements in 210 bytes.
    Q6_K,
    /// ggml, 32 elements in 18 bytes, a table of 16 values.
    IQ4_NL,
    /// ggml, 256 elements in 136 bytes, a table of 16 values.
    IQ4_XS,
    /// ggml, 32 elements in 17 bytes: the scale, then nibbles j and j + 16 in byte j.
    MXFP4,
    /// Hugging Face and MLX: parts 0 = blocks (16 bytes, elements 2b and 2b + 1 in byte b), 1 = scales.
    Mxfp4Split,
    /// MLX affine groups: parts 0 = codes, 1 = scales, 2 = biases; value = scale * q + bias.
    MlxAffine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements that share a scale: 32, 64 or 128.
        group: u16,
        /// Element type of scales and biases.
        scales: Float,
    },
}

impl Format {
    /// How many byte slices make up a matrix of this format.
    pub fn parts(self) -> usize {
        match self {
            Format::Mxfp4Split => 2,
            Format::MlxAffine { .. } => 3,
            _ => 1,
        }
    }

    /// Elements of the smallest unit a row can be divided into.
    pub fn block(self) -> usize {
        match self {
            Format::Float(_) => 1,
            Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::IQ4_XS => 256,
            Format::MlxAffine { group, .. } => group as usize,
            _ => 32,
        }
    }

    /// Bytes that one block takes in `part`; `part` must be below [`Format::parts`].
    pub fn block_bytes(self, part: usize) -> usize {
        debug_assert!(part < self.parts());
        match self {
            Format::Float(f) => f.bytes(),
            Format::Q4_0 | Format::IQ4_NL => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q2_K => 84,
            Format::Q3_K => 110,
            Format::Q4_K => 144,
            Format::Q5_K => 176,
            Format::Q6_K => 210,
            Format::IQ4_XS => 136,
            Format::MXFP4 => 17,
            Format::Mxfp4Split => [16, 1][part],
            Format::MlxAffine { bits, group, scales } => {
                [group as usize * bits as usize / 8, scales.bytes(), scales.bytes()][part]
            }
        }
    }

    /// Bytes of a row of `columns` elements in `part`, or `None` if the row is not whole blocks or too long.
    pub fn row_bytes(self, part: usize, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block()) {
            return None;
        }
        (columns / self.block()).checked_mul(self.block_bytes(part))
    }

    /// Whether elements are plain floats.
    pub fn is_float(self) -> bool {
        matches!(self, Format::Float(_))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::Float(x) => write!(f, "{x:?}"),
            Format::Mxfp4Split => f.write_str("MXFP4 (blocks, scales)"),
            Format::MlxAffine { bits, group, .. } => write!(f, "MLX {bits}-bit/{group}"),
            other => write!(f, "{other:?}"),
        }
    }
}
