//! Making steering vectors from two sets of prompts, and judging them on prompts they were not made from.

mod method;
mod plot;

pub use method::Method;
pub use plot::separation_plot;

use crate::capture::{Positions, TapKind};
use crate::engine::{Engine, EngineError};
use crate::steering::{SteeringVectors, VectorFault};

/// One row a layer: what a prompt leaves in the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// A row of the stream's width for each layer.
    pub layers: Vec<Vec<f32>>,
}

/// Which rows of a prompt are its sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The last.
    #[default]
    Last,
    /// The mean of all but the first, which in many models is far from all others.
    Mean,
}

/// How well a direction tells positive from negative prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Separation {
    /// Layer.
    pub layer: usize,
    /// Share of held-out prompts on the right side of the threshold, which is half way between the training means.
    pub accuracy: f64,
    /// Distance of the held-out means over the pooled standard deviation.
    pub d_prime: f64,
    /// Mean projection of held-out positive prompts on the direction of length 1.
    pub positive_mean: f64,
    /// Of held-out negative prompts.
    pub negative_mean: f64,
    /// Length of the direction: the distance of the training means along it.
    pub length: f64,
}

/// Trained vectors and their judgement.
#[derive(Clone, Debug)]
pub struct Training {
    /// A direction for each layer, as long as the means are apart: strength 1 moves a row from one mean to the other.
    pub vectors: SteeringVectors,
    /// By layer.
    pub separations: Vec<Separation>,
}

/// Samples of both kinds.
#[derive(Clone, Copy, Debug)]
pub struct Sets<'a> {
    /// What the vectors should lead to.
    pub positive: &'a [Sample],
    /// What they should lead from.
    pub negative: &'a [Sample],
}

impl Engine {
    /// The residual stream after every layer, pooled over the rows of one prompt. Edits of evaluations apply.
    pub fn sample(&mut self, tokens: &[u32], pooling: Pooling) -> Result<Sample, EngineError> {
        let first = usize::from(pooling == Pooling::Mean && tokens.len() > 1);
        self.sample_from(tokens, first, pooling)
    }

    /// As [`Engine::sample`], with a mean that begins at position `first`.
    pub fn sample_from(
        &mut self,
        tokens: &[u32],
        first: usize,
        pooling: Pooling,
    ) -> Result<Sample, EngineError> {
        let layers = self.program().layers();
        let taps = TapKind::LayerOutput.over(&(0..=layers.saturating_sub(1)));
        let width = self.program().hidden();
        let mut sums = vec![0.0f64; layers * width];
        let mut count = 0usize;
        let positions = match pooling {
            Pooling::Last => Positions::Last,
            Pooling::Mean => Positions::All,
        };
        self.capture::<EngineError>(tokens, &taps, positions, |position, row| {
            if pooling == Pooling::Last || position >= first {
                sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
                count += 1;
            }
            Ok(())
        })?;
        let mean = |sums: &[f64]| sums.iter().map(|sum| (sum / count.max(1) as f64) as f32).collect();
        Ok(Sample { layers: sums.chunks_exact(width).map(mean).collect() })
    }
}

