//! Sixteen f32 lanes on every instruction set, with equal bits.
//!
//! Kernels that are not linear products are written once, generic over [`Vector`]; [`dispatch`] runs one in a
//! function compiled for the instruction set at hand. Each operation of a lane is one IEEE operation, so that
//! the instruction sets cannot differ.

mod array;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::{Isa, Level};

pub(crate) use turbospark_program::arithmetic::LANES;

/// Rounds a float below 2^22 to an integer (half to even) when added and subtracted again.
const ROUND: f32 = 12_582_912.0;

/// Operations on 16 lanes. A value of an implementing type proves that the machine has its instructions.
pub(crate) trait Vector: Copy {
    /// Sixteen lanes.
    type F: Copy;
    /// Whether there are registers for 24 sums and more.
    const WIDE: bool;
    /// Rows that are worked on at a time: the most whose sums fit into registers.
    const QUERIES: usize = if Self::WIDE { 6 } else { 2 };

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// a < b ? x : y; y where either is not a number.
    fn select_less(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// The magnitude of a with the sign of b.
    fn copy_sign(self, a: Self::F, b: Self::F) -> Self::F;
    /// 2^n for the integral n in -127 ..= 128; 0 for -127, infinity for 128.
    fn power_of_two(self, n: Self::F) -> Self::F;
    fn widen_f16(self, x: &[u16; LANES]) -> Self::F;
    /// Rounded to nearest even; what exceeds f16 becomes infinite.
    fn to_f16(self, x: Self::F, out: &mut [u16; LANES]);
    fn widen_i8(self, x: &[i8; LANES]) -> Self::F;
    /// The lanes added as [`turbospark_program::arithmetic::reduce`] does.
    fn sum(self, x: Self::F) -> f32;

    /// The larger; b where either is not a number.
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        self.select_less(b, a, a, b)
    }

    /// Rounded to an integer, half to even; magnitudes below 2^22.
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        let magic = self.splat(ROUND);
        self.sub(self.add(a, magic), magic)
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }

    /// The first lanes, zeros in the others.
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Self::F {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }

    /// Stores the first lanes.
    #[inline(always)]
    fn store_part(self, x: Self::F, out: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

/// Code that runs on any [`Vector`].
pub(crate) trait Kernel {
    /// What it gives back.
    type Output;
    /// The work; mark it `#[inline(always)]`, or it is not compiled for the instruction set.
    fn run<V: Vector>(self, v: V) -> Self::Output;
}

/// Runs a kernel with the vectors of `isa`.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a value of `Isa` exists only where its instructions do.
        Level::Avx512 => unsafe { x86::avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { x86::avx2(kernel) },
        _ => kernel.run(array::Array),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation on given lanes, as bits.
    struct Everything<'a>(&'a [f32; LANES], &'a [f32; LANES], &'a [f32; LANES]);

    impl Kernel for Everything<'_> {
        type Output = Vec<u32>;
        #[inline(always)]
        fn run<V: Vector>(self, v: V) -> Vec<u32> {
            let (a, b, c) = (v.load(self.0), v.load(self.1), v.load(self.2));
            let mut half = [0; LANES];
            v.to_f16(a, &mut half);
            let small = v.mul(b, v.splat(0.01));
            let results = [
                v.add(a, b),
                v.sub(a, b),
                v.mul(a, b),
                v.div(a, b),
                v.fma(a, b, c),
                v.select_less(a, b, b, c),
                v.max(a, b),
                v.abs(a),
                v.copy_sign(a, b),
                v.round(small),
                v.power_of_two(v.round(small)),
                v.widen_f16(&half),
                v.widen_i8(&[-128, -127, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 126, 127]),
                v.load_part(&self.0[..5]),
            ];
            let mut bits = vec![v.sum(b).to_bits(), v.largest(a).to_bits()];
            for result in results {
                let mut lanes = [0.0; LANES];
                v.store(result, &mut lanes);
                bits.extend(lanes.map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }));
            }
            bits
        }
    }

    #[test]
    fn instruction_sets_agree() {
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let exponent = (state >> 8) % 40;
            (state as f32 / 2.0f32.powi(32) - 0.5) * 2.0f32.powi(exponent as i32 - 20)
        };
        for case in 0..200 {
            let mut rows = [[0.0; LANES]; 3];
            rows.as_flattened_mut().iter_mut().for_each(|x| *x = random());
            // The sum is compared on `b`, which stays finite so that its bits are those of a number.
            rows[1].iter_mut().for_each(|x| *x = x.clamp(-10_000.0, 10_000.0));
            if case % 2 == 0 {
                rows[0][..6].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-42, 7e4]);
            }
            let expected = Everything(&rows[0], &rows[1], &rows[2]).run(array::Array);
            for isa in Isa::all() {
                let found = dispatch(isa, Everything(&rows[0], &rows[1], &rows[2]));
                assert_eq!(found, expected, "{isa}");
            }
        }
    }
}
