use super::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth};

/// Layers share the slots evenly; within the layer that has most, the expert used longest ago leaves.
pub struct PerLayerLru {
    uses: u64,
    last: PerExpert<u64>,
    held: Vec<usize>,
}

impl PerLayerLru {
    /// Nothing used yet.
    pub fn new(shape: &Shape) -> PerLayerLru {
        PerLayerLru { uses: 0, last: PerExpert::new(shape, 0), held: vec![0; shape.experts.len()] }
    }
}

impl Policy for PerLayerLru {
    fn used(&mut self, key: ExpertKey, _now: Moment) {
        self.uses += 1;
        *self.last.get_mut(key) = self.uses;
    }

    fn entered(&mut self, key: ExpertKey) {
        self.held[key.layer as usize] += 1;
    }

    fn left(&mut self, key: ExpertKey) {
        self.held[key.layer as usize] -= 1;
    }

    fn worth(&self, key: ExpertKey, _now: Moment) -> Worth {
        Worth(-(self.held[key.layer as usize] as f64), *self.last.get(key) as f64)
    }
}
