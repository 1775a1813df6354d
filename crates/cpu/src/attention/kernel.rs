//! One tile of keys and values against the queries of one key-value head.
//!
//! A score is a chain of fused multiply-adds in the order of the head's elements, a weighted value one in the order
//! of positions; the sum of a tile's weights has 16 lanes, lane i taking the positions i mod 16. How many
//! queries are worked on at a time does not show in any of them.

// Indices run over several arrays at once; iterators in their place are not compiled as well.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use turbospark_program::PAGE_POSITIONS;

use super::kv::{HeadPage, Stored};
use crate::math;
use crate::vector::{LANES, Vector};

/// Vectors of positions in a tile.
const GROUPS: usize = PAGE_POSITIONS / LANES;

/// 0, 1, 2 ...
const POSITIONS: [[f32; LANES]; GROUPS] = {
    let mut positions = [[0.0; LANES]; GROUPS];
    let mut i = 0;
    while i < PAGE_POSITIONS {
        positions[i / LANES][i % LANES] = i as f32;
        i += 1;
    }
    positions
};

/// Queries that a block has at most.
pub(crate) const QUERIES: usize = 64;

/// What is known of the queries of a block after some tiles.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partial {
    /// Largest score of each query; minus infinity before its first tile.
    pub largest: Vec<f32>,
    /// Sum of its weights e^(score - largest).
    pub sum: Vec<f32>,
    /// Its weighted values, `stride` apart.
    pub values: Vec<f32>,
}

impl Partial {
    /// Nothing yet of so many queries. Memory is kept.
    pub fn reset(&mut self, queries: usize, stride: usize) {
        self.largest.clear();
        self.largest.resize(queries, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(queries, 0.0);
        self.values.clear();
        self.values.resize(queries * stride, 0.0);
    }
}

/// What all tiles of a block have in common.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    /// Query vectors.
    pub q: &'a [&'a [f32]],
    /// Elements of a key.
    pub head: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// Elements of a value, padded to 16.
    pub stride: usize,
}

/// Weights of a block's queries, and how its old and new values are mixed.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    scores: Box<[[f32; PAGE_POSITIONS]; QUERIES]>,
    /// Factor on what was known.
    old: [f32; QUERIES],
    /// Factor on the tile's values.
    new: [f32; QUERIES],
}

impl Default for Weights {
    fn default() -> Weights {
        Weights {
            scores: vec![[0.0; PAGE_POSITIONS]; QUERIES].try_into().unwrap_or_else(|_| unreachable!()),
            old: [0.0; QUERIES],
            new: [0.0; QUERIES],
        }
    }
}

/// Calls a function of a const number of queries, 1 to 6.
macro_rules! by_count {
    ($count:expr, $call:ident, $v:expr, $stored:expr, $J:tt, $($argument:expr),*) => {
        match $count {
            1 => $call::<V, S, 1, $J>($v, $stored, $($argument),*),
            2 => $call::<V, S, 2, $J>($v, $stored, $($argument),*),
            3 => $call::<V, S, 3, $J>($v, $stored, $($argument),*),
            4 => $call::<V, S, 4, $J>($v, $stored, $($argument),*),
            5 => $call::<V, S, 5, $J>($v, $stored, $($argument),*),
            _ => $call::<V, S, 6, $J>($v, $stored, $($argument),*),
        }
    };
}

/// Cuts 0..count into almost equal ranges of at most `most`.
fn even(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = count.div_ceil(most);
    (0..parts).map(move |i| count * i / parts..count * (i + 1) / parts)
}

