//! Routed experts: each is computed for all of its rows when it arrives; sums are taken in rank order.

use turbospark_program::{Activation, ExpertError, ExpertLayout, ExpertRequest, Experts};

use crate::ops::{Vectors, gate, linear};
use crate::route::Routes;

/// Biases of all experts of a layer, [experts, width] each.
pub struct Biases<'a> {
    gate: Option<&'a [f32]>,
    up: Option<&'a [f32]>,
    down: Option<&'a [f32]>,
}

impl<'a> Biases<'a> {
    pub fn new(experts: &Experts, vectors: &'a Vectors) -> Biases<'a> {
        let get = |weight: Option<_>| weight.map(|weight| vectors.get(weight));
        Biases { gate: get(experts.gate_bias), up: get(experts.up_bias), down: get(experts.down_bias) }
    }
}

/// out[row] = sum over ranks of weight * expert(x[row]).
pub fn run(
    activation: Activation,
    biases: &Biases<'_>,
    layout: &ExpertLayout,
    request: &mut dyn ExpertRequest,
    x: &[f32],
    hidden: usize,
    routes: &Routes,
) -> Result<Vec<f32>, ExpertError> {
    let of = |bias: Option<&'_ [f32]>, expert: usize, width: usize| {
        bias.map(|bias| bias[expert * width..(expert + 1) * width].to_vec())
    };
    let mut partials = vec![0.0; routes.ids.len() * hidden];
    while let Some(lease) = request.next()? {
        let expert = lease.matrices(layout)?;
        let e = lease.expert as usize;
        // (row, rank) pairs, flattened, that use this expert.
        let uses: Vec<usize> = (0..routes.ids.len()).filter(|&i| routes.ids[i] == lease.expert).collect();
        let rows: Vec<f32> =
            uses.iter().flat_map(|&i| &x[i / routes.k * hidden..][..hidden]).copied().collect();
        let intermediate = expert.gate.rows();
        let mut gated = vec![0.0; uses.len() * intermediate];
        let gate_out = linear(&expert.gate, &rows, of(biases.gate, e, intermediate).as_deref());
        let up_out = linear(&expert.up, &rows, of(biases.up, e, intermediate).as_deref());
        gate(activation, &gate_out, &up_out, &mut gated);
        let down = linear(&expert.down, &gated, of(biases.down, e, hidden).as_deref());
        for (&i, down) in uses.iter().zip(down.chunks_exact(hidden)) {
            let partial = &mut partials[i * hidden..(i + 1) * hidden];
            partial.iter_mut().zip(down).for_each(|(p, d)| *p = routes.weights[i] * d);
        }
    }
    let mut out = vec![0.0; x.len()];
    for (out, ranks) in out.chunks_exact_mut(hidden).zip(partials.chunks_exact(routes.k * hidden)) {
        for partial in ranks.chunks_exact(hidden) {
            out.iter_mut().zip(partial).for_each(|(o, p)| *o += p);
        }
    }
    Ok(out)
}
