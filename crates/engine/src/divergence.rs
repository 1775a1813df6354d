//! How far one engine's predictions are from another's on the same tokens.

use crate::engine::{Engine, EngineError};
use crate::score::{Likelihood, log_probability};

/// Logits that each of the engines may hold at a time.
const ELEMENTS: usize = 16 << 20;

/// Predictions of one engine beside those of a judge, position by position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Divergence {
    /// Kullback-Leibler divergence of the engine's distribution from the judge's, in nats, at each position.
    pub values: Vec<f32>,
    /// Positions at which both hold the same token for likeliest.
    pub same_top: usize,
    /// Of the tokens that follow, under the engine.
    pub likelihood: Likelihood,
    /// The same under the judge.
    pub judge_likelihood: Likelihood,
}

impl Divergence {
    /// Compares `engine` with `judge` on whole `tokens`, in windows of `window` tokens, each beginning with `bos` in
    /// place of its first token where the model wants one. Every position of a window counts.
    ///
    /// Memory does not grow with the text but for one number a position.
    pub fn measure(
        engine: &mut Engine,
        judge: &mut Engine,
        tokens: &[u32],
        window: usize,
        bos: Option<u32>,
        mut report: impl FnMut(usize),
    ) -> Result<Divergence, EngineError> {
        let (found, expected) = (engine.program().vocabulary(), judge.program().vocabulary());
        if found != expected {
            return Err(EngineError::Vocabularies { found, expected });
        }
        let mut divergence = Divergence::default();
        for piece in tokens.chunks(window.max(1)) {
            let mut piece = piece.to_vec();
            if let Some(bos) = bos {
                piece[0] = bos;
            }
            let (ours, theirs) = (engine.states.create(), judge.states.create());
            let result = divergence.sequence((engine, ours), (judge, theirs), &piece);
            engine.states.remove(ours)?;
            judge.states.remove(theirs)?;
            result?;
            report(divergence.values.len());
        }
        Ok(divergence)
    }

    fn sequence(
        &mut self,
        (engine, ours): (&mut Engine, turbospark_program::SequenceId),
        (judge, theirs): (&mut Engine, turbospark_program::SequenceId),
        tokens: &[u32],
    ) -> Result<(), EngineError> {
        let vocabulary = engine.program().vocabulary();
        let rows = engine.memory().chunk.min(ELEMENTS / vocabulary).max(1);
        let (mut q, mut p) = (Vec::new(), Vec::new());
        for (start, chunk) in (0..).step_by(rows).zip(tokens.chunks(rows)) {
            engine.append_with_logits(ours, chunk, |_| true, &mut q)?;
            judge.append_with_logits(theirs, chunk, |_| true, &mut p)?;
            let rows = p.chunks_exact(vocabulary).zip(q.chunks_exact(vocabulary));
            for (i, (p, q)) in rows.enumerate() {
                self.values.push(kl(p, q) as f32);
                self.same_top += usize::from(likeliest(p) == likeliest(q));
                if let Some(&next) = tokens.get(start + i + 1) {
                    let nll = |logits| Likelihood { nll: -log_probability(logits, next), tokens: 1 };
                    self.likelihood += nll(q);
                    self.judge_likelihood += nll(p);
                }
            }
        }
        Ok(())
    }

    /// Mean divergence.
    pub fn mean(&self) -> f64 {
        self.values.iter().map(|&value| f64::from(value)).sum::<f64>() / self.values.len() as f64
    }

    /// The divergence that this share of the positions does not exceed; 1 for the largest.
    pub fn quantile(&self, share: f64) -> f32 {
        let mut values = self.values.clone();
        values.sort_unstable_by(f32::total_cmp);
        let at = (share * values.len() as f64).ceil() as usize;
        values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// Share of the positions at which both hold the same token for likeliest.
    pub fn top1_agreement(&self) -> f64 {
        self.same_top as f64 / self.values.len() as f64
    }
}

/// sum p ln(p / q) of two rows of logits, in f64.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let largest = |logits: &[f32]| f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let (p_largest, q_largest) = (largest(p), largest(q));
    let (mut p_sum, mut q_sum, mut weighted) = (0.0, 0.0, 0.0);
    for (&p, &q) in p.iter().zip(q) {
        let (p, q) = (f64::from(p) - p_largest, f64::from(q) - q_largest);
        let e = p.exp();
        p_sum += e;
        q_sum += q.exp();
        weighted += e * (p - q);
    }
    // Rounding may leave a little less than nothing.
    (weighted / p_sum - p_sum.ln() + q_sum.ln()).max(0.0)
}

/// The largest logit's token; of equal ones the first.
fn likeliest(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold(0, |best, (i, &x)| if x > logits[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_that_of_the_definition() {
        let (p, q) = ([0.5f32, 0.25, 0.25], [0.25f32, 0.5, 0.25]);
        let logits = |x: [f32; 3], shift: f32| x.map(|x| x.ln() + shift);
        let found = kl(&logits(p, 3.0), &logits(q, -90.0));
        assert!((found - 0.25 * 2f64.ln()).abs() < 1e-5, "{found}");
        assert_eq!(kl(&p, &p), 0.0);
    }

    #[test]
    fn quantiles_count_positions() {
        let values = (1..=200).rev().map(|i| i as f32).collect();
        let divergence = Divergence { values, same_top: 150, ..Divergence::default() };
        assert_eq!(divergence.quantile(0.99), 198.0);
        assert_eq!(divergence.quantile(1.0), 200.0);
        assert_eq!(divergence.mean(), 100.5);
        assert_eq!(divergence.top1_agreement(), 0.75);
        assert_eq!(likeliest(&[1.0, 3.0, 3.0]), 1);
    }
}
