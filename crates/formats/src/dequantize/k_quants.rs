//! ggml super-blocks of 256 elements.

use super::{NON_LINEAR, half_at};

#[inline]
fn blocks<const N: usize>(bytes: &[u8], out: &mut [f32], one: impl Fn(&[u8; N], &mut [f32; 256])) {
    for (block, out) in bytes.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        one(block, out);
    }
}

/// Where the 16 two-bit codes of sub-block `s` are: the bytes and the shift within them.
#[inline]
fn two_bits(codes: &[u8], s: usize) -> (&[u8], usize) {
    let start = 32 * (s / 8) + 16 * (s % 2);
    (&codes[start..start + 16], 2 * (s / 2 % 4))
}

pub(super) fn q2_k(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 84], out| {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for (s, out) in out.chunks_exact_mut(16).enumerate() {
            let (scale, min) = (d * f32::from(block[s] & 15), dmin * f32::from(block[s] >> 4));
            let (codes, shift) = two_bits(&block[16..80], s);
            for (x, code) in out.iter_mut().zip(codes) {
                *x = scale * f32::from(code >> shift & 3) - min;
            }
        }
    });
}

pub(super) fn q3_k(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 110], out| {
        let d = half_at(block, 108);
        let packed = &block[96..108];
        for (s, out) in out.chunks_exact_mut(16).enumerate() {
            let low = if s < 8 { packed[s] & 15 } else { packed[s - 8] >> 4 };
            let high = packed[8 + s % 4] >> (2 * (s / 4)) & 3;
            let scale = d * (f32::from(low | high << 4) - 32.0);
            let (codes, shift) = two_bits(&block[32..96], s);
            let part = 16 * (s % 2);
            let bit = 4 * (s / 8) + s / 2 % 4;
            for ((x, code), mask) in out.iter_mut().zip(codes).zip(&block[part..part + 16]) {
                let third = mask >> bit & 1;
                *x = scale * (f32::from(code >> shift & 3 | third << 2) - 4.0);
            }
        }
    });
}

/// The six-bit scale and minimum of sub-block `j` of Q4_K and Q5_K.
#[inline]
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

pub(super) fn q4_k(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 144], out| {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_and_min(&block[4..16], j);
            let (scale, min) = (d * scale, dmin * min);
            let start = 16 + 32 * (j / 2);
            let shift = 4 * (j % 2);
            for (x, code) in out.iter_mut().zip(&block[start..start + 32]) {
                *x = scale * f32::from(code >> shift & 15) - min;
            }
        }
    });
}

pub(super) fn q5_k(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 176], out| {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_and_min(&block[4..16], j);
            let (scale, min) = (d * scale, dmin * min);
            let start = 48 + 32 * (j / 2);
            let shift = 4 * (j % 2);
            for ((x, code), high) in out.iter_mut().zip(&block[start..start + 32]).zip(&block[16..48]) {
                let q = code >> shift & 15 | (high >> j & 1) << 4;
                *x = scale * f32::from(q) - min;
            }
        }
    });
}

pub(super) fn q6_k(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 210], out| {
        let d = half_at(block, 208);
        for (s, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(block[192 + s] as i8);
            let (half, quarter, part) = (s / 8, s / 2 % 4, 16 * (s % 2));
            let low = 64 * half + 32 * (quarter & 1) + part;
            let high = 128 + 32 * half + part;
            let shift = 4 * (quarter / 2);
            for ((x, low), high) in out.iter_mut().zip(&block[low..low + 16]).zip(&block[high..high + 16]) {
                let q = low >> shift & 15 | (high >> (2 * quarter) & 3) << 4;
                *x = scale * (f32::from(q) - 32.0);
            }
        }
    });
}

pub(super) fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 136], out| {
        let d = half_at(block, 0);
        let high = u16::from_le_bytes([block[2], block[3]]);
        for (b, out) in out.chunks_exact_mut(32).enumerate() {
            let low = block[4 + b / 2] >> (4 * (b % 2)) & 15;
            let scale = d * (f32::from(low | ((high >> (2 * b) & 3) << 4) as u8) - 32.0);
            let codes = &block[8 + 16 * b..24 + 16 * b];
            let (first, second) = out.split_at_mut(16);
            for ((first, second), code) in first.iter_mut().zip(second).zip(codes) {
                *first = scale * NON_LINEAR[usize::from(code & 15)];
                *second = scale * NON_LINEAR[usize::from(code >> 4)];
            }
        }
    });
}
