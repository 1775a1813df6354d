//! Which expert is in which slot: the bookkeeping that the pool and the simulator share.

use crate::policy::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth};

/// Slots of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of a slot.
    pub bytes: usize,
    /// Number of slots.
    pub slots: usize,
}

/// The slots' keys and the policy over them.
pub(crate) struct Residency {
    /// Size class of each layer.
    class_of: Vec<usize>,
    /// For each class, its slots: they are numbered class by class.
    ranges: Vec<std::ops::Range<usize>>,
    free: Vec<Vec<usize>>,
    keys: Vec<Option<ExpertKey>>,
    at: PerExpert<Option<usize>>,
    policy: Box<dyn Policy>,
    now: Moment,
}

impl Residency {
    /// All slots free.
    pub fn new(
        shape: &Shape,
        class_of: Vec<usize>,
        classes: &[SizeClass],
        policy: Box<dyn Policy>,
    ) -> Residency {
        let mut start = 0;
        let range = |class: &SizeClass| {
            start += class.slots;
            start - class.slots..start
        };
        let ranges: Vec<_> = classes.iter().map(range).collect();
        Residency {
            class_of,
            free: ranges.iter().map(|range| range.clone().rev().collect()).collect(),
            keys: vec![None; ranges.last().map_or(0, |range| range.end)],
            ranges,
            at: PerExpert::new(shape, None),
            policy,
            now: Moment::default(),
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.keys.len()
    }

    /// A layer is about to use experts; one that does not follow the last begins a new pass.
    pub fn advance(&mut self, layer: usize) {
        let layer = layer as u32;
        if layer <= self.now.layer {
            self.now.pass += 1;
        }
        self.now.layer = layer;
    }

    /// An expert is wanted; its slot if it has one.
    pub fn used(&mut self, key: ExpertKey) -> Option<usize> {
        self.policy.used(key, self.now);
        self.find(key)
    }

    /// All that the layer uses, after [`Residency::used`] for each.
    pub fn chosen(&mut self, layer: usize, ids: &[u32]) {
        self.policy.chosen(layer, ids);
    }

    /// The slot of an expert.
    pub fn find(&self, key: ExpertKey) -> Option<usize> {
        *self.at.get(key)
    }

    /// The expert in a slot.
    pub fn key(&self, slot: usize) -> Option<ExpertKey> {
        self.keys[slot]
    }

    /// Gives `key` a free slot, or that of the least worth expert that `may_leave`; with the one that left.
    pub fn take(
        &mut self,
        key: ExpertKey,
        may_leave: impl Fn(usize) -> bool,
    ) -> Option<(usize, Option<ExpertKey>)> {
        let class = self.class_of[key.layer as usize];
        let (slot, left) = match self.free[class].pop() {
            Some(slot) => (slot, None),
            None => {
                let (slot, left) = self.least(class, may_leave)?;
                *self.at.get_mut(left) = None;
                self.policy.left(left);
                (slot, Some(left))
            }
        };
        self.keys[slot] = Some(key);
        *self.at.get_mut(key) = Some(slot);
        self.policy.entered(key);
        Some((slot, left))
    }

    fn least(&self, class: usize, may_leave: impl Fn(usize) -> bool) -> Option<(usize, ExpertKey)> {
        let mut least: Option<(Worth, usize, ExpertKey)> = None;
        for slot in self.ranges[class].clone() {
            let Some(key) = self.keys[slot].filter(|_| may_leave(slot)) else { continue };
            let worth = self.policy.worth(key, self.now);
            if least.is_none_or(|(known, ..)| worth < known) {
                least = Some((worth, slot, key));
            }
        }
        least.map(|(_, slot, key)| (slot, key))
    }

    /// Frees a slot whose expert did not come.
    pub fn forget(&mut self, slot: usize) {
        if let Some(key) = self.keys[slot].take() {
            *self.at.get_mut(key) = None;
            self.policy.left(key);
            self.free[self.class_of[key.layer as usize]].push(slot);
        }
    }
}
