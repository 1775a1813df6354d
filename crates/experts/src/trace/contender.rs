//! Every way to fill a pool, side by side on one trace.

use std::fmt;
use std::str::FromStr;

use super::{Belady, SimulatedPool, Trace, simulate};
use crate::policy::{Policy, PolicyKind, StaticHotSet};

/// A way to fill a pool that a trace can judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contender {
    /// A policy that needs nothing but the run itself.
    Online(PolicyKind),
    /// [`StaticHotSet`], fitted on the part of the trace that is not counted.
    StaticSet,
    /// [`Belady`]
    Optimum,
}

impl Contender {
    /// All, the optimum last.
    pub fn all() -> Vec<Contender> {
        let online = PolicyKind::ONLINE.into_iter().map(Contender::Online);
        online.chain([Contender::StaticSet, Contender::Optimum]).collect()
    }

    /// The name as an option spells it.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Online(kind) => kind.name(),
            Contender::StaticSet => "static-set",
            Contender::Optimum => "optimum",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that nothing which fills a pool has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no replacement policy is called {name}: {} are", known.join(", "))]
pub struct UnknownContender {
    name: String,
    known: Vec<&'static str>,
}

impl FromStr for Contender {
    type Err = UnknownContender;

    fn from_str(name: &str) -> Result<Contender, UnknownContender> {
        Contender::all().into_iter().find(|contender| contender.name() == name).ok_or_else(|| {
            UnknownContender {
                name: name.to_owned(),
                known: Contender::all().into_iter().map(Contender::name).collect(),
            }
        })
    }
}

/// A trace whose first half warms pools and fits the static set, and whose second half counts.
pub struct Contest<'a> {
    trace: &'a Trace,
    from: usize,
}

impl<'a> Contest<'a> {
    /// A contest over `trace`.
    pub fn new(trace: &'a Trace) -> Contest<'a> {
        Contest { trace, from: trace.len() / 2 }
    }

    /// Share of the experts asked for that `contender` finds in one of `slots` slots.
    pub fn hit_rate(&self, contender: Contender, slots: usize) -> f64 {
        let shape = self.trace.shape();
        let policy: Box<dyn Policy> = match contender {
            Contender::Online(kind) => kind.make(&shape),
            Contender::StaticSet => Box::new(StaticHotSet::fit(&shape, self.trace.split(self.from).0.uses())),
            Contender::Optimum => Box::new(Belady::new(self.trace)),
        };
        simulate(self.trace, &SimulatedPool::uniform(self.trace, slots), policy, self.from).hit_rate()
    }

    /// Hit rates, [slots, contenders], on the cores of this machine; `progress` is told how many are done.
    pub fn table(
        &self,
        contenders: &[Contender],
        slots: &[usize],
        progress: &(dyn Fn(usize) + Sync),
    ) -> Vec<Vec<f64>> {
        use std::sync::atomic::{AtomicUsize, Ordering};

        let jobs = slots.len() * contenders.len();
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.max(1));
        let work = || {
            let mut rates = Vec::new();
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    return rates;
                }
                let (row, column) = (job / contenders.len(), job % contenders.len());
                rates.push((row, column, self.hit_rate(contenders[column], slots[row])));
                progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            }
        };
        let mut table = vec![vec![0.0; contenders.len()]; slots.len()];
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                // A thread that panicked panics here too.
                let rates = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                rates.into_iter().for_each(|(row, column, rate)| table[row][column] = rate);
            }
        });
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Routing, Synthetic, cycle, simulate_kind};

    #[test]
    fn names_are_read_back() {
        for contender in Contender::all() {
            assert_eq!(contender.to_string().parse(), Ok(contender));
        }
        assert!("opt".parse::<Contender>().unwrap_err().to_string().contains("optimum"));
    }

    #[test]
    fn the_table_has_each_rate_in_its_place() {
        let trace = Synthetic::new(Routing::Zipf { exponent: 1.0 }, 3).trace(60);
        let contest = Contest::new(&trace);
        let (all, slots) = (Contender::all(), [cycle(&trace) / 2, cycle(&trace), 768]);
        let table = contest.table(&all, &slots, &|_| {});
        for (slots, rates) in slots.iter().zip(&table) {
            for (contender, &rate) in all.iter().zip(rates) {
                assert_eq!(rate, contest.hit_rate(*contender, *slots));
                assert!(rate <= rates[all.len() - 1], "{contender} beats the optimum");
            }
        }
        assert_eq!(table[1][0], simulate_kind(&trace, slots[1], PolicyKind::Lru, 30).hit_rate());
        assert_eq!(table[0][0], 0.0);
        assert!(contest.table(&[], &[1], &|_| {})[0].is_empty());
    }
}
