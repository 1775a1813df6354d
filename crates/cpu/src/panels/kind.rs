//! How the numbers of a panel are stored: which codes, which scales, in which blocks.

use std::fmt;

use turbospark_formats::{Float, Format};

/// Elements of K that share an activation scale.
pub const BLOCK: usize = 32;
/// Output rows of a panel.
pub const LANES: usize = 16;

/// The storage of a panel. Named after the formats that are packed into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum PanelKind {
    /// E2M1 codes with an E8M0 scale.
    Mxfp4,
    /// 4 bits less 8, half scale.
    Q4_0,
    /// 5 bits less 16, half scale.
    Q5_0,
    /// 8 bits less 128, half scale.
    Q8_0,
    /// Codes into the non-linear table, half scale.
    Iq4Nl,
    /// Codes into the non-linear table; scale = d * signed.
    Iq4Xs,
    /// 2 bits; scale = d * nibble and minimum = dmin * nibble for every 16.
    Q2_K,
    /// 3 bits less 4; scale = d * signed for every 16.
    Q3_K,
    /// 4 bits; scale = d * byte, minimum = dmin * byte.
    Q4_K,
    /// 5 bits; scale = d * byte, minimum = dmin * byte.
    Q5_K,
    /// 6 bits less 32; scale = d * signed for every 16.
    Q6_K,
    /// Unsigned codes with a scale and an addend for every group: MLX, Q4_1 and Q5_1.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements that share a scale: 32, 64 or 128.
        group: u16,
        /// Type of scale and addend.
        scales: Float,
    },
    /// Floats, taken as they are.
    Dense(Float),
}

/// What a code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Itself; the format has a minimum.
    Unsigned,
    /// Itself less a power of two.
    Offset(u8),
    /// An entry of [`DOUBLED_E2M1`].
    E2m1,
    /// An entry of [`NON_LINEAR`].
    NonLinear,
}

/// Twice the E2M1 values, so that they are integers.
pub(crate) const DOUBLED_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Values of IQ4_NL and IQ4_XS.
pub(crate) const NON_LINEAR: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The head of a group of blocks: what they share, for each of the 16 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A power of two, halved for the doubled values.
    E8m0,
    /// A scale.
    Scale(Float),
    /// A scale and an addend (or a factor of the addend).
    Pair(Float),
}

impl Head {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Head::E8m0 => LANES,
            Head::Scale(f) => LANES * float_bytes(f),
            Head::Pair(f) => 2 * LANES * float_bytes(f),
        }
    }
}

const fn float_bytes(f: Float) -> usize {
    match f {
        Float::F32 => 4,
        Float::F16 | Float::BF16 => 2,
    }
}

/// Factors of a block, for each of the 16 rows, that the head's are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factors {
    /// None: the head's hold as they are.
    None,
    /// i8 for the scale.
    Signed,
    /// u8 for the scale, then u8 for the addend.
    Pair,
    /// i8 for the scale of each half.
    SignedHalves,
    /// For each half a byte: its low nibble for the scale, its high nibble for the addend.
    NibbleHalves,
}

impl Factors {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Factors::None => 0,
            Factors::Signed => LANES,
            Factors::Pair | Factors::SignedHalves | Factors::NibbleHalves => 2 * LANES,
        }
    }

    /// Whether each 16 elements of a block have a scale of their own.
    pub(crate) const fn halves(self) -> bool {
        matches!(self, Factors::SignedHalves | Factors::NibbleHalves)
    }
}

/// The structure of an integer kind.
///
/// A panel is a row of units, each of `unit` blocks: their heads (one for each `head_blocks` blocks), their
/// factors, their codes. The last unit has room for all its heads and factors, but codes only for the blocks there are.
/// Heads of a unit fill whole cache lines, so that codes are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub bits: usize,
    pub values: Values,
    pub head: Head,
    pub head_blocks: usize,
    pub factors: Factors,
    pub unit: usize,
}

impl Shape {
    /// Bytes of the codes of a block.
    pub(crate) const fn code_bytes(self) -> usize {
        self.bits * LANES * BLOCK / 8
    }

    /// Where the factors of a unit begin.
    pub(crate) const fn factors_start(self) -> usize {
        self.unit / self.head_blocks * self.head.bytes()
    }

    /// Where the codes of a unit begin.
    pub(crate) const fn codes_start(self) -> usize {
        self.factors_start() + self.unit * self.factors.bytes()
    }

    /// Bytes of a unit that is not cut short.
    pub(crate) const fn unit_bytes(self) -> usize {
        self.codes_start() + self.unit * self.code_bytes()
    }

    /// Bytes of a panel of so many blocks.
    pub(crate) fn panel_bytes(self, blocks: usize) -> Option<usize> {
        let codes = blocks.checked_mul(self.code_bytes())?;
        blocks.div_ceil(self.unit).checked_mul(self.codes_start())?.checked_add(codes)
    }

