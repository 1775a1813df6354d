use crate::policy::{ExpertKey, Moment, PerExpert, Policy, Worth};

use super::Trace;

/// The optimum: knows the trace, and lets the expert leave whose next use is furthest away.
///
/// No policy that has to give every expert read a slot hits more often.
pub struct Belady {
    /// For each expert, when it is used, latest first: the past is taken off the end.
    uses: PerExpert<Vec<u64>>,
}

impl Belady {
    /// Knows `trace`, and nothing else may be replayed with it.
    pub fn new(trace: &Trace) -> Belady {
        let mut uses = PerExpert::new(&trace.shape(), Vec::new());
        let requests: Vec<_> = trace.requests().collect();
        for (time, (layer, ids, _)) in requests.into_iter().enumerate().rev() {
            for id in ids {
                uses.get_mut(ExpertKey::new(layer, id)).push(time as u64);
            }
        }
        Belady { uses }
    }
}

impl Policy for Belady {
    fn used(&mut self, key: ExpertKey, _now: Moment) {
        self.uses.get_mut(key).pop();
    }

    fn worth(&self, key: ExpertKey, _now: Moment) -> Worth {
        Worth(self.uses.get(key).last().map_or(f64::NEG_INFINITY, |&time| -(time as f64)), 0.0)
    }
}
