//! The definition.
//!
//! A weight is code value * scale (+ addend), the scale being the f32 product of the head's scale and the block's
//! factor, the addend likewise. For each output, starting from +0, blocks in order:
//!
//! - dot = the integer sum of code values times activation values over the block (or over 16 elements, first those
//!   with the lower index, where a format has a scale for every 16);
//! - acc = fma(dot, scale * activation scale, acc);
//! - where there is an addend: acc = fma(addend, activation scale * sum of activation values, acc).
//!
//! Dense: acc = fma(weight, x, acc), element by element, weights widened to f32.
//! One accumulator an output; nothing depends on how rows and outputs are cut.

use half::{bf16, f16};
use turbospark_formats::Float;

use super::{Results, Task};
use crate::activations::{BLOCK_WORDS, HALVES_WORDS, TILE};
use crate::panels::{
    BLOCK, DOUBLED_E2M1, Factors, Head, LANES, NON_LINEAR, PanelKind, QUADS, Shape, Values, read_codes,
};

/// Runs a task.
pub(super) fn task(task: &Task<'_>, results: &mut Results) {
    let out = &mut results[0];
    match task.kind {
        PanelKind::Dense(float) => dense(float, task, out),
        kind => blocks(kind.shape().expect("only dense kinds have no shape"), task, out),
    }
}

fn dense(float: Float, task: &Task<'_>, out: &mut [[f32; LANES]; TILE]) {
    let rows = task.rows;
    for acc in &mut out[..rows] {
        *acc = [0.0; LANES];
    }
    for (weights, x) in task.panels.chunks_exact(LANES * float.bytes()).zip(task.x.chunks_exact(rows)) {
        let weights = floats(float, weights);
        for (acc, x) in out.iter_mut().zip(x) {
            for (acc, weight) in acc.iter_mut().zip(weights) {
                *acc = weight.mul_add(f32::from_bits(*x), *acc);
            }
        }
    }
}

fn blocks(shape: Shape, task: &Task<'_>, out: &mut [[f32; LANES]; TILE]) {
    let rows = task.rows;
    for acc in &mut out[..rows] {
        *acc = [0.0; LANES];
    }
    let count = shape.blocks(task.panels.len());
    let (main, halves) = task.x.split_at(count * BLOCK_WORDS * rows);
    let inputs = main.chunks_exact(BLOCK_WORDS * rows).zip(halves.chunks_exact(HALVES_WORDS * rows));
    for (block, (x, halves)) in inputs.enumerate() {
        let block = Block::read(shape, task.panels, block);
        for (row, acc) in out[..rows].iter_mut().enumerate() {
            block.accumulate(shape, &Input::read(x, halves, row, rows), acc);
        }
    }
}

/// One block of one activation row.
struct Input {
    scale: f32,
    scaled_sum: f32,
    scaled_half_sums: [f32; 2],
    values: [i32; BLOCK],
}

impl Input {
    fn read(x: &[u32], halves: &[u32], row: usize, rows: usize) -> Input {
        let mut values = [0; BLOCK];
        let quads = &x[3 * rows + QUADS * row..][..QUADS];
        for (values, quad) in values.as_chunks_mut::<4>().0.iter_mut().zip(quads) {
            *values = quad.to_le_bytes().map(|v| i32::from(v as i8));
        }
        Input {
            scale: f32::from_bits(x[row]),
            scaled_sum: f32::from_bits(x[2 * rows + row]),
            scaled_half_sums: [2, 3].map(|i| f32::from_bits(halves[i * rows + row])),
            values,
        }
    }
}

/// Scales and addends, a lane an output row.
struct Scales {
    scale: [f32; LANES],
    addend: [f32; LANES],
}

/// One block of a panel in plain numbers.
pub(crate) struct Block {
    /// Of the whole block (the same twice), or of its two halves.
    scales: [Scales; 2],
    /// [quad][4 * lane + k]
    values: [[i8; 64]; QUADS],
    /// Added to the values: 8 bits without a sign do not fit an i8.
    bias: i32,
}

