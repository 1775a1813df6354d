//! The portable definition of the lanes.

use turbospark_program::arithmetic::{LANES, reduce};

use super::Vector;

/// Lanes as a plain array; a compiler turns the loops into what vectors the target has.
#[derive(Clone, Copy)]
pub(crate) struct Array;

#[inline(always)]
fn map(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Vector for Array {
    type F = [f32; LANES];
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        *out = x;
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = a[i].mul_add(b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = if a[i] < b[i] { x[i] } else { y[i] };
        }
        out
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn copy_sign(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, f32::copysign)
    }
    #[inline(always)]
    fn power_of_two(self, n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits((n + (super::ROUND + 127.0)).to_bits() << 23))
    }
    #[inline(always)]
    fn widen_f16(self, x: &[u16; LANES]) -> Self::F {
        x.map(|x| half::f16::from_bits(x).to_f32_const())
    }
    #[inline(always)]
    fn to_f16(self, x: Self::F, out: &mut [u16; LANES]) {
        *out = x.map(|x| half::f16::from_f32_const(x).to_bits());
    }
    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> Self::F {
        x.map(f32::from)
    }
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        reduce(x)
    }
}
