//! AVX-512 with VNNI and VBMI: a lane of a 512-bit vector is an output row.
//!
//! `dpbusd` multiplies unsigned weights with signed activations. A kind whose values are signed is unpacked to values
//! plus 128, and its sums start at the correction, -128 times the sum of the activations; the sums are exact.

use std::arch::x86_64::*;

use turbospark_formats::Float;

use super::spec::{self, Spec, select_spec};
use super::{DISTANCE, FEW, Kernel, Results, Task};
use crate::activations::{BLOCK_WORDS, HALVES_WORDS, TILE};
use crate::panels::{
    DOUBLED_E2M1, Factors, Head, LANES, NON_LINEAR, PanelKind, QUADS, Shape, Values, planes,
};

/// The kernel for one kind and numbers of rows and panels.
pub(super) fn kernel(kind: PanelKind, rows: usize, panels: usize) -> Kernel {
    if let PanelKind::Dense(float) = kind {
        return match (rows, panels) {
            (1, 1) => dense_of::<1, 1>(float),
            (2, 1) => dense_of::<2, 1>(float),
            (3, 1) => dense_of::<3, 1>(float),
            (4, 1) => dense_of::<4, 1>(float),
            (5, 1) => dense_of::<5, 1>(float),
            (6, 1) => dense_of::<6, 1>(float),
            (7, 1) => dense_of::<7, 1>(float),
            (8, 1) => dense_of::<8, 1>(float),
            (1, _) => dense_of::<1, 2>(float),
            (2, _) => dense_of::<2, 2>(float),
            (3, _) => dense_of::<3, 2>(float),
            (4, _) => dense_of::<4, 2>(float),
            (5, _) => dense_of::<5, 2>(float),
            (6, _) => dense_of::<6, 2>(float),
            (7, _) => dense_of::<7, 2>(float),
            _ => dense_of::<8, 2>(float),
        };
    }
    match (rows, panels) {
        (1, 1) => select_spec!(kind, blocks, 1, 1),
        (2, 1) => select_spec!(kind, blocks, 2, 1),
        (3, 1) => select_spec!(kind, blocks, 3, 1),
        (4, 1) => select_spec!(kind, blocks, 4, 1),
        (5, 1) => select_spec!(kind, blocks, 5, 1),
        (6, 1) => select_spec!(kind, blocks, 6, 1),
        (7, 1) => select_spec!(kind, blocks, 7, 1),
        (8, 1) => select_spec!(kind, blocks, 8, 1),
        (TILE, 2) => pairs(kind),
        _ => unreachable!("no kernel takes {rows} rows and {panels} panels"),
    }
}

/// The kernels for eight rows and two panels: only where [`super::together`] asks for them.
fn pairs(kind: PanelKind) -> Kernel {
    match kind {
        PanelKind::Mxfp4 => blocks::<spec::Mxfp4, TILE, 2>,
        PanelKind::Q4_0 => blocks::<spec::Q4_0, TILE, 2>,
        PanelKind::Q5_0 => blocks::<spec::Q5_0, TILE, 2>,
        PanelKind::Q8_0 => blocks::<spec::Q8_0, TILE, 2>,
        PanelKind::Iq4Nl => blocks::<spec::Iq4Nl, TILE, 2>,
        PanelKind::Iq4Xs => blocks::<spec::Iq4Xs, TILE, 2>,
        kind => unreachable!("panels of {kind} are taken one by one"),
    }
}

