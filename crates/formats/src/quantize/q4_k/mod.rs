//! Q4_K: eight sub-blocks of 32, each value d * scale * code - dmin * min with scales and minimums of six bits.

mod grid;

use half::f16;

use super::{TooLarge, nearest};

/// What a block stores.
struct Block {
    d: f16,
    dmin: f16,
    scales: [u8; 8],
    mins: [u8; 8],
    codes: [[f32; 32]; 8],
}

impl Block {
    fn write(&self, out: &mut [u8; 144]) {
        out[..2].copy_from_slice(&self.d.to_le_bytes());
        out[2..4].copy_from_slice(&self.dmin.to_le_bytes());
        for j in 0..4 {
            let (scale, min) = (self.scales[j + 4], self.mins[j + 4]);
            out[4 + j] = self.scales[j] | scale >> 4 << 6;
            out[8 + j] = self.mins[j] | min >> 4 << 6;
            out[12 + j] = scale & 15 | (min & 15) << 4;
        }
        for (pair, out) in self.codes.as_chunks::<2>().0.iter().zip(out[16..].chunks_exact_mut(32)) {
            for ((low, high), byte) in pair[0].iter().zip(&pair[1]).zip(out) {
                *byte = *low as u8 | (*high as u8) << 4;
            }
        }
    }
}

/// The line value = step * code - offset of a sub-block.
#[derive(Clone, Copy, Default)]
struct Line {
    step: f32,
    offset: f32,
}

impl Line {
    /// The nearest codes and the squared error.
    #[inline]
    fn codes(self, values: &[f32; 32]) -> ([f32; 32], f32) {
        let inverse = if self.step == 0.0 { 0.0 } else { 1.0 / self.step };
        let mut codes = [0.0; 32];
        let mut errors = [0.0; 8];
        for (codes, values) in codes.as_chunks_mut::<8>().0.iter_mut().zip(values.as_chunks::<8>().0) {
            for ((code, x), error) in codes.iter_mut().zip(values).zip(&mut errors) {
                *code = nearest(((x + self.offset) * inverse).clamp(0.0, 15.0));
                let off = x - (self.step * *code - self.offset);
                *error += off * off;
            }
        }
        (codes, errors.iter().sum())
    }

    /// The line of least squared error through `values` at `codes`, its offset not below zero.
    #[inline]
    fn through(values: &[f32; 32], codes: &[f32; 32]) -> Line {
        let (mut x, mut q, mut qq, mut qx) = ([0.0; 8], [0.0; 8], [0.0; 8], [0.0; 8]);
        for (values, codes) in values.as_chunks::<8>().0.iter().zip(codes.as_chunks::<8>().0) {
            for i in 0..8 {
                x[i] += values[i];
                q[i] += codes[i];
                qq[i] += codes[i] * codes[i];
                qx[i] += codes[i] * values[i];
            }
        }
        let [x, q, qq, qx] = [x, q, qq, qx].map(|lanes| lanes.iter().sum::<f32>());
        let determinant = 32.0 * qq - q * q;
        if determinant <= 0.0 {
            return Line { step: 0.0, offset: (-x / 32.0).max(0.0) };
        }
        let offset = (q * qx - qq * x) / determinant;
        if offset < 0.0 {
            return Line { step: (qx / qq).max(0.0), offset: 0.0 };
        }
        Line { step: ((32.0 * qx - q * x) / determinant).max(0.0), offset }
    }

    /// The best line found by giving the values' range 14 to 16 steps.
    fn fit(values: &[f32; 32]) -> Line {
        let low = values.iter().fold(0f32, |m, x| m.min(*x));
        let high = values.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
        if high <= low {
            return Line { step: 0.0, offset: -low };
        }
        let mut best = (f32::INFINITY, Line::default());
        for tenth in 140..=160 {
            let line = Line { step: (high - low) / (tenth as f32 / 10.0), offset: -low };
            let line = Line::through(values, &line.codes(values).0);
            let error = line.codes(values).1;
            if error < best.0 {
                best = (error, line);
            }
        }
        best.1
    }
}

