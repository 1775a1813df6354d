//! ggml blocks of 32 elements. Byte j of the codes holds element j in its low and j + 16 in its high nibble.

use super::{NON_LINEAR, half_at};

#[inline]
fn blocks<const N: usize>(bytes: &[u8], out: &mut [f32], one: impl Fn(&[u8; N], &mut [f32; 32])) {
    for (block, out) in bytes.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        one(block, out);
    }
}

/// Calls `value` with the element's index and its four-bit code.
#[inline]
fn nibbles(codes: &[u8], out: &mut [f32; 32], value: impl Fn(usize, u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (j, ((low, high), code)) in low.iter_mut().zip(high).zip(codes).enumerate() {
        *low = value(j, code & 15);
        *high = value(j + 16, code >> 4);
    }
}

/// The fifth bit of element `i`, in its place.
#[inline]
fn fifth(bits: u32, i: usize) -> u8 {
    ((bits >> i & 1) << 4) as u8
}

pub(super) fn q4_0(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 18], out| {
        let d = half_at(block, 0);
        nibbles(&block[2..], out, |_, q| d * (f32::from(q) - 8.0));
    });
}

pub(super) fn q4_1(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 20], out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        nibbles(&block[4..], out, |_, q| d * f32::from(q) + m);
    });
}

pub(super) fn q5_0(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 22], out| {
        let d = half_at(block, 0);
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        nibbles(&block[6..], out, |i, q| d * (f32::from(q | fifth(high, i)) - 16.0));
    });
}

pub(super) fn q5_1(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 24], out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        nibbles(&block[8..], out, |i, q| d * f32::from(q | fifth(high, i)) + m);
    });
}

pub(super) fn q8_0(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 34], out| {
        let d = half_at(block, 0);
        for (x, q) in out.iter_mut().zip(&block[2..]) {
            *x = d * f32::from(*q as i8);
        }
    });
}

pub(super) fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    blocks(bytes, out, |block: &[u8; 18], out| {
        let d = half_at(block, 0);
        nibbles(&block[2..], out, |_, q| d * NON_LINEAR[usize::from(q)]);
    });
}
