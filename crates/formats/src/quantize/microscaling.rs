//! MXFP4: the best of the scales that can be best.

use super::{TooLarge, pack_nibbles};

/// Magnitudes of the codes 0 to 7.
const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The largest scale byte: with it a six is still a finite f32.
const LARGEST: i32 = 252;

/// The code nearest to `x` and the squared error; halves go to the smaller magnitude.
#[inline]
fn nearest(x: f64) -> (u8, f64) {
    let magnitude = x.abs();
    let code = MAGNITUDES.windows(2).filter(|pair| magnitude > (pair[0] + pair[1]) / 2.0).count();
    let error = magnitude - MAGNITUDES[code];
    (code as u8 | u8::from(x < 0.0) << 3, error * error)
}

pub(super) fn mxfp4(values: &[f32; 32], out: &mut [u8; 17]) -> Result<(), TooLarge> {
    let largest = f64::from(values.iter().fold(0f32, |m, x| m.max(x.abs())));
    *out = [0; 17];
    if largest == 0.0 {
        return Ok(());
    }
    // With the largest magnitude in [2^k, 2^(k + 1)), the scale 2^(k - 2) puts it in [4, 8). 2^(k - 1) holds all
    // of it that a larger scale could; below 2^(k - 3) clipping it costs more than a finer grid can save.
    let k = ((largest.to_bits() >> 52) as i32) - 1023;
    let mut least = f64::INFINITY;
    for scale in [k - 2, k - 1, k - 3] {
        let byte = (scale + 127).clamp(0, LARGEST);
        let size = f64::from_bits(((byte - 127 + 1023) as u64) << 52);
        let mut codes = [0; 32];
        let mut error = 0.0;
        for (code, x) in codes.iter_mut().zip(values) {
            let (nearest, squared) = nearest(f64::from(*x) / size);
            *code = nearest;
            error += squared;
        }
        let error = error * size * size;
        if error < least {
            least = error;
            out[0] = byte as u8;
            pack_nibbles(&codes, &mut out[1..]);
        }
    }
    Ok(())
}