fn dense_of<const R: usize, const P: usize>(float: Float) -> Kernel {
    match float {
        Float::F32 => dense::<0, R, P>,
        Float::F16 => dense::<1, R, P>,
        Float::BF16 => dense::<2, R, P>,
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

/// Vector Q of a block as unsigned bytes: code values, plus 128 where they are signed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn vector<K: Spec, const Q: usize>(panels: &[u8], at: usize) -> __m512i {
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

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn read_heads<const P: usize>(head: Head, place: Place<'_>) -> [(__m512, __m512); P] {
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

/// Integer sums of a block, or of a half, [panel][row].
type Dots<const R: usize, const P: usize> = [[__m512i; R]; P];

/// Adds the products of vector Q of each panel's block with that quad of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn step<K: Spec, const R: usize, const P: usize, const Q: usize>(
    dots: &mut Dots<R, P>,
    codes: Place<'_>,
    x: &[u32],
    quads: usize,
) {
    let mut w = [_mm512_setzero_si512(); P];
    for (p, w) in w.iter_mut().enumerate() {
        *w = vector::<K, Q>(codes.panels, codes.at + p * codes.stride);
    }
    for r in 0..R {
        let values = word(x, quads + QUADS * r + Q);
        for (dots, w) in dots.iter_mut().zip(w) {
            dots[r] = _mm512_dpbusd_epi32(dots[r], w, values);
        }
    }
}

/// A place in the first panel and, `stride` further, in the next.
#[derive(Clone, Copy)]
struct Place<'a> {
    panels: &'a [u8],
    at: usize,
    stride: usize,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn corrections<K: Spec, const R: usize, const P: usize>(x: &[u32], at: usize) -> Dots<R, P> {
    let mut dots = [[_mm512_setzero_si512(); R]; P];
    if !matches!(K::SHAPE.values, Values::Unsigned) {
        for r in 0..R {
            let correction = word(x, at + r);
            for dots in &mut dots {
                dots[r] = correction;
            }
        }
    }
    dots
}

/// Scales integer sums and adds them to the outputs, then the addends.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn accumulate<K: Spec, const R: usize, const P: usize>(
    acc: &mut [[__m512; R]; P],
    dots: Dots<R, P>,
    scales: [(__m512, __m512); P],
    x: &[u32],
    (scale_at, sum_at): (usize, usize),
) {
    for r in 0..R {
        let (x_scale, x_sum) = (float(x, scale_at + r), float(x, sum_at + r));
        for ((acc, dots), (scale, addend)) in acc.iter_mut().zip(dots).zip(scales) {
            let scale = _mm512_mul_ps(scale, x_scale);
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), scale, acc[r]);
            if K::SHAPE.addend() {
                acc[r] = _mm512_fmadd_ps(addend, x_sum, acc[r]);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn blocks<K: Spec, const R: usize, const P: usize>(task: &Task<'_>, out: &mut Results) {
    let shape = K::shape(task.kind);
    let (panels, x) = (task.panels, task.x);
    let stride = panels.len() / P;
    let blocks = x.len() / (R * (BLOCK_WORDS + HALVES_WORDS));
    debug_assert_eq!((task.rows, shape.panel_bytes(blocks)), (R, Some(stride)));
    let mut acc = [[_mm512_setzero_ps(); R]; P];
    let (mut unit, mut xs, mut halves) = (0, 0, blocks * R * BLOCK_WORDS);
    let mut ahead = task.ahead.start;
    let mut left = blocks;
    while left > 0 {
        let count = left.min(shape.unit);
        left -= count;
        if R <= FEW {
            prefetch(panels, unit, shape.codes_start());
        }
        // A unit has one head, or one for each block.
        let one_head = if K::DYNAMIC { shape.head_blocks > 1 } else { K::SHAPE.head_blocks > 1 };
        let mut heads = read_heads::<P>(shape.head, Place { panels, at: unit, stride });
        for b in 0..count {
            if R <= FEW {
                let at = unit + shape.codes_start() + b * K::SHAPE.code_bytes();
                prefetch(panels, at, K::SHAPE.code_bytes());
            } else {
                task.ahead.block(ahead);
                ahead = ahead.wrapping_add(task.ahead.step);
            }
            if !one_head && b > 0 {
                let at = unit + b * shape.head.bytes();
                heads = read_heads::<P>(shape.head, Place { panels, at, stride });
            }
            let at = unit + shape.codes_start() + b * K::SHAPE.code_bytes();
            let codes = Place { panels, at, stride };
            let factors = unit + shape.factors_start() + b * K::SHAPE.factors.bytes();
            let scales = |half: usize| {
                let mut scales_of = heads;
                for (p, scales_of) in scales_of.iter_mut().enumerate() {
                    *scales_of = scales::<K>(heads[p], panels, p * stride + factors, half);
                }
                scales_of
            };
            let quads = xs + 3 * R;
            if K::SHAPE.factors.halves() {
                let mut dots = corrections::<K, R, P>(x, halves);
                step::<K, R, P, 0>(&mut dots, codes, x, quads);
                step::<K, R, P, 1>(&mut dots, codes, x, quads);
                step::<K, R, P, 2>(&mut dots, codes, x, quads);
                step::<K, R, P, 3>(&mut dots, codes, x, quads);
                accumulate::<K, R, P>(&mut acc, dots, scales(0), x, (xs, halves + 2 * R));
                let mut dots = corrections::<K, R, P>(x, halves + R);
                step::<K, R, P, 4>(&mut dots, codes, x, quads);
                step::<K, R, P, 5>(&mut dots, codes, x, quads);
                step::<K, R, P, 6>(&mut dots, codes, x, quads);
                step::<K, R, P, 7>(&mut dots, codes, x, quads);
                accumulate::<K, R, P>(&mut acc, dots, scales(1), x, (xs, halves + 3 * R));
            } else {
                let mut dots = corrections::<K, R, P>(x, xs + R);
                step::<K, R, P, 0>(&mut dots, codes, x, quads);
                step::<K, R, P, 1>(&mut dots, codes, x, quads);
                step::<K, R, P, 2>(&mut dots, codes, x, quads);
                step::<K, R, P, 3>(&mut dots, codes, x, quads);
                step::<K, R, P, 4>(&mut dots, codes, x, quads);
                step::<K, R, P, 5>(&mut dots, codes, x, quads);
                step::<K, R, P, 6>(&mut dots, codes, x, quads);
                step::<K, R, P, 7>(&mut dots, codes, x, quads);
                accumulate::<K, R, P>(&mut acc, dots, scales(0), x, (xs, xs + 2 * R));
            }
            xs += BLOCK_WORDS * R;
            halves += HALVES_WORDS * R;
        }
        unit += shape.unit_bytes();
    }
    store(&acc, out);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn store<const R: usize, const P: usize>(acc: &[[__m512; R]; P], out: &mut Results) {
    for (acc, out) in acc.iter().zip(out) {
        for (acc, out) in acc.iter().zip(out) {
            // SAFETY: a row of results is 16 floats.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *acc) };
        }
    }
}

/// Asks for `bytes` from `at` on, a while before they are read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn prefetch(panels: &[u8], at: usize, bytes: usize) {
    let start = panels.as_ptr().wrapping_add(at + DISTANCE);
    for line in 0..bytes / 64 {
        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(64 * line).cast());
    }
}

/// FLOAT is 0 for f32, 1 for f16, 2 for bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn dense<const FLOAT: usize, const R: usize, const P: usize>(task: &Task<'_>, out: &mut Results) {
    let (float, bytes) = const { [(Float::F32, 64), (Float::F16, 32), (Float::BF16, 32)][FLOAT] };
    let (panels, x) = (task.panels, task.x);
    let stride = panels.len() / P;
    let columns = stride / bytes;
    debug_assert_eq!(task.rows, R);
    debug_assert_eq!(x.len(), columns * R);
    let mut acc = [[_mm512_setzero_ps(); R]; P];
    for k in 0..columns {
        if R <= FEW {
            // Beyond these panels' ends are those of the next two.
            let ahead = k * bytes + if k * bytes + DISTANCE < stride { 0 } else { (P - 1) * stride };
            for p in 0..P {
                prefetch(panels, p * stride + ahead, 64);
            }
        }
        let mut w = [_mm512_setzero_ps(); P];
        for (p, w) in w.iter_mut().enumerate() {
            *w = floats(float, panels, p * stride + k * bytes);
        }
        for r in 0..R {
            let value = _mm512_castsi512_ps(word(x, k * R + r));
            for (acc, w) in acc.iter_mut().zip(w) {
                acc[r] = _mm512_fmadd_ps(w, value, acc[r]);
            }
        }
    }
    store(&acc, out);
}
