//! AVX2 with FMA and F16C: two 256-bit vectors are the 16 output rows.
//!
//! `maddubs` multiplies unsigned weights with signed activations and adds pairs in 16 bits, with saturation, so
//! weights must be small: codes of up to 6 bits go in as they are (their offset times the sum of activations comes off
//! later) and as many products are added in 16 bits as cannot overflow. Eight bits and the non-linear table take the
//! sign trick: magnitudes of weights, activations with the weights' signs; 128 * 127 * 2 still fits, because
//! activations never are -128.

use std::arch::x86_64::*;

use turbospark_formats::Float;

use super::spec::{Spec, select_spec};
use super::{DISTANCE, FEW, Kernel, Results, Task};
use crate::activations::{BLOCK_WORDS, HALVES_WORDS};
use crate::panels::{DOUBLED_E2M1, Factors, Head, LANES, NON_LINEAR, PanelKind, QUADS, Values, planes};

/// The kernel for one kind and any number of rows.
pub(super) fn kernel(kind: PanelKind) -> Kernel {
    match kind {
        PanelKind::Dense(Float::F32) => dense::<0>,
        PanelKind::Dense(Float::F16) => dense::<1>,
        PanelKind::Dense(Float::BF16) => dense::<2>,
        kind => select_spec!(kind, tile),
    }
}

/// What is added to the values of E2M1, to make them unsigned.
const E2M1_OFFSET: u8 = 16;

/// Whether weights are signed bytes, for the sign trick.
const fn is_signed<K: Spec>() -> bool {
    K::SHAPE.bits == 8 || matches!(K::SHAPE.values, Values::NonLinear)
}

