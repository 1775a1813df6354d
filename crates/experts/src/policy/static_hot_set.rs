use super::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth};

/// The experts that an earlier trace used most stay; the others pass through what is left.
pub struct StaticHotSet {
    uses: PerExpert<u32>,
    clock: u64,
    last: PerExpert<u64>,
}

impl StaticHotSet {
    /// Keeps the experts that occur most often in `uses`.
    pub fn fit(shape: &Shape, uses: impl IntoIterator<Item = ExpertKey>) -> StaticHotSet {
        let mut counts = PerExpert::new(shape, 0);
        for key in uses {
            *counts.get_mut(key) += 1;
        }
        StaticHotSet { uses: counts, clock: 0, last: PerExpert::new(shape, 0) }
    }
}

impl Policy for StaticHotSet {
    fn used(&mut self, key: ExpertKey, _now: Moment) {
        self.clock += 1;
        *self.last.get_mut(key) = self.clock;
    }

    fn worth(&self, key: ExpertKey, _now: Moment) -> Worth {
        // What comes in must be able to leave again, so the newest of equals leaves.
        Worth(f64::from(*self.uses.get(key)), -(*self.last.get(key) as f64))
    }
}