/// Adds a tile to what is known. `visible` gives the positions of the tile that a query sees.
#[inline(always)]
pub(crate) fn add_tile<V: Vector, S: Stored>(
    v: V,
    stored: S,
    page: &HeadPage<'_>,
    queries: &Queries<'_>,
    visible: impl Fn(usize) -> Range<usize>,
    weights: &mut Weights,
    known: &mut Partial,
) {
    for block in even(queries.q.len(), V::QUERIES) {
        let (q, scores) = (&queries.q[block.clone()], &mut weights.scores[block.clone()]);
        if V::WIDE {
            by_count!(block.len(), scores_of, v, stored, 4, page, q, queries.head, scores);
        } else {
            by_count!(block.len(), scores_of, v, stored, 2, page, q, queries.head, scores);
        }
        // From the first to the last position that one of them sees.
        let (mut first_seen, mut end_seen) = (PAGE_POSITIONS, 0);
        for i in block.clone() {
            let range = visible(i);
            if range.is_empty() {
                // The query keeps what it has: its weights are zero.
                weights.scores[i].fill(0.0);
                (weights.old[i], weights.new[i]) = (1.0, 0.0);
                continue;
            }
            (first_seen, end_seen) = (first_seen.min(range.start), end_seen.max(range.end));
            let (largest, sum) = softmax(v, queries, range, &mut weights.scores[i]);
            let (old, new) = mix(v, known.largest[i], largest);
            (weights.old[i], weights.new[i]) = (old, new);
            known.sum[i] = sum.mul_add(new, known.sum[i] * old);
            if largest > known.largest[i] {
                known.largest[i] = largest;
            }
        }
        if first_seen >= end_seen {
            continue;
        }
        let seen = first_seen..end_seen.min(PAGE_POSITIONS);
        let mix = Mix {
            scores: &weights.scores[block.clone()],
            old: &weights.old[block.clone()],
            new: &weights.new[block.clone()],
            stride: queries.stride,
        };
        let out = &mut known.values[block.start * queries.stride..block.end * queries.stride];
        let groups = queries.stride / LANES;
        let wide = if V::WIDE { 4 } else { 2 };
        let whole = groups / wide * wide;
        for group in (0..whole).step_by(wide) {
            if V::WIDE {
                by_count!(block.len(), values_of, v, stored, 4, page, &mix, seen.clone(), group, out);
            } else {
                by_count!(block.len(), values_of, v, stored, 2, page, &mix, seen.clone(), group, out);
            }
        }
        for group in whole..groups {
            by_count!(block.len(), values_of, v, stored, 1, page, &mix, seen.clone(), group, out);
        }
    }
}

/// Scores of Q queries at all positions of the tile, J vectors of positions at a time; not yet scaled.
#[inline(always)]
fn scores_of<V: Vector, S: Stored, const Q: usize, const J: usize>(
    v: V,
    stored: S,
    page: &HeadPage<'_>,
    q: &[&[f32]],
    head: usize,
    out: &mut [[f32; PAGE_POSITIONS]],
) {
    let q: [&[f32]; Q] = std::array::from_fn(|i| &q[i][..head]);
    for first in (0..GROUPS).step_by(J) {
        let mut sums = [[v.splat(0.0); J]; Q];
        for e in 0..head {
            let keys: [V::F; J] = load_keys(v, stored, page, e, first);
            for i in 0..Q {
                let x = v.splat(q[i][e]);
                for j in 0..J {
                    sums[i][j] = v.fma(x, keys[j], sums[i][j]);
                }
            }
        }
        for i in 0..Q {
            let (out, _) = out[i].as_chunks_mut::<LANES>();
            for j in 0..J {
                v.store(sums[i][j], &mut out[first + j]);
            }
        }
    }
}

#[inline(always)]
fn load_keys<V: Vector, S: Stored, const J: usize>(
    v: V,
    stored: S,
    page: &HeadPage<'_>,
    e: usize,
    first: usize,
) -> [V::F; J] {
    let mut keys = [v.splat(0.0); J];
    for (j, key) in keys.iter_mut().enumerate() {
        *key = stored.keys(v, page, e, first + j);
    }
    keys
}

/// Turns scores into weights e^(score - largest), 0 where not visible; gives the largest score and the sum.
#[inline(always)]
fn softmax<V: Vector>(
    v: V,
    queries: &Queries<'_>,
    visible: Range<usize>,
    scores: &mut [f32; PAGE_POSITIONS],
) -> (f32, f32) {
    let (chunks, _) = scores.as_chunks_mut::<LANES>();
    let mut x = [v.splat(0.0); GROUPS];
    let (start, end) = (v.splat(visible.start as f32), v.splat(visible.end as f32));
    let hidden = v.splat(f32::NEG_INFINITY);
    for j in 0..GROUPS {
        let mut s = v.mul(v.load(&chunks[j]), v.splat(queries.scale));
        if let Some(cap) = queries.softcap {
            let cap = v.splat(cap);
            s = v.mul(cap, math::tanh(v, v.div(s, cap)));
        }
        if visible.len() < PAGE_POSITIONS {
            let position = v.load(&POSITIONS[j]);
            s = v.select_less(position, start, hidden, s);
            s = v.select_less(position, end, s, hidden);
        }
        x[j] = s;
    }
    let largest = v.largest(v.max(v.max(x[0], x[1]), v.max(x[2], x[3])));
    let shift = v.splat(largest);
    let mut sum = v.splat(0.0);
    for j in 0..GROUPS {
        let weight = math::exp(v, v.sub(x[j], shift));
        sum = v.add(sum, weight);
        v.store(weight, &mut chunks[j]);
    }
    (largest, v.sum(sum))
}

