use super::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth, layers_until};

/// The expert that was left unused for most passes leaves; among equals, the one whose layer comes again last.
pub struct LeastStale {
    layers: u32,
    last: PerExpert<u64>,
}

impl LeastStale {
    /// Nothing used yet.
    pub fn new(shape: &Shape) -> LeastStale {
        LeastStale { layers: shape.experts.len() as u32, last: PerExpert::new(shape, 0) }
    }
}

impl Policy for LeastStale {
    fn used(&mut self, key: ExpertKey, now: Moment) {
        *self.last.get_mut(key) = now.pass;
    }

    fn worth(&self, key: ExpertKey, now: Moment) -> Worth {
        // A layer still to come in this pass was last used in the one before: that is as fresh as it can be.
        let freshest = now.pass - u64::from(key.layer > now.layer).min(now.pass);
        let stale = freshest.saturating_sub(*self.last.get(key));
        Worth(-(stale as f64), -layers_until(key.layer, now, self.layers))
    }
}
