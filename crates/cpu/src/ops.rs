//! The ops that work on one row at a time.
//!
//! Sums over a row have 16 lanes, lane i taking the elements i mod 16 with one fused multiply-add each, added as
//! [`turbospark_program::arithmetic::reduce`] does. Everything else is element by element.

use turbospark_program::Activation;

use crate::isa::Isa;
use crate::math;
use crate::vector::{Kernel, LANES, Vector, dispatch};

/// A function of two numbers, on lanes. A trait and not a closure, since a closure is not compiled for the
/// instruction set of the kernel that calls it.
trait Function: Copy {
    fn of<V: Vector>(self, v: V, a: V::F, b: V::F) -> V::F;
}

/// out = f(a, b), sixteen at a time.
#[inline(always)]
fn map<V: Vector, F: Function>(v: V, f: F, a: &[f32], b: &[f32], out: &mut [f32]) {
    debug_assert!(a.len() == out.len() && b.len() == out.len());
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    let (outs, out_tail) = out.as_chunks_mut::<LANES>();
    for ((a, b), out) in a_chunks.iter().zip(b_chunks).zip(outs) {
        v.store(f.of(v, v.load(a), v.load(b)), out);
    }
    if !a_tail.is_empty() {
        v.store_part(f.of(v, v.load_part(a_tail), v.load_part(b_tail)), out_tail);
    }
}

/// out = f(x, out), sixteen at a time.
#[inline(always)]
fn update<V: Vector, F: Function>(v: V, f: F, x: &[f32], out: &mut [f32]) {
    debug_assert_eq!(x.len(), out.len());
    let (xs, x_tail) = x.as_chunks::<LANES>();
    let (outs, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in xs.iter().zip(outs) {
        v.store(f.of(v, v.load(x), v.load(out)), out);
    }
    if !x_tail.is_empty() {
        v.store_part(f.of(v, v.load_part(x_tail), v.load_part(out_tail)), out_tail);
    }
}

/// a * inverse * b
#[derive(Clone, Copy)]
struct Normalize(f32);

impl Function for Normalize {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, a: V::F, b: V::F) -> V::F {
        v.mul(v.mul(a, v.splat(self.0)), b)
    }
}

#[derive(Clone, Copy)]
struct Add;

impl Function for Add {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, a: V::F, b: V::F) -> V::F {
        v.add(a, b)
    }
}

#[derive(Clone, Copy)]
struct Mul;

impl Function for Mul {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, a: V::F, b: V::F) -> V::F {
        v.mul(a, b)
    }
}

/// a * factor
#[derive(Clone, Copy)]
struct Scale(f32);

impl Function for Scale {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, a: V::F, _: V::F) -> V::F {
        v.mul(a, v.splat(self.0))
    }
}

/// a * factor + b
#[derive(Clone, Copy)]
struct Accumulate(f32);

impl Function for Accumulate {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, a: V::F, b: V::F) -> V::F {
        v.fma(a, v.splat(self.0), b)
    }
}

/// cap * tanh(a / cap)
#[derive(Clone, Copy)]
struct Cap(f32);

impl Function for Cap {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, a: V::F, _: V::F) -> V::F {
        let cap = v.splat(self.0);
        v.mul(cap, math::tanh(v, v.div(a, cap)))
    }
}

/// a gate, b up.
#[derive(Clone, Copy)]
struct SwiGlu;

impl Function for SwiGlu {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, g: V::F, u: V::F) -> V::F {
        v.mul(v.mul(g, math::sigmoid(v, g)), u)
    }
}

#[derive(Clone, Copy)]
struct GeGlu;

impl Function for GeGlu {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, g: V::F, u: V::F) -> V::F {
        v.mul(math::gelu(v, g), u)
    }
}

#[derive(Clone, Copy)]
struct ClampedSwiGlu {
    alpha: f32,
    limit: f32,
}

impl Function for ClampedSwiGlu {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, g: V::F, u: V::F) -> V::F {
        let (high, low) = (v.splat(self.limit), v.splat(-self.limit));
        let g = v.select_less(high, g, high, g);
        let u = v.select_less(high, u, high, u);
        let u = v.select_less(u, low, low, u);
        let glu = v.mul(g, math::sigmoid(v, v.mul(g, v.splat(self.alpha))));
        v.mul(v.add(u, v.splat(1.0)), glu)
    }
}

/// f with its arguments swapped.
#[derive(Clone, Copy)]
struct Swapped<F>(F);

impl<F: Function> Function for Swapped<F> {
    #[inline(always)]
    fn of<V: Vector>(self, v: V, a: V::F, b: V::F) -> V::F {
        self.0.of(v, b, a)
    }
}

struct Map<'a, F> {
    f: F,
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl<F: Function> Kernel for Map<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        map(v, self.f, self.a, self.b, self.out);
    }
}

