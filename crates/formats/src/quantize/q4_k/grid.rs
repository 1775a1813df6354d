//! Values that a Q4_K block holds exactly: its integers are found back from the distances between them.

use half::f16;

use super::Block;

/// The distances of a sub-block's values: from `low` up in `span` equal steps.
#[derive(Clone, Copy, Default)]
struct Ladder {
    low: f64,
    step: f64,
    span: i32,
}

fn near_integer(x: f64, tolerance: f64) -> bool {
    (x - x.round()).abs() < tolerance
}

/// The fewest steps between a sub-block's values, if 15 are enough.
fn ladder(values: &[f32; 32], sign: f64) -> Option<Ladder> {
    let low = values.iter().fold(f64::INFINITY, |m, x| m.min(sign * f64::from(*x)));
    let high = values.iter().fold(f64::NEG_INFINITY, |m, x| m.max(sign * f64::from(*x)));
    if low == high {
        return Some(Ladder { low, step: 0.0, span: 0 });
    }
    (1..=15).find_map(|span| {
        let step = (high - low) / f64::from(span);
        let even = values.iter().all(|x| near_integer((sign * f64::from(*x) - low) / step, 1e-4));
        even.then_some(Ladder { low, step, span })
    })
}

/// Units of which `x` may be a multiple by 1 to 63.
fn units(x: f64) -> impl Iterator<Item = f16> {
    (1..=63).map(move |n| (f64::from(n), f16::from_f64(x / f64::from(n)))).filter_map(move |(n, unit)| {
        (unit.is_finite() && (unit.to_f64() * n - x).abs() <= 1e-5 * x.abs()).then_some(unit)
    })
}

/// `x` as a multiple of `unit` by 0 to 63.
fn multiple(x: f64, unit: f16) -> Option<u8> {
    if x == 0.0 {
        return Some(0);
    }
    let n = x / unit.to_f64();
    (near_integer(n, 1e-3) && (0.5..63.5).contains(&n)).then_some(n.round() as u8)
}

/// The steps that a sub-block's values may have been made with, the fewest first, and how far below zero its codes may
/// begin. Values that lie on a ladder lie on finer ones too.
fn lines(ladder: Ladder) -> impl Iterator<Item = (f64, f64)> {
    (1..=15 / ladder.span.max(1)).flat_map(move |finer| {
        let step = ladder.step / f64::from(finer);
        (0..=15 - ladder.span * finer).map(move |code| (step, step * f64::from(code) - ladder.low))
    })
}

/// The scale, minimum and codes of a sub-block at `d` and `dmin`, with which every reader computes exactly `values`.
fn sub_block(
    values: &[f32; 32],
    sign: f64,
    ladder: Ladder,
    d: f16,
    dmin: f16,
) -> Option<(u8, u8, [f32; 32])> {
    let flip = sign as f32;
    lines(ladder).find_map(|(step, offset)| {
        let (scale, min) = (multiple(step, d)?, multiple(offset, dmin)?);
        let (step, offset) = (flip * d.to_f32() * f32::from(scale), flip * dmin.to_f32() * f32::from(min));
        let code = |x: f32| if step == 0.0 { 0.0 } else { ((x + offset) / step).round().clamp(0.0, 15.0) };
        let codes = values.map(code);
        let exact = values.iter().zip(&codes).all(|(x, code)| step * code - offset == *x);
        exact.then_some((scale, min, codes))
    })
}

/// The block whose values are exactly `values`, if it can be found.
pub(super) fn block(values: &[[f32; 32]]) -> Option<Block> {
    for sign in [1.0, -1.0] {
        let mut ladders = [Ladder::default(); 8];
        for (ladder_j, values) in ladders.iter_mut().zip(values) {
            *ladder_j = ladder(values, sign)?;
        }
        let widest = ladders.into_iter().max_by(|a, b| a.step.total_cmp(&b.step))?;
        let flat = (widest.step == 0.0).then_some(f16::ZERO);
        let finer = (1..=15 / widest.span.max(1)).map(|finer| widest.step / f64::from(finer));
        let fits = |d: &f16| ladders.iter().all(|l| lines(*l).any(|(step, _)| multiple(step, *d).is_some()));
        let ds: Vec<_> = flat.into_iter().chain(finer.flat_map(units)).filter(fits).collect();
        if ds.is_empty() {
            continue;
        }
        let lows = ladders.iter().flat_map(|ladder| lines(*ladder)).filter(|(_, offset)| *offset != 0.0);
        for dmin in std::iter::once(f16::ZERO).chain(lows.flat_map(|(_, offset)| units(offset))) {
            if !ladders.iter().all(|l| lines(*l).any(|(_, offset)| multiple(offset, dmin).is_some())) {
                continue;
            }
            let found = ds.iter().find_map(|d| exact(values, sign, &ladders, *d, dmin));
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// The block of `d` and `dmin` that is exactly `values`.
fn exact(values: &[[f32; 32]], sign: f64, ladders: &[Ladder; 8], d: f16, dmin: f16) -> Option<Block> {
    let flip = |x: f16| if sign < 0.0 { -x } else { x };
    let mut block =
        Block { d: flip(d), dmin: flip(dmin), scales: [0; 8], mins: [0; 8], codes: [[0.0; 32]; 8] };
    for (j, (values, ladder)) in values.iter().zip(ladders).enumerate() {
        (block.scales[j], block.mins[j], block.codes[j]) = sub_block(values, sign, *ladder, d, dmin)?;
    }
    Some(block)
}
