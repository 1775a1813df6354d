//! The sampler against a version that sorts everything.

use proptest::prelude::*;
use turbospark_sampling::{Sampler, SamplingError, SamplingOptions};

/// The same stages written the plain way: sort all tokens, cut the sorted list.
fn kept(logits: &[f32], options: &SamplingOptions, tokens: &[u32]) -> Vec<(u32, f64)> {
    let mut logits = logits.to_vec();
    for (&id, &bias) in &options.logit_bias {
        logits[id as usize] += bias;
    }
    let window = &tokens[tokens.len() - options.penalty_last_n.unwrap_or(usize::MAX).min(tokens.len())..];
    for (id, logit) in logits.iter_mut().enumerate() {
        let count = window.iter().filter(|&&t| t as usize == id).count();
        if count > 0 && options.logit_bias.get(&(id as u32)) != Some(&f32::NEG_INFINITY) {
            let l = *logit;
            let l = if l <= 0.0 { l * options.repetition_penalty } else { l / options.repetition_penalty };
            *logit = l - (count as f32 * options.frequency_penalty + options.presence_penalty);
        }
    }
    let mut list: Vec<(u32, f32)> =
        logits.iter().enumerate().filter(|(_, l)| l.is_finite()).map(|(id, &l)| (id as u32, l)).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if options.top_k > 0 {
        list.truncate(options.top_k);
    }
    let softmax = |list: &[(u32, f32)], t: f64| -> Vec<f64> {
        let max = list.iter().map(|c| c.1).fold(f32::NEG_INFINITY, f32::max);
        let w: Vec<f64> = list.iter().map(|c| (f64::from(c.1 - max) / t).exp()).collect();
        let total: f64 = w.iter().sum();
        w.iter().map(|w| w / total).collect()
    };
    if options.typical_p < 1.0 {
        let p = softmax(&list, 1.0);
        let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let mut order: Vec<usize> = (0..list.len()).collect();
        let distance = |i: &usize| (-p[*i].ln() - entropy).abs();
        order.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        let mut sum = 0.0;
        let mut count = 0;
        for i in &order {
            sum += p[*i];
            count += 1;
            if sum > f64::from(options.typical_p) {
                break;
            }
        }
        let mut few: Vec<_> = order[..count].iter().map(|&i| list[i]).collect();
        few.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        list = few;
    }
    if options.top_p < 1.0 {
        let p = softmax(&list, 1.0);
        let mut sum = 0.0;
        let count = p.iter().position(|p| {
            sum += p;
            sum >= f64::from(options.top_p)
        });
        list.truncate(count.map_or(list.len(), |c| c + 1));
    }
    if options.min_p > 0.0 {
        let p = softmax(&list, 1.0);
        let least = p[0] * f64::from(options.min_p);
        let count = p.iter().filter(|p| **p >= least).count();
        list.truncate(count);
    }
    let p = softmax(&list, f64::from(options.temperature));
    list.iter().map(|c| c.0).zip(p).collect()
}

fn options() -> impl Strategy<Value = SamplingOptions> {
    let shares = (prop_oneof![Just(1.0f32), 0.05f32..0.999], prop_oneof![Just(1.0f32), 0.05f32..0.999]);
    let cuts = (prop_oneof![Just(0usize), 1usize..60], prop_oneof![Just(0.0f32), 0.001f32..0.5]);
    let penalties = (
        prop_oneof![Just(1.0f32), 0.8f32..1.5],
        -1.0f32..1.0,
        -1.0f32..1.0,
        prop_oneof![Just(None), (0usize..30).prop_map(Some)],
    );
    let bias =
        proptest::collection::btree_map(0u32..40, prop_oneof![-3.0f32..3.0, Just(f32::NEG_INFINITY)], 0..4);
    (0.2f32..2.0, shares, cuts, penalties, bias, any::<u64>()).prop_map(
        |(
            temperature,
            (top_p, typical_p),
            (top_k, min_p),
            (repetition, presence, frequency, last_n),
            logit_bias,
            seed,
        )| {
            SamplingOptions {
                temperature,
                top_p,
                typical_p,
                top_k,
                min_p,
                repetition_penalty: repetition,
                presence_penalty: presence,
                frequency_penalty: frequency,
                penalty_last_n: last_n,
                logit_bias,
                seed,
                logprobs: 0,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Thousands of draws come from the set and the distribution of the plain version.
    #[test]
    fn draws_follow_the_plain_version(
        options in options(),
        logits in proptest::collection::vec(-8.0f32..8.0, 40..400),
        tokens in proptest::collection::vec(0u32..60, 0..40),
    ) {
        let expected = kept(&logits, &options, &tokens);
        let mut sampler = Sampler::new(options.clone()).unwrap();
        let draws = 400;
        let mut seen = std::collections::HashMap::new();
        for position in 0..draws {
            let choice = sampler.sample(&mut logits.clone(), position, &tokens).unwrap();
            *seen.entry(choice.id).or_insert(0u32) += 1;
        }
        for (id, count) in &seen {
            let p = expected.iter().find(|e| e.0 == *id).map(|e| e.1);
            prop_assert!(p.is_some(), "token {id} should have been cut, options {options:?}");
            let (n, p) = (f64::from(draws), p.unwrap());
            let sigma = (n * p * (1.0 - p)).sqrt();
            prop_assert!((f64::from(*count) - n * p).abs() <= 6.0 * sigma + 3.0, "token {id}: {count} of {n} at p {p}");
        }
    }
}

fn logits(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40503)) % 10_007) as f32 / 700.0)
        .collect()
}

