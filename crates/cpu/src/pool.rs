//! Threads for several hundred short parallel regions a token.
//!
//! The caller of [`Pool::run`] works too. Workers wait for the next region by spinning for a moment and then
//! park, so that a process without work uses no CPU. Work is a range of indices: each thread starts with a
//! contiguous share, takes it in grains from the front, and when it is through takes grains from the back of
//! others' shares. A region ends when its work is done, whether or not every worker has come: a core that is busy
//! elsewhere does not hold it up.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::topology;

/// How long a thread spins before it parks: longer than the serial stretches between regions and than drawing
/// a token, shorter than anyone would notice as load.
const SPIN: Duration = Duration::from_micros(200);

/// What a region runs: thread index and a range of work.
type Work<'a> = dyn Fn(usize, Range<usize>) + Sync + 'a;

/// A cache line of its own, so that threads do not disturb each other.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

/// The region being run.
struct Region {
    work: *const Work<'static>,
    grain: u32,
}

struct Shared {
    /// Number of the region in the upper bits, whether it is open, and how many workers are inside.
    state: Line<AtomicU64>,
    stop: AtomicBool,
    region: UnsafeCell<Region>,
    /// What is left of each thread's share: start in the low and end in the high 32 bits.
    shares: Vec<Line<AtomicU64>>,
    parked: Vec<Line<AtomicBool>>,
    /// Whether the caller has parked, and who that is.
    caller_parked: Line<AtomicBool>,
    caller: Mutex<Option<Thread>>,
    panicked: AtomicBool,
}

/// Of `Shared::state`: the region can be entered.
const OPEN: u64 = 1 << 16;
/// Of `Shared::state`: workers inside.
const INSIDE: u64 = OPEN - 1;
/// Of `Shared::state`: one region further.
const NEXT: u64 = OPEN << 1;

// SAFETY: `region` is written by the caller only while no region is open and no worker inside, and workers read it
// only inside.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `region` is used only during the region it was set for, when what it points to lives.
unsafe impl Send for Shared {}

/// A pool of threads. Dropping it ends them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The core of each thread, empty if they are not pinned.
    cores: Vec<usize>,
}

impl Pool {
    /// A pool of `threads` in all, the caller included; pinned if there is a core for each.
    pub fn new(threads: usize, pin: bool) -> std::io::Result<Pool> {
        let threads = threads.max(1);
        let mut cores = if pin { topology::cores() } else { Vec::new() };
        if cores.len() < threads {
            cores.clear();
        }
        let shared = Arc::new(Shared {
            state: Line::default(),
            stop: AtomicBool::new(false),
            region: UnsafeCell::new(Region { work: &|_, _| {}, grain: 1 }),
            shares: (0..threads).map(|_| Line::default()).collect(),
            parked: (1..threads).map(|_| Line::default()).collect(),
            caller_parked: Line::default(),
            caller: Mutex::new(None),
            panicked: AtomicBool::new(false),
        });
        let worker = |index: usize| {
            let (shared, core) = (shared.clone(), cores.get(index).copied());
            std::thread::Builder::new().name(format!("turbospark-cpu-{index}")).spawn(move || {
                if let Some(core) = core {
                    topology::pin(core);
                }
                shared.serve(index);
            })
        };
        let workers = (1..threads).map(worker).collect::<Result<_, _>>()?;
        Ok(Pool { shared, workers, cores })
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Moves the calling thread to its own core if it is on that of a worker. It stays free to go elsewhere: the
    /// system may have good reasons, and threads that it starts would inherit a restriction.
    pub fn settle_caller(&self) {
        if let [own, workers @ ..] = &self.cores[..self.cores.len().min(self.threads())]
            && topology::current().is_some_and(|core| workers.contains(&core))
        {
            topology::move_to(*own);
        }
    }

    /// Runs `work` over 0..total in ranges of at least `grain` (but for the last), and returns when all is done.
    ///
    /// Which thread gets which range is open: work must not depend on it.
    pub fn run(&mut self, total: usize, grain: usize, work: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let grain = grain.max(1);
        let threads = self.threads().min(total.div_ceil(grain));
        if threads <= 1 || total > u32::MAX as usize {
            if total > 0 {
                work(0, 0..total);
            }
            return;
        }
        let shared = &*self.shared;
        // Shares are whole grains, so that only the last range is short.
        let grains = total.div_ceil(grain);
        for (i, share) in shared.shares.iter().enumerate() {
            let cut = |i: usize| (grains * i.min(threads) / threads * grain).min(total) as u64;
            share.0.store(cut(i) | cut(i + 1) << 32, Ordering::Relaxed);
        }
        // SAFETY: the last region is closed and no worker inside (see the end of this function), so nobody reads
        // the cell. The lifetime of `work` is erased; it outlives this call, and workers leave before it ends.
        unsafe {
            let work = std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work);
            *shared.region.get() = Region { work, grain: grain as u32 };
        }
        let number = shared.state.0.load(Ordering::Relaxed) & !(NEXT - 1);
        shared.state.0.store(number.wrapping_add(NEXT) | OPEN, Ordering::Release);
        fence(Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            if parked.0.load(Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
        // The region must not end before the workers inside have left it, not even by a panic here.
        let guard = Close(shared);
        shared.take(0, work, grain as u32);
        drop(guard);
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a worker of the CPU executor panicked; see its message above");
        }
    }
}

/// Closes the region when dropped, and waits for the workers inside.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        shared.state.0.fetch_and(!OPEN, Ordering::Relaxed);
        if spin_until(|| shared.state.0.load(Ordering::Acquire) & INSIDE == 0) {
            return;
        }
        *shared.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        shared.caller_parked.0.store(true, Ordering::Release);
        // Either this load sees that all have left, or the last worker's load sees the flag and unparks.
        fence(Ordering::SeqCst);
        while shared.state.0.load(Ordering::Acquire) & INSIDE != 0 {
            std::thread::park();
        }
        shared.caller_parked.0.store(false, Ordering::Relaxed);
    }
}

