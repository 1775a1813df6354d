//! The one owner of the slots: a state machine that threads drive under a lock.
//!
//! Invariants, which the property tests check after every step:
//! - an expert is in at most one slot, and the slot's memory is in exactly one place (idle, being read, ready);
//! - an expert of a request is in exactly one of pending, reading, ready and given;
//! - a leased slot and one being read never lose their expert.

#[cfg(test)]
mod check;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::meter::Meter;
use super::request::{Failure, Request};
use super::residency::Residency;
use super::statistics::Statistics;
use crate::memory::Block;
use crate::policy::ExpertKey;

/// An expert in memory.
#[derive(Debug)]
pub(crate) struct Held {
    pub block: Block,
    /// Where its slices lie in the block.
    pub slices: Vec<Range<usize>>,
}

/// Where a slot's memory is.
enum Content {
    Idle(Block),
    Reading,
    Ready(Arc<Held>),
}

struct Slot {
    content: Content,
    leases: usize,
    /// Requests that wait for the expert or have not taken it yet.
    claims: Vec<u64>,
    /// Read ahead for a layer that has not come yet: the policy, which knows only the past, would let it leave first.
    hinted: bool,
}

impl Slot {
    /// Whether nobody needs the expert.
    fn is_unclaimed(&self) -> bool {
        self.claims.is_empty() && self.is_settled()
    }

    /// Whether nobody needs the expert or is thought to soon.
    fn is_idle(&self) -> bool {
        self.is_unclaimed() && !self.hinted
    }

    fn is_settled(&self) -> bool {
        self.leases == 0 && !matches!(self.content, Content::Reading)
    }
}

/// A read to do.
#[derive(Debug)]
pub(crate) struct Work {
    pub slot: usize,
    pub key: ExpertKey,
    pub block: Block,
    /// For a hint, not for a request.
    pub ahead: bool,
}

/// What a request's holder gets.
pub(crate) enum Next {
    Lease { slot: usize, expert: u32, held: Arc<Held> },
    Wait,
    Done,
    Failed(Failure),
}

/// Limits of reading ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetching {
    /// Hints are taken while the disk is busy for less than this share of the time,
    pub busy: f64,
    /// and while at least this share of what was read ahead lately was then asked for.
    pub used: f64,
    /// Most reads at a time, so that a request's read finds a thread.
    pub reads: usize,
}

/// Reads ahead that the share of useful ones is about.
const FADE: f64 = 32.0;
/// Hints that are passed over between two tries.
const RETRY: usize = 64;

pub(crate) struct State {
    residency: Residency,
    slots: Vec<Slot>,
    requests: BTreeMap<u64, Request>,
    opened: u64,
    served: Option<u64>,
    prefetching: Option<Prefetching>,
    hints: VecDeque<ExpertKey>,
    /// Slots that are hinted.
    ahead: Vec<usize>,
    reading_ahead: usize,
    /// Share of what was read ahead that was then asked for; older reads fade.
    foresight: f64,
    /// Times that hints came since they were last taken.
    passed_over: usize,
    meter: Meter,
    pub statistics: Statistics,
    /// Set when the source is dropped.
    pub closed: bool,
}

impl State {
    /// A pool whose slots have the memory `blocks`.
    pub fn new(residency: Residency, blocks: Vec<Block>, prefetching: Option<Prefetching>) -> State {
        debug_assert_eq!(residency.slots(), blocks.len());
        let slot =
            |block| Slot { content: Content::Idle(block), leases: 0, claims: Vec::new(), hinted: false };
        State {
            residency,
            slots: blocks.into_iter().map(slot).collect(),
            requests: BTreeMap::new(),
            opened: 0,
            served: None,
            prefetching,
            hints: VecDeque::new(),
            ahead: Vec::new(),
            reading_ahead: 0,
            foresight: 1.0,
            passed_over: 0,
            meter: Meter::new(Instant::now()),
            statistics: Statistics::default(),
            closed: false,
        }
    }

    /// Opens a request; an id that occurs twice is given once.
    pub fn begin(&mut self, layer: usize, ids: &[u32]) -> u64 {
        self.residency.advance(layer);
        self.hints.retain(|key| key.layer as usize != layer);
        let id = self.opened;
        self.opened += 1;
        let mut request = Request {
            layer,
            pending: VecDeque::new(),
            reading: Vec::new(),
            ready: VecDeque::new(),
            waiting: false,
            failure: None,
        };
        for &expert in ids {
            let found = self.residency.used(ExpertKey::new(layer, expert));
            match found {
                // The newest request's claims stand last.
                Some(slot) if self.slots[slot].claims.last() == Some(&id) => {}
                None if request.pending.contains(&expert) => {}
                Some(slot) => {
                    let hit = claim(&mut self.slots, slot, id, &mut request);
                    self.statistics.hits += u64::from(hit);
                    self.statistics.misses += u64::from(!hit);
                    if std::mem::take(&mut self.slots[slot].hinted) {
                        self.statistics.hints_used += 1;
                        self.foresight += (1.0 - self.foresight) / FADE;
                    }
                }
                None => {
                    self.statistics.misses += 1;
                    request.pending.push_back(expert);
                }
            }
        }
        self.residency.chosen(layer, ids);
        self.forget_hints(layer);
        self.requests.insert(id, request);
        id
    }