struct Update<'a, F> {
    f: F,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl<F: Function> Kernel for Update<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        update(v, self.f, self.x, self.out);
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    eps: f32,
    group: usize,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        for (x, out) in self.x.chunks_exact(self.group).zip(self.out.chunks_exact_mut(self.group)) {
            let mut lanes = v.splat(0.0);
            let (chunks, tail) = x.as_chunks::<LANES>();
            for x in chunks {
                let x = v.load(x);
                lanes = v.fma(x, x, lanes);
            }
            if !tail.is_empty() {
                let x = v.load_part(tail);
                lanes = v.fma(x, x, lanes);
            }
            let mean = v.sum(lanes) / self.group as f32;
            let inverse = 1.0 / (mean + self.eps).sqrt();
            match self.weight {
                Some(weight) => map(v, Normalize(inverse), x, weight, out),
                None => map(v, Scale(inverse), x, x, out),
            }
        }
    }
}

/// out = x / sqrt(mean(x^2) + eps) * weight over each group.
pub(crate) fn rms_norm(isa: Isa, x: &[f32], weight: Option<&[f32]>, eps: f32, group: usize, out: &mut [f32]) {
    dispatch(isa, RmsNorm { x, weight, eps, group, out });
}

/// Up to sixteen elements.
#[inline(always)]
fn load<V: Vector>(v: V, x: &[f32]) -> V::F {
    match x.as_array::<LANES>() {
        Some(x) => v.load(x),
        None => v.load_part(x),
    }
}

/// Up to sixteen elements.
#[inline(always)]
fn store<V: Vector>(v: V, x: V::F, out: &mut [f32]) {
    match out.as_mut_array::<LANES>() {
        Some(out) => v.store(x, out),
        None => v.store_part(x, out),
    }
}

struct Rope<'a> {
    x: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Rope<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let half = self.cos.len();
        let zero = v.splat(0.0);
        for (x, out) in self.x.chunks_exact(2 * half).zip(self.out.chunks_exact_mut(2 * half)) {
            let ((a, b), (out_a, out_b)) = (x.split_at(half), out.split_at_mut(half));
            for start in (0..half).step_by(LANES) {
                let range = start..half.min(start + LANES);
                let (a, b) = (load(v, &a[range.clone()]), load(v, &b[range.clone()]));
                let (cos, sin) = (load(v, &self.cos[range.clone()]), load(v, &self.sin[range.clone()]));
                store(v, v.fma(a, cos, v.sub(zero, v.mul(b, sin))), &mut out_a[range.clone()]);
                store(v, v.fma(b, cos, v.mul(a, sin)), &mut out_b[range]);
            }
        }
    }
}

/// Rotates the pairs (j, j + half) of each head by the angles whose cosines and sines are given.
pub(crate) fn rope(isa: Isa, x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    dispatch(isa, Rope { x, cos, sin, out });
}

/// out = activation(gate) * up in the activation's sense.
pub(crate) fn gate(isa: Isa, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let (a, b) = (gate, up);
    match activation {
        Activation::SwiGlu => dispatch(isa, Map { f: SwiGlu, a, b, out }),
        Activation::GeGluTanh => dispatch(isa, Map { f: GeGlu, a, b, out }),
        Activation::ClampedSwiGlu { alpha, limit } => {
            dispatch(isa, Map { f: ClampedSwiGlu { alpha, limit }, a, b, out });
        }
    }
}

/// gate = activation(gate) * up in the activation's sense.
pub(crate) fn gate_in_place(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    let (x, out) = (up, gate);
    match activation {
        Activation::SwiGlu => dispatch(isa, Update { f: Swapped(SwiGlu), x, out }),
        Activation::GeGluTanh => dispatch(isa, Update { f: Swapped(GeGlu), x, out }),
        Activation::ClampedSwiGlu { alpha, limit } => {
            dispatch(isa, Update { f: Swapped(ClampedSwiGlu { alpha, limit }), x, out });
        }
    }
}

/// out = cap * tanh(x / cap)
pub(crate) fn softcap(isa: Isa, x: &[f32], cap: f32, out: &mut [f32]) {
    dispatch(isa, Map { f: Cap(cap), a: x, b: x, out });
}

/// out = a + b
pub(crate) fn add(isa: Isa, a: &[f32], b: &[f32], out: &mut [f32]) {
    dispatch(isa, Map { f: Add, a, b, out });
}

/// out = a * b
pub(crate) fn mul(isa: Isa, a: &[f32], b: &[f32], out: &mut [f32]) {
    dispatch(isa, Map { f: Mul, a, b, out });
}

/// out = x * s
pub(crate) fn scale(isa: Isa, x: &[f32], s: f32, out: &mut [f32]) {
    dispatch(isa, Map { f: Scale(s), a: x, b: x, out });
}

/// out = fma(x, s, out)
pub(crate) fn accumulate(isa: Isa, x: &[f32], s: f32, out: &mut [f32]) {
    dispatch(isa, Update { f: Accumulate(s), x, out });
}

