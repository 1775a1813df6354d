//! AVX-512 with VNNI and VBMI: a lane of a 512-bit vector is an output row.
//!
//! `dpbusd` multiplies unsigned weights with signed activations. A kind whose values are signed is unpacked to values
//! plus 128, and its sums start at the correction, -128 times the sum of the activations; the sums are exact.

mod read;

use std::arch::x86_64::*;

use turbospark_formats::Float;

use super::spec::{self, Spec, select_spec};
use super::{DISTANCE, FEW, Kernel, Results, Task};
use crate::activations::{BLOCK_WORDS, HALVES_WORDS, TILE};
use crate::panels::{PanelKind, QUADS, Values};
use read::{Place, float, floats, read_heads, scales, vector, word};

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
