//! The state machine under random steps, with a reader that is a list.

use std::collections::BTreeMap;
use std::time::Instant;

use super::residency::{Residency, SizeClass};
use super::{Failure, Held, Next, Prefetching, State, Work};
use crate::memory::{Block, PAGE};
use crate::policy::{PolicyKind, Shape};
use crate::random::Random;

const LAYERS: usize = 4;
const EXPERTS: usize = 12;

/// A pool with layers 0 to 2 in one class and layer 3 in another.
fn pool(slots: [usize; 2], kind: PolicyKind, prefetching: Option<Prefetching>) -> State {
    let shape = Shape { experts: vec![EXPERTS; LAYERS] };
    let classes = slots.map(|slots| SizeClass { bytes: PAGE, slots });
    let residency = Residency::new(&shape, vec![0, 0, 0, 1], &classes, kind.make(&shape));
    let blocks = Block::many(std::iter::repeat_n(8, slots[0] + slots[1]), PAGE).unwrap();
    State::new(residency, blocks, prefetching)
}

/// What a reader would leave in the slot.
fn read(mut work: Work) -> Held {
    work.block.bytes_mut()[0] = work.key.layer as u8;
    work.block.bytes_mut()[1] = work.key.expert as u8;
    Held { block: work.block, slices: std::iter::once(0..8).collect() }
}

fn failure(work: &Work) -> Failure {
    Failure {
        layer: work.key.layer as usize,
        expert: work.key.expert,
        path: "list".into(),
        kind: std::io::ErrorKind::Other,
        reason: "as the test wants it".into(),
    }
}

struct Holder {
    state: State,
    random: Random,
    /// Reads that are going on.
    reads: Vec<Work>,
    /// Layer, and what is still to come.
    requests: BTreeMap<u64, (usize, Vec<u32>)>,
    /// Slots.
    leases: Vec<usize>,
    failures: bool,
}

impl Holder {
    fn start_reads(&mut self, most: usize) {
        while self.reads.len() < most {
            match self.state.next_read(Instant::now()).0 {
                Some(work) => self.reads.push(work),
                None => break,
            }
        }
    }

    fn finish_a_read(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let work = self.reads.swap_remove(self.random.below(self.reads.len()));
        let (slot, ahead) = (work.slot, work.ahead);
        let fails = self.failures && self.random.one_in(20);
        let result = if fails {
            let failure = failure(&work);
            Err((work.block, failure))
        } else {
            Ok(read(work))
        };
        self.state.arrived(slot, ahead, result, Instant::now());
    }

    fn begin(&mut self) {
        let layer = self.random.below(LAYERS);
        let mut ids: Vec<u32> = (0..EXPERTS as u32).collect();
        self.random.shuffle(&mut ids);
        ids.truncate(1 + self.random.below(EXPERTS));
        let id = self.state.begin(layer, &ids);
        self.requests.insert(id, (layer, ids));
    }

    /// Takes one step of a request; false if it has to wait.
    fn next(&mut self, id: u64) -> bool {
        match self.state.next(id) {
            Next::Lease { slot, expert, held } => {
                let (layer, wanted) = self.requests.get_mut(&id).unwrap();
                assert_eq!(held.block.bytes()[..2], [*layer as u8, expert as u8], "the wrong expert's bytes");
                let at = wanted.iter().position(|&w| w == expert).expect("given twice or not asked for");
                wanted.remove(at);
                self.leases.push(slot);
            }
            Next::Wait => return false,
            Next::Done => {
                let (_, left) = self.requests.remove(&id).unwrap();
                assert!(left.is_empty(), "{left:?} were not given");
                self.state.cancel(id);
            }
            Next::Failed(_) => {
                assert!(self.failures);
                self.requests.remove(&id);
                self.state.cancel(id);
            }
        }
        true
    }

    fn give_back(&mut self) {
        if !self.leases.is_empty() {
            let slot = self.leases.swap_remove(self.random.below(self.leases.len()));
            self.state.give_back(slot);
        }
    }

