//! What a trace says about a model's routing.

use super::Trace;

/// The routing of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerStatistics {
    /// Model layer.
    pub layer: u32,
    /// Uses of each expert.
    pub uses: Vec<u64>,
    /// Share of a token's experts that the token before it used as well.
    pub overlap: f64,
    /// Share of a token's experts that were foretold, of the tokens for which any were; none if none ever were.
    pub recall: Option<f64>,
    /// Entropy of the uses as a share of that of uniform routing: 1 if all experts are used alike.
    pub evenness: f64,
    /// Share of the uses that go to the most used half of the experts.
    pub top_half: f64,
}

/// The routing of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceStatistics {
    /// By expert layer.
    pub layers: Vec<LayerStatistics>,
}

impl TraceStatistics {
    /// Counts a trace.
    pub fn of(trace: &Trace) -> TraceStatistics {
        let experts = trace.shape().experts;
        TraceStatistics { layers: (0..experts.len()).map(|i| layer(trace, i, experts[i])).collect() }
    }

    /// Overlap with the token before, over all layers.
    pub fn overlap(&self) -> f64 {
        let sum: f64 = self.layers.iter().map(|layer| layer.overlap).sum();
        sum / self.layers.len().max(1) as f64
    }
}

fn layer(trace: &Trace, index: usize, experts: usize) -> LayerStatistics {
    let mut uses = vec![0u64; experts];
    let mut shared = 0u64;
    let (mut foretold, mut recalled) = (0u64, 0u64);
    for token in 0..trace.len() {
        for &id in trace.routes(token, index) {
            uses[usize::from(id)] += 1;
            if token > 0 && trace.routes(token - 1, index).contains(&id) {
                shared += 1;
            }
        }
        if let Some(guess) = trace.foretold(token, index) {
            let chosen = trace.routes(token, index);
            foretold += chosen.len() as u64;
            recalled += chosen.iter().filter(|id| guess.contains(id)).count() as u64;
        }
    }
    let total: u64 = uses.iter().sum();
    let later = trace.len().saturating_sub(1) * trace.k();
    let part = |count: u64| count as f64 / total.max(1) as f64;
    let entropy: f64 =
        uses.iter().filter(|&&count| count > 0).map(|&count| -part(count) * part(count).ln()).sum();
    let mut sorted = uses.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let top: u64 = sorted[..experts.div_ceil(2)].iter().sum();
    LayerStatistics {
        layer: trace.layers()[index],
        uses,
        overlap: shared as f64 / later.max(1) as f64,
        recall: (foretold > 0).then(|| recalled as f64 / foretold as f64),
        evenness: if experts > 1 { entropy / (experts as f64).ln() } else { 1.0 },
        top_half: part(top),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Routing, Synthetic};

    #[test]
    fn a_small_trace_counted_by_hand() {
        let mut trace = Trace::new(vec![5], vec![4], 2);
        for routes in [[0, 1], [1, 2], [1, 2]] {
            trace.push(&[0], &routes).unwrap();
        }
        let layer = &TraceStatistics::of(&trace).layers[0];
        assert_eq!((layer.layer, &layer.uses[..]), (5, &[1, 3, 2, 0][..]));
        assert_eq!(layer.overlap, 0.75);
        assert_eq!(layer.recall, None);
        assert_eq!(layer.top_half, 5.0 / 6.0);
    }

    #[test]
    fn recall_counts_what_was_foretold_of_what_was_chosen() {
        let mut trace = Trace::new(vec![0, 1], vec![4, 4], 2);
        for (guess, chosen) in [(Some([1, 0]), [0, 1]), (None, [1, 2]), (Some([0, 2]), [2, 3])] {
            trace.push(&[0], &[0, 1, chosen[0], chosen[1]]).unwrap();
            guess.iter().for_each(|guess| trace.foretell(1, guess).unwrap());
        }
        let layers = TraceStatistics::of(&trace).layers;
        assert_eq!((layers[0].recall, layers[1].recall), (None, Some(0.75)));
        assert_eq!((trace.foretold(1, 1), trace.foretold(2, 1)), (None, Some(&[0, 2][..])));
        assert_eq!(trace.split(2).1.foretold(0, 1), Some(&[0, 2][..]));
        assert!(trace.foretell(1, &[4]).is_err() && trace.foretell(2, &[0]).is_err());
    }

    #[test]
    fn kinds_of_routing_look_as_they_should() {
        let of = |routing| TraceStatistics::of(&Synthetic::new(routing, 1).trace(400));
        let uniform = of(Routing::Uniform);
        assert!(uniform.layers.iter().all(|layer| layer.evenness > 0.98));
        assert!((uniform.overlap() - 4.0 / 32.0).abs() < 0.02);
        let zipf = of(Routing::Zipf { exponent: 1.0 });
        assert!(zipf.layers.iter().all(|layer| layer.evenness < 0.95 && layer.top_half > 0.7));
        assert!(of(Routing::Drift { every: 50, hot: 8, share: 0.8 }).overlap() > 0.25);
    }
}
