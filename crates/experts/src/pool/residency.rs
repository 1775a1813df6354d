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
    /// For each class, its free slots: slots are numbered class by class.
    free: Vec<Vec<usize>>,
    /// For each layer, who of it leaves first: choosing then looks at one expert a layer.
    orders: Vec<Order>,
    keys: Vec<Option<ExpertKey>>,
    at: PerExpert<Option<usize>>,
    policy: Box<dyn Policy>,
    now: Moment,
}

/// The experts of a layer that are in slots.
#[derive(Clone, Default)]
struct Order {
    /// With their slots, from the least worth on, of equals the lowest slot first.
    held: Vec<(usize, ExpertKey)>,
    /// Whether the layer was used since they were put in order.
    stale: bool,
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
        let free = classes.iter().map(|class| {
            start += class.slots;
            (start - class.slots..start).rev().collect()
        });
        Residency {
            free: free.collect(),
            orders: vec![Order::default(); class_of.len()],
            class_of,
            keys: vec![None; start],
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
        self.orders[key.layer as usize].stale = true;
        self.find(key)
    }

    /// All that the layer uses, after [`Residency::used`] for each.
    pub fn chosen(&mut self, layer: usize, ids: &[u32]) {
        self.policy.chosen(layer, ids);
        self.orders[layer].stale = true;
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
                self.remove(slot, left);
                (slot, Some(left))
            }
        };
        self.keys[slot] = Some(key);
        *self.at.get_mut(key) = Some(slot);
        self.policy.entered(key);
        self.insert(slot, key);
        Some((slot, left))
    }

    /// The least worth expert of a class that `may_leave`, of equals that in the lowest slot.
    fn least(&mut self, class: usize, may_leave: impl Fn(usize) -> bool) -> Option<(usize, ExpertKey)> {
        let mut least: Option<((Worth, usize), ExpertKey)> = None;
        for layer in (0..self.orders.len()).filter(|&layer| self.class_of[layer] == class) {
            let (policy, now) = (&self.policy, self.now);
            let order = &mut self.orders[layer];
            if std::mem::take(&mut order.stale) {
                order.held.sort_by_cached_key(|&(slot, key)| (policy.worth(key, now), slot));
            }
            // Few may not leave, and most of them are of the layer that runs.
            let first = order.held.iter().find(|(slot, _)| may_leave(*slot));
            let Some(&(slot, key)) = first else { continue };
            let worth = (policy.worth(key, now), slot);
            if least.is_none_or(|(known, _)| worth < known) {
                least = Some((worth, key));
            }
        }
        least.map(|((_, slot), key)| (slot, key))
    }

    /// Puts an expert where it belongs among those of its layer.
    fn insert(&mut self, slot: usize, key: ExpertKey) {
        let worth = |&(slot, key): &(usize, ExpertKey)| (self.policy.worth(key, self.now), slot);
        let order = &mut self.orders[key.layer as usize];
        let new = worth(&(slot, key));
        let at = order.held.partition_point(|held| worth(held) < new);
        order.held.insert(at, (slot, key));
    }

    /// Takes an expert out of its slot.
    fn remove(&mut self, slot: usize, key: ExpertKey) {
        self.keys[slot] = None;
        *self.at.get_mut(key) = None;
        self.orders[key.layer as usize].held.retain(|&(held, _)| held != slot);
        self.policy.left(key);
    }

    /// Frees a slot whose expert did not come.
    pub fn forget(&mut self, slot: usize) {
        if let Some(key) = self.keys[slot] {
            self.remove(slot, key);
            self.free[self.class_of[key.layer as usize]].push(slot);
        }
    }
}

#[cfg(test)]
mod tests;
