use super::{ExpertKey, Moment, PerExpert, Policy, Shape, Worth, layers_until};

/// The expert least likely to be used when its layer comes again leaves, the sooner the longer that takes.
///
/// The forecast mixes shares of use that fade at different speeds: the fast ones know what the last tokens used,
/// the slow ones what is popular. How much each counts is learned from every choice of the routers, which are seen
/// whether they hit or miss, so that no speed has to be chosen for a model or a topic.
pub struct Forecast {
    layers: u32,
    /// Weight of each speed; they add up to 1.
    mix: [f64; SPEEDS],
    /// For each layer and speed, what the uses of its experts add up to.
    totals: Vec<[f64; SPEEDS]>,
    /// Faded uses.
    uses: PerExpert<[f64; SPEEDS]>,
    /// The forecast since the layer was last there.
    share: PerExpert<f64>,
}

const SPEEDS: usize = 5;

/// Passes after which a use counts half, for each speed.
const HALF_LIVES: [f64; SPEEDS] = [1.0, 4.0, 16.0, 64.0, 512.0];

/// How much one choice moves the mix: it follows the last few thousand, some tens of tokens.
const LEARNING: f64 = 1.0 / 2000.0;

/// Uses that are imagined, spread evenly over a layer's experts, so that none is impossible.
const IMAGINED: f64 = 1.0;

impl Forecast {
    /// Nothing used yet.
    pub fn new(shape: &Shape) -> Forecast {
        Forecast {
            layers: shape.experts.len() as u32,
            mix: [1.0 / SPEEDS as f64; SPEEDS],
            totals: vec![[0.0; SPEEDS]; shape.experts.len()],
            uses: PerExpert::new(shape, [0.0; SPEEDS]),
            share: PerExpert::new(shape, 0.0),
        }
    }
}

impl Policy for Forecast {
    fn used(&mut self, key: ExpertKey, _now: Moment) {
        let layer = key.layer as usize;
        let experts = self.uses.layer(layer).len() as f64;
        let uses = self.uses.get_mut(key);
        // Which speeds foresaw this choice? Weights move towards them (expectation-maximisation, step by step).
        let mut foresaw = [0.0; SPEEDS];
        for speed in 0..SPEEDS {
            let share = (uses[speed] + IMAGINED / experts) / (self.totals[layer][speed] + IMAGINED);
            foresaw[speed] = self.mix[speed] * share;
        }
        let sum: f64 = foresaw.iter().sum();
        for (mix, foresaw) in self.mix.iter_mut().zip(foresaw) {
            *mix += LEARNING * (foresaw / sum - *mix);
        }
    }

    fn chosen(&mut self, layer: usize, ids: &[u32]) {
        let fade = HALF_LIVES.map(|passes| (-1.0 / passes).exp2());
        for (total, fade) in self.totals[layer].iter_mut().zip(fade) {
            *total = *total * fade + ids.len() as f64;
        }
        let (totals, mix) = (self.totals[layer], self.mix);
        for uses in self.uses.layer_mut(layer) {
            for (uses, fade) in uses.iter_mut().zip(fade) {
                *uses *= fade;
            }
        }
        for &id in ids {
            let uses = self.uses.get_mut(ExpertKey::new(layer, id));
            uses.iter_mut().for_each(|uses| *uses += 1.0);
        }
        for (share, uses) in self.share.layer_mut(layer).iter_mut().zip(self.uses.layer(layer)) {
            *share = (0..SPEEDS).map(|speed| mix[speed] * uses[speed] / (totals[speed] + IMAGINED)).sum();
        }
    }

    fn worth(&self, key: ExpertKey, now: Moment) -> Worth {
        // Kept until its layer comes, a slot is taken for that long: what is wanted soon costs less. The constant
        // was measured; anything from 0.05 to 3 is alike, and without the division up to a point is lost.
        let wait = layers_until(key.layer, now, self.layers) / f64::from(self.layers.max(1));
        let share = *self.share.get(key);
        // Within a layer the share decides, even where two quotients round to the same.
        Worth(share / (1.0 + wait), share)
    }
}
