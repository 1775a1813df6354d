//! A trace replayed through a pool that reads nothing.

use super::Trace;
use crate::policy::{ExpertKey, Policy, PolicyKind};
use crate::pool::residency::Residency;
use crate::pool::{PoolSizes, SizeClass};

/// Slots as the simulator sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedPool {
    class_of: Vec<usize>,
    classes: Vec<SizeClass>,
}

impl SimulatedPool {
    /// `slots` slots that every layer's experts fit.
    pub fn uniform(trace: &Trace, slots: usize) -> SimulatedPool {
        SimulatedPool {
            class_of: vec![0; trace.layers().len()],
            classes: vec![SizeClass { bytes: 1, slots: slots.max(1) }],
        }
    }
}

impl From<&PoolSizes> for SimulatedPool {
    /// The slots that a streamed source has.
    fn from(sizes: &PoolSizes) -> SimulatedPool {
        SimulatedPool { class_of: sizes.class_of.clone(), classes: sizes.classes.clone() }
    }
}

/// What a pool would have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Experts found in a slot, by layer.
    pub hits: Vec<u64>,
    /// Experts asked for, by layer.
    pub asked: Vec<u64>,
    /// Bytes that would have been read.
    pub bytes: u64,
}

impl Simulated {
    /// Share of the experts asked for that were in a slot.
    pub fn hit_rate(&self) -> f64 {
        let asked: u64 = self.asked.iter().sum();
        if asked == 0 { 0.0 } else { self.hits.iter().sum::<u64>() as f64 / asked as f64 }
    }
}

/// Experts that one token uses: below so many slots LRU over all layers hits nothing.
pub fn cycle(trace: &Trace) -> usize {
    trace.layers().len() * trace.k()
}

/// Replays a trace; what happens before the token `from` warms the pool and is not counted.
pub fn simulate(trace: &Trace, pool: &SimulatedPool, policy: Box<dyn Policy>, from: usize) -> Simulated {
    let shape = trace.shape();
    let mut residency = Residency::new(&shape, pool.class_of.clone(), &pool.classes, policy);
    let layers = shape.experts.len();
    let mut result = Simulated { hits: vec![0; layers], asked: vec![0; layers], bytes: 0 };
    // The slots that the open request holds.
    let mut held: Vec<usize> = Vec::new();
    for (layer, ids, token) in trace.requests() {
        residency.advance(layer);
        held.clear();
        let mut misses = Vec::new();
        for &id in &ids {
            let key = ExpertKey::new(layer, id);
            match residency.used(key) {
                Some(slot) => held.push(slot),
                None => misses.push(key),
            }
        }
        residency.chosen(layer, &ids);
        if token >= from {
            result.hits[layer] += held.len() as u64;
            result.asked[layer] += (held.len() + misses.len()) as u64;
            result.bytes += (misses.len() * pool.classes[pool.class_of[layer]].bytes) as u64;
        }
        for key in misses {
            // More experts than slots: those computed first have given theirs back.
            let taken = residency.take(key, |slot| !held.contains(&slot)).or_else(|| {
                held.clear();
                residency.take(key, |_| true)
            });
            held.extend(taken.map(|(slot, _)| slot));
        }
    }
    result
}

/// Replays a trace through `slots` slots with one of the online policies.
pub fn simulate_kind(trace: &Trace, slots: usize, kind: PolicyKind, from: usize) -> Simulated {
    simulate(trace, &SimulatedPool::uniform(trace, slots), kind.make(&trace.shape()), from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Belady, Routing, Synthetic};

    fn rate(trace: &Trace, slots: usize, kind: PolicyKind) -> f64 {
        simulate_kind(trace, slots, kind, 0).hit_rate()
    }

    #[test]
    fn lru_hits_nothing_below_a_cycle_and_the_default_does() {
        for routing in [Routing::Uniform, Routing::Zipf { exponent: 1.0 }] {
            let trace = Synthetic::new(routing, 1).trace(100);
            let cycle = cycle(&trace);
            assert_eq!(rate(&trace, cycle / 2, PolicyKind::Lru), 0.0);
            assert!(rate(&trace, cycle / 2, PolicyKind::default()) > 0.05);
        }
    }

    #[test]
    fn no_policy_beats_the_optimum_and_all_hit_when_everything_fits() {
        let trace = Synthetic::new(Routing::Drift { every: 20, hot: 6, share: 0.8 }, 2).trace(120);
        let all: usize = trace.shape().experts.iter().sum();
        for slots in [5, 50, cycle(&trace), 2 * cycle(&trace), all] {
            let pool = SimulatedPool::uniform(&trace, slots);
            let best = simulate(&trace, &pool, Box::new(Belady::new(&trace)), 0);
            for kind in PolicyKind::ONLINE {
                let online = simulate_kind(&trace, slots, kind, 0);
                assert!(online.hits.iter().sum::<u64>() <= best.hits.iter().sum(), "{kind} {slots}");
                assert_eq!(online.asked, best.asked);
                if slots == all {
                    assert_eq!(online, best);
                }
            }
        }
    }

    #[test]
    fn the_simulator_and_the_pool_agree() {
        use crate::toy::Toy;
        use crate::{Prefetch, StreamOptions, StreamedExperts};
        use turbospark_program::ExpertSource;

        let shape = Synthetic { layers: 3, experts: 10, k: 3, ..Synthetic::new(Routing::Uniform, 9) };
        let trace = shape.trace(60);
        for kind in PolicyKind::ONLINE {
            let table = Toy::new(3, 10).in_memory();
            let mut options = StreamOptions::new(12 * 3 * 8192);
            (options.policy, options.workers, options.prefetch) = (kind, 1, Prefetch::Off);
            let source = StreamedExperts::new(table, None, &options).unwrap();
            for (layer, ids, _) in trace.requests() {
                let mut request = source.begin(layer, &ids).unwrap();
                while request.next().unwrap().is_some() {}
            }
            let simulated = simulate(&trace, &source.sizes().into(), kind.make(&trace.shape()), 0);
            let found = source.statistics();
            // In the pool a lease may have been given back before the next read: it differs by little.
            let (found, expected) = (found.hits as f64, simulated.hits.iter().sum::<u64>() as f64);
            assert!((found - expected).abs() <= 0.1 * expected, "{kind}: {found} and {expected}");
        }
    }
}
