//! How busy the disk is.

use std::time::{Duration, Instant};

/// The share of recent time in which at least one read that a request waits for was going on.
#[derive(Debug)]
pub(super) struct Meter {
    at: Instant,
    reads: usize,
    busy: f64,
}

impl Meter {
    /// Older time than this fades; about what a few tokens take.
    const MEMORY: Duration = Duration::from_millis(250);

    pub fn new(now: Instant) -> Meter {
        Meter { at: now, reads: 0, busy: 0.0 }
    }

    pub fn begin(&mut self, now: Instant) {
        self.busy = self.busy(now);
        self.at = now;
        self.reads += 1;
    }

    pub fn end(&mut self, now: Instant) {
        self.busy = self.busy(now);
        self.at = now;
        self.reads = self.reads.saturating_sub(1);
    }

    /// Between 0, idle, and 1.
    pub fn busy(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at);
        let fade = (-passed.as_secs_f64() / Meter::MEMORY.as_secs_f64()).exp();
        let current = if self.reads > 0 { 1.0 } else { 0.0 };
        self.busy * fade + current * (1.0 - fade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_follows_what_the_disk_does() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::new(start);
        // 3 ms of every 10 are reading.
        for step in 0..200 {
            meter.begin(at(step * 10));
            meter.end(at(step * 10 + 3));
        }
        let busy = meter.busy(at(2000));
        assert!((0.25..0.35).contains(&busy), "{busy}");
        meter.begin(at(2000));
        assert!(meter.busy(at(4000)) > 0.99);
    }
}
