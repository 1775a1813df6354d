//! Log-probabilities of given tokens, and the perplexities that are reported of texts.

use std::ops::Range;

use turbospark_program::{Batch, Outputs, SequenceId};

use crate::engine::{Engine, EngineError};
use crate::statistics::Phase;

/// Negative log-likelihood of some tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Likelihood {
    /// Sum of -ln p over the tokens.
    pub nll: f64,
    /// Number of tokens scored.
    pub tokens: usize,
}

impl Likelihood {
    /// exp(nll / tokens)
    pub fn perplexity(&self) -> f64 {
        (self.nll / self.tokens as f64).exp()
    }
}

impl std::ops::AddAssign for Likelihood {
    fn add_assign(&mut self, other: Likelihood) {
        self.nll += other.nll;
        self.tokens += other.tokens;
    }
}

impl Engine {
    /// Scores the tokens at positions `scored` (from 1 on) of a sequence, each given all before it.
    pub fn score(&mut self, tokens: &[u32], scored: Range<usize>) -> Result<Likelihood, EngineError> {
        let sequence = self.states.create();
        let result = self.score_sequence(sequence, tokens, scored);
        self.states.remove(sequence)?;
        result
    }

    fn score_sequence(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        scored: Range<usize>,
    ) -> Result<Likelihood, EngineError> {
        let scored = scored.start.max(1)..scored.end.min(tokens.len());
        let vocabulary = self.executor.program().vocabulary();
        let mut likelihood = Likelihood::default();
        let mut logits = Vec::new();
        let needed = &tokens[..scored.end.saturating_sub(1)];
        for (index, chunk) in needed.chunks(self.memory().chunk).enumerate() {
            let start = index * self.memory().chunk;
            self.append_with_logits(sequence, chunk, |i| scored.contains(&(start + i + 1)), &mut logits)?;
            let targets = (start + 1..start + chunk.len() + 1).filter(|position| scored.contains(position));
            for (row, position) in logits.chunks_exact(vocabulary).zip(targets) {
                likelihood += Likelihood { nll: -log_probability(row, tokens[position]), tokens: 1 };
            }
        }
        Ok(likelihood)
    }

    /// Appends tokens to a sequence, and computes the logits of those (by index) that are `wanted`.
    pub(crate) fn append_with_logits(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        wanted: impl Fn(usize) -> bool,
        logits: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let mut batch = Batch::append(&self.states, sequence, tokens);
        self.edit(&mut batch);
        for (i, row) in batch.rows.iter_mut().enumerate() {
            row.logits = wanted(i);
        }
        logits.resize(batch.wanted() * self.executor.program().vocabulary(), 0.0);
        self.step(Phase::Prefill, &batch, Outputs::logits(logits))
    }

    /// The perplexity that llama-perplexity reports: whole windows of `window` tokens, each beginning with `bos`
    /// in place of its first token where the model wants one, scored on its second half.
    pub fn perplexity_of_windows(
        &mut self,
        tokens: &[u32],
        window: usize,
        bos: Option<u32>,
        mut report: impl FnMut(usize, Likelihood),
    ) -> Result<Likelihood, EngineError> {
        let mut total = Likelihood::default();
        for (index, piece) in tokens.chunks_exact(window).enumerate() {
            let mut piece = piece.to_vec();
            if let Some(bos) = bos {
                piece[0] = bos;
            }
            total += self.score(&piece, window / 2 + 1..window)?;
            report((index + 1) * window, total);
        }
        Ok(total)
    }

    /// The perplexity of the strided evaluation in Hugging Face's documentation: windows of `window` tokens every
    /// `stride`, each scoring what no window before it has scored.
    ///
    /// That page weighs a window's mean by one token less than it has scored, also after the first window, where
    /// nothing is lost to the shift; so does this.
    pub fn perplexity_with_stride(
        &mut self,
        tokens: &[u32],
        window: usize,
        stride: usize,
        mut report: impl FnMut(usize, Likelihood),
    ) -> Result<Likelihood, EngineError> {
        let mut total = Likelihood::default();
        let mut done = 0;
        for start in (0..tokens.len()).step_by(stride) {
            let end = (start + window).min(tokens.len());
            let score = self.score(&tokens[start..end], done - start..end - start)?;
            let weight = (end - done).saturating_sub(1);
            if score.tokens > 0 {
                total += Likelihood { nll: score.nll / score.tokens as f64 * weight as f64, tokens: weight };
            }
            done = end;
            report(done, total);
            if end == tokens.len() {
                break;
            }
        }
        Ok(total)
    }
}

/// ln softmax(logits)[token], in f64.
pub(crate) fn log_probability(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&x| (x as f64 - largest).exp()).sum();
    logits[token as usize] as f64 - largest - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_sum_to_one() {
        let logits = [1.0, -2.0, 700.0, 701.5];
        let sum: f64 = (0..4).map(|token| log_probability(&logits, token).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
}
