//! Hit rates against slots.

use serde::ser::{Serialize, SerializeMap, Serializer};
use turbospark_experts::trace::{Contender, Contest, Trace, cycle};

/// What pools of several sizes would find, by every way to fill them.
#[derive(Clone, Debug, PartialEq)]
pub struct HitCurve {
    /// Experts that one token uses.
    pub cycle: usize,
    /// Experts of all layers.
    pub experts: usize,
    /// Slots of each pool, rising.
    pub slots: Vec<usize>,
    /// The ways.
    pub contenders: Vec<Contender>,
    /// [slots, contenders]: share of the experts asked for that were in a slot, over the second half of the trace.
    pub rates: Vec<Vec<f64>>,
}

impl HitCurve {
    /// Simulates each on `trace`; `progress` is told how many of them all are done.
    pub fn of(
        trace: &Trace,
        contenders: Vec<Contender>,
        mut slots: Vec<usize>,
        progress: &(dyn Fn(usize) + Sync),
    ) -> HitCurve {
        slots.sort_unstable();
        slots.dedup();
        let rates = Contest::new(trace).table(&contenders, &slots, progress);
        let experts = trace.shape().experts.iter().sum();
        HitCurve { cycle: cycle(trace), experts, slots, contenders, rates }
    }

    /// Slots that show a curve's shape, from a quarter of a cycle to all experts.
    pub fn sizes(trace: &Trace) -> Vec<usize> {
        let all: usize = trace.shape().experts.iter().sum();
        let quarters = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64];
        let slots = quarters.map(|quarters| cycle(trace) * quarters / 4);
        slots.into_iter().filter(|&slots| slots > 0 && slots < all).chain([all.max(1)]).collect()
    }

    /// The rates of one contender, in the order of slots.
    pub fn rates_of(&self, contender: Contender) -> Option<Vec<f64>> {
        let at = self.contenders.iter().position(|&other| other == contender)?;
        Some(self.rates.iter().map(|rates| rates[at]).collect())
    }
}

impl Serialize for HitCurve {
    /// `cycle`, `experts`, `slots`, and under `hit_rates` a list for each policy by its name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rates = self.contenders.iter().map(|&contender| {
            (contender.name().to_owned(), self.rates_of(contender).unwrap_or_default().into())
        });
        let rates: serde_json::Map<String, serde_json::Value> = rates.collect();
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("cycle", &self.cycle)?;
        map.serialize_entry("experts", &self.experts)?;
        map.serialize_entry("slots", &self.slots)?;
        map.serialize_entry("hit_rates", &rates)?;
        map.end()
    }
}
