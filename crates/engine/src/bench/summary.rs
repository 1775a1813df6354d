//! What the samples of a test come to.

use std::time::Duration;

use serde::Serialize;
use turbospark_cpu::Timings;

use super::{Sample, Test, Work};

/// A mean and its spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Statistic {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the samples; 0 for a single one.
    pub stddev: f64,
}

impl Statistic {
    /// Of some values, at least one.
    pub fn of(values: &[f64]) -> Statistic {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let stddev = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Statistic { mean, stddev }
    }
}

/// The middle one, 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// A rate of linear products, and what share of the machine's it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Bytes of weights for generation, multiply-adds for prompts, in 10^9 a second.
    pub giga_per_second: f64,
    /// Of what the machine gave around the same run; none where that was not measured or does not bound the work.
    pub share: Option<f64>,
}

/// What became of streamed experts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StreamedShare {
    /// Share of the experts asked for that were in a slot.
    pub hit_rate: f64,
    /// Bytes read from disk, in 10^9 a second of all the time.
    pub gigabytes_read_per_second: f64,
    /// Bytes read for each token.
    pub bytes_read_per_token: f64,
    /// Bytes of experts that the disk gave beside the same runs, in 10^9 a second; none if it was not measured.
    pub disk_gigabytes_per_second: Option<f64>,
    /// The time, divided by the least it could be: all that is not experts, and then experts or the disk, whichever
    /// takes longer. Median of the samples; none as above.
    pub time_to_bound: Option<f64>,
}

/// What the samples of a test come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Tokens a second of each sample.
    pub samples: Vec<f64>,
    /// Their mean and spread.
    pub tokens_per_second: Statistic,
    /// Linear products over all the time; medians of the samples.
    pub whole: Rate,
    /// Linear products over the time of linear products, if that is known.
    pub linears: Option<Rate>,
    /// Share of the time that each kind of work took.
    pub time: Vec<(&'static str, f64)>,
    /// Of all samples; none if experts are not streamed.
    pub streamed: Option<StreamedShare>,
}

impl Summary {
    /// Sums up.
    pub fn new(test: &Test, work: &Work, samples: &[Sample]) -> Summary {
        let rates: Vec<f64> = samples.iter().map(|s| test.tokens() as f64 / s.time.as_secs_f64()).collect();
        let linears =
            |sample: &Sample| Some((sample.timings?.linears + sample.timings?.experts).as_secs_f64());
        let known = samples.iter().all(|sample| sample.timings.is_some());
        Summary {
            tokens_per_second: Statistic::of(&rates),
            samples: rates,
            whole: rate(test, work, samples, |sample| sample.time.as_secs_f64()),
            linears: known.then(|| rate(test, work, samples, |sample| linears(sample).unwrap_or(0.0))),
            time: shares(samples),
            streamed: streamed(test, samples),
        }
    }
}

fn rate(test: &Test, work: &Work, samples: &[Sample], seconds: impl Fn(&Sample) -> f64) -> Rate {
    let (amount, bounded) = match test {
        Test::Prompt { tokens, .. } => {
            let amount = work.rows(*tokens, 1);
            (amount.multiply_adds, amount.is_integer())
        }
        Test::Generate { tokens, .. } => (work.rows(*tokens, *tokens).bytes, true),
    };
    let ceilings = |sample: &Sample| match test {
        Test::Prompt { .. } => sample.multiply_adds.clone(),
        Test::Generate { .. } => sample.read.clone(),
    };
    let rates = samples.iter().map(|sample| amount as f64 / seconds(sample)).collect();
    let measured = samples.iter().all(|sample| !ceilings(sample).is_empty());
    let share = |sample: &Sample| amount as f64 / seconds(sample) / median(ceilings(sample));
    Rate {
        giga_per_second: median(rates) / 1e9,
        share: (measured && bounded).then(|| median(samples.iter().map(share).collect())),
    }
}

fn streamed(test: &Test, samples: &[Sample]) -> Option<StreamedShare> {
    let (mut hits, mut asked, mut bytes, mut seconds) = (0, 0, 0, 0.0);
    for sample in samples {
        let streamed = sample.streamed?;
        hits += streamed.hits;
        asked += streamed.hits + streamed.misses;
        bytes += streamed.bytes_read;
        seconds += sample.time.as_secs_f64();
    }
    let disk: Vec<f64> = samples.iter().flat_map(|sample| sample.disk.iter().copied()).collect();
    let bounds: Option<Vec<f64>> = samples.iter().map(time_to_bound).collect();
    (asked > 0).then(|| StreamedShare {
        disk_gigabytes_per_second: (!disk.is_empty()).then(|| median(disk) / 1e9),
        time_to_bound: bounds.map(median),
        hit_rate: hits as f64 / asked as f64,
        gigabytes_read_per_second: bytes as f64 / seconds / 1e9,
        bytes_read_per_token: bytes as f64 / (test.tokens() * samples.len()) as f64,
    })
}