/// Factors that bring what was known under `known` and what is new under `largest` to the larger of the two.
#[inline(always)]
fn mix<V: Vector>(v: V, known: f32, largest: f32) -> (f32, f32) {
    let less = -(known - largest).abs();
    let mut lanes = [0.0; LANES];
    v.store(math::exp(v, v.splat(less)), &mut lanes);
    if largest > known { (lanes[0], 1.0) } else { (1.0, lanes[0]) }
}

struct Mix<'a> {
    scores: &'a [[f32; PAGE_POSITIONS]],
    old: &'a [f32],
    new: &'a [f32],
    stride: usize,
}

/// Mixes J vectors of Q queries' values with those of the tile.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn values_of<V: Vector, S: Stored, const Q: usize, const J: usize>(
    v: V,
    stored: S,
    page: &HeadPage<'_>,
    mix: &Mix<'_>,
    seen: Range<usize>,
    group: usize,
    out: &mut [f32],
) {
    let scores: [&[f32; PAGE_POSITIONS]; Q] = std::array::from_fn(|i| &mix.scores[i]);
    let mut sums = [[v.splat(0.0); J]; Q];
    for position in seen {
        let mut values = [v.splat(0.0); J];
        for (j, value) in values.iter_mut().enumerate() {
            *value = stored.values(v, page, position, group + j);
        }
        for i in 0..Q {
            let x = v.splat(scores[i][position]);
            for j in 0..J {
                sums[i][j] = v.fma(x, values[j], sums[i][j]);
            }
        }
    }
    for i in 0..Q {
        let out = &mut out[i * mix.stride + group * LANES..][..J * LANES];
        let (chunks, _) = out.as_chunks_mut::<LANES>();
        let (old, new) = (v.splat(mix.old[i]), v.splat(mix.new[i]));
        for j in 0..J {
            let kept = v.mul(v.load(&chunks[j]), old);
            v.store(v.fma(sums[i][j], new, kept), &mut chunks[j]);
        }
    }
}

/// Adds what is known of later tiles.
#[inline(always)]
pub(crate) fn merge<V: Vector>(v: V, later: &Partial, stride: usize, known: &mut Partial) {
    for i in 0..known.sum.len() {
        let (largest, sum) = (later.largest[i], later.sum[i]);
        if largest == f32::NEG_INFINITY && sum == 0.0 {
            continue;
        }
        let (old, new) = mix(v, known.largest[i], largest);
        known.sum[i] = sum.mul_add(new, known.sum[i] * old);
        if largest > known.largest[i] {
            known.largest[i] = largest;
        }
        let (old, new) = (v.splat(old), v.splat(new));
        let (out, _) = known.values[i * stride..(i + 1) * stride].as_chunks_mut::<LANES>();
        let (x, _) = later.values[i * stride..(i + 1) * stride].as_chunks::<LANES>();
        for (out, x) in out.iter_mut().zip(x) {
            v.store(v.fma(v.load(x), new, v.mul(v.load(out), old)), out);
        }
    }
}

/// Ends a query: its sink, a score without a value, comes last; then values are divided by the sum.
#[inline(always)]
pub(crate) fn finish<V: Vector>(
    v: V,
    sink: Option<f32>,
    query: usize,
    stride: usize,
    known: &Partial,
    out: &mut [f32],
) {
    let mut sum = known.sum[query];
    let mut factor = 1.0;
    if let Some(sink) = sink {
        let (old, new) = mix(v, known.largest[query], sink);
        sum = sum.mul_add(old, new);
        factor = old;
    }
    let (factor, sum) = (v.splat(factor), v.splat(sum));
    let values = &known.values[query * stride..][..stride];
    for (out, x) in out.chunks_mut(LANES).zip(values.as_chunks::<LANES>().0) {
        // The zero turns -0, which depends on how many hidden positions were added, into 0.
        let x = v.fma(v.load(x), factor, v.splat(0.0));
        v.store_part(v.div(x, sum), out);
    }
}
