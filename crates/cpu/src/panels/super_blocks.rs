//! Reading ggml's super-blocks of 256 elements.

use super::codes::QUADS;
use super::kind::BLOCK;
use super::sources::{Row, Source, half_pairs, split_nibbles, take_bits};

const NEGATE_HALF: u32 = 0x8000;

#[inline(always)]
fn half_bits(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The super-block that a block of 32 is in, and its place there.
#[inline(always)]
fn place<'a>(row: &Row<'a>, block: usize, bytes: usize) -> (&'a [u8], usize) {
    let index = block / 8;
    (&row[0][index * bytes..(index + 1) * bytes], block % 8)
}

/// Two-bit codes of the 32 elements of block `b`: four blocks share 32 bytes.
#[inline(always)]
fn two_bits(codes: &[u8], b: usize, out: &mut [u8; BLOCK]) {
    *out = [0; BLOCK];
    take_bits(&codes[32 * (b / 4)..][..BLOCK], 2 * (b % 4), 3, 0, out);
}

/// Nibbles of block `b` of Q4_K and Q5_K: two blocks share 32 bytes.
#[inline(always)]
fn nibbles(codes: &[u8], b: usize, out: &mut [u8; BLOCK]) {
    *out = [0; BLOCK];
    take_bits(&codes[32 * (b / 2)..][..BLOCK], 4 * (b % 2), 15, 0, out);
}

/// The six-bit scale and minimum of block `b` of Q4_K and Q5_K.
#[inline(always)]
fn scale_and_min(packed: &[u8], b: usize) -> [u8; 2] {
    if b < 4 {
        [packed[b] & 63, packed[b + 4] & 63]
    } else {
        [packed[b + 4] & 15 | packed[b - 4] >> 6 << 4, packed[b + 4] >> 4 | packed[b] >> 6 << 4]
    }
}

/// Q2_K.
#[derive(Clone, Copy)]
pub(super) struct Q2K;

impl Source for Q2K {
    const BITS: usize = 2;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        let (bytes, b) = place(row, block, 84);
        two_bits(&bytes[16..80], b, out);
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        let (bytes, _) = place(row, group * 8, 84);
        [half_bits(bytes, 80), half_bits(bytes, 82) ^ NEGATE_HALF]
    }

    #[inline(always)]
    fn factors(self, row: &Row<'_>, block: usize) -> [u8; 2] {
        let (bytes, b) = place(row, block, 84);
        [bytes[2 * b], bytes[2 * b + 1]]
    }
}

/// Q3_K.
#[derive(Clone, Copy)]
pub(super) struct Q3K;

impl Source for Q3K {
    const BITS: usize = 3;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        let (bytes, b) = place(row, block, 110);
        two_bits(&bytes[32..96], b, out);
        take_bits(&bytes[..BLOCK], b, 1, 2, out);
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        [half_bits(place(row, group * 8, 110).0, 108), 0]
    }

    #[inline(always)]
    fn factors(self, row: &Row<'_>, block: usize) -> [u8; 2] {
        let (bytes, b) = place(row, block, 110);
        let packed = &bytes[96..108];
        [2 * b, 2 * b + 1].map(|s| {
            let low = packed[s % 8] >> (4 * (s / 8)) & 15;
            let high = packed[8 + s % 4] >> (2 * (s / 4)) & 3;
            (low | high << 4).wrapping_sub(32)
        })
    }
}

/// Q4_K.
#[derive(Clone, Copy)]
pub(super) struct Q4K;

impl Source for Q4K {
    const BITS: usize = 4;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        let (bytes, b) = place(row, block, 144);
        nibbles(&bytes[16..], b, out);
    }

    #[inline(always)]
    fn quad_pairs(self, row: &Row<'_>, block: usize) -> [u32; QUADS / 2] {
        let (bytes, b) = place(row, block, 144);
        half_pairs(&bytes[16 + b / 2 * BLOCK..][..BLOCK], b % 2 == 1)
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        let (bytes, _) = place(row, group * 8, 144);
        [half_bits(bytes, 0), half_bits(bytes, 2) ^ NEGATE_HALF]
    }

    #[inline(always)]
    fn factors(self, row: &Row<'_>, block: usize) -> [u8; 2] {
        let (bytes, b) = place(row, block, 144);
        scale_and_min(&bytes[4..16], b)
    }
}

/// Q5_K.
#[derive(Clone, Copy)]
pub(super) struct Q5K;

impl Source for Q5K {
    const BITS: usize = 5;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        let (bytes, b) = place(row, block, 176);
        nibbles(&bytes[48..], b, out);
        take_bits(&bytes[16..48], b, 1, 4, out);
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        let (bytes, _) = place(row, group * 8, 176);
        [half_bits(bytes, 0), half_bits(bytes, 2) ^ NEGATE_HALF]
    }

    #[inline(always)]
    fn factors(self, row: &Row<'_>, block: usize) -> [u8; 2] {
        let (bytes, b) = place(row, block, 176);
        scale_and_min(&bytes[4..16], b)
    }
}

/// Q6_K.
#[derive(Clone, Copy)]
pub(super) struct Q6K;

impl Source for Q6K {
    const BITS: usize = 6;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        let (bytes, b) = place(row, block, 210);
        let (half, quarter) = (b / 4, b % 4);
        *out = [0; BLOCK];
        take_bits(&bytes[64 * half + 32 * (quarter & 1)..][..BLOCK], 4 * (quarter / 2), 15, 0, out);
        take_bits(&bytes[128 + 32 * half..][..BLOCK], 2 * quarter, 3, 4, out);
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        [half_bits(place(row, group * 8, 210).0, 208), 0]
    }

    #[inline(always)]
    fn factors(self, row: &Row<'_>, block: usize) -> [u8; 2] {
        let (bytes, b) = place(row, block, 210);
        [bytes[192 + 2 * b], bytes[192 + 2 * b + 1]]
    }
}

/// IQ4_XS.
#[derive(Clone, Copy)]
pub(super) struct Iq4Xs;

impl Source for Iq4Xs {
    const BITS: usize = 4;

    #[inline(always)]
    fn codes(self, row: &Row<'_>, block: usize, out: &mut [u8; BLOCK]) {
        let (bytes, b) = place(row, block, 136);
        split_nibbles(&bytes[8 + 16 * b..][..16], out);
    }

    #[inline(always)]
    fn head(self, row: &Row<'_>, group: usize) -> [u32; 2] {
        [half_bits(place(row, group * 8, 136).0, 0), 0]
    }

    #[inline(always)]
    fn factors(self, row: &Row<'_>, block: usize) -> [u8; 2] {
        let (bytes, b) = place(row, block, 136);
        let low = bytes[4 + b / 2] >> (4 * (b % 2)) & 15;
        let high = (half_bits(bytes, 2) >> (2 * b) & 3) as u8;
        [(low | high << 4).wrapping_sub(32), 0]
    }
}