    fn check(&self) {
        let reading: Vec<usize> = self.reads.iter().map(|work| work.slot).collect();
        self.state.check(&reading);
    }
}

#[test]
fn random_steps_keep_every_promise() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let slots = [1 + random.below(6), 1 + random.below(3)];
        let fewest = slots[0].min(slots[1]);
        let kind = PolicyKind::ONLINE[random.below(PolicyKind::ONLINE.len())];
        let prefetching =
            Some(Prefetching { busy: f64::INFINITY, used: 0.0, reads: 1 }).filter(|_| seed % 2 == 0);
        let mut holder = Holder {
            state: pool(slots, kind, prefetching),
            failures: seed % 3 == 0,
            random,
            reads: Vec::new(),
            requests: BTreeMap::new(),
            leases: Vec::new(),
        };
        let threads = 1 + holder.random.below(3);
        for _ in 0..1000 {
            match holder.random.below(6) {
                0 if holder.requests.len() < 4 => holder.begin(),
                1 => holder.start_reads(threads),
                2 => holder.finish_a_read(),
                3 => holder.give_back(),
                4 if holder.random.one_in(4) => {
                    let layer = holder.random.below(LAYERS);
                    let ids = [holder.random.below(EXPERTS) as u32, holder.random.below(EXPERTS) as u32];
                    holder.state.hint(layer, &ids, Instant::now());
                }
                4 if holder.random.one_in(8) => {
                    if let Some((&id, _)) = holder.requests.iter().next() {
                        holder.requests.remove(&id);
                        holder.state.cancel(id);
                    }
                }
                _ => {
                    // One who keeps fewer leases than allowed gets an expert as soon as the reads have ended.
                    let ids: Vec<u64> = holder.requests.keys().copied().collect();
                    if ids.is_empty() || holder.leases.len() >= fewest {
                        continue;
                    }
                    let id = ids[holder.random.below(ids.len())];
                    let mut turns = 0;
                    while !holder.next(id) {
                        holder.start_reads(threads);
                        holder.finish_a_read();
                        turns += 1;
                        assert!(turns < 100, "seed {seed}: a request starves");
                        holder.check();
                    }
                }
            }
            holder.check();
        }
    }
}

#[test]
fn hits_come_first_and_are_counted() {
    let mut state = pool([4, 1], PolicyKind::Lru, None);
    let first = state.begin(0, &[1, 2]);
    for _ in 0..2 {
        let work = state.next_read(Instant::now()).0.unwrap();
        state.arrived(work.slot, false, Ok(read(work)), Instant::now());
    }
    state.cancel(first);
    let id = state.begin(0, &[7, 2, 5, 1, 2, 7]);
    let given: Vec<u32> = std::iter::from_fn(|| match state.next(id) {
        Next::Lease { expert, .. } => Some(expert),
        _ => None,
    })
    .collect();
    assert_eq!(given, [2, 1]);
    assert_eq!((state.statistics.hits, state.statistics.misses), (2, 4));
}

#[test]
fn closing_a_request_cancels_what_was_not_read() {
    let mut state = pool([4, 1], PolicyKind::Lru, None);
    let id = state.begin(0, &[0, 1, 2]);
    let work = state.next_read(Instant::now()).0.unwrap();
    state.cancel(id);
    assert!(state.next_read(Instant::now()).0.is_none());
    let slot = work.slot;
    state.arrived(slot, false, Ok(read(work)), Instant::now());
    assert!(state.holds(0, 0) && !state.holds(0, 1));
}

#[test]
fn two_requests_share_one_read() {
    let mut state = pool([2, 1], PolicyKind::Lru, None);
    let ids = [state.begin(0, &[3]), state.begin(0, &[3])];
    let work = state.next_read(Instant::now()).0.unwrap();
    assert!(state.next_read(Instant::now()).0.is_none());
    let slot = work.slot;
    state.arrived(slot, false, Ok(read(work)), Instant::now());
    assert!(ids.iter().all(|&id| matches!(state.next(id), Next::Lease { expert: 3, .. })));
}

