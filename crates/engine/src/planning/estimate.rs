//! From bytes and rates to tokens a second.

use serde::Serialize;

use super::{Planning, Rates};
use crate::memory::MemoryPlan;

/// How fast a token is, if nothing but reading takes time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Share of the experts asked for that are in a slot; none where no experts are streamed.
    pub hit_rate: Option<f64>,
    /// Bytes of the file that a token's misses read.
    pub missed_bytes: f64,
    /// Seconds of reading from memory what every token needs.
    pub shared_seconds: f64,
    /// Seconds of reading a token's experts from memory.
    pub expert_seconds: f64,
    /// Seconds of reading what is missed from disk and packing it, while those of `expert_seconds` pass.
    pub disk_seconds: f64,
    /// Of a token: what every token needs, and the longer of the other two.
    pub seconds: f64,
    /// Its inverse.
    pub tokens_per_second: f64,
}

impl Planning<'_> {
    /// Estimates a generated token of a short sequence under `plan`.
    pub fn estimate(&self, plan: &MemoryPlan, rates: &Rates) -> Estimate {
        let hits = self.hits(plan);
        let missed_bytes = hits.map_or(0.0, |hits| hits.missed_bytes);
        let shared_seconds = self.token.shared_bytes as f64 / rates.memory;
        let expert_seconds = self.token.expert_bytes as f64 / rates.memory;
        let disk_seconds = rates.packed.map_or(0.0, |disk| missed_bytes / disk.bytes_per_second());
        let seconds = shared_seconds + expert_seconds.max(disk_seconds);
        Estimate {
            hit_rate: hits.map(|hits| hits.rate),
            missed_bytes,
            shared_seconds,
            expert_seconds,
            disk_seconds,
            seconds,
            tokens_per_second: 1.0 / seconds.max(1e-9),
        }
    }
}
