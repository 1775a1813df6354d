//! AVX2 with FMA and F16C: two 256-bit vectors are the 16 output rows.
//!
//! `maddubs` multiplies unsigned weights with signed activations and adds pairs in 16 bits, with saturation. Codes of up
//! to 6 bits go in as they are (their offset times the sum of activations comes off later) and as many products are
//! added in 16 bits as cannot overflow. Weights of eight bits go in as two nibbles, whose sums meet in 32 bits: no more
//! instructions for a quad than magnitudes and moved signs take, and more of them plain additions.

mod read;

use std::arch::asm;
use std::arch::x86_64::*;

use turbospark_formats::Float;

use super::spec::{Spec, select_spec};
use super::{DISTANCE, FEW, Kernel, Results, Task};
use crate::activations::{BLOCK_WORDS, HALVES_WORDS};
use crate::panels::{LANES, PanelKind, QUADS, Values};
use read::{E2M1_OFFSET, Weights, float, floats, is_wide, read_head, scales, weights, word};

/// The kernel for one kind and number of rows.
pub(super) fn kernel(kind: PanelKind, rows: usize) -> Kernel {
    match kind {
        PanelKind::Dense(Float::F32) => return dense::<0>,
        PanelKind::Dense(Float::F16) => return dense::<1>,
        PanelKind::Dense(Float::BF16) => return dense::<2>,
        _ => {}
    }
    match rows {
        1 => select_spec!(kind, blocks, 1),
        2 => select_spec!(kind, blocks, 2),
        3 => select_spec!(kind, blocks, 3),
        4 => select_spec!(kind, blocks, 4),
        5 => select_spec!(kind, blocks, 5),
        6 => select_spec!(kind, blocks, 6),
        7 => select_spec!(kind, blocks, 7),
        8 => select_spec!(kind, blocks, 8),
        _ => unreachable!("no kernel takes {rows} rows"),
    }
}

/// How many quads' products fit 16 bits.
const fn quads_in_16_bits<K: Spec>() -> usize {
    let largest = match K::SHAPE.values {
        Values::E2m1 => 12 + E2M1_OFFSET as usize,
        _ if is_wide::<K>() => 15,
        _ => (1 << K::SHAPE.bits) - 1,
    };
    match i16::MAX as usize / (2 * 127 * largest) {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=7 => 4,
        _ => 8,
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
        Values::Offset(_) | Values::NonLinear => word,
        Values::Unsigned => _mm256_setzero_si256(),
    }
}

/// Adds the products of a quad of R rows with two vectors of weights to sums of 16 bits.
///
/// Written out, because the compiler moves the many loads and products of an unrolled block away from their sums, and
/// then has too few registers: it makes a sixth fewer products a second.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step<const R: usize>(sums: &mut [[__m256i; 2]; R], weights: [__m256i; 2], x: &[u32], quad: usize) {
    debug_assert!(quad + QUADS * (R - 1) < x.len());
    /// Of one row; rows of a block are 32 bytes apart.
    macro_rules! row {
        ($r:literal) => {
            concat!(
                "vpbroadcastd {x}, dword ptr [{at} + 32 * ",
                $r,
                "]\n",
                "vpmaddubsw {t}, {v}, {x}\n",
                "vpmaddubsw {x}, {w}, {x}\n",
                "vpaddw {a",
                $r,
                "}, {a",
                $r,
                "}, {t}\n",
                "vpaddw {b",
                $r,
                "}, {b",
                $r,
                "}, {x}",
            )
        };
    }
    macro_rules! rows {
        ($($r:literal $a:ident $b:ident)*) => {
            asm!(
                $(row!($r),)*
                at = in(reg) x.as_ptr().add(quad), v = in(ymm_reg) weights[0], w = in(ymm_reg) weights[1],
                x = out(ymm_reg) _, t = out(ymm_reg) _,
                $($a = inout(ymm_reg) sums[$r][0], $b = inout(ymm_reg) sums[$r][1],)*
                options(pure, readonly, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: the rows' quads are within the tile, as asserted.
    unsafe {
        match R {
            1 => rows!(0 a0 b0),
            2 => rows!(0 a0 b0 1 a1 b1),
            4 => rows!(0 a0 b0 1 a1 b1 2 a2 b2 3 a3 b3),
            _ => unreachable!("one, two or four rows at a time"),
        }
    }
}

/// Sums of the products of some quads of R rows with two vectors of weights each; the quads of the first row's block
/// begin at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots<K: Spec, const R: usize>(
    (v, w): (&[__m256i], &[__m256i]),
    x: &[u32],
    at: usize,
    (first, count): (usize, usize),
) -> [[__m256i; 2]; R] {
    let zero = [[_mm256_setzero_si256(); 2]; R];
    let mut sums = zero;
    let group = const { quads_in_16_bits::<K>() }.min(count);
    for start in (first..first + count).step_by(group) {
        let mut pairs = zero;
        for q in start..start + group {
            step(&mut pairs, [v[q], w[q]], x, at + q);
        }
        for r in 0..R {
            for i in 0..2 {
                let widened = _mm256_madd_epi16(pairs[r][i], _mm256_set1_epi16(1));
                sums[r][i] = _mm256_add_epi32(sums[r][i], widened);
            }
        }
    }
    sums
}

/// A block, or a half of one, of a panel: weights and, for both eights of rows, scales and addends.
struct Piece<'a> {
    weights: &'a [Weights; 2],
    scales: [(__m256, __m256); 2],
    /// The quads of a row.
    first: usize,
    count: usize,
    /// Where a tile has scales, corrections, scaled sums and quads of its first row.
    x: [usize; 4],
}

/// Adds a piece's products to the outputs of R rows of the tile from `row` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<K: Spec, const R: usize>(piece: &Piece<'_>, x: &[u32], row: usize, acc: &mut [[__m256; 2]]) {
    let [scales, corrections, scaled_sums, quads] = piece.x;
    let quads = quads + QUADS * row;
    let (first, count) = (piece.first, piece.count);
    let [low, high] = piece.weights;
    let dots = if const { is_wide::<K>() } {
        let of = |weights: &Weights| {
            let (low, high) = weights.split_at(QUADS);
            let dots = dots::<K, R>((low, high), x, quads, (first, count));
            dots.map(|[low, high]| _mm256_add_epi32(low, _mm256_slli_epi32::<4>(high)))
        };
        let (low, high) = (of(low), of(high));
        std::array::from_fn(|r| [low[r], high[r]])
    } else {
        dots::<K, R>((low, high), x, quads, (first, count))
    };
    for r in 0..R {
        let (acc, row) = (&mut acc[row + r], row + r);
        let correction = correction::<K>(word(x, corrections + row));
        for p in 0..2 {
            let (scale, addend) = piece.scales[p];
            let scale = _mm256_mul_ps(scale, float(x, scales + row));
            let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[r][p], correction));
            acc[p] = _mm256_fmadd_ps(dot, scale, acc[p]);
            if K::SHAPE.addend() {
                acc[p] = _mm256_fmadd_ps(addend, float(x, scaled_sums + row), acc[p]);
            }
        }
    }
}

