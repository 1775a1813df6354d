//! Reading the block formats of files: codes, group heads and factors of one row.

use turbospark_formats::{Float, MAX_PARTS};

use super::codes::QUADS;
use super::kind::BLOCK;

/// The byte slices of one stored row.
pub(super) type Row<'a> = [&'a [u8]; MAX_PARTS];

/// A block format as [`super::kind::Shape`] sees it. `block` counts 32 elements, `group` counts the groups of
/// the kind that the format is packed into.
pub(super) trait Source: Copy {
    /// Bits of a code.
    const BITS: usize;

    /// The codes of a block, in element order.
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]);

    /// The codes of a block of 4 bits, as a plane of them has a row: quad 2j in the low and 2j + 1 in the high
    /// nibbles of word j.
    #[inline(always)]
    fn quad_pairs(self, row: &Row<'_>, block: usize) -> [u32; QUADS / 2] {
        let mut codes = [0; BLOCK];
        self.codes(row, block, &mut codes);
        let quads = codes.as_chunks::<4>().0;
        std::array::from_fn(|j| u32::from_le_bytes(quads[2 * j]) | u32::from_le_bytes(quads[2 * j + 1]) << 4)
    }

    /// Bits of the head: the scale and, if there is one, the addend (of k-quants its factor, negated, because
    /// they subtract a minimum).
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2];

    /// The two factor bytes of a block, as far as the kind has them.
    fn factors(self, _row: &Row<'_>, _block: usize) -> [u8; 2] {
        [0; 2]
    }
}

#[inline(always)]
fn half_bits(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
fn unit<'a>(row: &Row<'a>, index: usize, bytes: usize) -> &'a [u8] {
    &row[0][index * bytes..(index + 1) * bytes]
}

/// Eight bytes at a time: shifts of single bytes do not vectorise.
pub(super) const BYTES: u64 = 0x0101_0101_0101_0101;

/// ORs `bytes >> right & mask`, byte by byte and then shifted left, into the codes.
#[inline(always)]
pub(super) fn take_bits(bytes: &[u8], right: usize, mask: u8, left: usize, out: &mut [u8]) {
    for (out, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(bytes.as_chunks::<8>().0) {
        let bits = (u64::from_le_bytes(*bytes) >> right & (BYTES * u64::from(mask))) << left;
        *out = (u64::from_le_bytes(*out) | bits).to_le_bytes();
    }
}

const LOW_NIBBLES: u32 = 0x0f0f_0f0f;

#[inline(always)]
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let quads = &bytes.as_chunks::<4>().0[..N];
    std::array::from_fn(|i| u32::from_le_bytes(quads[i]))
}

/// [`Source::quad_pairs`] of 16 bytes with element j in the low and j + 16 in the high nibble of byte j.
#[inline(always)]
fn split_pairs(bytes: &[u8]) -> [u32; QUADS / 2] {
    let [a, b, c, d] = words(bytes);
    let low = |first: u32, second: u32| first & LOW_NIBBLES | (second & LOW_NIBBLES) << 4;
    let high = |first: u32, second: u32| first >> 4 & LOW_NIBBLES | second & !LOW_NIBBLES;
    [low(a, b), low(c, d), high(a, b), high(c, d)]
}

/// [`Source::quad_pairs`] of 32 bytes with element j in the low nibble of byte j, or in the high one.
#[inline(always)]
pub(super) fn half_pairs(bytes: &[u8], high: bool) -> [u32; QUADS / 2] {
    let words: [u32; QUADS] = words(bytes);
    let shift = if high { 4 } else { 0 };
    std::array::from_fn(|j| {
        words[2 * j] >> shift & LOW_NIBBLES | (words[2 * j + 1] >> shift & LOW_NIBBLES) << 4
    })
}

/// Element j in the low and j + 16 in the high nibble of byte j.
#[inline(always)]
pub(super) fn split_nibbles(bytes: &[u8], out: &mut [u8; BLOCK]) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Adds the fifth bits, element i in bit i.
#[inline(always)]
fn fifth_bits(bits: &[u8], out: &mut [u8; BLOCK]) {
    for (codes, bits) in out.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        // Bit i alone in byte i, then moved to bit 7 by a sum that carries into it, then to bit 4.
        let apart = (BYTES * u64::from(*bits)) & 0x8040_2010_0804_0201;
        let fifth = ((apart + 0x7f * BYTES) >> 3) & (0x10 * BYTES);
        *codes = (u64::from_le_bytes(*codes) | fifth).to_le_bytes();
    }
}

