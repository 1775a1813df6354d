//! Causal attention: scores, softmax with sinks, weighted values.

use rayon::prelude::*;
use turbospark_program::arithmetic::dot;
use turbospark_program::{Attention, Batch, States};

use crate::kv::{KvPages, KvView};

/// out[row, head] = sum over visible positions u of softmax(q k_u * scale)_u v_u.
pub fn run(
    attention: &Attention,
    q: &[f32],
    sinks: Option<&[f32]>,
    kv: &KvPages,
    batch: &Batch,
    states: &States,
    out: &mut [f32],
) {
    let value_head = kv.value_width(attention.cache) / attention.kv_heads;
    let q_width = attention.heads * attention.head;
    out.par_chunks_exact_mut(attention.heads * value_head).enumerate().for_each(|(i, out)| {
        let row = &batch.rows[i];
        let view = kv.view(attention.cache, states, row.sequence, row.position + 1);
        let q = &q[i * q_width..(i + 1) * q_width];
        let heads = q.chunks_exact(attention.head).zip(out.chunks_exact_mut(value_head));
        for (head, (q, out)) in heads.enumerate() {
            let sink = sinks.map(|sinks| sinks[head]);
            attend(attention, head, q, sink, &view, row.position as usize, out);
        }
    });
}

fn attend(
    attention: &Attention,
    head: usize,
    q: &[f32],
    sink: Option<f32>,
    view: &KvView<'_>,
    position: usize,
    out: &mut [f32],
) {
    let kv_head = head / (attention.heads / attention.kv_heads);
    let first = attention.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let score = |u: usize| {
        let score = dot(q, view.key(u, kv_head, q.len())) * attention.scale;
        attention.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    };
    let mut weights: Vec<f32> = (first..=position).map(score).collect();
    let largest = weights.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    weights.iter_mut().for_each(|w| *w = (*w - largest).exp());
    let sum = weights.iter().sum::<f32>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    for (u, weight) in (first..=position).zip(&weights) {
        let weight = weight / sum;
        let value = view.value(u, kv_head, out.len());
        out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
    }
}
