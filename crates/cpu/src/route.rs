//! Choosing experts from router logits.

use turbospark_program::{Batch, Outputs, Program, Route, Routing};

use crate::isa::Isa;
use crate::ops::softmax;
use crate::pool::Pool;
use crate::registers::Shared;

/// The chosen experts of each row, k a row, in falling order of their logits.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pub k: usize,
    pub ids: Vec<u32>,
    pub weights: Vec<f32>,
    /// Every expert that some row uses, once, in rising order.
    pub distinct: Vec<u32>,
    /// Working memory: softmax over all experts.
    scores: Vec<f32>,
}

impl Routes {
    /// Routes every row of `logits`.
    pub fn choose(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        routing: &Routing,
        expert_scale: Option<&[f32]>,
        logits: &[f32],
        rows: usize,
    ) {
        let (k, experts) = (routing.k, logits.len() / rows.max(1));
        self.k = k;
        self.ids.resize(rows * k, 0);
        self.weights.resize(rows * k, 0.0);
        self.scores.resize(rows * experts, 0.0);
        let (ids, weights) = (Shared::new(&mut self.ids[..]), Shared::new(&mut self.weights[..]));
        let scores = Shared::new(&mut self.scores[..]);
        let grain = if rows * experts < 4096 { rows } else { 8 };
        pool.run(rows, grain, &|_, range| {
            for row in range {
                // SAFETY: a row is given to one thread.
                let (ids, weights, scores) = unsafe {
                    (ids.part(row * k, k), weights.part(row * k, k), scores.part(row * experts, experts))
                };
                let logits = &logits[row * experts..][..experts];
                largest(logits, ids);
                let chosen = ids.iter().zip(weights.iter_mut());
                match routing.route {
                    Route::TopKThenSoftmax => {
                        chosen.for_each(|(&id, weight)| *weight = logits[id as usize]);
                        softmax(isa, weights);
                    }
                    Route::SoftmaxThenTopK { renormalize } => {
                        scores.copy_from_slice(logits);
                        softmax(isa, scores);
                        chosen.for_each(|(&id, weight)| *weight = scores[id as usize]);
                        if renormalize {
                            let sum: f32 = weights.iter().sum();
                            weights.iter_mut().for_each(|weight| *weight /= sum);
                        }
                    }
                }
                if let Some(scale) = expert_scale {
                    weights.iter_mut().zip(ids.iter()).for_each(|(w, &id)| *w *= scale[id as usize]);
                }
            }
        });
        self.find_distinct();
    }

    /// Finds the experts in use, after ids were changed.
    pub fn find_distinct(&mut self) {
        self.distinct.clear();
        self.distinct.extend_from_slice(&self.ids);
        self.distinct.sort_unstable();
        self.distinct.dedup();
    }

    /// Copies the choices of captured rows to the caller.
    pub fn capture(&self, layer: usize, program: &Program, batch: &Batch, outputs: &mut Outputs<'_>) {
        let Some(out) = &mut outputs.routes else { return };
        let before: usize = program.expert_layers()[..layer].iter().map(|layer| layer.k).sum();
        let mut at = before * batch.captured();
        for (i, _) in batch.rows.iter().enumerate().filter(|(_, row)| row.capture) {
            let row = i * self.k..(i + 1) * self.k;
            out.ids[at..at + self.k].copy_from_slice(&self.ids[row.clone()]);
            out.weights[at..at + self.k].copy_from_slice(&self.weights[row]);
            at += self.k;
        }
    }
}

/// The indices of the largest logits, as many as `ids` holds, in falling order; ties go to the lower index.
fn largest(logits: &[f32], ids: &mut [u32]) {
    let greater = |a: usize, b: u32| logits[a].total_cmp(&logits[b as usize]).is_gt();
    let mut held = 0;
    for e in 0..logits.len() {
        if held == ids.len() && !greater(e, ids[held - 1]) {
            continue;
        }
        let mut at = held.min(ids.len() - 1);
        while at > 0 && greater(e, ids[at - 1]) {
            ids[at] = ids[at - 1];
            at -= 1;
        }
        ids[at] = e as u32;
        held = (held + 1).min(ids.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_expert() {
        let logits = [1.0, 3.0, 2.0, 3.0, -1.0, 2.0, f32::NEG_INFINITY];
        let mut ids = [9; 4];
        largest(&logits, &mut ids);
        assert_eq!(ids, [1, 3, 2, 5]);
        let mut one = [9];
        largest(&logits, &mut one);
        assert_eq!(one, [1]);
    }
}
