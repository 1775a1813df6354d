//! Where the time of steps goes.

use std::time::{Duration, Instant};

/// Time spent in steps, by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Steps counted.
    pub steps: usize,
    /// Norms, rotations, gates, sums, and the quantisation of inputs.
    pub rows: Duration,
    /// Linears with resident weights.
    pub linears: Duration,
    /// Keys, values and attention.
    pub attention: Duration,
    /// Choosing experts and asking for them.
    pub routing: Duration,
    /// Routed experts, without the waiting.
    pub experts: Duration,
    /// Waiting for experts to arrive.
    pub waiting: Duration,
    /// Preparing the batch and handing out logits.
    pub ends: Duration,
}

impl Timings {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.rows + self.linears + self.attention + self.routing + self.experts + self.waiting + self.ends
    }
}

/// A watch that is read at every change of work.
pub(crate) struct Watch(Instant);

impl Watch {
    pub fn start() -> Watch {
        Watch(Instant::now())
    }

    /// Adds the time since the last reading.
    pub fn add_to(&mut self, total: &mut Duration) {
        let now = Instant::now();
        *total += now - self.0;
        self.0 = now;
    }
}
