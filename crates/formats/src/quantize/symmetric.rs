//! Q4_0 and Q8_0: one scale for 32 codes around zero.

use half::f16;

use super::{TooLarge, nearest, pack_nibbles};

/// The codes that a scale multiplies.
struct Range {
    low: f32,
    high: f32,
}

/// The codes of `values` at `scale` and the squared error.
#[inline]
fn codes(values: &[f32; 32], scale: f32, range: &Range) -> ([f32; 32], f32) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut codes = [0.0; 32];
    let mut errors = [0.0; 8];
    for (codes, values) in codes.as_chunks_mut::<8>().0.iter_mut().zip(values.as_chunks::<8>().0) {
        for ((code, x), error) in codes.iter_mut().zip(values).zip(&mut errors) {
            *code = nearest((x * inverse).max(range.low).min(range.high));
            let off = x - scale * *code;
            *error += off * off;
        }
    }
    (codes, errors.iter().sum())
}

/// The scale at which every value is a code exactly, if there is one.
fn grid(values: &[f32; 32], peak: f32, range: &Range) -> Option<f32> {
    for n in 1..=-range.low as i32 {
        // A negative scale reaches one further up.
        for code in [n as f32, -n as f32] {
            let scale = peak / code;
            let exact = code <= range.high && f16::from_f32(scale).to_f32() == scale && scale * code == peak;
            let on = |x: &f32| {
                let code = nearest((x / scale).max(range.low).min(range.high));
                scale * code == *x
            };
            if exact && values.iter().all(on) {
                return Some(scale);
            }
        }
    }
    None
}

/// The scale and the codes of the least error that was found. `targets` are where the value of the largest
/// magnitude is put; each is refined once, to the scale that is best for its codes.
fn fit(values: &[f32; 32], range: &Range, targets: &[f32]) -> Result<(f16, [f32; 32]), TooLarge> {
    let peak = values.iter().fold(0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    if (peak / range.low).abs() > f16::MAX.to_f32() {
        return Err(TooLarge);
    }
    if let Some(scale) = grid(values, peak, range) {
        return Ok((f16::from_f32(scale), codes(values, scale, range).0));
    }
    let mut best = (f32::INFINITY, f16::ZERO, [0.0; 32]);
    let mut consider = |scale: f32| {
        let half = f16::from_f32(scale);
        let (codes, error) = codes(values, half.to_f32(), range);
        if half.is_finite() && error < best.0 {
            best = (error, half, codes);
        }
        codes
    };
    for target in targets {
        let codes = consider(peak / target);
        let (mut product, mut square) = (0.0, 0.0);
        for (x, code) in values.iter().zip(&codes) {
            product += x * code;
            square += code * code;
        }
        if square > 0.0 {
            consider(product / square);
        }
    }
    Ok((best.1, best.2))
}

pub(super) fn q4_0(values: &[f32; 32], out: &mut [u8; 18]) -> Result<(), TooLarge> {
    const TARGETS: [f32; 16] =
        [-8.0, -8.9, -8.6, -8.4, -8.2, -7.8, -7.6, -7.4, -7.2, -7.0, -6.6, 7.8, 7.4, 7.0, 6.6, 6.2];
    let (scale, codes) = fit(values, &Range { low: -8.0, high: 7.0 }, &TARGETS)?;
    out[..2].copy_from_slice(&scale.to_le_bytes());
    pack_nibbles(&codes.map(|code| (code + 8.0) as u8), &mut out[2..]);
    Ok(())
}

pub(super) fn q8_0(values: &[f32; 32], out: &mut [u8; 34]) -> Result<(), TooLarge> {
    let (scale, codes) = fit(values, &Range { low: -128.0, high: 127.0 }, &[127.0, -128.0, 127.4, 126.6])?;
    out[..2].copy_from_slice(&scale.to_le_bytes());
    for (byte, code) in out[2..].iter_mut().zip(codes) {
        *byte = code as i8 as u8;
    }
    Ok(())
}
