use super::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth, layers_until};

/// The expert used least often leaves, where a use counts half as much every [`LfuAgeing::HALF_LIFE`] passes.
///
/// Among equals the one whose layer comes again last leaves: those that have just been used up.
pub struct LfuAgeing {
    layers: u32,
    /// 2 to the power of -1 / half-life.
    fade: f64,
    /// Faded uses.
    uses: PerExpert<f64>,
}

impl LfuAgeing {
    /// Passes after which a use counts half: shorter ones lose where routing is steady, longer ones where the hot
    /// experts drift.
    pub const HALF_LIFE: f64 = 32.0;

    /// Nothing used yet.
    pub fn new(shape: &Shape) -> LfuAgeing {
        LfuAgeing::with_half_life(shape, LfuAgeing::HALF_LIFE)
    }

    /// With another half-life in passes.
    pub fn with_half_life(shape: &Shape, passes: f64) -> LfuAgeing {
        LfuAgeing {
            layers: shape.experts.len() as u32,
            fade: (-1.0 / passes).exp2(),
            uses: PerExpert::new(shape, 0.0),
        }
    }
}

impl Policy for LfuAgeing {
    fn used(&mut self, _key: ExpertKey, _now: Moment) {}

    fn chosen(&mut self, layer: usize, ids: &[u32]) {
        self.uses.layer_mut(layer).iter_mut().for_each(|uses| *uses *= self.fade);
        for &id in ids {
            *self.uses.get_mut(ExpertKey::new(layer, id)) += 1.0;
        }
    }

    fn worth(&self, key: ExpertKey, now: Moment) -> Worth {
        Worth(*self.uses.get(key), -layers_until(key.layer, now, self.layers))
    }
}
