//! aarch64 with the dot product extension: four 128-bit vectors are the 16 output rows.
//!
//! `sdot` multiplies signed bytes and takes a quad of activations by its index, so nothing is broadcast. Weights go in
//! as their signed values; only unsigned eight-bit codes go in less 128. Its intrinsics, and those of halves, are not
//! stable: instructions stand in `asm!`.

use std::arch::aarch64::*;
use std::arch::asm;

use turbospark_formats::Float;

use super::spec::{Spec, select_spec};
use super::{Kernel, Results, Task};
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

/// Vectors of the 16 rows.
const PARTS: usize = 4;

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { vld1q_u8(bytes.as_ptr().add(at)) }
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn load_64(bytes: &[u8], at: usize) -> uint8x8_t {
    debug_assert!(at + 8 <= bytes.len());
    // SAFETY: callers stay within the panel, as asserted.
    unsafe { vld1_u8(bytes.as_ptr().add(at)) }
}

/// Four bytes, widened.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn load_32(bytes: &[u8], at: usize) -> uint32x4_t {
    let quad: [u8; 4] = bytes[at..at + 4].try_into().expect("a slice of four");
    vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(u64::from(u32::from_le_bytes(quad))))))
}

/// Four quads of a row.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn quads(x: &[u32], at: usize) -> int8x16_t {
    debug_assert!(at + 4 <= x.len());
    // SAFETY: callers stay within the tile, as asserted.
    vreinterpretq_s8_u32(unsafe { vld1q_u32(x.as_ptr().add(at)) })
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn float(x: &[u32], at: usize) -> float32x4_t {
    vdupq_n_f32(f32::from_bits(x[at]))
}

/// Adds the products of four rows' weights with quad Q of `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot<const Q: usize>(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: register arithmetic of an extension that callers have.
    unsafe {
        match Q {
            0 => {
                asm!("sdot {s:v}.4s, {w:v}.16b, {x:v}.4b[0]", s = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags))
            }
            1 => {
                asm!("sdot {s:v}.4s, {w:v}.16b, {x:v}.4b[1]", s = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags))
            }
            2 => {
                asm!("sdot {s:v}.4s, {w:v}.16b, {x:v}.4b[2]", s = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags))
            }
            _ => {
                asm!("sdot {s:v}.4s, {w:v}.16b, {x:v}.4b[3]", s = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags))
            }
        }
    }
    sum
}

/// Four halves as floats.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn halves(bytes: uint8x8_t) -> float32x4_t {
    let floats: float32x4_t;
    // SAFETY: register arithmetic of the base instruction set.
    unsafe {
        asm!("fcvtl {f:v}.4s, {h:v}.4h", f = out(vreg) floats, h = in(vreg) bytes,
            options(pure, nomem, nostack, preserves_flags));
    }
    floats
}

/// Four rows of vector `q` of a block as signed values, `at` being where their part of its first plane begins.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn vector<K: Spec>(panel: &[u8], at: usize, q: usize) -> int8x16_t {
    let (low, high) = const { planes(K::SHAPE.bits) };
    let fold = 8 / low;
    let mut w = load(panel, at + 64 * (q / fold));
    if low == 8 {
        return vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(0x80)));
    }
    let shift = |w: uint8x16_t, by: usize| vshlq_u8(w, vdupq_n_s8(-(by as i8)));
    w = vandq_u8(shift(w, low * (q % fold)), vdupq_n_u8((1 << low) - 1));
    if let Some(fold) = 8usize.checked_div(high) {
        let plane = shift(load(panel, at + 64 * (low + q / fold)), high * (q % fold));
        let bits = vandq_u8(plane, vdupq_n_u8((1 << high) - 1));
        w = vorrq_u8(w, vshlq_u8(bits, vdupq_n_s8(low as i8)));
    }
    let table = |values: &[i8; 16]| {
        // SAFETY: the table has 16 bytes.
        vqtbl1q_s8(unsafe { vld1q_s8(values.as_ptr()) }, w)
    };
    match K::SHAPE.values {
        Values::E2m1 => table(&DOUBLED_E2M1),
        Values::NonLinear => table(&NON_LINEAR),
        Values::Offset(offset) => vreinterpretq_s8_u8(vsubq_u8(w, vdupq_n_u8(offset))),
        Values::Unsigned => vreinterpretq_s8_u8(w),
    }
}