/// The eight codes of BITS bits in the low end of `word`, one a byte.
#[inline(always)]
fn spread<const BITS: usize>(word: u64) -> [u8; 8] {
    let low = |bits: usize| (1u64 << bits) - 1;
    let word = word & low(4 * BITS) | (word >> (4 * BITS) & low(4 * BITS)) << 32;
    let pairs = low(2 * BITS) * 0x0000_0001_0000_0001;
    let word = word & pairs | (word >> (2 * BITS) & pairs) << 16;
    let single = low(BITS) * 0x0001_0001_0001_0001;
    (word & single | (word >> BITS & single) << 8).to_le_bytes()
}

/// ggml blocks of 32 with nibbles: BYTES of a block, where its codes begin, and its head.
macro_rules! nibble_blocks {
    ($(#[$doc:meta])* $name:ident, $bits:literal, $bytes:literal, fifth $fifth:expr, codes $codes:literal, head $head:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Source for $name {
            const BITS: usize = $bits;

            #[inline(always)]
            fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
                let bytes = unit(row, block, $bytes);
                split_nibbles(&bytes[$codes..$codes + 16], out);
                let fifth: Option<usize> = $fifth;
                if let Some(at) = fifth {
                    fifth_bits(&bytes[at..at + 4], out);
                }
            }

            #[inline(always)]
            fn quad_pairs(self, row: &Row<'_>, block: usize) -> [u32; QUADS / 2] {
                split_pairs(&unit(row, block, $bytes)[$codes..$codes + 16])
            }

            #[inline(always)]
            fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
                let head: fn(&[u8]) -> [u32; 2] = $head;
                head(unit(row, group, $bytes))
            }
        }
    };
}

nibble_blocks!(
    /// MXFP4 as ggml has it.
    Mxfp4, 4, 17, fifth None, codes 1, head |b| [u32::from(b[0]), 0]
);
nibble_blocks!(
    /// Q4_0 and IQ4_NL.
    Q4_0, 4, 18, fifth None, codes 2, head |b| [half_bits(b, 0), 0]
);
nibble_blocks!(
    /// Q4_1.
    Q4_1, 4, 20, fifth None, codes 4, head |b| [half_bits(b, 0), half_bits(b, 2)]
);
nibble_blocks!(
    /// Q5_0.
    Q5_0, 5, 22, fifth Some(2), codes 6, head |b| [half_bits(b, 0), 0]
);
nibble_blocks!(
    /// Q5_1.
    Q5_1, 5, 24, fifth Some(4), codes 8, head |b| [half_bits(b, 0), half_bits(b, 2)]
);

/// Q8_0; codes are biased by 128.
#[derive(Clone, Copy)]
pub(super) struct Q8_0;

impl Source for Q8_0 {
    const BITS: usize = 8;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        for (code, byte) in out.iter_mut().zip(&unit(row, block, 34)[2..]) {
            *code = byte ^ 0x80;
        }
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        [half_bits(unit(row, group, 34), 0), 0]
    }
}

/// MXFP4 with codes and scales apart, element 2b in the low nibble of byte b.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4Split;

impl Source for Mxfp4Split {
    const BITS: usize = 4;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(unit(row, block, 16)) {
            *pair = [byte & 15, byte >> 4];
        }
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        [u32::from(row[1][group]), 0]
    }
}

/// MLX affine; BITS is its width.
#[derive(Clone, Copy)]
pub(super) struct Affine<const BITS: usize> {
    pub scales: Float,
}

impl<const BITS: usize> Source for Affine<BITS> {
    const BITS: usize = BITS;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        let bytes = unit(row, block, BITS * BLOCK / 8).as_chunks::<BITS>().0;
        for (codes, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(bytes) {
            let mut word = [0; 8];
            word[..BITS].copy_from_slice(bytes);
            *codes = if BITS == 8 { word } else { spread::<BITS>(u64::from_le_bytes(word)) };
        }
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        [1, 2].map(|part| match self.scales {
            Float::F32 => {
                let at = group * 4;
                u32::from_le_bytes([row[part][at], row[part][at + 1], row[part][at + 2], row[part][at + 3]])
            }
            Float::F16 | Float::BF16 => half_bits(row[part], group * 2),
        })
    }
}
