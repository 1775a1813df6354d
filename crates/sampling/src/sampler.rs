//! From logits to one token.

use crate::philox::uniform;
use crate::stages::{Candidate, Ranked, largest, min_p, top_k, top_p, typical_p};
use crate::{SamplingError, SamplingOptions};

/// The token that was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability under the model, before any option changed it.
    pub logprob: f32,
}

/// A token and its log-probability under the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Chooses tokens; see the crate's page for the order of stages.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplingOptions,
    candidates: Vec<Candidate>,
    ranked: Vec<Ranked>,
    /// Recent tokens, sorted.
    recent: Vec<u32>,
    /// Logits that bias and penalties changed, as they were, in the order of the changes.
    changed: Vec<Candidate>,
    top: Vec<TokenLogprob>,
}

impl Sampler {
    /// A sampler with these options.
    ///
    /// # Errors
    /// An option whose value makes no sense.
    pub fn new(options: SamplingOptions) -> Result<Self, SamplingError> {
        options.check()?;
        Ok(Sampler {
            options,
            candidates: Vec::new(),
            ranked: Vec::new(),
            recent: Vec::new(),
            changed: Vec::new(),
            top: Vec::new(),
        })
    }

    /// The options.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// Chooses the token at `position`, which follows `tokens` (prompt and answer so far, for the penalties).
    ///
    /// The logits are changed by bias and penalties. Nothing is allocated once the sampler has seen a vocabulary.
    ///
    /// # Errors
    /// A logit that is not finite, a bias beyond the vocabulary, or nothing left to choose from.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        position: u32,
        tokens: &[u32],
    ) -> Result<Choice, SamplingError> {
        if logits.is_empty() {
            return Err(SamplingError::Empty);
        }
        if let Some(index) = logits.iter().position(|l| !l.is_finite()) {
            return Err(SamplingError::NonFinite { index, value: logits[index] });
        }
        let log_total = log_sum_exp(logits);
        self.report_top(logits, log_total);
        self.changed.clear();
        self.bias(logits)?;
        self.penalise(logits, tokens);
        let id = if self.options.temperature == 0.0 { greedy(logits)? } else { self.draw(logits, position)? };
        let own = self.changed.iter().find(|c| c.id == id).map_or(logits[id as usize], |c| c.logit);
        Ok(Choice { id, logprob: (f64::from(own) - log_total) as f32 })
    }

    /// The most likely tokens at the last position, most likely first: as many as `options.logprobs` says.
    pub fn top_logprobs(&self) -> &[TokenLogprob] {
        &self.top
    }

    fn bias(&mut self, logits: &mut [f32]) -> Result<(), SamplingError> {
        for (&id, &bias) in &self.options.logit_bias {
            let size = logits.len();
            let logit = logits.get_mut(id as usize).ok_or(SamplingError::BiasToken { id, size })?;
            self.changed.push(Candidate { logit: *logit, id });
            // A sum beyond f32 saturates: only minus infinity bans.
            *logit = if bias == f32::NEG_INFINITY { bias } else { (*logit + bias).clamp(f32::MIN, f32::MAX) };
        }
        Ok(())
    }

    fn penalise(&mut self, logits: &mut [f32], tokens: &[u32]) {
        let options = &self.options;
        if !options.penalises() {
            return;
        }
        let window = options.penalty_last_n.unwrap_or(tokens.len()).min(tokens.len());
        self.recent.clear();
        self.recent.extend_from_slice(&tokens[tokens.len() - window..]);
        self.recent.sort_unstable();
        for same in self.recent.chunk_by(|a, b| a == b) {
            let Some(logit) = logits.get_mut(same[0] as usize) else { continue };
            if *logit == f32::NEG_INFINITY {
                continue;
            }
            self.changed.push(Candidate { logit: *logit, id: same[0] });
            // Dividing a negative logit would make the token more likely.
            let scaled = if *logit <= 0.0 {
                *logit * options.repetition_penalty
            } else {
                *logit / options.repetition_penalty
            };
            let less = same.len() as f32 * options.frequency_penalty + options.presence_penalty;
            *logit = (scaled - less).clamp(f32::MIN, f32::MAX);
        }
    }

    fn draw(&mut self, logits: &[f32], position: u32) -> Result<u32, SamplingError> {
        let Sampler { options, candidates, ranked, .. } = self;
        candidates.clear();
        candidates.extend(
            logits
                .iter()
                .enumerate()
                .filter(|(_, logit)| **logit != f32::NEG_INFINITY)
                .map(|(id, &logit)| Candidate { logit, id: id as u32 }),
        );
        if candidates.is_empty() {
            return Err(SamplingError::AllBanned);
        }
        top_k(candidates, options.top_k, ranked);
        typical_p(candidates, options.typical_p, ranked);
        top_p(candidates, options.top_p, ranked);
        min_p(candidates, options.min_p);

        let max = largest(candidates);
        let weight = |c: &Candidate| f64::from(libm::expf((c.logit - max) / options.temperature));
        let total: f64 = candidates.iter().map(weight).sum();
        let target = uniform(options.seed, position) * total;
        let mut reached = 0.0;
        let mut last = candidates[0].id;
        for candidate in candidates.iter() {
            let weight = weight(candidate);
            if weight > 0.0 {
                reached += weight;
                last = candidate.id;
                if reached > target {
                    break;
                }
            }
        }
        Ok(last)
    }

    fn report_top(&mut self, logits: &[f32], log_total: f64) {
        self.top.clear();
        if self.options.logprobs == 0 {
            return;
        }
        self.candidates.clear();
        self.candidates
            .extend(logits.iter().enumerate().map(|(id, &logit)| Candidate { logit, id: id as u32 }));
        top_k(&mut self.candidates, self.options.logprobs, &mut self.ranked);
        self.candidates.sort_unstable_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));
        let logprob =
            |c: &Candidate| TokenLogprob { id: c.id, logprob: (f64::from(c.logit) - log_total) as f32 };
        self.top.extend(self.candidates.iter().map(logprob));
    }
}

/// The largest logit, the smallest id among equals.
fn greedy(logits: &[f32]) -> Result<u32, SamplingError> {
    let (mut best, mut id) = (f32::NEG_INFINITY, None);
    for (i, &logit) in logits.iter().enumerate() {
        if logit > best {
            (best, id) = (logit, Some(i as u32));
        }
    }
    id.ok_or(SamplingError::AllBanned)
}

/// Natural logarithm of the sum of exponentials, in f64.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &l| max.max(l));
    let total: f64 = logits.iter().map(|&l| f64::from(libm::expf(l - max))).sum();
    f64::from(max) + libm::log(total)
}