/// Four floats of a panel.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn floats(float: Float, panel: &[u8], at: usize) -> float32x4_t {
    match float {
        Float::F32 => vreinterpretq_f32_u8(load(panel, at)),
        Float::F16 => halves(load_64(panel, at)),
        Float::BF16 => {
            let bits = vmovl_u16(vreinterpret_u16_u8(load_64(panel, at)));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(bits))
        }
    }
}

/// Scales and addends of four rows.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn read_head(head: Head, panel: &[u8], at: usize, part: usize) -> (float32x4_t, float32x4_t) {
    let none = vdupq_n_f32(0.0);
    match head {
        Head::E8m0 => {
            let e = load_32(panel, at + 4 * part);
            // 2^(e - 127) and, for 0, its subnormal; halved, because the values are doubled.
            let bits = vmaxq_u32(vshlq_n_u32::<23>(e), vdupq_n_u32(1 << 22));
            let scale = vmulq_f32(vreinterpretq_f32_u32(bits), vdupq_n_f32(0.5));
            let nan = vceqq_u32(e, vdupq_n_u32(255));
            (vbslq_f32(nan, vdupq_n_f32(f32::NAN), scale), none)
        }
        Head::Scale(float) => (floats(float, panel, at + 4 * float.bytes() * part), none),
        Head::Pair(float) => {
            let at = at + 4 * float.bytes() * part;
            (floats(float, panel, at), floats(float, panel, at + LANES * float.bytes()))
        }
    }
}

/// Scale and addend of four rows of a half of a block, or of the block; `at` is where their part of its factors begins.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn scales<K: Spec>(
    head: (float32x4_t, float32x4_t),
    panel: &[u8],
    at: usize,
    half: usize,
) -> (float32x4_t, float32x4_t) {
    let unsigned = |at: usize| vcvtq_f32_u32(load_32(panel, at));
    // The byte's sign comes down from the top.
    let signed = |at: usize| {
        let top = vreinterpretq_s32_u32(vshlq_n_u32::<24>(load_32(panel, at)));
        vcvtq_f32_s32(vshrq_n_s32::<24>(top))
    };
    match K::SHAPE.factors {
        Factors::None => head,
        Factors::Signed => (vmulq_f32(head.0, signed(at)), head.1),
        Factors::SignedHalves => (vmulq_f32(head.0, signed(at + half * LANES)), head.1),
        Factors::Pair => (vmulq_f32(head.0, unsigned(at)), vmulq_f32(head.1, unsigned(at + LANES))),
        Factors::NibbleHalves => {
            let both = load_32(panel, at + half * LANES);
            let low = vcvtq_f32_u32(vandq_u32(both, vdupq_n_u32(15)));
            let high = vcvtq_f32_u32(vshrq_n_u32::<4>(both));
            (vmulq_f32(head.0, low), vmulq_f32(head.1, high))
        }
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

/// Adds one block's products to four outputs of R rows, `row` being the first.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn block<K: Spec, const R: usize>(
    task: &Task<'_>,
    head: (float32x4_t, float32x4_t),
    at: Position,
    row: usize,
    acc: &mut [float32x4_t; R],
) {
    let (panel, x, rows) = (task.panels, task.x, task.rows);
    let first = at.x + 3 * rows + QUADS * row;
    let wide = matches!(K::SHAPE.values, Values::Unsigned) && K::SHAPE.bits == 8;
    let mut sums = [vdupq_n_s32(0); R];
    for half in 0..2 {
        let w0 = vector::<K>(panel, at.codes, 4 * half);
        let w1 = vector::<K>(panel, at.codes, 4 * half + 1);
        let w2 = vector::<K>(panel, at.codes, 4 * half + 2);
        let w3 = vector::<K>(panel, at.codes, 4 * half + 3);
        for (r, sum) in sums.iter_mut().enumerate() {
            let x = quads(x, first + QUADS * r + 4 * half);
            *sum = sdot::<1>(sdot::<0>(*sum, w0, x), w1, x);
            *sum = sdot::<3>(sdot::<2>(*sum, w2, x), w3, x);
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
            // The correction is -128 times the sum of activations.
            let correction = if wide { x[corrections + row + r] as i32 } else { 0 };
            let dot = vsubq_s32(sums[r], vdupq_n_s32(correction));
            sums[r] = vdupq_n_s32(0);
            let scale = vmulq_f32(scale, float(x, at.x + row + r));
            acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(dot), scale);
            if K::SHAPE.addend() {
                acc[r] = vfmaq_f32(acc[r], addend, float(x, scaled_sums + row + r));
            }
        }
    }
}

