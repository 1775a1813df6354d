use super::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth};

/// The expert used least often leaves, where a use counts half as much every [`LfuAgeing::HALF_LIFE`] passes.
///
/// Among equals the one whose layer comes again last leaves: those that have just been used up.
pub struct LfuAgeing {
    layers: u32,
    /// 2 to the power of -1 / half-life.
    fade: f64,
    /// Weight of the uses, and the pass it was reckoned at.
    uses: PerExpert<(f64, u64)>,
}

impl LfuAgeing {
    /// Passes after which a use counts half.
    ///
    /// Measured: shorter ones lose on a steady routing, longer ones where the hot experts drift.
    pub const HALF_LIFE: f64 = 64.0;

    /// Nothing used yet.
    pub fn new(shape: &Shape) -> LfuAgeing {
        LfuAgeing::with_half_life(shape, LfuAgeing::HALF_LIFE)
    }

    /// With another half-life in passes.
    pub fn with_half_life(shape: &Shape, passes: f64) -> LfuAgeing {
        LfuAgeing {
            layers: shape.experts.len() as u32,
            fade: (-1.0 / passes).exp2(),
            uses: PerExpert::new(shape, (0.0, 0)),
        }
    }

    fn weight(&self, key: ExpertKey, now: Moment) -> f64 {
        let (weight, pass) = *self.uses.get(key);
        weight * self.fade.powf(now.pass.saturating_sub(pass) as f64)
    }
}

impl Policy for LfuAgeing {
    fn used(&mut self, key: ExpertKey, now: Moment) {
        *self.uses.get_mut(key) = (self.weight(key, now) + 1.0, now.pass);
    }

    fn worth(&self, key: ExpertKey, now: Moment) -> Worth {
        Worth(self.weight(key, now), -layers_until(key.layer, now, self.layers))
    }
}

/// How many layers run before `layer` does again.
pub(super) fn layers_until(layer: u32, now: Moment, layers: u32) -> f64 {
    let gap = (layer + layers).saturating_sub(now.layer + 1);
    f64::from(gap.checked_rem(layers).unwrap_or(0))
}
