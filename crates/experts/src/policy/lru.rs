use super::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth};

/// The expert that was used longest ago leaves.
///
/// Layers are used in a cycle, so a pool smaller than what one token uses never hits: every expert leaves just
/// before its layer comes again. Here as the yardstick.
pub struct Lru {
    uses: u64,
    last: PerExpert<u64>,
}

impl Lru {
    /// Nothing used yet.
    pub fn new(shape: &Shape) -> Lru {
        Lru { uses: 0, last: PerExpert::new(shape, 0) }
    }
}

impl Policy for Lru {
    fn used(&mut self, key: ExpertKey, _now: Moment) {
        self.uses += 1;
        *self.last.get_mut(key) = self.uses;
    }

    fn worth(&self, key: ExpertKey, _now: Moment) -> Worth {
        Worth(*self.last.get(key) as f64, 0.0)
    }
}
