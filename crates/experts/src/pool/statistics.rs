use std::time::Duration;

/// What a streamed source has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Experts asked for that were in a slot.
    pub hits: u64,
    /// Experts asked for that were not; some were being read already.
    pub misses: u64,
    /// Experts read.
    pub reads: u64,
    /// Bytes of the experts read.
    pub bytes_read: u64,
    /// Reads that failed.
    pub failures: u64,
    /// Time that holders of requests waited.
    pub waited: Duration,
    /// Time that threads spent reading, summed over them.
    pub reading: Duration,
    /// Time that threads spent packing, summed over them.
    pub packing: Duration,
    /// Experts that were hinted.
    pub hinted: u64,
    /// Hinted experts that were read ahead.
    pub hints_read: u64,
    /// Experts read ahead that were asked for before they left.
    pub hints_used: u64,
    /// Experts that arrived for a request and gave their slot to another before they were taken.
    pub given_up: u64,
}

impl Statistics {
    /// Share of the experts asked for that were in a slot; 0 if none was asked for.
    pub fn hit_rate(&self) -> f64 {
        let asked = self.hits + self.misses;
        if asked == 0 { 0.0 } else { self.hits as f64 / asked as f64 }
    }

    /// What was done since an earlier look.
    pub fn since(&self, earlier: &Statistics) -> Statistics {
        Statistics {
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            reads: self.reads.saturating_sub(earlier.reads),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            failures: self.failures.saturating_sub(earlier.failures),
            waited: self.waited.saturating_sub(earlier.waited),
            reading: self.reading.saturating_sub(earlier.reading),
            packing: self.packing.saturating_sub(earlier.packing),
            hinted: self.hinted.saturating_sub(earlier.hinted),
            hints_read: self.hints_read.saturating_sub(earlier.hints_read),
            hints_used: self.hints_used.saturating_sub(earlier.hints_used),
            given_up: self.given_up.saturating_sub(earlier.given_up),
        }
    }
}
