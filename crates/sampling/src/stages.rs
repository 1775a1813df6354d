//! The stages that cut tokens away.
//!
//! Candidates stay in the order of their ids throughout, so that what is drawn depends only on which are left.

use std::cmp::Ordering;

/// A token that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) logit: f32,
    pub(crate) id: u32,
}

/// A candidate with the key it is ranked by, smallest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranked {
    key: f32,
    id: u32,
    weight: f32,
}

/// How many candidates the mass stages rank at first; four times as many whenever that was not enough.
const FIRST: usize = 256;

fn rank(a: &Ranked, b: &Ranked) -> Ordering {
    a.key.total_cmp(&b.key).then(a.id.cmp(&b.id))
}

/// The largest logit of a non-empty list.
pub(crate) fn largest(candidates: &[Candidate]) -> f32 {
    candidates.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit))
}

/// Keeps the k largest logits, smaller ids first among equals.
pub(crate) fn top_k(candidates: &mut Vec<Candidate>, k: usize, scratch: &mut Vec<Ranked>) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    scratch.clear();
    scratch.extend(candidates.iter().map(|c| Ranked { key: -c.logit, id: c.id, weight: 0.0 }));
    let (_, last, _) = scratch.select_nth_unstable_by(k - 1, rank);
    let last = *last;
    candidates.retain(|c| rank(&Ranked { key: -c.logit, id: c.id, weight: 0.0 }, &last) != Ordering::Greater);
}

/// Keeps the most likely candidates until their probabilities reach `p`.
pub(crate) fn top_p(candidates: &mut Vec<Candidate>, p: f32, scratch: &mut Vec<Ranked>) {
    if p >= 1.0 {
        return;
    }
    let max = largest(candidates);
    scratch.clear();
    scratch.extend(candidates.iter().map(|c| Ranked {
        key: -c.logit,
        id: c.id,
        weight: libm::expf(c.logit - max),
    }));
    let last = last_of_mass(scratch, f64::from(p), |reached, wanted| reached >= wanted);
    candidates.retain(|c| rank(&Ranked { key: -c.logit, id: c.id, weight: 0.0 }, &last) != Ordering::Greater);
}

/// Keeps candidates at least `p` times as likely as the most likely one.
pub(crate) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let least = largest(candidates) + libm::logf(p);
    candidates.retain(|c| c.logit >= least);
}

/// Keeps the candidates whose surprise is nearest to the entropy until their probabilities exceed `p`.
pub(crate) fn typical_p(candidates: &mut Vec<Candidate>, p: f32, scratch: &mut Vec<Ranked>) {
    if p >= 1.0 {
        return;
    }
    let max = largest(candidates);
    let (mut total, mut moment) = (0.0f64, 0.0f64);
    for c in candidates.iter() {
        let w = f64::from(libm::expf(c.logit - max));
        total += w;
        moment += w * f64::from(c.logit - max);
    }
    // Entropy and surprise share the term ln(total), which cancels in their difference.
    let mean = (moment / total) as f32;
    let key = |c: &Candidate| (mean - (c.logit - max)).abs();
    scratch.clear();
    scratch.extend(candidates.iter().map(|c| Ranked {
        key: key(c),
        id: c.id,
        weight: libm::expf(c.logit - max),
    }));
    let last = last_of_mass(scratch, f64::from(p), |reached, wanted| reached > wanted);
    candidates.retain(|c| rank(&Ranked { key: key(c), id: c.id, weight: 0.0 }, &last) != Ordering::Greater);
}

/// The candidate at which the ranked weights have `enough` of their sum; the list must not be empty.
fn last_of_mass(ranked: &mut [Ranked], share: f64, enough: impl Fn(f64, f64) -> bool) -> Ranked {
    let wanted = share * ranked.iter().map(|r| f64::from(r.weight)).sum::<f64>();
    let (mut done, mut reached, mut chunk) = (0, 0.0, FIRST);
    while done < ranked.len() {
        let rest = &mut ranked[done..];
        let count = chunk.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count, rank);
        }
        rest[..count].sort_unstable_by(rank);
        for r in &rest[..count] {
            reached += f64::from(r.weight);
            if enough(reached, wanted) {
                return *r;
            }
        }
        done += count;
        chunk *= 4;
    }
    ranked[ranked.len() - 1]
}