/// The unit whose multiples by 0 to 63 are nearest to `values`, which are not negative.
fn unit(values: [f32; 8]) -> Result<f16, TooLarge> {
    let largest = values.into_iter().fold(0f32, f32::max);
    if !f16::from_f32(largest / 63.0).is_finite() {
        return Err(TooLarge);
    }
    let mut best = (f32::INFINITY, f16::ZERO);
    for n in (40..=63).rev() {
        let half = f16::from_f32(largest / n as f32);
        let error = values
            .into_iter()
            .map(|x| x - multiple(x, half) * half.to_f32())
            .map(|off| off * off)
            .sum::<f32>();
        if error < best.0 {
            best = (error, half);
        }
    }
    Ok(best.1)
}

/// The multiple of `unit` nearest to `x`.
fn multiple(x: f32, unit: f16) -> f32 {
    let unit = unit.to_f32();
    if unit == 0.0 { 0.0 } else { nearest((x / unit).clamp(0.0, 63.0)) }
}

/// The block of `d` and `dmin` whose scales and minimums are near `lines`, and its squared error.
fn assemble(values: &[[f32; 32]], lines: &[Line; 8], d: f16, dmin: f16) -> (Block, f32) {
    let mut block = Block { d, dmin, scales: [0; 8], mins: [0; 8], codes: [[0.0; 32]; 8] };
    let mut total = 0.0;
    for (j, (values, line)) in values.iter().zip(lines).enumerate() {
        let (scale, min) = (multiple(line.step, d), multiple(line.offset, dmin));
        let mut least = f32::INFINITY;
        for (ds, dm) in (-1..=1).flat_map(|ds| (-1..=1).map(move |dm| (ds as f32, dm as f32))) {
            let (scale, min) = ((scale + ds).clamp(0.0, 63.0), (min + dm).clamp(0.0, 63.0));
            let line = Line { step: d.to_f32() * scale, offset: dmin.to_f32() * min };
            let (codes, error) = line.codes(values);
            if error < least {
                least = error;
                (block.scales[j], block.mins[j], block.codes[j]) = (scale as u8, min as u8, codes);
            }
        }
        total += least;
    }
    (block, total)
}

/// The d and dmin of least squared error for the scales, minimums and codes of `block`.
fn units(values: &[[f32; 32]], block: &Block) -> (f16, f16) {
    let (mut uu, mut uv, mut vv, mut ux, mut vx) = (0f64, 0f64, 0f64, 0f64, 0f64);
    for (j, values) in values.iter().enumerate() {
        let (scale, min) = (f64::from(block.scales[j]), f64::from(block.mins[j]));
        for (x, code) in values.iter().zip(&block.codes[j]) {
            let (x, u) = (f64::from(*x), scale * f64::from(*code));
            uu += u * u;
            uv += u * min;
            vv += min * min;
            ux += u * x;
            vx += min * x;
        }
    }
    let determinant = uu * vv - uv * uv;
    let (d, dmin) = if determinant > 0.0 {
        ((ux * vv - uv * vx) / determinant, (uv * ux - uu * vx) / determinant)
    } else if uu > 0.0 {
        (ux / uu, 0.0)
    } else {
        (0.0, if vv > 0.0 { -vx / vv } else { 0.0 })
    };
    (f16::from_f64(d.max(0.0)), f16::from_f64(dmin.max(0.0)))
}

pub(super) fn q4_k(values: &[f32; 256], out: &mut [u8; 144]) -> Result<(), TooLarge> {
    let values = values.as_chunks::<32>().0;
    if let Some(block) = grid::block(values) {
        block.write(out);
        return Ok(());
    }
    let mut lines = [Line::default(); 8];
    for (line, values) in lines.iter_mut().zip(values) {
        *line = Line::fit(values);
    }
    let mut d = unit(lines.map(|line| line.step))?;
    let mut dmin = unit(lines.map(|line| line.offset))?;
    let mut least = f32::INFINITY;
    // Each round fits the units to the codes, then the codes to the units; later ones gain next to nothing.
    for _ in 0..3 {
        let (block, error) = assemble(values, &lines, d, dmin);
        let units = units(values, &block);
        if units.0.is_finite() && units.1.is_finite() {
            (d, dmin) = units;
        }
        for ((line, values), codes) in lines.iter_mut().zip(values).zip(&block.codes) {
            *line = Line::through(values, codes);
        }
        if error < least {
            least = error;
            block.write(out);
        }
    }
    Ok(())
}
