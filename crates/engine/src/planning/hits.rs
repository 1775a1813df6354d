//! How often experts will be found in a slot.

use serde::Serialize;
use turbospark_experts::PoolSizes;
use turbospark_experts::trace::{Routing, SimulatedPool, Synthetic, Trace, simulate};

use super::Planning;
use crate::memory::{ExpertPlacement, MemoryPlan};

/// Experts asked for in a simulation at most: a second or two with thousands of slots.
const MOST_ASKED: usize = 400_000;
/// Experts asked for of uniform routing: the hit rate is then known to about half a percent.
const UNIFORM_ASKED: usize = 40_000;

/// Where a hit rate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HitSource {
    /// The policy, simulated on the last so many tokens of a trace; the second half of them counts.
    Trace {
        /// Tokens simulated.
        tokens: usize,
    },
    /// The policy, simulated on routing that likes all experts alike. Real routing hits more often.
    Uniform,
}

/// What a pool will find and miss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    pub rate: f64,
    /// Bytes of the file, for each token.
    pub missed_bytes: f64,
}

impl Planning<'_> {
    /// Where hit rates come from.
    pub fn hit_source(&self) -> HitSource {
        match &self.trace {
            Some(trace) => HitSource::Trace { tokens: trace.len().min(self.most_tokens()) },
            None => HitSource::Uniform,
        }
    }

    fn most_tokens(&self) -> usize {
        MOST_ASKED / self.token.experts.max(1)
    }

    /// None where no experts are streamed.
    pub(super) fn hits(&self, plan: &MemoryPlan) -> Option<Hits> {
        let ExpertPlacement::Streamed { sizes, .. } = &plan.placement else { return None };
        let policy = self.options.memory.policy.unwrap_or_default();
        let Some(trace) = self.routing() else { return Some(self.evenly(sizes)) };
        let from = trace.len() / 2;
        let policy = policy.make(&trace.shape());
        let simulated = simulate(&trace, &SimulatedPool::from(sizes), policy, from);
        let layers = simulated.asked.iter().zip(&simulated.hits).zip(self.table.layers());
        let missed =
            layers.map(|((&asked, &hits), layer)| (asked - hits) as f64 * layer.layout().bytes() as f64);
        let tokens = (trace.len() - from).max(1) as f64;
        Some(Hits { rate: simulated.hit_rate(), missed_bytes: missed.sum::<f64>() / tokens })
    }

    /// The tokens that are simulated; none where no trace can be made up for the model.
    fn routing(&self) -> Option<Trace> {
        if let Some(trace) = &self.trace {
            let skip = trace.len().saturating_sub(self.most_tokens());
            // Generated tokens come one by one, however the trace was recorded.
            return Some(trace.split(skip).1.one_by_one());
        }
        let layers = self.program.expert_layers();
        let (experts, k) = layers.first().map(|layer| (layer.experts, layer.k))?;
        if layers.iter().any(|layer| (layer.experts, layer.k) != (experts, k)) {
            return None;
        }
        // Every expert has been asked for several times before counting begins.
        let tokens = (UNIFORM_ASKED / self.token.experts.max(1)).max(6 * experts / k.max(1));
        let made = Synthetic { layers: layers.len(), experts, k, ..Synthetic::new(Routing::Uniform, 1) };
        Some(made.trace(tokens.min(self.most_tokens()).max(2)))
    }

    /// Uniform routing finds what the pool holds of all experts.
    fn evenly(&self, sizes: &PoolSizes) -> Hits {
        let slots: usize = sizes.classes.iter().map(|class| class.slots).sum();
        let experts: usize = self.table.layers().iter().map(|layer| layer.experts()).sum();
        let rate = slots as f64 / experts.max(1) as f64;
        Hits { rate, missed_bytes: (1.0 - rate) * self.token.expert_file_bytes as f64 }
    }
}