/// Makes a direction for each layer from `train` and judges it on `held_out`.
///
/// # Errors
/// Samples that are not finite or have no layers, or means that are the same in every layer.
pub fn train(method: Method, train: Sets<'_>, held_out: Sets<'_>) -> Result<Training, VectorFault> {
    let layers = train.positive.first().map_or(0, |sample| sample.layers.len());
    let mut directions = Vec::new();
    let mut separations = Vec::new();
    for layer in 0..layers {
        let rows = |samples: &[Sample]| -> Vec<Vec<f64>> {
            let row = |sample: &Sample| sample.layers[layer].iter().map(|&x| f64::from(x)).collect();
            samples.iter().map(row).collect()
        };
        let (positive, negative) = (rows(train.positive), rows(train.negative));
        let unit = method.direction(&positive, &negative);
        let project =
            |rows: &[Vec<f64>]| -> Vec<f64> { rows.iter().map(|row| method::dot(row, &unit)).collect() };
        let (high, low) = (mean(&project(&positive)), mean(&project(&negative)));
        let length = high - low;
        let threshold = (high + low) / 2.0;
        let (positive, negative) = (project(&rows(held_out.positive)), project(&rows(held_out.negative)));
        let right = positive.iter().filter(|&&p| p > threshold).count()
            + negative.iter().filter(|&&p| p <= threshold).count();
        let (positive_mean, negative_mean) = (mean(&positive), mean(&negative));
        let spread = ((variance(&positive) + variance(&negative)) / 2.0).sqrt();
        separations.push(Separation {
            layer,
            accuracy: right as f64 / (positive.len() + negative.len()).max(1) as f64,
            d_prime: if spread > 0.0 { (positive_mean - negative_mean) / spread } else { 0.0 },
            positive_mean,
            negative_mean,
            length,
        });
        directions.push((layer, unit.iter().map(|x| (x * length) as f32).collect()));
    }
    let mut vectors = SteeringVectors::new(directions)?;
    vectors.layers = Some(layers);
    vectors.notes.insert("method".to_owned(), method.name().to_owned());
    Ok(Training { vectors, separations })
}

impl Training {
    /// The layer that separates best: by accuracy, then by distance. The first layer counts only if it is alone: what
    /// it sees is mostly the tokens themselves, and a control-vector GGUF has no place for it.
    pub fn best(&self) -> Option<&Separation> {
        let first = usize::from(self.separations.len() > 1);
        let order = |a: &&Separation, b: &&Separation| {
            a.accuracy.total_cmp(&b.accuracy).then(a.d_prime.total_cmp(&b.d_prime))
        };
        self.separations[first..].iter().max_by(order)
    }

    /// The layers around the best that separate nearly as well: accuracy within 0.05, distance at least 0.8 of it.
    pub fn suggested_layers(&self) -> std::ops::RangeInclusive<usize> {
        let Some(best) = self.best() else { return 0..=0 };
        let good = |layer: usize| {
            self.separations
                .get(layer)
                .is_some_and(|s| s.accuracy >= best.accuracy - 0.05 && s.d_prime >= 0.8 * best.d_prime)
        };
        let first = (1..=best.layer).rev().take_while(|&layer| good(layer)).last().unwrap_or(best.layer);
        let last = (best.layer..self.separations.len()).take_while(|&layer| good(layer)).last();
        first..=last.unwrap_or(best.layer)
    }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len().saturating_sub(1).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that differ along the first axis by 4, with noise of about 1 in each of 6, after the second of three
    /// layers; noise only after the others.
    fn samples(sign: f32, count: usize, seed: u64) -> Vec<Sample> {
        let mut state = seed;
        let mut noise = || {
            let mut sum = 0.0;
            for _ in 0..12 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                sum += (state >> 40) as f32 / (1 << 24) as f32;
            }
            sum - 6.0
        };
        let mut sample = || {
            let mut layers = vec![vec![0.0; 6]; 3];
            layers.iter_mut().flatten().for_each(|x| *x = noise());
            layers[1][0] += 2.0 * sign;
            Sample { layers }
        };
        (0..count).map(|_| sample()).collect()
    }

    #[test]
    fn every_method_finds_the_axis() {
        let (p, n) = (samples(1.0, 60, 1), samples(-1.0, 60, 2));
        let (q, m) = (samples(1.0, 100, 3), samples(-1.0, 100, 4));
        for method in Method::ALL {
            let sets = Sets { positive: &p, negative: &n };
            let training = train(method, sets, Sets { positive: &q, negative: &m }).unwrap();
            let best = training.best().unwrap();
            assert_eq!(best.layer, 1, "{method:?}");
            assert!(best.accuracy > 0.93, "{method:?}: {best:?}");
            assert!((best.length - 4.0).abs() < 0.8, "{method:?}: {best:?}");
            let direction = training.vectors.direction(1).unwrap();
            assert!(direction[0] / best.length as f32 > 0.9, "{method:?}: {direction:?}");
            assert!(training.separations[2].accuracy < 0.65, "{method:?}");
            assert_eq!(training.suggested_layers(), 1..=1);
        }
    }
}
