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

/// How far below zero a sub-block's codes may begin, for each code that its lowest value may have.
fn offsets(ladder: Ladder) -> impl Iterator<Item = f64> {
    (0..=15 - ladder.span).map(move |code| ladder.step * f64::from(code) - ladder.low)
}

/// The minimum at `dmin` that one of the ladder's offsets is.
fn minimum(ladder: Ladder, dmin: f16) -> Option<u8> {
    offsets(ladder).find_map(|x| multiple(x, dmin))
}

fn all(found: [Option<u8>; 8]) -> Option<[u8; 8]> {
    found.iter().all(Option::is_some).then(|| found.map(Option::unwrap_or_default))
}

/// The block whose values are exactly `values`, if it can be found.
pub(super) fn block(values: &[[f32; 32]]) -> Option<Block> {
    for sign in [1.0, -1.0] {
        let mut ladders = [Ladder::default(); 8];
        for (ladder_j, values) in ladders.iter_mut().zip(values) {
            *ladder_j = ladder(values, sign)?;
        }
        let widest = ladders.iter().fold(0f64, |m, ladder| m.max(ladder.step));
        let flat = (widest == 0.0).then_some(f16::ZERO);
        let ds: Vec<_> = flat
            .into_iter()
            .chain(units(widest))
            .filter_map(|d| Some((d, all(ladders.map(|ladder| multiple(ladder.step, d)))?)))
            .collect();
        if ds.is_empty() {
            continue;
        }
        let lows = ladders.iter().flat_map(|ladder| offsets(*ladder)).filter(|x| *x != 0.0);
        for dmin in std::iter::once(f16::ZERO).chain(lows.flat_map(units)) {
            let Some(mins) = all(ladders.map(|ladder| minimum(ladder, dmin))) else {
                continue;
            };
            let flip = |x: f16| if sign < 0.0 { -x } else { x };
            let block = ds.iter().find_map(|(d, scales)| exact(values, flip(*d), flip(dmin), *scales, mins));
            if block.is_some() {
                return block;
            }
        }
    }
    None
}

/// The block of these parameters if its values, computed as every reader does, are `values`.
fn exact(values: &[[f32; 32]], d: f16, dmin: f16, scales: [u8; 8], mins: [u8; 8]) -> Option<Block> {
    let mut codes = [[0.0; 32]; 8];
    for (j, (values, codes)) in values.iter().zip(&mut codes).enumerate() {
        let (scale, min) = (d.to_f32() * f32::from(scales[j]), dmin.to_f32() * f32::from(mins[j]));
        for (x, code) in values.iter().zip(codes) {
            *code = if scale == 0.0 { 0.0 } else { ((x + min) / scale).round().clamp(0.0, 15.0) };
            if scale * *code - min != *x {
                return None;
            }
        }
    }
    Some(Block { d, dmin, scales, mins, codes })
}
