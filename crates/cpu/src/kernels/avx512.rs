//! AVX-512 with VNNI and VBMI: a lane of a 512-bit vector is an output row.
//!
//! `dpbusd` multiplies unsigned weights with signed activations. A kind whose values are signed is unpacked to values
//! plus 128, and its sums start at the correction, -128 times the sum of the activations; the sums are exact.

use std::arch::x86_64::*;

use turbospark_formats::Float;

use super::spec::{Spec, select};
use super::{Kernel, Results, Task};
use crate::activations::{BLOCK_WORDS, HALVES_WORDS};
use crate::panels::{
    DOUBLED_E2M1, Factors, Head, LANES, NON_LINEAR, PanelKind, QUADS, Shape, Values, planes,
};

/// The kernel for one kind and number of rows.
pub(super) fn kernel(kind: PanelKind, rows: usize) -> Kernel {
    select!(kind, rows, blocks, dense_of)
}

fn dense_of<const R: usize>(float: Float) -> Kernel {
    match float {
        Float::F32 => dense::<0, R>,
        Float::F16 => dense::<1, R>,
        Float::BF16 => dense::<2, R>,
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn load(bytes: &[u8], at: usize) -> __m512i {
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
fn word(x: &[u32], at: usize) -> __m512i {
    debug_assert!(at < x.len());
    // SAFETY: callers stay within the tile, as asserted.
    _mm512_set1_epi32(unsafe { *x.get_unchecked(at) } as i32)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn float(x: &[u32], at: usize) -> __m512 {
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

/// The eight vectors of a block as unsigned bytes: code values, plus 128 where they are signed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn unpack<K: Spec>(panel: &[u8], at: usize) -> [__m512i; QUADS] {
    let (low, high) = const { planes(K::SHAPE.bits) };
    let mut w = [_mm512_setzero_si512(); QUADS];
    let mask = _mm512_set1_epi8(((1u32 << low) - 1) as u8 as i8);
    // Bits above the code are left where a lookup or a merge does not see them.
    let fold = 8 / low;
    for j in 0..low {
        let v = load(panel, at + 64 * j);
        for i in 0..fold {
            w[fold * j + i] = shift_right(v, low * i);
        }
    }
    if high > 0 {
        let values = load(const { &high_table(K::SHAPE) }, 0);
        let fold = 8 / high;
        for (q, w) in w.iter_mut().enumerate() {
            let plane = load(panel, at + 64 * (low + q / fold));
            *w = merge(*w, _mm512_permutexvar_epi8(shift_right(plane, high * (q % fold)), values), mask);
        }
    } else if low == 4 && !matches!(K::SHAPE.values, Values::Unsigned) {
        let values = load(const { &nibble_table(K::SHAPE.values) }, 0);
        w = w.map(|w| _mm512_permutexvar_epi8(w, values));
    } else if low < 8 {
        w = w.map(|w| _mm512_and_si512(w, mask));
    }
    w
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
fn floats(float: Float, panel: &[u8], at: usize) -> __m512 {
    match float {
        Float::F32 => _mm512_castsi512_ps(load(panel, at)),
        Float::F16 => _mm512_cvtph_ps(load_256(panel, at)),
        Float::BF16 => {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_256(panel, at))))
        }
    }
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
fn scales<K: Spec>(head: (__m512, __m512), panel: &[u8], at: usize, half: usize) -> (__m512, __m512) {
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

/// Adds the products of one vector of weights with a quad of each row, `at` being the quad of the first row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn dot<const R: usize>(dots: &mut [__m512i; R], w: __m512i, x: &[u32], at: usize) {
    for (r, dot) in dots.iter_mut().enumerate() {
        *dot = _mm512_dpbusd_epi32(*dot, w, word(x, at + QUADS * r));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn corrections<K: Spec, const R: usize>(x: &[u32], at: usize) -> [__m512i; R] {
    let mut dots = [_mm512_setzero_si512(); R];
    if !matches!(K::SHAPE.values, Values::Unsigned) {
        for (r, dot) in dots.iter_mut().enumerate() {
            *dot = word(x, at + r);
        }
    }
    dots
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn blocks<K: Spec, const R: usize>(task: &Task<'_>, out: &mut Results) {
    let shape = K::shape(task.kind);
    let (panel, x) = (task.panel, task.x);
    let groups = panel.len() / shape.group_bytes();
    debug_assert_eq!(task.rows, R);
    debug_assert_eq!(x.len(), groups * shape.blocks * R * (BLOCK_WORDS + HALVES_WORDS));
    let mut acc = [_mm512_setzero_ps(); R];
    let (mut at, mut xs) = (0, 0);
    let mut halves = groups * shape.blocks * R * BLOCK_WORDS;
    for _ in 0..groups {
        let head = read_head(shape.head, panel, at);
        at += shape.head.bytes();
        for _ in 0..shape.blocks {
            let w = unpack::<K>(panel, at + K::SHAPE.factors.bytes());
            let quads = xs + 3 * R;
            let mut add = |dots: [__m512i; R], (scale, addend): (__m512, __m512), sums: usize| {
                for (r, acc) in acc.iter_mut().enumerate() {
                    let scale = _mm512_mul_ps(scale, float(x, xs + r));
                    *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), scale, *acc);
                    if K::SHAPE.addend() {
                        *acc = _mm512_fmadd_ps(addend, float(x, sums + r), *acc);
                    }
                }
            };
            if K::SHAPE.factors.halves() {
                let mut dots = corrections::<K, R>(x, halves);
                dot(&mut dots, w[0], x, quads);
                dot(&mut dots, w[1], x, quads + 1);
                dot(&mut dots, w[2], x, quads + 2);
                dot(&mut dots, w[3], x, quads + 3);
                add(dots, scales::<K>(head, panel, at, 0), halves + 2 * R);
                let mut dots = corrections::<K, R>(x, halves + R);
                dot(&mut dots, w[4], x, quads + 4);
                dot(&mut dots, w[5], x, quads + 5);
                dot(&mut dots, w[6], x, quads + 6);
                dot(&mut dots, w[7], x, quads + 7);
                add(dots, scales::<K>(head, panel, at, 1), halves + 3 * R);
            } else {
                let mut dots = corrections::<K, R>(x, xs + R);
                dot(&mut dots, w[0], x, quads);
                dot(&mut dots, w[1], x, quads + 1);
                dot(&mut dots, w[2], x, quads + 2);
                dot(&mut dots, w[3], x, quads + 3);
                dot(&mut dots, w[4], x, quads + 4);
                dot(&mut dots, w[5], x, quads + 5);
                dot(&mut dots, w[6], x, quads + 6);
                dot(&mut dots, w[7], x, quads + 7);
                add(dots, scales::<K>(head, panel, at, 0), xs + 2 * R);
            }
            at += K::SHAPE.block_bytes();
            xs += BLOCK_WORDS * R;
            halves += HALVES_WORDS * R;
        }
    }
    store(&acc, out);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn store<const R: usize>(acc: &[__m512; R], out: &mut Results) {
    for (acc, out) in acc.iter().zip(out) {
        // SAFETY: a row of results is 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *acc) };
    }
}

/// FLOAT is 0 for f32, 1 for f16, 2 for bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn dense<const FLOAT: usize, const R: usize>(task: &Task<'_>, out: &mut Results) {
    let (float, bytes) = const { [(Float::F32, 64), (Float::F16, 32), (Float::BF16, 32)][FLOAT] };
    let (panel, x) = (task.panel, task.x);
    let columns = panel.len() / bytes;
    debug_assert_eq!(task.rows, R);
    debug_assert_eq!(x.len(), columns * R);
    let mut acc = [_mm512_setzero_ps(); R];
    for k in 0..columns {
        let w = floats(float, panel, k * bytes);
        for (r, acc) in acc.iter_mut().enumerate() {
            *acc = _mm512_fmadd_ps(w, _mm512_castsi512_ps(word(x, k * R + r)), *acc);
        }
    }
    store(&acc, out);
}