    /// Blocks of a panel of so many bytes.
    pub(crate) const fn blocks(self, panel_bytes: usize) -> usize {
        let (units, rest) = (panel_bytes / self.unit_bytes(), panel_bytes % self.unit_bytes());
        units * self.unit + rest.saturating_sub(self.codes_start()) / self.code_bytes()
    }

    /// Whether weights have an addend besides the product of code and scale.
    pub(crate) const fn addend(self) -> bool {
        matches!(self.head, Head::Pair(_))
    }
}

impl PanelKind {
    /// The kind that a format is packed into. Its codes are kept as they are, none is rounded.
    pub fn of(format: Format) -> PanelKind {
        match format {
            Format::Float(float) => PanelKind::Dense(float),
            Format::Q4_0 => PanelKind::Q4_0,
            Format::Q4_1 => PanelKind::Affine { bits: 4, group: 32, scales: Float::F16 },
            Format::Q5_0 => PanelKind::Q5_0,
            Format::Q5_1 => PanelKind::Affine { bits: 5, group: 32, scales: Float::F16 },
            Format::Q8_0 => PanelKind::Q8_0,
            Format::Q2_K => PanelKind::Q2_K,
            Format::Q3_K => PanelKind::Q3_K,
            Format::Q4_K => PanelKind::Q4_K,
            Format::Q5_K => PanelKind::Q5_K,
            Format::Q6_K => PanelKind::Q6_K,
            Format::IQ4_NL => PanelKind::Iq4Nl,
            Format::IQ4_XS => PanelKind::Iq4Xs,
            Format::MXFP4 | Format::Mxfp4Split => PanelKind::Mxfp4,
            Format::MlxAffine { bits, group, scales } => PanelKind::Affine { bits, group, scales },
        }
    }

    /// The kind for a linear whose input must stay f32 (a router): floats stay as they are, any other format
    /// becomes the f32 values it stands for.
    pub fn of_full(format: Format) -> PanelKind {
        match format {
            Format::Float(float) => PanelKind::Dense(float),
            _ => PanelKind::Dense(Float::F32),
        }
    }

    /// Whether the input is taken as f32, not in quantised blocks.
    pub fn is_dense(self) -> bool {
        matches!(self, PanelKind::Dense(_))
    }

    /// The structure; none of a dense kind.
    pub(crate) const fn shape(self) -> Option<Shape> {
        use Factors::{NibbleHalves, Signed, SignedHalves};
        const HALF: Head = Head::Scale(Float::F16);
        const HALVES: Head = Head::Pair(Float::F16);
        // A lone scale for a whole super-block is widened: it fills a cache line either way.
        const SINGLE: Head = Head::Scale(Float::F32);
        let (bits, values, head, head_blocks, factors, unit) = match self {
            PanelKind::Mxfp4 => (4, Values::E2m1, Head::E8m0, 1, Factors::None, 4),
            PanelKind::Q4_0 => (4, Values::Offset(8), HALF, 1, Factors::None, 2),
            PanelKind::Q5_0 => (5, Values::Offset(16), HALF, 1, Factors::None, 2),
            PanelKind::Q8_0 => (8, Values::Offset(128), HALF, 1, Factors::None, 2),
            PanelKind::Iq4Nl => (4, Values::NonLinear, HALF, 1, Factors::None, 2),
            PanelKind::Iq4Xs => (4, Values::NonLinear, SINGLE, 8, Signed, 8),
            PanelKind::Q2_K => (2, Values::Unsigned, HALVES, 8, NibbleHalves, 8),
            PanelKind::Q3_K => (3, Values::Offset(4), SINGLE, 8, SignedHalves, 8),
            PanelKind::Q4_K => (4, Values::Unsigned, HALVES, 8, Factors::Pair, 8),
            PanelKind::Q5_K => (5, Values::Unsigned, HALVES, 8, Factors::Pair, 8),
            PanelKind::Q6_K => (6, Values::Offset(32), SINGLE, 8, SignedHalves, 8),
            PanelKind::Affine { bits, group, scales } => {
                let blocks = group as usize / BLOCK;
                // Two heads a unit where a group is a block, for a longer inner loop.
                let unit = if blocks == 1 { 2 } else { blocks };
                (bits as usize, Values::Unsigned, Head::Pair(scales), blocks, Factors::None, unit)
            }
            PanelKind::Dense(_) => return None,
        };
        Some(Shape { bits, values, head, head_blocks, factors, unit })
    }

    /// Bytes of a panel of so many columns; none if they are not whole heads.
    pub(crate) fn panel_bytes(self, columns: usize) -> Option<usize> {
        match self {
            PanelKind::Dense(float) => columns.checked_mul(LANES * float.bytes()),
            _ => {
                let shape = self.shape()?;
                let whole = columns.is_multiple_of(BLOCK * shape.head_blocks);
                whole.then(|| shape.panel_bytes(columns / BLOCK))?
            }
        }
    }
}

impl fmt::Display for PanelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PanelKind::Affine { bits, group, scales } => write!(f, "affine {bits}-bit/{group} {scales:?}"),
            PanelKind::Dense(float) => write!(f, "dense {float:?}"),
            kind => write!(f, "{kind:?}"),
        }
    }
}
