//! Plain floating-point elements.

use crate::Float;

/// An IEEE binary16 as f32, without a branch, so that loops over it vectorise.
#[inline]
pub(super) fn half(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    // Shifted into place the exponent is short by 112; the product also normalises subnormals, exactly.
    let finite = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    let special = 0x7f80_0000 | (magnitude << 13);
    let value = if magnitude < 0x7c00 { finite.to_bits() } else { special };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

#[inline]
fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// One element; `bytes` is as long as the type.
#[inline]
pub(super) fn element(float: Float, bytes: &[u8]) -> f32 {
    match float {
        Float::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        Float::F16 => half(u16::from_le_bytes([bytes[0], bytes[1]])),
        Float::BF16 => brain(u16::from_le_bytes([bytes[0], bytes[1]])),
    }
}

pub(super) fn f32_row(bytes: &[u8], out: &mut [f32]) {
    for (x, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *x = element(Float::F32, b);
    }
}

pub(super) fn f16_row(bytes: &[u8], out: &mut [f32]) {
    for (x, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *x = element(Float::F16, b);
    }
}

pub(super) fn bf16_row(bytes: &[u8], out: &mut [f32]) {
    for (x, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *x = element(Float::BF16, b);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_half_is_exact() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (super::half(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#06x}");
        }
    }
}
