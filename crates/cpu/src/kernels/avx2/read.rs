//! Reading panels into 256-bit vectors: eight of the sixteen rows each.

use std::arch::x86_64::*;

use turbospark_formats::Float;

use crate::kernels::spec::Spec;
use crate::panels::{DOUBLED_E2M1, Factors, Head, LANES, NON_LINEAR, QUADS, Values, planes};

/// What is added to the values of E2M1, to make them unsigned.
pub(super) const E2M1_OFFSET: u8 = 16;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load(bytes: &[u8], at: usize) -> __m256i {
    debug_assert!(at + 32 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_128(bytes: &[u8], at: usize) -> __m128i {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_64(bytes: &[u8], at: usize) -> __m128i {
    debug_assert!(at + 8 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().add(at).cast()) }
}

/// A word of a tile in all lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn word(x: &[u32], at: usize) -> __m256i {
    debug_assert!(at < x.len());
    // SAFETY: callers stay within the tile, as asserted.
    _mm256_set1_epi32(unsafe { *x.get_unchecked(at) } as i32)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn float(x: &[u32], at: usize) -> __m256 {
    _mm256_castsi256_ps(word(x, at))
}

/// Shifts right, or left where `bits` is negative, within 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift(v: __m256i, bits: isize) -> __m256i {
    match bits {
        0 => v,
        1 => _mm256_srli_epi16::<1>(v),
        2 => _mm256_srli_epi16::<2>(v),
        3 => _mm256_srli_epi16::<3>(v),
        4 => _mm256_srli_epi16::<4>(v),
        5 => _mm256_srli_epi16::<5>(v),
        6 => _mm256_srli_epi16::<6>(v),
        7 => _mm256_srli_epi16::<7>(v),
        -1 => _mm256_slli_epi16::<1>(v),
        -2 => _mm256_slli_epi16::<2>(v),
        -3 => _mm256_slli_epi16::<3>(v),
        _ => _mm256_slli_epi16::<4>(v),
    }
}

/// Unsigned weights of eight rows of a block, as `maddubs` takes them: a vector a quad, and eight more for the high
/// nibbles of weights of eight bits.
pub(super) type Weights = [__m256i; 2 * QUADS];

/// Whether weights have eight bits and come as nibbles, the low ones first.
pub(super) const fn is_wide<K: Spec>() -> bool {
    K::SHAPE.bits == 8 || matches!(K::SHAPE.values, Values::NonLinear)
}

/// Weights of eight rows of a block, `at` being where their part of its first plane begins: codes as they are, E2M1 with
/// its offset, non-linear values plus 128.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn weights<K: Spec>(panel: &[u8], at: usize, weights: &mut Weights) {
    macro_rules! quads {
        ($($q:literal)*) => {
            $(
                let [low, high] = quad::<K, $q>(panel, at);
                weights[$q] = low;
                if const { is_wide::<K>() } {
                    weights[QUADS + $q] = high;
                }
            )*
        };
    }
    quads!(0 1 2 3 4 5 6 7);
}

/// Quad Q; the second vector is of high nibbles, or not used.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad<K: Spec, const Q: usize>(panel: &[u8], at: usize) -> [__m256i; 2] {
    let (low, high) = const { planes(K::SHAPE.bits) };
    let fold = 8 / low;
    let w = load(panel, at + 64 * (Q / fold));
    let nibble = _mm256_set1_epi8(15);
    if low == 8 {
        return [_mm256_and_si256(w, nibble), _mm256_and_si256(shift(w, 4), nibble)];
    }
    let mask = _mm256_set1_epi8(((1u32 << low) - 1) as i8);
    let w = _mm256_and_si256(shift(w, (low * (Q % fold)) as isize), mask);
    if let Some(fold) = 8usize.checked_div(high) {
        let plane = load(panel, at + 64 * (low + Q / fold));
        let mask = _mm256_set1_epi8((((1u32 << high) - 1) << low) as i8);
        let bits = (high * (Q % fold)) as isize - low as isize;
        return [_mm256_or_si256(w, _mm256_and_si256(shift(plane, bits), mask)); 2];
    }
    let look_up = |table: &[i8; 16]| {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), w)
    };
    match K::SHAPE.values {
        Values::E2m1 => [look_up(const { &map(DOUBLED_E2M1, E2M1_OFFSET, 0, 255) }); 2],
        Values::NonLinear => {
            [look_up(const { &map(NON_LINEAR, 128, 0, 15) }), look_up(const { &map(NON_LINEAR, 128, 4, 15) })]
        }
        _ => [w; 2],
    }
}

/// Values plus an offset, of which some bits are taken.
const fn map(mut values: [i8; 16], offset: u8, shift: u32, mask: u8) -> [i8; 16] {
    let mut i = 0;
    while i < 16 {
        values[i] = ((values[i] as u8).wrapping_add(offset) >> shift & mask) as i8;
        i += 1;
    }
    values
}

/// Eight floats of a panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(float: Float, panel: &[u8], at: usize) -> __m256 {
    match float {
        Float::F32 => _mm256_castsi256_ps(load(panel, at)),
        Float::F16 => _mm256_cvtph_ps(load_128(panel, at)),
        Float::BF16 => {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_128(panel, at))))
        }
    }
}

/// Scales and addends of eight rows, the second eight if `part` is 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn read_head(head: Head, panel: &[u8], at: usize, part: usize) -> (__m256, __m256) {
    match head {
        Head::E8m0 => {
            let e = _mm256_cvtepu8_epi32(load_64(panel, at + 8 * part));
            // 2^(e - 127) and, for 0, its subnormal; halved, because the values are doubled.
            let bits = _mm256_max_epu32(_mm256_slli_epi32::<23>(e), _mm256_set1_epi32(1 << 22));
            let scale = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5));
            let nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
            (_mm256_blendv_ps(scale, _mm256_set1_ps(f32::NAN), nan), _mm256_setzero_ps())
        }
        Head::Scale(float) => (floats(float, panel, at + 8 * float.bytes() * part), _mm256_setzero_ps()),
        Head::Pair(float) => {
            let at = at + 8 * float.bytes() * part;
            (floats(float, panel, at), floats(float, panel, at + LANES * float.bytes()))
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unsigned(bytes: __m128i) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed(bytes: __m128i) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
}

/// Scale and addend of eight rows of a half of a block, or of the block; `at` is where their part of its factors begins.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scales<K: Spec>(
    head: (__m256, __m256),
    panel: &[u8],
    at: usize,
    half: usize,
) -> (__m256, __m256) {
    match K::SHAPE.factors {
        Factors::None => head,
        Factors::Signed => (_mm256_mul_ps(head.0, signed(load_64(panel, at))), head.1),
        Factors::SignedHalves => (_mm256_mul_ps(head.0, signed(load_64(panel, at + half * LANES))), head.1),
        Factors::Pair => (
            _mm256_mul_ps(head.0, unsigned(load_64(panel, at))),
            _mm256_mul_ps(head.1, unsigned(load_64(panel, at + LANES))),
        ),
        Factors::NibbleHalves => {
            let both = _mm256_cvtepu8_epi32(load_64(panel, at + half * LANES));
            let low = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)));
            let high = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(both));
            (_mm256_mul_ps(head.0, low), _mm256_mul_ps(head.1, high))
        }
    }
}