/// The time of a sample over the least that its misses and its computing allow.
fn time_to_bound(sample: &Sample) -> Option<f64> {
    let (timings, streamed) = (sample.timings?, sample.streamed?);
    let disk = median(sample.disk.clone());
    if disk <= 0.0 {
        return None;
    }
    // What was read ahead in vain is no excuse.
    let (needed, read) = (streamed.misses + streamed.hints_used, streamed.misses + streamed.hints_read);
    let bytes = streamed.bytes_read as f64 * needed as f64 / read.max(1) as f64;
    let time = sample.time.as_secs_f64();
    let experts = timings.experts.as_secs_f64();
    let rest = time - experts - timings.waiting.as_secs_f64();
    Some(time / (rest + experts.max(bytes / disk)))
}

fn shares(samples: &[Sample]) -> Vec<(&'static str, f64)> {
    let whole: Duration = samples.iter().map(|sample| sample.time).sum();
    let mut shares: Vec<(&'static str, f64)> = Vec::new();
    for timings in samples.iter().filter_map(|sample| sample.timings) {
        let Timings { linears, experts, attention, rows, routing, waiting, ends, .. } = timings;
        let kinds = [
            ("linears", linears),
            ("experts", experts),
            ("attention", attention),
            ("rows", rows),
            ("routing", routing),
            ("waiting", waiting),
            ("ends", ends),
        ];
        shares.resize(kinds.len(), ("", 0.0));
        for (share, (name, time)) in shares.iter_mut().zip(kinds) {
            *share = (name, share.1 + time.as_secs_f64() / whole.as_secs_f64());
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Amount;
    use crate::statistics::PhaseStatistics;

    #[test]
    fn shares_are_of_what_the_machine_gave_beside_the_same_sample() {
        let row = Amount { bytes: 1_000_000, multiply_adds: 2_000_000, float_multiply_adds: 0 };
        let work = Work { row, ..Work::default() };
        let sample = |milliseconds, read| Sample {
            time: Duration::from_millis(milliseconds),
            timings: Some(Timings { linears: Duration::from_millis(milliseconds / 2), ..Timings::default() }),
            read: vec![read],
            multiply_adds: vec![1e9],
            streamed: Some(PhaseStatistics {
                hits: 3,
                misses: 1,
                bytes_read: 1_000_000,
                ..Default::default()
            }),
            disk: vec![4e7],
        };
        // A machine that halves its rate for a while leaves the share as it is.
        let samples = [sample(100, 2e8), sample(200, 1e8)];
        let summary = Summary::new(&Test::Generate { tokens: 10, depth: 0 }, &work, &samples);
        assert_eq!(summary.samples, [100.0, 50.0]);
        assert_eq!(summary.tokens_per_second.mean, 75.0);
        assert!((summary.tokens_per_second.stddev - 35.355).abs() < 1e-3);
        assert_eq!(summary.whole, Rate { giga_per_second: 0.075, share: Some(0.5) });
        assert_eq!(summary.linears.unwrap().share, Some(1.0));
        assert_eq!(summary.time[0], ("linears", 0.5));
        let streamed = summary.streamed.unwrap();
        assert_eq!((streamed.hit_rate, streamed.bytes_read_per_token), (0.75, 100_000.0));
        assert!((streamed.gigabytes_read_per_second - 2e6 / 0.3 / 1e9).abs() < 1e-9);
        // The disk takes 25 ms for the bytes: a bound of 100 and 200 ms without waiting, 25 ms longer.
        assert_eq!(streamed.disk_gigabytes_per_second, Some(0.04));
        assert!((streamed.time_to_bound.unwrap() - (100.0 / 125.0 + 200.0 / 225.0) / 2.0).abs() < 1e-9);
        let summary = Summary::new(&Test::Prompt { tokens: 10, depth: 0 }, &work, &samples[..1]);
        assert_eq!(summary.whole, Rate { giga_per_second: 0.2, share: Some(0.2) });
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