impl Block {
    fn read(shape: Shape, panel: &[u8], index: usize) -> Block {
        let unit = &panel[index / shape.unit * shape.unit_bytes()..];
        let within = index % shape.unit;
        let part = |start: usize, i: usize, bytes: usize| &unit[start + i * bytes..][..bytes];
        let head = read_head(shape.head, part(0, within / shape.head_blocks, shape.head.bytes()));
        let factors = part(shape.factors_start(), within, shape.factors.bytes());
        let planes = part(shape.codes_start(), within, shape.code_bytes());
        // Eight bits without a sign: less 128 they fit an i8.
        let bias = if shape.bits == 8 && shape.values == Values::Unsigned { 128 } else { 0 };
        let value = |code: u8| match shape.values {
            Values::Unsigned => code.wrapping_sub(bias) as i8,
            Values::Offset(offset) => code.wrapping_sub(offset) as i8,
            Values::E2m1 => DOUBLED_E2M1[usize::from(code)],
            Values::NonLinear => NON_LINEAR[usize::from(code)],
        };
        let values = read_codes(shape.bits, planes).map(|vector| vector.map(value));
        let scales = [0, 1].map(|half| {
            let factor = |lane: usize| {
                let byte = |i: usize| f32::from(factors[i * LANES + lane]);
                let signed = |i: usize| f32::from(factors[i * LANES + lane] as i8);
                match shape.factors {
                    Factors::None => (1.0, 1.0),
                    Factors::Signed => (signed(0), 1.0),
                    Factors::Pair => (byte(0), byte(1)),
                    Factors::SignedHalves => (signed(half), 1.0),
                    Factors::NibbleHalves => {
                        let byte = factors[half * LANES + lane];
                        (f32::from(byte & 15), f32::from(byte >> 4))
                    }
                }
            };
            Scales {
                scale: std::array::from_fn(|lane| head.scale[lane] * factor(lane).0),
                addend: std::array::from_fn(|lane| head.addend[lane] * factor(lane).1),
            }
        });
        Block { scales, values, bias: i32::from(bias) }
    }

    /// The integer dot product of lane `lane` over some quads.
    fn dot(&self, quads: std::ops::Range<usize>, x: &[i32; BLOCK], lane: usize) -> i32 {
        quads
            .flat_map(|q| (0..4).map(move |k| (q, k)))
            .map(|(q, k)| (i32::from(self.values[q][4 * lane + k]) + self.bias) * x[4 * q + k])
            .sum()
    }

    fn accumulate(&self, shape: Shape, x: &Input, acc: &mut [f32; LANES]) {
        for (lane, acc) in acc.iter_mut().enumerate() {
            let mut add = |quads, scales: &Scales, scaled_sum: f32| {
                let dot = self.dot(quads, &x.values, lane) as f32;
                *acc = dot.mul_add(scales.scale[lane] * x.scale, *acc);
                if shape.addend() {
                    *acc = scales.addend[lane].mul_add(scaled_sum, *acc);
                }
            };
            if shape.factors.halves() {
                add(0..QUADS / 2, &self.scales[0], x.scaled_half_sums[0]);
                add(QUADS / 2..QUADS, &self.scales[1], x.scaled_half_sums[1]);
            } else {
                add(0..QUADS, &self.scales[0], x.scaled_sum);
            }
        }
    }
}

fn floats(float: Float, bytes: &[u8]) -> [f32; LANES] {
    match float {
        Float::F32 => std::array::from_fn(|i| f32::from_le_bytes(bytes.as_chunks().0[i])),
        Float::F16 => std::array::from_fn(|i| f16::from_le_bytes(bytes.as_chunks().0[i]).to_f32()),
        Float::BF16 => std::array::from_fn(|i| bf16::from_le_bytes(bytes.as_chunks().0[i]).to_f32()),
    }
}

fn read_head(head: Head, bytes: &[u8]) -> Scales {
    match head {
        // 2^(e - 128): the values are doubled.
        Head::E8m0 => Scales {
            scale: std::array::from_fn(|lane| match bytes[lane] {
                255 => f32::NAN,
                e => f32::from_bits((u32::from(e) << 23).max(1 << 22)) * 0.5,
            }),
            addend: [0.0; LANES],
        },
        Head::Scale(float) => Scales { scale: floats(float, bytes), addend: [0.0; LANES] },
        Head::Pair(float) => {
            let (scales, addends) = bytes.split_at(bytes.len() / 2);
            Scales { scale: floats(float, scales), addend: floats(float, addends) }
        }
    }
}

/// A panel's weights, [row][column], by the definition above: what the kernels see, and the sum of the magnitudes
/// of product and addend, for error bounds.
#[cfg(test)]
pub(crate) fn decode(kind: PanelKind, panel: &[u8]) -> Vec<Vec<(f32, f32)>> {
    let mut rows = vec![Vec::new(); LANES];
    if let PanelKind::Dense(float) = kind {
        for weights in panel.chunks_exact(LANES * float.bytes()) {
            for (row, weight) in rows.iter_mut().zip(floats(float, weights)) {
                row.push((weight, weight.abs()));
            }
        }
        return rows;
    }
    let shape = kind.shape().unwrap();
    for index in 0..shape.blocks(panel.len()) {
        let block = Block::read(shape, panel, index);
        for (lane, row) in rows.iter_mut().enumerate() {
            for k in 0..BLOCK {
                let scales = &block.scales[if shape.factors.halves() { k / 16 } else { 0 }];
                let value = (i32::from(block.values[k / 4][4 * lane + k % 4]) + block.bias) as f32;
                let (product, addend) = (value * scales.scale[lane], scales.addend[lane]);
                row.push(if shape.addend() {
                    (product + addend, product.abs() + addend.abs())
                } else {
                    (product, product.abs())
                });
            }
        }
    }
    rows
}
