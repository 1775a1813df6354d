//! What other budgets would give.

use turbospark_experts::memory_limit::MemorySize;

use super::{Planning, Rates};
use crate::engine::{EngineError, OpenOptions};
use crate::memory::{MemoryError, MemoryPlan, Residency};
use crate::planning::Estimate;

/// Steps from the smallest budget to the one that holds everything.
const STEPS: i32 = 7;
const MIB: u64 = 1 << 20;

impl Planning<'_> {
    /// Plans and estimates from the smallest budget that works up to the one that keeps all experts in memory, `plan`
    /// among them. Only `plan` for a model without experts, or one whose experts have to be resident.
    pub fn budgets(
        &self,
        plan: &MemoryPlan,
        rates: &Rates,
    ) -> Result<Vec<(MemoryPlan, Estimate)>, EngineError> {
        let mut plans = Vec::new();
        if plan.expert_count > 0 && self.options.memory.residency != Residency::Resident {
            let budgets = self.steps()?;
            for budget in budgets {
                plans.push(self.with(Some(budget), self.options.memory.residency)?);
            }
        }
        plans.retain(|other| (other.total(), other.slots()) != (plan.total(), plan.slots()));
        plans.push(plan.clone());
        plans.sort_by_key(MemoryPlan::total);
        Ok(self.estimates(plans, rates))
    }

    /// Budgets from the smallest to the largest that makes a difference.
    fn steps(&self) -> Result<Vec<u64>, EngineError> {
        let least = match self.with(Some(1), self.options.memory.residency) {
            Err(EngineError::Memory(MemoryError::TooSmall { least, .. })) => least,
            Err(error) => return Err(error),
            Ok(plan) => plan.total() as u64,
        };
        let all = self.with(Some(u64::MAX / 4), Residency::Auto)?.total() as u64;
        let (least, all) = (least.next_multiple_of(MIB), all.next_multiple_of(MIB));
        let ratio = all.max(least) as f64 / least as f64;
        let step = |step: i32| {
            let exact = least as f64 * ratio.powf(f64::from(step) / f64::from(STEPS));
            // Round numbers: to about a twentieth.
            let unit = ((exact / 20.0) as u64).next_power_of_two().max(MIB);
            (exact as u64).next_multiple_of(unit).min(all)
        };
        let mut steps: Vec<u64> = (1..STEPS).map(step).collect();
        steps.extend([least, all]);
        steps.sort_unstable();
        steps.dedup();
        Ok(steps)
    }

    fn with(&self, budget: Option<u64>, residency: Residency) -> Result<MemoryPlan, EngineError> {
        let mut memory = self.options.memory;
        memory.budget = budget.map(MemorySize::Bytes);
        memory.residency = residency;
        // What an option of streaming says holds as long as experts are streamed.
        (memory.slots, memory.policy, memory.reader, memory.prefetch) = (None, None, None, None);
        let options = OpenOptions { memory, ..self.options.clone() };
        MemoryPlan::new(&self.program, self.checkpoint, &options, self.context)
    }

    /// Estimates of all, on the cores of this machine: a simulation of many slots takes a while.
    fn estimates(&self, plans: Vec<MemoryPlan>, rates: &Rates) -> Vec<(MemoryPlan, Estimate)> {
        let estimates: Vec<Estimate> = std::thread::scope(|scope| {
            let start = |plan| scope.spawn(move || self.estimate(plan, rates));
            let threads: Vec<_> = plans.iter().map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Estimate>| {
                // A thread that panicked panics here too.
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        plans.into_iter().zip(estimates).collect()
    }
}