#[test]
fn a_draw_is_a_function_of_seed_and_position() {
    let options = SamplingOptions { seed: 7, ..SamplingOptions::neutral() };
    let mut sampler = Sampler::new(options.clone()).unwrap();
    let first: Vec<u32> = (0..50).map(|p| sampler.sample(&mut logits(1000, 1), p, &[]).unwrap().id).collect();
    let mut other = Sampler::new(options).unwrap();
    let backwards: Vec<u32> =
        (0..50).rev().map(|p| other.sample(&mut logits(1000, 1), p, &[]).unwrap().id).collect();
    assert!(first.iter().eq(backwards.iter().rev()));
    let mut third = Sampler::new(SamplingOptions { seed: 8, ..SamplingOptions::neutral() }).unwrap();
    let different: Vec<u32> =
        (0..50).map(|p| third.sample(&mut logits(1000, 1), p, &[]).unwrap().id).collect();
    assert_ne!(first, different);
}

/// A stage that happens to keep everything, or the same set as another, draws the same token.
#[test]
fn equal_sets_draw_equally() {
    let all = SamplingOptions::neutral();
    let base = logits(3000, 3);
    for position in 0..200 {
        let draw = |options: &SamplingOptions| {
            Sampler::new(options.clone()).unwrap().sample(&mut base.clone(), position, &[]).unwrap()
        };
        assert_eq!(draw(&all), draw(&SamplingOptions { top_k: 2999 + 1, ..all.clone() }));
        assert_eq!(
            draw(&SamplingOptions { top_k: 1, ..all.clone() }).id,
            draw(&SamplingOptions::greedy()).id
        );
    }
}

#[test]
fn greedy_takes_the_first_of_equals_and_reports_logprobs() {
    let mut sampler = Sampler::new(SamplingOptions { logprobs: 3, ..SamplingOptions::greedy() }).unwrap();
    let choice = sampler.sample(&mut [0.0, 2.0, 1.0, 2.0], 0, &[]).unwrap();
    assert_eq!(choice.id, 1);
    let total: f32 = [0.0f32, 2.0, 1.0, 2.0].iter().map(|l| l.exp()).sum();
    assert!((choice.logprob - (2.0 - total.ln())).abs() < 1e-6);
    let top: Vec<u32> = sampler.top_logprobs().iter().map(|t| t.id).collect();
    assert_eq!(top, [1, 3, 2]);
}

/// What is reported is the model's own probability, whatever bias and penalties made of it.
#[test]
fn logprobs_are_the_models() {
    let mut options = SamplingOptions { presence_penalty: 0.5, ..SamplingOptions::greedy() };
    options.logit_bias.insert(2, 9.0);
    let choice = Sampler::new(options).unwrap().sample(&mut [0.0, 2.0, 1.0], 0, &[2]).unwrap();
    assert_eq!(choice.id, 2);
    let total: f32 = [0.0f32, 2.0, 1.0].iter().map(|l| l.exp()).sum();
    assert!((choice.logprob - (1.0 - total.ln())).abs() < 1e-6);
}

#[test]
fn broken_logits_are_named() {
    let mut sampler = Sampler::new(SamplingOptions::greedy()).unwrap();
    let error = sampler.sample(&mut [0.0, f32::NAN, 1.0], 0, &[]).unwrap_err();
    assert!(matches!(error, SamplingError::NonFinite { index: 1, .. }), "{error}");
    assert!(matches!(
        sampler.sample(&mut [0.0, 1.0, f32::NEG_INFINITY], 0, &[]),
        Err(SamplingError::NonFinite { index: 2, .. })
    ));
    assert_eq!(sampler.sample(&mut [], 0, &[]), Err(SamplingError::Empty));
    let ban = |ids: &[u32]| SamplingOptions {
        logit_bias: ids.iter().map(|&id| (id, f32::NEG_INFINITY)).collect(),
        ..SamplingOptions::neutral()
    };
    assert_eq!(
        Sampler::new(ban(&[0, 1])).unwrap().sample(&mut [0.0, 1.0], 0, &[]),
        Err(SamplingError::AllBanned)
    );
    let greedy = SamplingOptions { temperature: 0.0, ..ban(&[0, 1]) };
    assert_eq!(Sampler::new(greedy).unwrap().sample(&mut [0.0, 1.0], 0, &[]), Err(SamplingError::AllBanned));
    assert_eq!(
        Sampler::new(ban(&[9])).unwrap().sample(&mut [0.0, 1.0], 0, &[]),
        Err(SamplingError::BiasToken { id: 9, size: 2 })
    );
}

/// Sums beyond f32 saturate instead of turning into infinities.
#[test]
fn extreme_logits_do_not_overflow() {
    let mut sampler =
        Sampler::new(SamplingOptions { temperature: 1e-30, ..SamplingOptions::neutral() }).unwrap();
    assert_eq!(sampler.sample(&mut [f32::MIN, f32::MAX, 0.0], 3, &[]).unwrap().id, 1);
    let mut options = SamplingOptions { frequency_penalty: 1e38, ..SamplingOptions::neutral() };
    options.logit_bias.insert(0, f32::MIN);
    let choice = Sampler::new(options).unwrap().sample(&mut [f32::MIN, 1.0], 3, &[0, 0, 0, 0]).unwrap();
    assert_eq!(choice.id, 1);
}
