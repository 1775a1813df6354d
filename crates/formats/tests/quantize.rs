//! Rows to blocks: errors no larger than those of ggml's own quantizer, and values of the grid come back.

use half::f16;
use proptest::prelude::*;
use turbospark_formats::{Float, Format, MatrixLayout, MatrixRef, QUANTIZED, QuantizeError, quantize_row};

/// `n` values of a normal distribution (splitmix64, Box-Muller): tools/fixtures/quantizer_errors.py draws the same.
fn gaussian(n: usize) -> Vec<f32> {
    let mut state = 7u64;
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..n)
        .map(|_| {
            let (a, b) = (1.0 - uniform(), uniform());
            ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
        })
        .collect()
}

fn dequantize(format: Format, blocks: &[u8]) -> Vec<f32> {
    let columns = blocks.len() / format.block_bytes(0) * format.block();
    MatrixRef::new(&MatrixLayout::plain(format, 1, columns), &[blocks]).expect("whole blocks").to_f32()
}

fn quantize(format: Format, values: &[f32]) -> Result<Vec<u8>, QuantizeError> {
    let mut out = vec![0; format.row_bytes(0, values.len()).unwrap_or(0)];
    quantize_row(format, values, &mut out).map(|()| out)
}

/// What comes back for `values`.
fn round_trip(format: Format, values: &[f32]) -> Vec<f32> {
    dequantize(format, &quantize(format, values).expect("finite values of whole blocks"))
}

