//! Routing made up from a seed.

use super::Trace;
use crate::random::Random;

/// How made-up tokens choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Every expert is as likely as any other.
    Uniform,
    /// In each layer, the r-th most popular expert (in an order of the layer's own) has weight r^-exponent.
    Zipf {
        /// How skewed: 0 is uniform.
        exponent: f64,
    },
    /// Most choices fall into a hot set, which is another every so many tokens.
    Drift {
        /// Tokens between changes.
        every: usize,
        /// Experts of a layer that are hot.
        hot: usize,
        /// Share of choices that are among them.
        share: f64,
    },
}

/// A model that routes as it is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Synthetic {
    /// Expert layers.
    pub layers: usize,
    /// Experts of each.
    pub experts: usize,
    /// Experts a token uses in a layer.
    pub k: usize,
    /// How they are chosen.
    pub routing: Routing,
    /// The same seed gives the same trace.
    pub seed: u64,
}

impl Synthetic {
    /// Of gpt-oss 20b's shape: 24 layers of 32 experts, 4 a token.
    pub fn new(routing: Routing, seed: u64) -> Synthetic {
        Synthetic { layers: 24, experts: 32, k: 4, routing, seed }
    }

    /// A trace of so many tokens, each in a pass of its own.
    pub fn trace(&self, tokens: usize) -> Trace {
        let mut random = Random::new(self.seed);
        let k = self.k.min(self.experts);
        let layers: Vec<u32> = (0..self.layers as u32).collect();
        let mut trace = Trace::new(layers, vec![self.experts as u32; self.layers], k);
        let mut weights = vec![vec![1.0; self.experts]; self.layers];
        let mut ids = Vec::with_capacity(self.layers * k);
        for token in 0..tokens {
            if token == 0 || matches!(self.routing, Routing::Drift { every, .. } if token % every.max(1) == 0)
            {
                for weights in &mut weights {
                    self.weigh(weights, &mut random);
                }
            }
            ids.clear();
            for weights in &weights {
                draw(weights, k, &mut random, &mut ids);
            }
            // Made by this function: ids are in range and as many as the trace needs.
            let pushed = trace.push(&[token as u32], &ids);
            debug_assert!(pushed.is_ok());
        }
        trace
    }

    /// How likely each expert of a layer is.
    fn weigh(&self, weights: &mut [f64], random: &mut Random) {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        random.shuffle(&mut order);
        for (rank, &expert) in order.iter().enumerate() {
            weights[expert] = match self.routing {
                Routing::Uniform => 1.0,
                Routing::Zipf { exponent } => ((rank + 1) as f64).powf(-exponent),
                Routing::Drift { hot, share, .. } if rank < hot => share / hot.max(1) as f64,
                Routing::Drift { hot, share, .. } => {
                    (1.0 - share) / weights.len().saturating_sub(hot).max(1) as f64
                }
            };
        }
    }
}

/// Draws `k` distinct experts, each in proportion to its weight among those left.
fn draw(weights: &[f64], k: usize, random: &mut Random, ids: &mut Vec<u32>) {
    let start = ids.len();
    for _ in 0..k {
        let taken = |id: usize, ids: &[u32]| ids[start..].contains(&(id as u32));
        let left: f64 = (0..weights.len()).filter(|&id| !taken(id, ids)).map(|id| weights[id]).sum();
        let mut at = random.unit() * left;
        let mut chosen = None;
        for id in (0..weights.len()).filter(|&id| !taken(id, ids)) {
            chosen = Some(id);
            at -= weights[id];
            if at < 0.0 {
                break;
            }
        }
        ids.extend(chosen.map(|id| id as u32));
    }
}