    /// The next expert of a request.
    pub fn next(&mut self, id: u64) -> Next {
        let Some(request) = self.requests.get_mut(&id) else { return Next::Done };
        request.waiting = false;
        if let Some(failure) = &request.failure {
            return Next::Failed(failure.clone());
        }
        while let Some(slot) = request.ready.pop_front() {
            let state = &mut self.slots[slot];
            state.claims.retain(|&claim| claim != id);
            let (Content::Ready(held), Some(key)) = (&state.content, self.residency.key(slot)) else {
                continue;
            };
            state.leases += 1;
            self.served = Some(id);
            return Next::Lease { slot, expert: key.expert, held: held.clone() };
        }
        if request.pending.is_empty() && request.reading.is_empty() {
            return Next::Done;
        }
        request.waiting = true;
        Next::Wait
    }

    /// Whether the next expert of a request is there.
    pub fn is_ready(&self, id: u64) -> bool {
        self.requests.get(&id).is_some_and(|request| !request.ready.is_empty())
    }

    /// A lease ends; its share of the memory must have been dropped.
    pub fn give_back(&mut self, slot: usize) {
        self.slots[slot].leases -= 1;
    }

    /// Closes a request: what was not read yet is not read for it.
    pub fn cancel(&mut self, id: u64) {
        if let Some(request) = self.requests.remove(&id) {
            for &slot in request.ready.iter().chain(&request.reading) {
                self.slots[slot].claims.retain(|&claim| claim != id);
            }
        }
    }

    /// Experts that may be wanted soon.
    pub fn hint(&mut self, layer: usize, ids: &[u32], now: Instant) {
        let Some(limits) = self.prefetching else { return };
        self.statistics.hinted += ids.len() as u64;
        self.hints.clear();
        // Hints that were of little use are tried again now and then: the topic may have changed.
        let useful = self.foresight >= limits.used || self.passed_over >= RETRY;
        self.passed_over += 1;
        if useful && self.meter.busy(now) < limits.busy {
            self.passed_over = 0;
            let keys = ids.iter().map(|&expert| ExpertKey::new(layer, expert));
            self.hints.extend(keys.filter(|&key| self.residency.find(key).is_none()));
        }
    }

    /// What was read ahead for `layer` is an expert as any other from now on.
    fn forget_hints(&mut self, layer: usize) {
        let (residency, slots, foresight) = (&self.residency, &mut self.slots, &mut self.foresight);
        self.ahead.retain(|&slot| {
            let waits = residency.key(slot).is_some_and(|key| key.layer as usize != layer);
            if slots[slot].hinted && !waits {
                *foresight -= *foresight / FADE;
            }
            slots[slot].hinted &= waits;
            slots[slot].hinted
        });
    }

    /// Whether a thread that looks for work may find some.
    pub fn has_work(&self) -> bool {
        !self.hints.is_empty() || self.requests.values().any(|request| !request.pending.is_empty())
    }

    /// The next read to do, and whether a waiting request got an expert meanwhile.
    pub fn next_read(&mut self, now: Instant) -> (Option<Work>, bool) {
        let mut woken = false;
        let open = self.requests.iter().filter(|(_, request)| !request.pending.is_empty());
        let mut order: Vec<_> = open.map(|(&id, request)| (request.rank(id, self.served), id)).collect();
        order.sort_unstable();
        for &(_, id) in &order {
            let (work, arrived) = self.next_read_of(id);
            woken |= arrived;
            if let Some(work) = work {
                self.meter.begin(now);
                return (Some(work), woken);
            }
        }
        // Reading ahead never comes before a request, even one that lacks a slot.
        let blocked = self.requests.values().any(|request| !request.pending.is_empty());
        let work = if blocked { None } else { self.next_hint() };
        (work, woken)
    }