fn squared_error(values: &[f32], stored: &[f32]) -> f64 {
    values.iter().zip(stored).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

/// Root of the squared error over the root of the values' squares.
fn relative_error(values: &[f32], stored: &[f32]) -> f64 {
    (squared_error(values, stored) / squared_error(values, &vec![0.0; values.len()])).sqrt()
}

#[test]
fn no_worse_than_ggml() {
    let values = gaussian(1 << 18);
    // tools/fixtures/quantizer_errors.py, libggml-base 0.25.3.
    for (format, ggml) in [
        (Format::MXFP4, 0.114571),
        (Format::Q4_0, 0.085803),
        (Format::Q8_0, 0.005361),
        (Format::Q4_K, 0.071479),
    ] {
        let ours = relative_error(&values, &round_trip(format, &values));
        println!("{format}: {ours:.6}, ggml {ggml:.6}");
        assert!(ours <= ggml, "{format}: relative error {ours}, ggml's is {ggml}");
    }
}

/// The squared error of an MXFP4 block at one scale, by trying every code.
fn microscaling_error(values: &[f32], scale: u8) -> f64 {
    let mut codes = [0; 17];
    codes[0] = scale;
    for (j, code) in codes[1..].iter_mut().enumerate() {
        *code = j as u8 & 15;
    }
    let grid = dequantize(Format::MXFP4, &codes);
    values
        .iter()
        .map(|x| grid[..16].iter().map(|y| (f64::from(*x) - f64::from(*y)).powi(2)).fold(f64::MAX, f64::min))
        .sum()
}

#[test]
fn values_that_need_more_than_a_half_are_refused() {
    for format in [Format::Q4_0, Format::Q8_0, Format::Q4_K] {
        let mut values = vec![0.0; 2 * format.block()];
        values[format.block() + 3] = 1e9;
        let index = format.block();
        assert_eq!(quantize(format, &values), Err(QuantizeError::Range { format, index }));
    }
    assert_eq!(round_trip(Format::MXFP4, &[f32::MAX; 32]), [1.5 * 2f32.powi(127); 32]);
}

#[test]
fn bad_rows_are_named() {
    let format = Format::Q4_K;
    assert_eq!(
        quantize_row(format, &[0.0; 32], &mut [0; 18]),
        Err(QuantizeError::Length { format, block: 256, found: 32 })
    );
    assert_eq!(
        quantize_row(Format::Q4_0, &[0.0; 32], &mut [0; 17]),
        Err(QuantizeError::Output { format: Format::Q4_0, columns: 32, expected: 18, found: 17 })
    );
    let mut values = [0.0; 64];
    values[40] = f32::NEG_INFINITY;
    for format in [Format::Q4_0, Format::Q8_0, Format::MXFP4] {
        let value = f32::NEG_INFINITY;
        assert_eq!(quantize(format, &values), Err(QuantizeError::NotFinite { index: 40, value }));
    }
    for format in [Format::Float(Float::F16), Format::Mxfp4Split, Format::Q6_K] {
        assert_eq!(quantize_row(format, &[0.0; 256], &mut [0; 512]), Err(QuantizeError::Format(format)));
    }
    assert_eq!(quantize_row(Format::Q8_0, &[], &mut []), Ok(()));
}

/// A positive normal half from one of the scales that weights have, widened.
fn half(mantissa: u16, exponent: u16) -> u16 {
    ((exponent % 16 + 4) << 10) | mantissa & 1023
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_of_32_come_back(bytes: [[u8; 17]; 2], d: u16) {
        let codes = &bytes.concat()[..32];
        let q8 = [&d.to_le_bytes(), codes].concat();
        let q4 = [&d.to_le_bytes(), &codes[..16]].concat();
        let mx = [&codes[31..], &codes[..16]].concat();
        for (format, block) in [(Format::Q8_0, q8), (Format::Q4_0, q4), (Format::MXFP4, mx)] {
            let values = dequantize(format, &block);
            if values.iter().all(|x| x.is_finite()) {
                prop_assert_eq!(round_trip(format, &values), values);
            }
        }
    }

    #[test]
    fn blocks_of_q4_k_come_back(
        codes in prop::array::uniform32(any::<u32>()),
        packed: [u32; 3],
        d in (any::<u16>(), any::<u16>(), any::<bool>()),
        ratio in (any::<u16>(), -2i32..=3, any::<bool>()),
    ) {
        // Halves whose products differ without rounding: their exponents are near each other.
        let d_bits = half(d.0, d.1) | u16::from(d.2) << 15;
        let exponent = i32::from(d.1 % 16) + ratio.1;
        prop_assume!((0..16).contains(&exponent));
        let dmin_bits = half(ratio.0, exponent as u16) | u16::from(ratio.2) << 15;
        let mut block = [d_bits.to_le_bytes(), dmin_bits.to_le_bytes()].concat();
        block.extend(packed.iter().flat_map(|x| x.to_le_bytes()));
        block.extend(codes.iter().flat_map(|x| x.to_le_bytes()));
        let values = dequantize(Format::Q4_K, &block);
        prop_assert_eq!(round_trip(Format::Q4_K, &values), values);
    }

    #[test]
    fn the_scale_of_mxfp4_is_the_best(values in prop::array::uniform32(any::<i16>()), e in -30i32..20) {
        let values = values.map(|x| f32::from(x).powi(3) * 2f32.powi(e - 60));
        let ours = squared_error(&values, &round_trip(Format::MXFP4, &values));
        let best = (0..=254).map(|scale| microscaling_error(&values, scale)).fold(f64::MAX, f64::min);
        prop_assert!(ours <= best * (1.0 + 1e-9), "{ours:e}, possible {best:e}");
    }

    #[test]
    fn no_value_panics(bits in prop::collection::vec(any::<u32>(), 256), narrow: bool, shift in 0u32..9) {
        // Any bits at all, and bits whose exponents are near each other.
        let values: Vec<f32> = bits
            .iter()
            .map(|x| if narrow { x >> 9 << shift | (x & 1) << 31 | 0x3000_0000 } else { *x })
            .map(f32::from_bits)
            .collect();
        let finite: Vec<f32> = values.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect();
        for format in QUANTIZED {
            prop_assert_eq!(quantize(format, &values).is_err() && values == finite, {
                matches!(quantize(format, &finite), Err(QuantizeError::Range { .. })) && values == finite
            });
            if let Ok(blocks) = quantize(format, &finite) {
                let stored = dequantize(format, &blocks);
                prop_assert!(stored.iter().all(|x| x.is_finite()), "{format}");
                // Zeros can always be stored.
                let zeros = squared_error(&finite, &vec![0.0; finite.len()]);
                prop_assert!(squared_error(&finite, &stored) <= zeros * 1.000_001, "{format}");
            }
        }
    }
}

#[test]
fn subnormal_scales_and_signed_ends() {
    let smallest = f16::from_bits(1).to_f32();
    for (format, codes) in [(Format::Q8_0, [127.0, -128.0]), (Format::Q4_0, [7.0, -8.0])] {
        for scale in [smallest, -smallest, 0.25, -0.25, 65504.0] {
            let mut values = [0.0; 32];
            values[5] = codes[0] * scale;
            values[31] = codes[1] * scale;
            assert_eq!(round_trip(format, &values), values, "{format} at {scale:e}");
        }
    }
}