#[test]
fn hints_wait_for_an_idle_disk_and_are_counted_when_used() {
    let mut state = pool([3, 1], PolicyKind::Lru, Some(Prefetching { busy: 0.5, used: 0.0, reads: 1 }));
    state.hint(1, &[4], Instant::now());
    let work = state.next_read(Instant::now()).0.unwrap();
    assert!(work.ahead);
    let slot = work.slot;
    state.arrived(slot, true, Ok(read(work)), Instant::now());
    state.begin(1, &[4]);
    assert_eq!(state.statistics.hints_used, 1);

    // A second of reading later the disk counts as busy.
    state.begin(0, &[1]);
    let work = state.next_read(Instant::now()).0.unwrap();
    state.hint(2, &[5], Instant::now() + std::time::Duration::from_secs(1));
    assert!(state.next_read(Instant::now()).0.is_none());
    drop(work);
}

#[test]
fn what_was_read_ahead_stays_until_its_layer_comes() {
    let mut state = pool([3, 1], PolicyKind::Forecast, Some(Prefetching { busy: 2.0, used: 0.0, reads: 4 }));
    let arrive = |state: &mut State, work: Work| {
        let (slot, ahead) = (work.slot, work.ahead);
        state.arrived(slot, ahead, Ok(read(work)), Instant::now());
    };
    let request = state.begin(0, &[0]);
    let work = state.next_read(Instant::now()).0.unwrap();
    arrive(&mut state, work);
    state.cancel(request);
    state.hint(1, &[4, 5, 6], Instant::now());
    while let Some(work) = state.next_read(Instant::now()).0 {
        arrive(&mut state, work);
    }
    // Each in a slot of its own; no hint takes the slot of another.
    assert!((4..7).all(|expert| state.holds(1, expert)) && !state.holds(0, 0));
    // A request takes such a slot if there is no other.
    let request = state.begin(0, &[1]);
    let work = state.next_read(Instant::now()).0.unwrap();
    arrive(&mut state, work);
    state.cancel(request);
    let request = state.begin(1, &[4, 5, 6]);
    assert_eq!((state.statistics.hints_read, state.statistics.hints_used), (3, 2));
    state.cancel(request);
    state.check(&[]);
}

#[test]
fn hints_that_are_of_no_use_are_passed_over_until_they_are_again() {
    let mut state = pool([6, 1], PolicyKind::Lru, Some(Prefetching { busy: 2.0, used: 0.5, reads: 1 }));
    let step = |state: &mut State, hinted: u32, asked: u32| {
        state.hint(1, &[hinted], Instant::now());
        let mut reads = 0;
        while let Some(work) = state.next_read(Instant::now()).0 {
            reads += usize::from(work.ahead);
            let (slot, ahead) = (work.slot, work.ahead);
            state.arrived(slot, ahead, Ok(read(work)), Instant::now());
        }
        let request = state.begin(1, &[asked]);
        while let Some(work) = state.next_read(Instant::now()).0 {
            let (slot, ahead) = (work.slot, work.ahead);
            state.arrived(slot, ahead, Ok(read(work)), Instant::now());
        }
        state.cancel(request);
        reads
    };
    // No hint names what is asked for.
    let mut random = Random::new(1);
    let useless: Vec<usize> = (0..2000).map(|_| step(&mut state, random.below(10) as u32, 11)).collect();
    let (first, last) = (useless[..20].iter().sum::<usize>(), useless[200..].iter().sum::<usize>());
    assert!(first >= 8, "{first} of 20 were tried");
    assert!((5..60).contains(&last), "{last} of 1800 were tried");
    // Then every hint is right, and after some tries they count again.
    let useful: Vec<usize> = (0..4000).map(|i| step(&mut state, i % 10, i % 10)).collect();
    assert!(useful[3000..].iter().sum::<usize>() > 900);
}