/// How many quads' products fit 16 bits.
const fn quads_in_16_bits<K: Spec>() -> usize {
    let largest = match K::SHAPE.values {
        Values::E2m1 => 12 + E2M1_OFFSET as usize,
        _ => (1 << K::SHAPE.bits) - 1,
    };
    match i16::MAX as usize / (2 * 127 * largest) {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=7 => 4,
        _ => 8,
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(bytes: &[u8], at: usize) -> __m256i {
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
fn word(x: &[u32], at: usize) -> __m256i {
    debug_assert!(at < x.len());
    // SAFETY: callers stay within the tile, as asserted.
    _mm256_set1_epi32(unsafe { *x.get_unchecked(at) } as i32)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn float(x: &[u32], at: usize) -> __m256 {
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

/// Eight rows of vector `q` of a block, `at` being where their part of its first plane begins. Codes as they are,
/// E2M1 with its offset, or signed values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn vector<K: Spec>(panel: &[u8], at: usize, q: usize) -> __m256i {
    let (low, high) = const { planes(K::SHAPE.bits) };
    let fold = 8 / low;
    let w = load(panel, at + 64 * (q / fold));
    if low == 8 {
        return _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    }
    let mask = _mm256_set1_epi8(((1u32 << low) - 1) as i8);
    let w = _mm256_and_si256(shift(w, (low * (q % fold)) as isize), mask);
    if let Some(fold) = 8usize.checked_div(high) {
        let plane = load(panel, at + 64 * (low + q / fold));
        let mask = _mm256_set1_epi8((((1u32 << high) - 1) << low) as i8);
        let bits = (high * (q % fold)) as isize - low as isize;
        return _mm256_or_si256(w, _mm256_and_si256(shift(plane, bits), mask));
    }
    let table = match K::SHAPE.values {
        Values::E2m1 => const { &offset(DOUBLED_E2M1, E2M1_OFFSET as i8) },
        Values::NonLinear => &NON_LINEAR,
        _ => return w,
    };
    // SAFETY: the table has 16 bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), w)
}

const fn offset(mut values: [i8; 16], by: i8) -> [i8; 16] {
    let mut i = 0;
    while i < 16 {
        values[i] += by;
        i += 1;
    }
    values
}

/// Eight floats of a panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floats(float: Float, panel: &[u8], at: usize) -> __m256 {
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
fn read_head(head: Head, panel: &[u8], at: usize, part: usize) -> (__m256, __m256) {
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
fn scales<K: Spec>(head: (__m256, __m256), panel: &[u8], at: usize, half: usize) -> (__m256, __m256) {
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

/// What brings the sum of products to that of the values: from the correction, -128 times the activations' sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn correction<K: Spec>(word: __m256i) -> __m256i {
    match K::SHAPE.values {
        Values::Offset(4) => _mm256_srai_epi32::<5>(word),
        Values::Offset(8) => _mm256_srai_epi32::<4>(word),
        Values::Offset(16) | Values::E2m1 => _mm256_srai_epi32::<3>(word),
        Values::Offset(32) => _mm256_srai_epi32::<2>(word),
        // Already signed.
        Values::Offset(_) | Values::NonLinear => _mm256_setzero_si256(),
        // Eight bits went in less 128.
        Values::Unsigned if K::SHAPE.bits == 8 => _mm256_sub_epi32(_mm256_setzero_si256(), word),
        Values::Unsigned => _mm256_setzero_si256(),
    }
}

/// Adds the products of four quads to a sum: in 16 bits where all of a block fit them, otherwise in 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products<K: Spec>(sum: __m256i, w: &[__m256i; 4], x: &[u32], at: usize) -> __m256i {
    let wide =
        |sum: __m256i, pairs: __m256i| _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    if is_signed::<K>() {
        let mut sum = sum;
        for (q, w) in w.iter().enumerate() {
            let x = _mm256_sign_epi8(word(x, at + q), *w);
            sum = wide(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(*w), x));
        }
        return sum;
    }
    let product = |q: usize| _mm256_maddubs_epi16(w[q], word(x, at + q));
    let first = _mm256_add_epi16(product(0), product(1));
    let last = _mm256_add_epi16(product(2), product(3));
    match quads_in_16_bits::<K>() {
        8 => _mm256_add_epi16(sum, _mm256_add_epi16(first, last)),
        4 => wide(sum, _mm256_add_epi16(first, last)),
        _ => wide(wide(sum, first), last),
    }
}

/// One block of a panel and where its input is.
#[derive(Clone, Copy)]
struct Position {
    codes: usize,
    factors: usize,
    /// Of the block in the tile's words, and of its halves.
    x: usize,
    halves: usize,
}

/// Adds one block's products to eight outputs of R rows, `row` being the first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block<K: Spec, const R: usize>(
    task: &Task<'_>,
    head: (__m256, __m256),
    at: Position,
    row: usize,
    acc: &mut [__m256; R],
) {
    let (panel, x, rows) = (task.panels, task.x, task.rows);
    let quads = at.x + 3 * rows + QUADS * row;
    let narrow = !is_signed::<K>() && quads_in_16_bits::<K>() == 8;
    let mut sums = [_mm256_setzero_si256(); R];
    for half in 0..2 {
        let mut w = [_mm256_setzero_si256(); 4];
        for (q, w) in w.iter_mut().enumerate() {
            *w = vector::<K>(panel, at.codes, 4 * half + q);
        }
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = products::<K>(*sum, &w, x, quads + QUADS * r + 4 * half);
        }
        if half == 0 && !K::SHAPE.factors.halves() {
            continue;
        }
        let (scale, addend) = scales::<K>(head, panel, at.factors, half);
        let (corrections, scaled_sums) = if K::SHAPE.factors.halves() {
            (at.halves + half * rows, at.halves + (2 + half) * rows)
        } else {
            (at.x + rows, at.x + 2 * rows)
        };
        for r in 0..R {
            let sum = if narrow { _mm256_madd_epi16(sums[r], _mm256_set1_epi16(1)) } else { sums[r] };
            sums[r] = _mm256_setzero_si256();
            let dot = _mm256_add_epi32(sum, correction::<K>(word(x, corrections + row + r)));
            let scale = _mm256_mul_ps(scale, float(x, at.x + row + r));
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc[r]);
            if K::SHAPE.addend() {
                acc[r] = _mm256_fmadd_ps(addend, float(x, scaled_sums + row + r), acc[r]);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn blocks<K: Spec, const R: usize>(task: &Task<'_>, row: usize, out: &mut Results) {
    let shape = K::shape(task.kind);
    let (panel, rows) = (task.panels, task.rows);
    let blocks = task.x.len() / (rows * (BLOCK_WORDS + HALVES_WORDS));
    debug_assert_eq!(shape.panel_bytes(blocks), Some(panel.len()));
    debug_assert!(row + R <= rows);
    let mut acc = [[_mm256_setzero_ps(); R]; 2];
    let none = _mm256_setzero_ps();
    let mut unit = 0;
    for first in (0..blocks).step_by(shape.unit) {
        let mut heads = [(none, none); 2];
        for b in 0..shape.unit.min(blocks - first) {
            let codes = unit + shape.codes_start() + b * K::SHAPE.code_bytes();
            if rows <= FEW {
                prefetch(panel, codes, K::SHAPE.code_bytes());
            }
            for (part, (head, acc)) in heads.iter_mut().zip(&mut acc).enumerate() {
                if b.is_multiple_of(shape.head_blocks) {
                    let at = unit + b / shape.head_blocks * shape.head.bytes();
                    *head = read_head(shape.head, panel, at, part);
                }
                let at = Position {
                    codes: codes + 32 * part,
                    factors: unit + shape.factors_start() + b * K::SHAPE.factors.bytes() + 8 * part,
                    x: (first + b) * BLOCK_WORDS * rows,
                    halves: blocks * BLOCK_WORDS * rows + (first + b) * HALVES_WORDS * rows,
                };
                block::<K, R>(task, *head, at, row, acc);
            }
        }
        unit += shape.unit_bytes();
    }
    store(&acc, row, out);
}

/// Registers hold four rows at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<K: Spec>(task: &Task<'_>, out: &mut Results) {
    let mut row = 0;
    while row < task.rows {
        match task.rows - row {
            1 => blocks::<K, 1>(task, row, out),
            2 | 3 => blocks::<K, 2>(task, row, out),
            _ => blocks::<K, 4>(task, row, out),
        }
        row += [0, 1, 2, 2, 4][(task.rows - row).min(4)];
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store<const R: usize>(acc: &[[__m256; R]; 2], row: usize, out: &mut Results) {
    for (part, acc) in acc.iter().enumerate() {
        for (acc, out) in acc.iter().zip(&mut out[0][row..]) {
            debug_assert!(8 * part + 8 <= out.len());
            // SAFETY: a row of results is 16 floats, and `part` is 0 or 1.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(8 * part), *acc) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(panel: &[u8], at: usize, bytes: usize) {
    let start = panel.as_ptr().wrapping_add(at + DISTANCE);
    for line in 0..bytes / 64 {
        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(64 * line).cast());
    }
}

/// FLOAT is 0 for f32, 1 for f16, 2 for bf16.
#[target_feature(enable = "avx2,fma,f16c")]
fn dense<const FLOAT: usize>(task: &Task<'_>, out: &mut Results) {
    let mut row = 0;
    while row < task.rows {
        match task.rows - row {
            1 => dense_rows::<FLOAT, 1>(task, row, out),
            2 | 3 => dense_rows::<FLOAT, 2>(task, row, out),
            _ => dense_rows::<FLOAT, 4>(task, row, out),
        }
        row += [0, 1, 2, 2, 4][(task.rows - row).min(4)];
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dense_rows<const FLOAT: usize, const R: usize>(task: &Task<'_>, row: usize, out: &mut Results) {
    let float = const { [Float::F32, Float::F16, Float::BF16][FLOAT] };
    let size = const { [4, 2, 2][FLOAT] };
    let columns = task.panels.len() / (LANES * size);
    debug_assert_eq!(task.x.len(), columns * task.rows);
    let mut acc = [[_mm256_setzero_ps(); R]; 2];
    for k in 0..columns {
        if task.rows <= FEW {
            prefetch(task.panels, k * LANES * size, 64);
        }
        for (part, acc) in acc.iter_mut().enumerate() {
            let w = floats(float, task.panels, (k * LANES + 8 * part) * size);
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = _mm256_fmadd_ps(w, _mm256_castsi256_ps(word(task.x, k * task.rows + row + r)), *acc);
            }
        }
    }
    store(&acc, row, out);
}