/// One panel against one tile of R rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks<K: Spec, const R: usize>(task: &Task<'_>, out: &mut Results) {
    let shape = K::shape(task.kind);
    let (panel, x) = (task.panels, task.x);
    let blocks = x.len() / (R * (BLOCK_WORDS + HALVES_WORDS));
    debug_assert_eq!((task.rows, shape.panel_bytes(blocks)), (R, Some(panel.len())));
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    let mut weights_of = [[_mm256_setzero_si256(); 2 * QUADS]; 2];
    let mut heads = [(_mm256_setzero_ps(), _mm256_setzero_ps()); 2];
    let pieces = const { if K::SHAPE.factors.halves() { 2 } else { 1 } };
    let count = QUADS / pieces;
    let mut unit = 0;
    for first in (0..blocks).step_by(shape.unit) {
        for b in 0..shape.unit.min(blocks - first) {
            let codes = unit + shape.codes_start() + b * K::SHAPE.code_bytes();
            if R <= FEW {
                prefetch(panel, codes, K::SHAPE.code_bytes());
            }
            if b.is_multiple_of(shape.head_blocks) {
                let at = unit + b / shape.head_blocks * shape.head.bytes();
                heads = [read_head(shape.head, panel, at, 0), read_head(shape.head, panel, at, 1)];
            }
            for (part, weights_of) in weights_of.iter_mut().enumerate() {
                weights::<K>(panel, codes + 32 * part, weights_of);
            }
            let factors = unit + shape.factors_start() + b * K::SHAPE.factors.bytes();
            let at = (first + b) * BLOCK_WORDS * R;
            let halves = blocks * BLOCK_WORDS * R + (first + b) * HALVES_WORDS * R;
            for half in 0..pieces {
                let [low, high] = heads;
                let sums = if pieces == 2 {
                    [halves + half * R, halves + (2 + half) * R]
                } else {
                    [at + R, at + 2 * R]
                };
                let piece = Piece {
                    weights: &weights_of,
                    scales: [
                        scales::<K>(low, panel, factors, half),
                        scales::<K>(high, panel, factors + 8, half),
                    ],
                    first: half * count,
                    count,
                    x: [at, sums[0], sums[1], at + 3 * R],
                };
                for row in (0..R / 4 * 4).step_by(4) {
                    add::<K, 4>(&piece, x, row, &mut acc);
                }
                if R % 4 >= 2 {
                    add::<K, 2>(&piece, x, R / 4 * 4, &mut acc);
                }
                if R % 2 == 1 {
                    add::<K, 1>(&piece, x, R - 1, &mut acc);
                }
            }
        }
        unit += shape.unit_bytes();
    }
    for (acc, out) in acc.iter().zip(&mut out[0]) {
        store(*acc, out);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(row: [__m256; 2], out: &mut [f32; LANES]) {
    for (half, out) in row.iter().zip(out.as_chunks_mut::<8>().0) {
        // SAFETY: a half of the outputs is eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *half) };
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
    for r in 0..R {
        store([acc[0][r], acc[1][r]], &mut out[0][row + r]);
    }
}
