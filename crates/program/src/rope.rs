//! Rotary tables: the frequency of each pair of a head and the factor on cosine and sine.

use std::f64::consts::PI;

/// Frequencies of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians a position for each pair j of a head; 0 leaves the pair as it is.
    pub frequencies: Vec<f32>,
    /// Multiplies cosine and sine.
    pub amplitude: f32,
}

/// How a checkpoint stretches the plain frequencies base^(-2j/d).
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above original / low are divided.
        low: f64,
        /// Wavelengths below original / high are kept.
        high: f64,
        /// Context length before stretching.
        original: f64,
    },
    /// YaRN (arXiv 2309.00071, section 3.2).
    Yarn(YarnScaling),
    /// Only the first part of the pairs is rotated, the others stay (Gemma 4).
    Proportional {
        /// Share of the head that is rotated.
        fraction: f64,
    },
    /// A divisor for each pair, as GGUF's rope_freqs.weight stores it.
    Divisors(Vec<f32>),
}

/// Parameters of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Rotations within the original context above which a pair is kept.
    pub beta_fast: f64,
    /// Rotations below which a pair is fully divided.
    pub beta_slow: f64,
    /// Context length before stretching.
    pub original: f64,
    /// Round the ends of the ramp to whole pairs.
    pub truncate: bool,
    /// Factor on cosine and sine; none is 0.1 ln(factor) + 1.
    pub amplitude: Option<f64>,
}

impl RopeTable {
    /// The table of heads of width `head` with base `base`.
    ///
    /// Computed in f64 with `libm`, so that every machine gets the same bits, and rounded to f32.
    pub fn new(base: f64, head: usize, scaling: &RopeScaling) -> RopeTable {
        let pairs = head / 2;
        let plain = |j: usize| 1.0 / libm::pow(base, 2.0 * j as f64 / head as f64);
        let table = |f: &dyn Fn(usize) -> f64| (0..pairs).map(|j| f(j) as f32).collect::<Vec<f32>>();
        let mut amplitude = 1.0;
        let frequencies = match scaling {
            RopeScaling::None => table(&plain),
            RopeScaling::Linear { factor } => table(&|j| plain(j) / factor),
            RopeScaling::Llama3 { factor, low, high, original } => table(&|j| {
                let inv = plain(j);
                let wavelength = 2.0 * PI / inv;
                if wavelength < original / high {
                    inv
                } else if wavelength > original / low {
                    inv / factor
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * inv / factor + smooth * inv
                }
            }),
            RopeScaling::Yarn(yarn) => {
                amplitude = yarn.amplitude.unwrap_or(0.1 * libm::log(yarn.factor) + 1.0) as f32;
                let (low, high) = yarn.ramp(base, head);
                table(&|j| {
                    let ramp = ((j as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
                    plain(j) * (1.0 - ramp) + plain(j) / yarn.factor * ramp
                })
            }
            RopeScaling::Proportional { fraction } => {
                let rotated = (fraction * head as f64 / 2.0) as usize;
                table(&|j| if j < rotated { plain(j) } else { 0.0 })
            }
            RopeScaling::Divisors(divisors) => {
                table(&|j| plain(j) / divisors.get(j).copied().unwrap_or(1.0) as f64)
            }
        };
        RopeTable { frequencies, amplitude }
    }

    /// Cosine and sine of pair `j` at `position`, each times the amplitude.
    pub fn cos_sin(&self, position: u32, j: usize) -> (f32, f32) {
        let angle = position as f64 * self.frequencies[j] as f64;
        let a = self.amplitude as f64;
        ((libm::cos(angle) * a) as f32, (libm::sin(angle) * a) as f32)
    }
}

impl YarnScaling {
    /// The pairs between which frequencies go over from kept to divided.
    fn ramp(&self, base: f64, head: usize) -> (f64, f64) {
        let pair = |rotations: f64| {
            head as f64 * libm::log(self.original / (rotations * 2.0 * PI)) / (2.0 * libm::log(base))
        };
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low.max(0.0), high.min(head as f64 - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f32, b: f32) {
        assert!((a - b).abs() <= 2e-7 * b.abs().max(1e-3), "{a} {b}");
    }

    #[test]
    fn gpt_oss_yarn_matches_published_values() {
        let yarn = YarnScaling {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 4096.0,
            truncate: false,
            amplitude: None,
        };
        let (low, high) = yarn.ramp(150000.0, 64);
        assert!((low - 8.0927791).abs() < 1e-6 && (high - 17.3980245).abs() < 1e-6);
        let t = RopeTable::new(150000.0, 64, &RopeScaling::Yarn(yarn));
        close(t.amplitude, 1.346_573_6);
        for (j, f) in [(1, 0.6890443), (9, 0.031705696), (16, 0.00045648392), (31, 3.0235114e-07)] {
            close(t.frequencies[j], f);
        }
    }

    #[test]
    fn gemma_proportional_leaves_the_tail_alone() {
        let t = RopeTable::new(1e6, 512, &RopeScaling::Proportional { fraction: 0.25 });
        close(t.frequencies[1], 0.9474635);
        close(t.frequencies[63], 0.03337625);
        assert!(t.frequencies[64..].iter().all(|&f| f == 0.0));
        assert_eq!(t.cos_sin(100, 200), (1.0, 0.0));
    }

    #[test]
    fn llama3_divides_long_waves() {
        let s = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let t = RopeTable::new(5e5, 128, &s);
        let plain = RopeTable::new(5e5, 128, &RopeScaling::None);
        for (j, d) in [(28, 1.0), (29, 1.2075), (34, 5.2573), (35, 8.0), (63, 8.0)] {
            let ratio = plain.frequencies[j] / t.frequencies[j];
            assert!((ratio - d).abs() < 1e-4, "{j}: {ratio}");
        }
    }
}
