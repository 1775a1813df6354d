//! Reading panels into 512-bit vectors.

use std::arch::x86_64::*;

use turbospark_formats::Float;

use crate::kernels::spec::Spec;
use crate::panels::{DOUBLED_E2M1, Factors, Head, LANES, NON_LINEAR, Shape, Values, planes};

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn load(bytes: &[u8], at: usize) -> __m512i {
    debug_assert!(at + 64 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().add(at).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn load_256(bytes: &[u8], at: usize) -> __m256i {
    debug_assert!(at + 32 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn load_128(bytes: &[u8], at: usize) -> __m128i {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) }
}

/// A word of a tile in all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn word(x: &[u32], at: usize) -> __m512i {
    debug_assert!(at < x.len());
    // SAFETY: callers stay within the tile, as asserted.
    _mm512_set1_epi32(unsafe { *x.get_unchecked(at) } as i32)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn float(x: &[u32], at: usize) -> __m512 {
    _mm512_castsi512_ps(word(x, at))
}

/// Four copies of 16 signed values plus 128, for lookup by the low six bits of a byte.
const fn biased_table(values: [i8; 16]) -> [u8; 64] {
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        table[i] = values[i % 16] as u8 ^ 0x80;
        i += 1;
    }
    table
}

/// What a nibble stands for plus 128; for kinds of four bits.
const fn nibble_table(values: Values) -> [u8; 64] {
    match values {
        Values::E2m1 => biased_table(DOUBLED_E2M1),
        Values::NonLinear => biased_table(NON_LINEAR),
        Values::Offset(_) | Values::Unsigned => {
            let mut signed = [0; 16];
            let mut i = 0;
            while i < 16 {
                signed[i] = (i as u8).wrapping_add(bias(values) ^ 0x80) as i8;
                i += 1;
            }
            biased_table(signed)
        }
    }
}

/// What makes a code a value plus 128.
const fn bias(values: Values) -> u8 {
    match values {
        Values::Offset(offset) => 128 - offset,
        _ => 0,
    }
}

/// The bits of the high plane in their place, biased, for lookup by a byte that has them lowest.
const fn high_table(shape: Shape) -> [u8; 64] {
    let (low, high) = planes(shape.bits);
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        table[i] = ((i & ((1 << high) - 1)) << (low % 8)) as u8 + bias(shape.values);
        i += 1;
    }
    table
}

/// Bits of `a` under `mask`, all other bits from `b`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn merge(a: __m512i, b: __m512i, mask: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xd8>(b, a, mask)
}

/// Vector Q of a block as unsigned bytes: code values, plus 128 where they are signed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn vector<K: Spec, const Q: usize>(panels: &[u8], at: usize) -> __m512i {
    let (low, high) = const { planes(K::SHAPE.bits) };
    let mask = _mm512_set1_epi8(((1u32 << low) - 1) as u8 as i8);
    let fold = 8 / low;
    // Bits above the code are left where a lookup or a merge does not see them.
    let w = shift_right(load(panels, at + 64 * (Q / fold)), low * (Q % fold));
    if let Some(fold) = 8usize.checked_div(high) {
        let plane = load(panels, at + 64 * (low + Q / fold));
        let values = load(const { &high_table(K::SHAPE) }, 0);
        merge(w, _mm512_permutexvar_epi8(shift_right(plane, high * (Q % fold)), values), mask)
    } else if low == 4 && !matches!(K::SHAPE.values, Values::Unsigned) {
        _mm512_permutexvar_epi8(w, load(const { &nibble_table(K::SHAPE.values) }, 0))
    } else if low < 8 {
        _mm512_and_si512(w, mask)
    } else {
        w
    }
}

/// Shifts right; bits come in from the neighbouring byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn shift_right(v: __m512i, bits: usize) -> __m512i {
    match bits {
        0 => v,
        1 => _mm512_srli_epi16::<1>(v),
        2 => _mm512_srli_epi16::<2>(v),
        3 => _mm512_srli_epi16::<3>(v),
        4 => _mm512_srli_epi16::<4>(v),
        5 => _mm512_srli_epi16::<5>(v),
        6 => _mm512_srli_epi16::<6>(v),
        _ => _mm512_srli_epi16::<7>(v),
    }
}

/// 16 floats of a panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn floats(float: Float, panel: &[u8], at: usize) -> __m512 {
    match float {
        Float::F32 => _mm512_castsi512_ps(load(panel, at)),
        Float::F16 => _mm512_cvtph_ps(load_256(panel, at)),
        Float::BF16 => {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_256(panel, at))))
        }
    }
}

/// A place in the first panel and, `stride` further, in the next.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub panels: &'a [u8],
    pub at: usize,
    pub stride: usize,
}

/// Scales and addends of a group; the addend is not used where a kind has none.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn read_head(head: Head, panel: &[u8], at: usize) -> (__m512, __m512) {
    let none = _mm512_setzero_ps();
    match head {
        Head::E8m0 => {
            let e = _mm512_cvtepu8_epi32(load_128(panel, at));
            // 2^(e - 127) and, for 0, its subnormal; halved, because the values are doubled.
            let bits = _mm512_max_epu32(_mm512_slli_epi32::<23>(e), _mm512_set1_epi32(1 << 22));
            let scale = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5));
            let nan = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
            (_mm512_mask_mov_ps(scale, nan, _mm512_set1_ps(f32::NAN)), none)
        }
        Head::Scale(float) => (floats(float, panel, at), none),
        Head::Pair(float) => (floats(float, panel, at), floats(float, panel, at + head.bytes() / 2)),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn read_heads<const P: usize>(head: Head, place: Place<'_>) -> [(__m512, __m512); P] {
    let mut heads = [(_mm512_setzero_ps(), _mm512_setzero_ps()); P];
    for (p, of_panel) in heads.iter_mut().enumerate() {
        *of_panel = read_head(head, place.panels, place.at + p * place.stride);
    }
    heads
}

/// Sixteen bytes as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn unsigned(bytes: __m128i) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn signed(bytes: __m128i) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
}

/// Scale and addend of a half of a block, or of the block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn scales<K: Spec>(
    head: (__m512, __m512),
    panel: &[u8],
    at: usize,
    half: usize,
) -> (__m512, __m512) {
    match K::SHAPE.factors {
        Factors::None => head,
        Factors::Signed => (_mm512_mul_ps(head.0, signed(load_128(panel, at))), head.1),
        Factors::SignedHalves => (_mm512_mul_ps(head.0, signed(load_128(panel, at + half * LANES))), head.1),
        Factors::Pair => (
            _mm512_mul_ps(head.0, unsigned(load_128(panel, at))),
            _mm512_mul_ps(head.1, unsigned(load_128(panel, at + LANES))),
        ),
        Factors::NibbleHalves => {
            let both = _mm512_cvtepu8_epi32(load_128(panel, at + half * LANES));
            let low = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
            let high = _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(both));
            (_mm512_mul_ps(head.0, low), _mm512_mul_ps(head.1, high))
        }
    }
}
