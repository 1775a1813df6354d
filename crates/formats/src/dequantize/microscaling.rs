//! MXFP4: E2M1 codes that share an E8M0 scale in blocks of 32.

/// The values of E2M1 codes; 8 is minus zero.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// 2^(byte - 127): 0 is the subnormal 2^-127, 255 is NaN.
#[inline]
pub(super) fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        e => f32::from_bits(u32::from(e) << 23),
    }
}

/// ggml: the scale, then elements j and j + 16 in byte j.
pub(super) fn mxfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.as_chunks::<17>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let scale = e8m0(block[0]);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), code) in low.iter_mut().zip(high).zip(&block[1..]) {
            *low = scale * E2M1[usize::from(code & 15)];
            *high = scale * E2M1[usize::from(code >> 4)];
        }
    }
}

/// Hugging Face and MLX: elements 2b and 2b + 1 in byte b, scales apart.
pub(super) fn mxfp4_split(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    for ((block, scale), out) in codes.as_chunks::<16>().0.iter().zip(scales).zip(out.as_chunks_mut::<32>().0)
    {
        let scale = e8m0(*scale);
        for (pair, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(block) {
            *pair = [scale * E2M1[usize::from(code & 15)], scale * E2M1[usize::from(code >> 4)]];
        }
    }
}
