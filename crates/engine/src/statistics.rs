//! Where the time went and what the disk did, phase by phase.

use std::time::{Duration, Instant};

use serde::Serialize;
use turbospark_experts::{Statistics, StreamedExperts};
use turbospark_program::{Batch, Outputs};

use crate::engine::{Engine, EngineError};

/// What steps are done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Given tokens.
    Prefill,
    /// Tokens one by one.
    Decode,
}

/// Steps of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseStatistics {
    /// Batches computed.
    pub steps: usize,
    /// Their rows.
    pub rows: usize,
    /// Seconds of computing, and of whatever else is not waiting.
    pub compute_seconds: f64,
    /// Seconds of waiting for experts.
    pub waiting_seconds: f64,
    /// Experts asked for that were in a slot.
    pub hits: u64,
    /// Experts asked for that were not.
    pub misses: u64,
    /// Bytes of experts read.
    pub bytes_read: u64,
    /// Seconds of reading, summed over the reading threads.
    pub reading_seconds: f64,
    /// Seconds that these threads took to bring experts into the executor's layout.
    pub packing_seconds: f64,
    /// Experts that were foretold.
    pub hinted: u64,
    /// Foretold experts that were read ahead.
    pub hints_read: u64,
    /// Experts read ahead that were then asked for.
    pub hints_used: u64,
}

impl PhaseStatistics {
    /// Seconds of all.
    pub fn seconds(&self) -> f64 {
        self.compute_seconds + self.waiting_seconds
    }

    /// Share of the experts asked for that were in a slot; none if none was asked for of a pool.
    pub fn hit_rate(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| self.hits as f64 / asked as f64)
    }

    fn add(&mut self, rows: usize, time: Duration, experts: &Statistics) {
        self.steps += 1;
        self.rows += rows;
        let waited = experts.waited.min(time);
        self.compute_seconds += (time - waited).as_secs_f64();
        self.waiting_seconds += waited.as_secs_f64();
        self.hits += experts.hits;
        self.misses += experts.misses;
        self.bytes_read += experts.bytes_read;
        self.reading_seconds += experts.reading.as_secs_f64();
        self.packing_seconds += experts.packing.as_secs_f64();
        self.hinted += experts.hinted;
        self.hints_read += experts.hints_read;
        self.hints_used += experts.hints_used;
    }
}

/// Both phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunStatistics {
    /// Prompts, and tokens that are evaluated.
    pub prefill: PhaseStatistics,
    /// Generated tokens.
    pub decode: PhaseStatistics,
}

impl Engine {
    /// What was done since the last call.
    pub fn take_statistics(&mut self) -> RunStatistics {
        std::mem::take(&mut self.statistics)
    }

    /// Runs a batch and counts it.
    pub(crate) fn step(
        &mut self,
        phase: Phase,
        batch: &Batch,
        outputs: Outputs<'_>,
    ) -> Result<(), EngineError> {
        let statistics =
            |engine: &Engine| engine.streamed().map(StreamedExperts::statistics).unwrap_or_default();
        let (before, begun) = (statistics(self), Instant::now());
        self.traced_step(batch, outputs)?;
        let (time, experts) = (begun.elapsed(), statistics(self).since(&before));
        let phase = match phase {
            Phase::Prefill => &mut self.statistics.prefill,
            Phase::Decode => &mut self.statistics.decode,
        };
        phase.add(batch.rows.len(), time, &experts);
        Ok(())
    }
}