/// Spins for a moment; whether `done` came true.
fn spin_until(done: impl Fn() -> bool) -> bool {
    for _ in 0..64 {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..32 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    done()
}

impl Shared {
    /// A worker's life.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            let is_new = |state: u64| state & OPEN != 0 && state & !(NEXT - 1) != seen;
            let next = || is_new(self.state.0.load(Ordering::Relaxed)) || self.stop.load(Ordering::Relaxed);
            if !spin_until(next) {
                let parked = &self.parked[index - 1].0;
                parked.store(true, Ordering::Relaxed);
                // Either this load sees the new region, or the caller's load sees the flag and unparks.
                fence(Ordering::SeqCst);
                while !next() {
                    std::thread::park();
                }
                parked.store(false, Ordering::Relaxed);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let state = self.state.0.load(Ordering::Relaxed);
            if !is_new(state) {
                continue;
            }
            // Entering fails if the region was closed meanwhile, or if another worker entered: then try again.
            let entered =
                self.state.0.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
            if entered.is_err() {
                continue;
            }
            seen = state & !(NEXT - 1);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: written before the release store that opened the region, which was just acquired, and not
                // again before this worker has left; the closure lives as long.
                let (work, grain) = unsafe {
                    let region = &*self.region.get();
                    (&*region.work, region.grain)
                };
                self.take(index, work, grain);
            }));
            if outcome.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            let last = self.state.0.fetch_sub(1, Ordering::Release) & INSIDE == 1;
            fence(Ordering::SeqCst);
            if last && self.caller_parked.0.load(Ordering::Relaxed) {
                let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner).clone();
                caller.inspect(Thread::unpark);
            }
        }
    }

    /// Works on its own share, then on those of others.
    fn take(&self, index: usize, work: &Work<'_>, grain: u32) {
        while let Some(range) = claim(&self.shares[index].0, grain, true) {
            work(index, range);
        }
        let count = self.shares.len();
        for other in (1..count).map(|i| &self.shares[(index + i) % count].0) {
            while let Some(range) = claim(other, grain, false) {
                work(index, range);
            }
        }
    }
}

/// A grain from the front or the back of a share. From the back it is what makes the rest whole grains.
fn claim(share: &AtomicU64, grain: u32, front: bool) -> Option<Range<usize>> {
    let mut now = share.load(Ordering::Relaxed);
    loop {
        let (start, end) = (now as u32, (now >> 32) as u32);
        if start >= end {
            return None;
        }
        let left = end - start;
        let (taken, rest) = if front {
            let cut = start + grain.min(left);
            (start..cut, u64::from(cut) | u64::from(end) << 32)
        } else {
            let cut = start + (left - 1) / grain * grain;
            (cut..end, u64::from(start) | u64::from(cut) << 32)
        };
        match share.compare_exchange_weak(now, rest, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(taken.start as usize..taken.end as usize),
            Err(other) => now = other,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker's panic has been reported by the region it happened in.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_index_is_worked_on_once() {
        for threads in [1, 2, 3, 7] {
            let mut pool = Pool::new(threads, threads == 2).unwrap();
            for (total, grain) in [(0, 1), (1, 1), (100, 1), (1000, 16), (1001, 16), (5, 100), (3, 2)] {
                for _ in 0..20 {
                    let counts: Vec<AtomicUsize> = (0..total).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(total, grain, &|thread, range| {
                        assert!(thread < threads && range.len().min(grain) > 0);
                        assert!(range.len() == grain || range.end == total || threads == 1);
                        counts[range].iter().for_each(|c| _ = c.fetch_add(1, Ordering::Relaxed));
                    });
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn parked_workers_wake_and_idle_ones_use_no_time() {
        let mut pool = Pool::new(3, false).unwrap();
        for _ in 0..3 {
            let sum = AtomicUsize::new(0);
            pool.run(64, 1, &|_, range| _ = sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed));
            assert_eq!(sum.load(Ordering::Relaxed), 63 * 64 / 2);
            std::thread::sleep(Duration::from_millis(20));
            assert!(pool.shared.parked.iter().all(|parked| parked.0.load(Ordering::SeqCst)));
        }
    }

    #[test]
    fn a_panic_in_a_region_reaches_the_caller() {
        let mut pool = Pool::new(2, false).unwrap();
        let bad = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(8, 1, &|_, range| assert!(range.start != 5, "on purpose"));
        }));
        assert!(bad.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(8, 1, &|_, range| _ = sum.fetch_add(range.len(), Ordering::Relaxed));
        assert_eq!(sum.load(Ordering::Relaxed), 8);
    }
}
