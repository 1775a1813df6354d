//! The lanes in one AVX-512 register or two of AVX2.

use std::arch::x86_64::*;

use turbospark_program::arithmetic::LANES;

use super::{Kernel, ROUND, Vector};

/// Proof of AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Runs a kernel compiled for AVX-512.
///
/// # Safety
///
/// The machine has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// Runs a kernel compiled for AVX2.
///
/// # Safety
///
/// The machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

// SAFETY (of every block in this file): a value of `Avx512` or `Avx2` is made only by the functions above, whose
// callers have checked for the instructions; loads and stores are on arrays of the vector's size.

/// a + b of the halves at distance 4, 2, 1.
#[inline(always)]
fn sum8(x: __m256) -> f32 {
    // SAFETY: see the top of the file.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        let x = _mm_add_ss(x, _mm_shuffle_ps(x, x, 1));
        _mm_cvtss_f32(x)
    }
}

impl Vector for Avx512 {
    type F = __m512;
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; LANES]) {
        // SAFETY: see the top of the file.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn select_less(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn copy_sign(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b))
        }
    }
    #[inline(always)]
    fn power_of_two(self, n: __m512) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe {
            let biased = _mm512_castps_si512(_mm512_add_ps(n, _mm512_set1_ps(ROUND + 127.0)));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn widen_f16(self, x: &[u16; LANES]) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn to_f16(self, x: __m512, out: &mut [u16; LANES]) {
        // SAFETY: see the top of the file.
        unsafe {
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), half);
        }
    }
    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> __m512 {
        // SAFETY: see the top of the file.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        // SAFETY: see the top of the file.
        unsafe { sum8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))) }
    }
}

/// Lanes 0 to 7 and 8 to 15.
type Pair = (__m256, __m256);

impl Vector for Avx2 {
    type F = Pair;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: see the top of the file.
        let x = unsafe { _mm256_set1_ps(x) };
        (x, x)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Pair {
        let (low, high) = x.split_at(8);
        // SAFETY: see the top of the file.
        unsafe { (_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())) }
    }
    #[inline(always)]
    fn store(self, x: Pair, out: &mut [f32; LANES]) {
        let (low, high) = out.split_at_mut(8);
        // SAFETY: see the top of the file.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), x.0);
            _mm256_storeu_ps(high.as_mut_ptr(), x.1);
        }
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn select_less(self, a: Pair, b: Pair, x: Pair, y: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe {
            (
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn abs(self, a: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            (_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        }
    }
    #[inline(always)]
    fn copy_sign(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the top of the file.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            (
                _mm256_or_ps(_mm256_andnot_ps(sign, a.0), _mm256_and_ps(sign, b.0)),
                _mm256_or_ps(_mm256_andnot_ps(sign, a.1), _mm256_and_ps(sign, b.1)),
            )
        }
    }
    #[inline(always)]
    fn power_of_two(self, n: Pair) -> Pair {
        let biased = self.add(n, self.splat(ROUND + 127.0));
        // SAFETY: see the top of the file.
        unsafe {
            (
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(biased.0))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(biased.1))),
            )
        }
    }
    #[inline(always)]
    fn widen_f16(self, x: &[u16; LANES]) -> Pair {
        let (low, high) = x.split_at(8);
        // SAFETY: see the top of the file.
        unsafe {
            (
                _mm256_cvtph_ps(_mm_loadu_si128(low.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(high.as_ptr().cast())),
            )
        }
    }
    #[inline(always)]
    fn to_f16(self, x: Pair, out: &mut [u16; LANES]) {
        let (low, high) = out.split_at_mut(8);
        // SAFETY: see the top of the file.
        unsafe {
            _mm_storeu_si128(low.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x.0));
            _mm_storeu_si128(high.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x.1));
        }
    }
    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> Pair {
        let (low, high) = x.split_at(8);
        // SAFETY: see the top of the file.
        unsafe {
            (
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(low.as_ptr().cast()))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(high.as_ptr().cast()))),
            )
        }
    }
    #[inline(always)]
    fn sum(self, x: Pair) -> f32 {
        // SAFETY: see the top of the file.
        sum8(unsafe { _mm256_add_ps(x.0, x.1) })
    }
}
