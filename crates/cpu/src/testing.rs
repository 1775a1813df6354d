//! Random matrices of every format, for tests.

use turbospark_formats::{Float, Format, MatrixLayout, MatrixRef};

/// A small deterministic generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as u32
    }

    /// Between -1 and 1.
    pub(crate) fn float(&mut self) -> f32 {
        self.next() as i32 as f32 / 2_147_483_648.0
    }
}

/// What the numbers of a random matrix are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Usual,
    /// Codes all zero.
    Lowest,
    /// Codes all ones.
    Highest,
    /// Codes with only the top bit set: for signed ones, the most negative.
    Top,
    /// Subnormal scales; the lowest exponent.
    Subnormal,
    /// Zero scales; the highest finite exponent.
    Zero,
}

pub(crate) const FLAVOURS: [Flavour; 6] =
    [Flavour::Usual, Flavour::Lowest, Flavour::Highest, Flavour::Top, Flavour::Subnormal, Flavour::Zero];

/// Every format, MLX in each width.
pub(crate) fn formats() -> Vec<Format> {
    let mut all = vec![
        Format::Float(Float::F32),
        Format::Float(Float::F16),
        Format::Float(Float::BF16),
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2_K,
        Format::Q3_K,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
        Format::IQ4_NL,
        Format::IQ4_XS,
        Format::MXFP4,
        Format::Mxfp4Split,
    ];
    for (bits, group, scales) in [
        (2, 64, Float::BF16),
        (3, 64, Float::F16),
        (4, 32, Float::F32),
        (4, 64, Float::BF16),
        (5, 128, Float::BF16),
        (6, 32, Float::F16),
        (8, 128, Float::F32),
    ] {
        all.push(Format::MlxAffine { bits, group, scales });
    }
    all
}

/// A matrix that owns its bytes.
pub(crate) struct OwnedMatrix {
    pub(crate) layout: MatrixLayout,
    parts: Vec<Vec<u8>>,
}

impl OwnedMatrix {
    pub(crate) fn view(&self) -> MatrixRef<'_> {
        let parts: Vec<&[u8]> = self.parts.iter().map(Vec::as_slice).collect();
        MatrixRef::new(&self.layout, &parts).unwrap()
    }

    pub(crate) fn random(layout: MatrixLayout, flavour: Flavour, random: &mut Random) -> OwnedMatrix {
        let format = layout.format;
        let mut parts = Vec::new();
        for part in 0..format.parts() {
            let mut bytes = vec![0; layout.part_bytes(part).unwrap()];
            for byte in &mut bytes {
                *byte = match flavour {
                    Flavour::Lowest => 0,
                    Flavour::Highest => 0xff,
                    Flavour::Top if format == Format::Q8_0 => 0x80,
                    Flavour::Top => 0x88,
                    _ => random.next() as u8,
                };
            }
            for block in bytes.chunks_exact_mut(format.block_bytes(part)) {
                scales(format, part, block, flavour, random);
            }
            parts.push(bytes);
        }
        OwnedMatrix { layout, parts }
    }
}

/// Overwrites what would be a scale with a number of its kind.
fn scales(format: Format, part: usize, block: &mut [u8], flavour: Flavour, random: &mut Random) {
    let halves: &[usize] = match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::IQ4_NL | Format::IQ4_XS => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q2_K => &[80, 82],
        Format::Q3_K => &[108],
        Format::Q6_K => &[208],
        Format::MXFP4 => return block[0] = exponent(flavour, random),
        Format::Mxfp4Split if part == 1 => return block[0] = exponent(flavour, random),
        Format::MlxAffine { scales, .. } if part > 0 => return float(scales, block, flavour, random),
        Format::Float(of) => return float(of, block, flavour, random),
        _ => &[],
    };
    for at in halves {
        float(Float::F16, &mut block[*at..*at + 2], flavour, random);
    }
}

fn exponent(flavour: Flavour, random: &mut Random) -> u8 {
    match flavour {
        Flavour::Subnormal => (random.next() % 3) as u8,
        Flavour::Zero => 254,
        _ => 110 + (random.next() % 24) as u8,
    }
}

fn float(of: Float, bytes: &mut [u8], flavour: Flavour, random: &mut Random) {
    let value = random.float();
    let small = random.next();
    match of {
        Float::F32 => bytes.copy_from_slice(
            &match flavour {
                Flavour::Subnormal => f32::from_bits(small & 0x807f_ffff),
                Flavour::Zero => 0.0,
                _ => value,
            }
            .to_le_bytes(),
        ),
        Float::F16 => bytes.copy_from_slice(
            &match flavour {
                Flavour::Subnormal => half::f16::from_bits(small as u16 & 0x83ff),
                Flavour::Zero => half::f16::ZERO,
                _ => half::f16::from_f32(value),
            }
            .to_le_bytes(),
        ),
        Float::BF16 => bytes.copy_from_slice(
            &match flavour {
                Flavour::Subnormal => half::bf16::from_bits(small as u16 & 0x807f),
                Flavour::Zero => half::bf16::ZERO,
                _ => half::bf16::from_f32(value),
            }
            .to_le_bytes(),
        ),
    }
}