struct Softmax<'a>(&'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let largest = self.0.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        let shift = v.splat(largest);
        let (chunks, tail) = self.0.as_chunks_mut::<LANES>();
        let mut sum = v.splat(0.0);
        for x in chunks.iter_mut() {
            let e = math::exp(v, v.sub(v.load(x), shift));
            sum = v.add(sum, e);
            v.store(e, x);
        }
        if !tail.is_empty() {
            let e = math::exp(v, v.sub(v.load_part(tail), shift));
            v.store_part(e, tail);
            sum = v.add(sum, v.load_part(tail));
        }
        let sum = v.splat(v.sum(sum));
        for x in chunks.iter_mut() {
            v.store(v.div(v.load(x), sum), x);
        }
        if !tail.is_empty() {
            v.store_part(v.div(v.load_part(tail), sum), tail);
        }
    }
}

/// Softmax in place: e^(x - largest) over its sum.
pub(crate) fn softmax(isa: Isa, x: &mut [f32]) {
    dispatch(isa, Softmax(x));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state as f64 / 2.0f64.powi(32) * 12.0 - 6.0) as f32
        };
        (0..n).map(next).collect()
    }

    fn close(found: &[f32], expected: impl Fn(usize) -> f64, what: &str) {
        for (i, &found) in found.iter().enumerate() {
            let expected = expected(i);
            let error = (found as f64 - expected).abs();
            assert!(error <= 2e-6 * expected.abs().max(0.1), "{what} {i}: {found} {expected}");
        }
    }

    /// The ops on random rows of many widths: near f64, and the same bits on every instruction set.
    #[test]
    fn ops_are_right_and_equal() {
        for width in [1, 2, 15, 16, 17, 48, 130] {
            let (x, y, w) = (values(width, 1), values(width, 2), values(width, 3));
            let f = |v: &[f32], i: usize| v[i] as f64;
            let mut first: Option<Vec<Vec<u32>>> = None;
            for isa in Isa::all() {
                let mut all = Vec::new();
                let mut keep = |out: &[f32]| all.push(out.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                let mut out = vec![0.0; width];

                rms_norm(isa, &x, Some(&w), 1e-6, width, &mut out);
                let mean = x.iter().map(|&x| (x as f64).powi(2)).sum::<f64>() / width as f64;
                close(&out, |i| f(&x, i) / (mean + 1e-6).sqrt() * f(&w, i), "norm");
                keep(&out);

                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                gate(isa, Activation::SwiGlu, &x, &y, &mut out);
                close(&out, |i| f(&x, i) * sigmoid(f(&x, i)) * f(&y, i), "swiglu");
                keep(&out);
                gate(isa, Activation::ClampedSwiGlu { alpha: 1.702, limit: 4.0 }, &x, &y, &mut out);
                let clamped = |i| {
                    let (g, u) = (f(&x, i).min(4.0), f(&y, i).clamp(-4.0, 4.0));
                    (u + 1.0) * g * sigmoid(1.702f32 as f64 * g)
                };
                close(&out, clamped, "clamped");
                keep(&out);
                gate(isa, Activation::GeGluTanh, &x, &y, &mut out);
                let gelu = |x: f64| {
                    x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3)))
                };
                close(&out, |i| gelu(f(&x, i)) * f(&y, i), "geglu");
                keep(&out);

                softcap(isa, &x, 3.0, &mut out);
                close(&out, |i| 3.0 * (f(&x, i) / 3.0).tanh(), "softcap");
                keep(&out);
                add(isa, &x, &y, &mut out);
                close(&out, |i| f(&x, i) + f(&y, i), "add");
                mul(isa, &x, &y, &mut out);
                close(&out, |i| f(&x, i) * f(&y, i), "mul");
                accumulate(isa, &x, 0.5, &mut out);
                close(&out, |i| f(&x, i) * f(&y, i) + 0.5 * f(&x, i), "accumulate");
                keep(&out);
                scale(isa, &x, 1.5, &mut out);
                close(&out, |i| 1.5 * f(&x, i), "scale");
                keep(&out);
                out.copy_from_slice(&x);
                gate_in_place(isa, Activation::GeGluTanh, &mut out, &y);
                close(&out, |i| gelu(f(&x, i)) * f(&y, i), "geglu in place");
                keep(&out);
                out.copy_from_slice(&x);
                softmax(isa, &mut out);
                let sum: f64 = x.iter().map(|&x| (x as f64).exp()).sum();
                close(&out, |i| f(&x, i).exp() / sum, "softmax");
                keep(&out);

                if width % 2 == 0 {
                    let angle = |j: usize| (j as f64 * 0.3 + 0.1) as f32;
                    let cos: Vec<f32> = (0..width / 2).map(|j| angle(j).cos()).collect();
                    let sin: Vec<f32> = (0..width / 2).map(|j| angle(j).sin()).collect();
                    rope(isa, &x, &cos, &sin, &mut out);
                    let half = width / 2;
                    let rotated = |i: usize| match i.checked_sub(half) {
                        None => f(&x, i) * f(&cos, i) - f(&x, i + half) * f(&sin, i),
                        Some(j) => f(&x, i) * f(&cos, j) + f(&x, j) * f(&sin, j),
                    };
                    close(&out, rotated, "rope");
                    keep(&out);
                }
                assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{isa}, width {width}");
            }
        }
    }
}
