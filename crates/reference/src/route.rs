//! Choosing experts from router logits.

use turbospark_program::{Batch, Outputs, Program, Route, Routing};

/// The chosen experts of each row, k a row, in falling order of their logits.
#[derive(Default)]
pub struct Routes {
    pub k: usize,
    pub ids: Vec<u32>,
    pub weights: Vec<f32>,
}

impl Routes {
    /// Every expert that some row uses, once, in rising order.
    pub fn distinct(&self) -> Vec<u32> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Routes every row of `logits`.
pub fn run(routing: &Routing, expert_scale: Option<&[f32]>, logits: &[f32], rows: usize) -> Routes {
    let mut routes = Routes { k: routing.k, ..Routes::default() };
    for logits in logits.chunks_exact(logits.len() / rows.max(1)) {
        let scores = match routing.route {
            Route::TopKThenSoftmax => logits.to_vec(),
            Route::SoftmaxThenTopK { .. } => softmax(logits),
        };
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        // A stable sort leaves ties with the lower expert first.
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        order.truncate(routing.k);
        let chosen: Vec<f32> = order.iter().map(|&e| scores[e as usize]).collect();
        let mut weights = match routing.route {
            Route::TopKThenSoftmax => softmax(&chosen),
            Route::SoftmaxThenTopK { renormalize: false } => chosen,
            Route::SoftmaxThenTopK { renormalize: true } => {
                let sum: f32 = chosen.iter().sum();
                chosen.iter().map(|w| w / sum).collect()
            }
        };
        if let Some(scale) = expert_scale {
            weights.iter_mut().zip(&order).for_each(|(w, &e)| *w *= scale[e as usize]);
        }
        routes.ids.extend(order);
        routes.weights.extend(weights);
    }
    routes
}

fn softmax(x: &[f32]) -> Vec<f32> {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp: Vec<f32> = x.iter().map(|x| (x - largest).exp()).collect();
    let sum: f32 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}

/// Copies the choices of captured rows to the caller.
pub fn capture(routes: &Routes, layer: usize, program: &Program, batch: &Batch, outputs: &mut Outputs<'_>) {
    let Some(out) = &mut outputs.routes else { return };
    let before: usize = program.expert_layers()[..layer].iter().map(|layer| layer.k).sum();
    let mut at = before * batch.captured();
    for (i, _) in batch.rows.iter().enumerate().filter(|(_, row)| row.capture) {
        let row = i * routes.k..(i + 1) * routes.k;
        out.ids[at..at + routes.k].copy_from_slice(&routes.ids[row.clone()]);
        out.weights[at..at + routes.k].copy_from_slice(&routes.weights[row]);
        at += routes.k;
    }
}
