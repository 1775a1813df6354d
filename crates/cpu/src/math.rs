//! exp, tanh, sigmoid and what is made of them: one polynomial each, the same on every instruction set.
//!
//! Largest errors found over all of the range that is tested, in units of the last place: exp 1.0, sigmoid 2.3,
//! tanh 1.5 (see the tests).

// The constants are the coefficients of Cephes' expf and tanhf in full.
#![allow(clippy::excessive_precision)]

use std::f32::consts::LOG2_E;

use crate::vector::Vector;

/// ln 2 in two parts, the first short enough that its product with a whole number of eight bits is exact.
const LN_2_HIGH: f32 = 0.693_359_375;
const LN_2_LOW: f32 = -2.121_944_40e-4;

/// e^x; 0 below -87, and held at e^88 above 88.
#[inline(always)]
pub(crate) fn exp<V: Vector>(v: V, x: V::F) -> V::F {
    let top = v.splat(88.0);
    let x = v.select_less(top, x, top, x);
    let n = v.round(v.mul(x, v.splat(LOG2_E)));
    let r = v.fma(n, v.splat(-LN_2_HIGH), x);
    let r = v.fma(n, v.splat(-LN_2_LOW), r);
    let mut p = v.splat(1.987_569_150_0e-4);
    for c in
        [1.398_199_950_7e-3, 8.333_451_907_3e-3, 4.166_579_589_4e-2, 1.666_666_545_9e-1, 5.000_000_120_1e-1]
    {
        p = v.fma(p, r, v.splat(c));
    }
    let y = v.add(v.fma(p, v.mul(r, r), r), v.splat(1.0));
    let y = v.mul(y, v.power_of_two(n));
    v.select_less(x, v.splat(-87.0), v.splat(0.0), y)
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(crate) fn sigmoid<V: Vector>(v: V, x: V::F) -> V::F {
    let one = v.splat(1.0);
    v.div(one, v.add(one, exp(v, v.sub(v.splat(0.0), x))))
}

/// Hyperbolic tangent: an odd polynomial below 0.625, 1 - 2 / (e^2x + 1) above.
#[inline(always)]
pub(crate) fn tanh<V: Vector>(v: V, x: V::F) -> V::F {
    let a = v.abs(x);
    let one = v.splat(1.0);
    let large = v.sub(one, v.div(v.splat(2.0), v.add(exp(v, v.add(a, a)), one)));
    let z = v.mul(x, x);
    let mut p = v.splat(-5.704_988_727_45e-3);
    for c in [2.063_908_879_54e-2, -5.373_971_555_31e-2, 1.333_144_220_36e-1, -3.333_328_194_22e-1] {
        p = v.fma(p, z, v.splat(c));
    }
    let small = v.fma(v.mul(p, z), x, x);
    v.select_less(a, v.splat(0.625), small, v.copy_sign(large, x))
}

/// x times the sigmoid of twice y = sqrt(2 / pi) (x + 0.044715 x^3), which is x (1 + tanh y) / 2.
#[inline(always)]
pub(crate) fn gelu<V: Vector>(v: V, x: V::F) -> V::F {
    let cubic = v.fma(v.mul(x, x), v.splat(0.044_715), v.splat(1.0));
    let y2 = v.mul(v.mul(x, v.splat(1.595_769_121_6)), cubic);
    v.mul(x, sigmoid(v, y2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::vector::{Kernel, LANES, dispatch};

    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        Sigmoid,
        Tanh,
        Gelu,
    }

    struct Apply(Function, [f32; LANES]);

    impl Kernel for Apply {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<V: Vector>(self, v: V) -> [f32; LANES] {
            let x = v.load(&self.1);
            let y = match self.0 {
                Function::Exp => exp(v, x),
                Function::Sigmoid => sigmoid(v, x),
                Function::Tanh => tanh(v, x),
                Function::Gelu => gelu(v, x),
            };
            let mut out = [0.0; LANES];
            v.store(y, &mut out);
            out
        }
    }

    /// The largest error in units of the last place of the exact value, and that all instruction sets agree.
    fn error(function: Function, exact: impl Fn(f64) -> f64, range: (f32, f32), steps: usize) -> f64 {
        let mut worst = 0.0f64;
        for first in (0..steps).step_by(LANES) {
            let x: [f32; LANES] =
                std::array::from_fn(|i| range.0 + (range.1 - range.0) * ((first + i) as f32 / steps as f32));
            let y = dispatch(Isa::detect(), Apply(function, x));
            if first % (LANES * 64) == 0 {
                for isa in Isa::all() {
                    assert_eq!(dispatch(isa, Apply(function, x)).map(f32::to_bits), y.map(f32::to_bits));
                }
            }
            for (x, y) in x.into_iter().zip(y) {
                let exact = exact(x as f64);
                let unit = 2.0f64.powi((exact.abs().log2().floor() as i32).max(-126) - 23);
                worst = worst.max((y as f64 - exact).abs() / unit);
            }
        }
        worst
    }

    #[test]
    fn errors_are_within_units_of_the_last_place() {
        let n = 1 << 18;
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let bounds = [
            (error(Function::Exp, f64::exp, (-86.9, 88.0), n), 1.0),
            (error(Function::Exp, f64::exp, (-1.0, 1.0), n), 1.0),
            (error(Function::Sigmoid, sigmoid, (-80.0, 80.0), n), 2.3),
            (error(Function::Sigmoid, sigmoid, (-2.0, 2.0), n), 2.3),
            (error(Function::Tanh, f64::tanh, (-20.0, 20.0), n), 1.5),
            (error(Function::Tanh, f64::tanh, (-0.7, 0.7), n), 1.5),
        ];
        for (i, (found, bound)) in bounds.into_iter().enumerate() {
            assert!(found <= bound, "{i}: {found} > {bound}");
        }
        // Where the exponent is large its rounding counts: the error is relative to the slope there.
        let gelu = |x: f64| {
            let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x * sigmoid(2.0 * y)
        };
        assert!(error(Function::Gelu, gelu, (-1.0, 8.0), n) <= 4.0);
        assert!(error(Function::Gelu, gelu, (-4.0, -1.0), n) <= 24.0);
    }

    #[test]
    fn ends_of_the_range() {
        let mut x = [0.0; LANES];
        x[..8].copy_from_slice(&[f32::NEG_INFINITY, -1e30, -88.0, f32::INFINITY, 1e30, f32::NAN, 0.0, -0.0]);
        let y = dispatch(Isa::detect(), Apply(Function::Exp, x));
        assert_eq!(&y[..3], &[0.0; 3]);
        assert!(y[3] == y[4] && y[3].is_finite() && y[3] > 1e38 && y[5].is_nan());
        assert_eq!(&y[6..8], &[1.0, 1.0]);
        let y = dispatch(Isa::detect(), Apply(Function::Tanh, x));
        assert_eq!((y[0], y[1], y[3], y[4], y[6]), (-1.0, -1.0, 1.0, 1.0, 0.0));
        assert!(y[5].is_nan());
        let y = dispatch(Isa::detect(), Apply(Function::Sigmoid, x));
        assert!(y[0] >= 0.0 && y[0] < 1e-38 && y[3] == 1.0 && y[5].is_nan());
    }
}
