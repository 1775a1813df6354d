//! What a model's routers do, counted and plotted, and what pools would make of it.

mod hits;
mod plots;

pub use hits::HitCurve;
pub use plots::{Plot, plots};

use std::collections::HashMap;

use serde::Serialize;
use turbospark_experts::trace::{Trace, TraceStatistics};
use turbospark_text::TextModel;

/// Tokens listed for an expert.
const TOP_TOKENS: usize = 10;
/// Experts of a layer whose pairs are counted: the table grows with the square.
const MOST_PAIRED: usize = 512;

/// The routing of a model over some tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteStatistics {
    /// Tokens counted.
    pub tokens: usize,
    /// Experts a token uses in a layer.
    pub experts_per_token: usize,
    /// Each layer with routed experts.
    pub layers: Vec<LayerRouteStatistics>,
}

/// The routing of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerRouteStatistics {
    /// Model layer.
    pub layer: u32,
    /// Uses of each expert.
    pub counts: Vec<u64>,
    /// Entropy of the uses, in bits; the base-2 logarithm of the number of experts if all are used alike.
    pub entropy_bits: f64,
    /// Share of a token's experts that the token before it used as well.
    pub overlap_with_previous: f64,
    /// Share of a token's experts that the layer before foretold, where the trace has what it foretold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall_of_prediction: Option<f64>,
    /// [experts, experts]: tokens that used both; the diagonal has the counts. Empty for more than 512 experts.
    pub co_occurrence: Vec<Vec<u64>>,
    /// For each expert the tokens that used it most, most first.
    pub top_tokens: Vec<Vec<TokenUses>>,
}

/// Uses of an expert by one token of the vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenUses {
    /// Token id.
    pub id: u32,
    /// Its text, where the model has a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Uses.
    pub count: u64,
}

impl RouteStatistics {
    /// Counts a trace.
    pub fn of(trace: &Trace, text: Option<&TextModel>) -> RouteStatistics {
        let statistics = TraceStatistics::of(trace).layers;
        let layers = statistics.into_iter().enumerate().map(|(index, layer)| {
            let experts = layer.uses.len();
            let total = layer.uses.iter().sum::<u64>().max(1) as f64;
            let shares = layer.uses.iter().filter(|&&uses| uses > 0).map(|&uses| uses as f64 / total);
            LayerRouteStatistics {
                layer: layer.layer,
                entropy_bits: shares.map(|share| -share * share.log2()).sum(),
                overlap_with_previous: layer.overlap,
                recall_of_prediction: layer.recall,
                co_occurrence: co_occurrence(trace, index, experts),
                top_tokens: top_tokens(trace, index, experts, text),
                counts: layer.uses,
            }
        });
        RouteStatistics { tokens: trace.len(), experts_per_token: trace.k(), layers: layers.collect() }
    }
}

fn co_occurrence(trace: &Trace, layer: usize, experts: usize) -> Vec<Vec<u64>> {
    if experts > MOST_PAIRED {
        return Vec::new();
    }
    let mut counts = vec![vec![0; experts]; experts];
    for token in 0..trace.len() {
        let ids = trace.routes(token, layer);
        for &a in ids {
            for &b in ids {
                counts[usize::from(a)][usize::from(b)] += 1;
            }
        }
    }
    counts
}

fn top_tokens(trace: &Trace, layer: usize, experts: usize, text: Option<&TextModel>) -> Vec<Vec<TokenUses>> {
    let mut counts: Vec<HashMap<u32, u64>> = vec![HashMap::new(); experts];
    for (token, &id) in trace.tokens().iter().enumerate() {
        for &expert in trace.routes(token, layer) {
            *counts[usize::from(expert)].entry(id).or_default() += 1;
        }
    }
    let sorted = counts.into_iter().map(|counts| {
        let mut uses: Vec<(u32, u64)> = counts.into_iter().collect();
        uses.sort_unstable_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        uses.truncate(TOP_TOKENS);
        let named = |(id, count)| {
            let text = text.and_then(|text| text.tokenizer.token_bytes(id).ok());
            TokenUses { id, text: text.map(|bytes| String::from_utf8_lossy(bytes).into_owned()), count }
        };
        uses.into_iter().map(named).collect()
    });
    sorted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_trace_counted_by_hand() {
        let mut trace = Trace::new(vec![5], vec![4], 2);
        for (token, routes) in [(7, [0, 1]), (8, [1, 2]), (7, [1, 2])] {
            trace.push(&[token], &routes).unwrap();
        }
        let layer = &RouteStatistics::of(&trace, None).layers[0];
        assert_eq!((layer.layer, &layer.counts[..]), (5, &[1, 3, 2, 0][..]));
        assert_eq!(layer.co_occurrence[1], [1, 3, 2, 0]);
        assert_eq!(layer.top_tokens[1][0], TokenUses { id: 7, text: None, count: 2 });
        let bits = (6f64).log2() - (3.0 * 3f64.log2() + 2.0) / 6.0;
        assert!((layer.entropy_bits - bits).abs() < 1e-12);
        assert!(layer.top_tokens[3].is_empty());
        assert!(layer.recall_of_prediction.is_none());
        let mut trace = Trace::new(vec![0], vec![513], 1);
        trace.push(&[1], &[512]).unwrap();
        assert!(RouteStatistics::of(&trace, None).layers[0].co_occurrence.is_empty());
    }
}