#[target_feature(enable = "neon,dotprod")]
fn blocks<K: Spec, const R: usize>(task: &Task<'_>, row: usize, out: &mut Results) {
    let shape = K::shape(task.kind);
    let (panel, rows) = (task.panels, task.rows);
    let blocks = task.x.len() / (rows * (BLOCK_WORDS + HALVES_WORDS));
    debug_assert_eq!(shape.panel_bytes(blocks), Some(panel.len()));
    debug_assert!(row + R <= rows);
    let none = vdupq_n_f32(0.0);
    let mut acc = [[none; R]; PARTS];
    let mut unit = 0;
    for first in (0..blocks).step_by(shape.unit) {
        let mut heads = [(none, none); PARTS];
        for b in 0..shape.unit.min(blocks - first) {
            for (part, (head, acc)) in heads.iter_mut().zip(&mut acc).enumerate() {
                if b.is_multiple_of(shape.head_blocks) {
                    let at = unit + b / shape.head_blocks * shape.head.bytes();
                    *head = read_head(shape.head, panel, at, part);
                }
                let at = Position {
                    codes: unit + shape.codes_start() + b * K::SHAPE.code_bytes() + 16 * part,
                    factors: unit + shape.factors_start() + b * K::SHAPE.factors.bytes() + 4 * part,
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

/// Four rows at a time.
#[target_feature(enable = "neon,dotprod")]
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
#[target_feature(enable = "neon,dotprod")]
fn store<const R: usize>(acc: &[[float32x4_t; R]; PARTS], row: usize, out: &mut Results) {
    for (part, acc) in acc.iter().enumerate() {
        for (acc, out) in acc.iter().zip(&mut out[0][row..]) {
            debug_assert!(4 * part + 4 <= out.len());
            // SAFETY: a row of results is 16 floats, and there are four parts.
            unsafe { vst1q_f32(out.as_mut_ptr().add(4 * part), *acc) };
        }
    }
}

/// FLOAT is 0 for f32, 1 for f16, 2 for bf16.
#[target_feature(enable = "neon,dotprod")]
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

#[target_feature(enable = "neon,dotprod")]
fn dense_rows<const FLOAT: usize, const R: usize>(task: &Task<'_>, row: usize, out: &mut Results) {
    let float = const { [Float::F32, Float::F16, Float::BF16][FLOAT] };
    let size = const { [4, 2, 2][FLOAT] };
    let columns = task.panels.len() / (LANES * size);
    debug_assert_eq!(task.x.len(), columns * task.rows);
    let mut acc = [[vdupq_n_f32(0.0); R]; PARTS];
    for k in 0..columns {
        for (part, acc) in acc.iter_mut().enumerate() {
            let w = floats(float, task.panels, (k * LANES + 4 * part) * size);
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = vfmaq_n_f32(*acc, w, f32::from_bits(task.x[k * task.rows + row + r]));
            }
        }
    }
    store(&acc, row, out);
}
