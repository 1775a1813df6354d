//! The ops that need nothing but registers and resident weights.

use rayon::prelude::*;
use turbospark_formats::MatrixRef;
use turbospark_program::arithmetic::dot;
use turbospark_program::{Activation, Multiplier, Op, Program, RopeTable, Weight, Weights};

use crate::registers::{Registers, Rows};

/// Resident vectors (norm weights, biases, sinks, scales) widened to f32.
pub struct Vectors(Vec<Option<Vec<f32>>>);

impl Vectors {
    pub fn widen(program: &Program, weights: &Weights) -> Vectors {
        let mut vectors: Vec<Option<Vec<f32>>> = program.weights().iter().map(|_| None).collect();
        let mut take = |weight: &Weight| {
            vectors[weight.index()].get_or_insert_with(|| weights.get(*weight).to_f32());
        };
        for op in program.ops() {
            match op {
                Op::RmsNorm { weight, .. } => weight.iter().for_each(&mut take),
                Op::Linear { bias, .. } => bias.iter().for_each(&mut take),
                Op::Mul { by: Multiplier::Weight(weight), .. } => take(weight),
                Op::Attention { attention, .. } => attention.sinks.iter().for_each(&mut take),
                Op::Route { routing, .. } => routing.expert_scale.iter().for_each(&mut take),
                Op::Experts { experts: e, .. } => {
                    [e.gate_bias, e.up_bias, e.down_bias].iter().flatten().for_each(&mut take)
                }
                _ => {}
            }
        }
        Vectors(vectors)
    }

    pub fn get(&self, weight: Weight) -> &[f32] {
        self.0[weight.index()].as_deref().unwrap_or_default()
    }
}

/// Runs one op that is neither attention, routing, experts nor a tap.
pub fn run(
    op: &Op,
    program: &Program,
    weights: &Weights,
    vectors: &Vectors,
    registers: &mut Registers,
    rows: &Rows,
) {
    let Some(reg) = op.out() else { return };
    let width = program.register(reg).width;
    let mut out = registers.take(reg);
    match op {
        Op::Embed { table, scale, .. } => {
            let table = weights.get(*table).matrix(0);
            for (&token, out) in rows.tokens.iter().zip(out.chunks_exact_mut(width)) {
                table.dequantize_row(token as usize, out);
                out.iter_mut().for_each(|x| *x *= scale);
            }
        }
        Op::RmsNorm { x, weight, offset, eps, group, .. } => {
            let weight = weight.map(|w| vectors.get(w));
            let x = registers.read(*x).chunks_exact(*group);
            for (x, out) in x.zip(out.chunks_exact_mut(*group)) {
                rms_norm(x, weight, *offset, *eps, out);
            }
        }
        Op::Linear { x, weight, bias, .. } => {
            let bias = bias.map(|b| vectors.get(b));
            out = linear(&weights.get(*weight).matrix(0), registers.read(*x), bias);
        }
        Op::Rope { x, table, head, .. } => {
            let table = &program.ropes()[*table];
            let x = registers.read(*x).chunks_exact(width);
            for ((x, out), &position) in x.zip(out.chunks_exact_mut(width)).zip(&rows.positions) {
                rope(x, table, *head, position, out);
            }
        }
        Op::Add { a, b, .. } => {
            let (a, b) = (registers.read(*a), registers.read(*b));
            out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = a + b);
        }
        Op::Mul { x, by, .. } => {
            let scalar;
            let factors = match by {
                Multiplier::Scalar(s) => {
                    scalar = [*s];
                    &scalar[..]
                }
                Multiplier::Weight(w) => vectors.get(*w),
            };
            let x = registers.read(*x).iter();
            out.iter_mut().zip(x.zip(factors.iter().cycle())).for_each(|(out, (x, f))| *out = x * f);
        }
        Op::Gate { gate: g, up, activation, .. } => {
            gate(*activation, registers.read(*g), registers.read(*up), &mut out)
        }
        Op::Softcap { x, cap, .. } => {
            out.iter_mut().zip(registers.read(*x)).for_each(|(out, x)| *out = cap * (x / cap).tanh());
        }
        Op::Slice { x, start, .. } => {
            let x = registers.read(*x).chunks_exact(program.register(*x).width);
            for (x, out) in x.zip(out.chunks_exact_mut(width)) {
                out.copy_from_slice(&x[*start..start + width]);
            }
        }
        Op::SelectRows { x, .. } => {
            let x = registers.read(*x);
            for (&row, out) in rows.wanted.iter().zip(out.chunks_exact_mut(width)) {
                out.copy_from_slice(&x[row * width..(row + 1) * width]);
            }
        }
        Op::Attention { .. } | Op::Route { .. } | Op::Experts { .. } | Op::Tap { .. } => {}
    }
    registers.put(reg, out);
}

/// x weight^T + bias for rows of `weight.columns()` elements.
pub fn linear(weight: &MatrixRef<'_>, x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let (outputs, inputs) = (weight.rows(), weight.columns());
    let rows = x.len() / inputs;
    let mut by_output = vec![0.0; outputs * rows];
    if rows > 0 {
        let each = |scratch: &mut Vec<f32>, (output, out): (usize, &mut [f32])| {
            scratch.resize(inputs, 0.0);
            weight.dequantize_row(output, scratch);
            let bias = bias.map_or(0.0, |bias| bias[output]);
            for (out, x) in out.iter_mut().zip(x.chunks_exact(inputs)) {
                *out = dot(x, scratch) + bias;
            }
        };
        by_output.par_chunks_exact_mut(rows).enumerate().for_each_init(Vec::new, each);
    }
    if rows == 1 {
        return by_output;
    }
    (0..rows).flat_map(|row| by_output.iter().skip(row).step_by(rows)).copied().collect()
}

fn rms_norm(x: &[f32], weight: Option<&[f32]>, offset: f32, eps: f32, out: &mut [f32]) {
    let mean = dot(x, x) / x.len() as f32;
    let inverse = 1.0 / (mean + eps).sqrt();
    for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
        *out = x * inverse * weight.map_or(1.0, |weight| offset + weight[i]);
    }
}

fn rope(x: &[f32], table: &RopeTable, head: usize, position: u32, out: &mut [f32]) {
    let half = head / 2;
    for j in 0..half {
        let (cos, sin) = table.cos_sin(position, j);
        for start in (0..x.len()).step_by(head) {
            let (a, b) = (x[start + j], x[start + j + half]);
            out[start + j] = a * cos - b * sin;
            out[start + j + half] = b * cos + a * sin;
        }
    }
}

/// The gated activations, element by element.
pub fn gate(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let gelu = |x: f32| {
        let c = (2.0 / std::f32::consts::PI).sqrt();
        0.5 * x * (1.0 + (c * (x + 0.044715 * x * x * x)).tanh())
    };
    for (out, (&g, &u)) in out.iter_mut().zip(gate.iter().zip(up)) {
        *out = match activation {
            Activation::SwiGlu => g * sigmoid(g) * u,
            Activation::GeGluTanh => gelu(g) * u,
            Activation::ClampedSwiGlu { alpha, limit } => {
                let (g, u) = (g.min(limit), u.clamp(-limit, limit));
                (u + 1.0) * g * sigmoid(alpha * g)
            }
        };
    }
}