    fn next_read_of(&mut self, id: u64) -> (Option<Work>, bool) {
        let mut woken = false;
        while let Some(request) = self.requests.get_mut(&id) {
            let Some(&expert) = request.pending.front() else { break };
            let key = ExpertKey::new(request.layer, expert);
            if let Some(slot) = self.residency.find(key) {
                // Another request has brought it.
                request.pending.pop_front();
                woken |= claim(&mut self.slots, slot, id, request);
                continue;
            }
            let slots = &self.slots;
            let mut taken = self.residency.take(key, |slot| slots[slot].is_idle());
            taken = taken.or_else(|| self.residency.take(key, |slot| slots[slot].is_unclaimed()));
            if taken.is_none() && request.starves() {
                // All slots wait for holders of other requests, who may in turn wait for this one.
                let requests = &self.requests;
                let idle = |claim: &u64| requests.get(claim).is_none_or(|request| !request.waiting);
                taken = self
                    .residency
                    .take(key, |slot| slots[slot].is_settled() && slots[slot].claims.iter().all(idle));
            }
            let Some((slot, left)) = taken else { break };
            self.give_up_claims(slot, left);
            let Some(work) = self.start(slot, key, false) else { break };
            if let Some(request) = self.requests.get_mut(&id) {
                request.pending.pop_front();
                request.reading.push(slot);
                self.slots[slot].claims.push(id);
            }
            return (Some(work), woken);
        }
        (None, woken)
    }

    /// Requests that had not taken the expert that left ask for it again.
    fn give_up_claims(&mut self, slot: usize, left: Option<ExpertKey>) {
        let Some(left) = left else { return };
        for id in std::mem::take(&mut self.slots[slot].claims) {
            if let Some(request) = self.requests.get_mut(&id) {
                request.ready.retain(|&ready| ready != slot);
                request.pending.push_back(left.expert);
                self.statistics.given_up += 1;
            }
        }
    }

    fn next_hint(&mut self) -> Option<Work> {
        let limits = self.prefetching?;
        while self.reading_ahead < limits.reads {
            let key = self.hints.pop_front()?;
            if self.residency.find(key).is_some() {
                continue;
            }
            let slots = &self.slots;
            let (slot, _) = self.residency.take(key, |slot| slots[slot].is_idle())?;
            self.ahead.push(slot);
            let work = self.start(slot, key, true)?;
            self.reading_ahead += 1;
            self.statistics.hints_read += 1;
            return Some(work);
        }
        None
    }

    /// Takes the memory of a slot that now belongs to `key`.
    fn start(&mut self, slot: usize, key: ExpertKey, ahead: bool) -> Option<Work> {
        let state = &mut self.slots[slot];
        let block = match std::mem::replace(&mut state.content, Content::Reading) {
            Content::Idle(block) => block,
            // No lease is left, and leases drop their share before they end.
            Content::Ready(held) => Arc::into_inner(held)?.block,
            Content::Reading => return None,
        };
        state.hinted = ahead;
        Some(Work { slot, key, block, ahead })
    }

    /// A read has ended: `held` is the expert, or the memory comes back with the failure.
    pub fn arrived(
        &mut self,
        slot: usize,
        ahead: bool,
        result: Result<Held, (Block, Failure)>,
        now: Instant,
    ) {
        if ahead {
            self.reading_ahead -= 1;
        } else {
            self.meter.end(now);
        }
        self.statistics.reads += 1;
        match result {
            Ok(held) => {
                self.slots[slot].content = Content::Ready(Arc::new(held));
                for id in &self.slots[slot].claims {
                    if let Some(request) = self.requests.get_mut(id) {
                        request.reading.retain(|&reading| reading != slot);
                        request.ready.push_back(slot);
                    }
                }
            }
            Err((block, failure)) => {
                self.statistics.failures += 1;
                self.residency.forget(slot);
                self.slots[slot].content = Content::Idle(block);
                self.slots[slot].hinted = false;
                for id in std::mem::take(&mut self.slots[slot].claims) {
                    self.fail(id, &failure);
                }
            }
        }
    }

    /// Ends a request: its holder is told, and what it had claimed is free.
    fn fail(&mut self, id: u64, failure: &Failure) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.failure = Some(failure.clone());
        request.pending.clear();
        for slot in request.ready.drain(..).chain(request.reading.drain(..)) {
            self.slots[slot].claims.retain(|&claim| claim != id);
        }
    }

    /// Adds the time that a holder waited.
    pub fn waited(&mut self, time: Duration) {
        self.statistics.waited += time;
    }
}

/// Adds a request's claim on an expert that has a slot; whether it is there already.
fn claim(slots: &mut [Slot], slot: usize, id: u64, request: &mut Request) -> bool {
    slots[slot].claims.push(id);
    let ready = matches!(slots[slot].content, Content::Ready(_));
    if ready {
        request.ready.push_back(slot);
    } else {
        request.reading.push(slot);
    }
    ready
}
