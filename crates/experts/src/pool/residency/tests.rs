//! Who leaves, against a plain look at all slots.

use std::collections::VecDeque;
use std::path::Path;

use super::{Residency, SizeClass};
use crate::policy::{ExpertKey, Policy, PolicyKind, StaticHotSet, Worth};
use crate::random::Random;
use crate::trace::{Belady, Routing, Synthetic, Trace, cycle};

impl Residency {
    /// The least worth expert of a class that `may_leave`, found by asking for the worth of each.
    fn scan(&self, class: usize, may_leave: impl Fn(usize) -> bool) -> Option<(usize, ExpertKey)> {
        let mut least: Option<(Worth, usize, ExpertKey)> = None;
        for (slot, key) in self.keys.iter().enumerate() {
            let Some(key) = key.filter(|_| may_leave(slot)) else { continue };
            let worth = self.policy.worth(key, self.now);
            if self.class_of[key.layer as usize] == class && least.is_none_or(|(known, ..)| worth < known) {
                least = Some((worth, slot, key));
            }
        }
        least.map(|(_, slot, key)| (slot, key))
    }
}

/// Every policy.
fn policies(trace: &Trace) -> Vec<(String, Box<dyn Policy>)> {
    let shape = trace.shape();
    let mut all: Vec<(String, Box<dyn Policy>)> =
        PolicyKind::ONLINE.iter().map(|kind| (kind.to_string(), kind.make(&shape))).collect();
    all.push(("static-set".into(), Box::new(StaticHotSet::fit(&shape, trace.uses()))));
    all.push(("optimum".into(), Box::new(Belady::new(trace))));
    all
}

/// Replays a trace; slots are busy at random, reads come late and fail. Returns how many experts left.
fn replay(trace: &Trace, slots: usize, policy: Box<dyn Policy>, what: &str, random: &mut Random) -> usize {
    let shape = trace.shape();
    let classes = [slots - slots / 3, slots / 3].map(|slots| SizeClass { bytes: 1, slots });
    let class_of = (0..shape.experts.len()).map(|layer| usize::from(layer % 3 == 1)).collect();
    let mut residency = Residency::new(&shape, class_of, &classes, policy);
    let mut busy = vec![false; slots];
    let mut wanted = VecDeque::new();
    let mut left = 0;
    for (layer, ids, token) in trace.requests() {
        residency.advance(layer);
        for &id in &ids {
            let key = ExpertKey::new(layer, id);
            match residency.used(key) {
                Some(slot) => busy[slot] = true,
                None => wanted.push_back(key),
            }
        }
        residency.chosen(layer, &ids);
        // What is not read now is when later layers were used.
        for key in wanted.drain(..random.below(wanted.len() + 1)) {
            if residency.find(key).is_some() {
                continue;
            }
            let class = residency.class_of[key.layer as usize];
            let may_leave = |slot: usize| !busy[slot];
            let expected = residency.scan(class, may_leave).filter(|_| residency.free[class].is_empty());
            let taken = residency.take(key, may_leave);
            let found = taken.and_then(|(slot, left)| Some((slot, left?)));
            assert_eq!(found, expected, "{what}, token {token}, layer {layer}: {key:?} comes");
            left += usize::from(found.is_some());
            match taken {
                Some((slot, _)) if random.one_in(20) => residency.forget(slot),
                Some((slot, _)) => busy[slot] = true,
                None => {}
            }
        }
        if random.one_in(3) {
            busy.iter_mut().for_each(|busy| *busy = *busy && random.one_in(8));
        }
    }
    left
}

#[test]
fn the_expert_that_leaves_is_the_least_worth_of_all() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo-routing.safetensors");
    let made = |routing| Synthetic::new(routing, 5).trace(80);
    let traces = [
        ("demo", Trace::load(&demo).unwrap().split(300).0),
        ("skewed", made(Routing::Zipf { exponent: 1.0 })),
        ("uniform", made(Routing::Uniform)),
        ("drifting", made(Routing::Drift { every: 20, hot: 8, share: 0.8 })),
    ];
    let mut random = Random::new(1);
    for (name, trace) in &traces {
        for half_cycles in [1, 2, 4, 6] {
            for (policy, made) in policies(trace) {
                let slots = cycle(trace) * half_cycles / 2;
                let what = format!("{name}, {slots} slots, {policy}");
                assert!(replay(trace, slots, made, &what, &mut random) > 100, "{what}: few had to leave");
            }
        }
    }
}
