//! Which cores a process may use, and keeping threads on them.

/// Threads to use by default: the physical cores that affinity and control groups allow.
pub fn default_threads() -> usize {
    // Knows about affinity and the quotas of control groups of both versions.
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    match cores().len() {
        0 => allowed,
        cores => cores.min(allowed),
    }
}

/// One logical CPU of every physical core that this thread may run on; empty where that cannot be known.
#[cfg(target_os = "linux")]
pub(crate) fn cores() -> Vec<usize> {
    let Some(set) = affinity() else { return Vec::new() };
    // SAFETY: every index is below the bits of the set.
    let allowed = (0..SET_BYTES * 8).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) });
    let mut seen = Vec::new();
    let mut cores = Vec::new();
    for cpu in allowed {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        // Siblings of a core share this line; a system without it has no siblings to tell apart.
        let siblings = std::fs::read_to_string(path).unwrap_or_else(|_| cpu.to_string());
        if !seen.contains(&siblings) {
            seen.push(siblings);
            cores.push(cpu);
        }
    }
    cores
}

#[cfg(target_os = "linux")]
const SET_BYTES: usize = std::mem::size_of::<libc::cpu_set_t>();

#[cfg(target_os = "linux")]
fn affinity() -> Option<libc::cpu_set_t> {
    // SAFETY: a cpu_set_t is plain bits, for which zeros are valid, and the call writes at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, SET_BYTES, &mut set) == 0).then_some(set)
    }
}

#[cfg(target_os = "linux")]
fn restrict(set: &libc::cpu_set_t) -> bool {
    // SAFETY: the call reads the set's size.
    unsafe { libc::sched_setaffinity(0, SET_BYTES, set) == 0 }
}

/// Restricts this thread to one CPU; whether it worked.
#[cfg(target_os = "linux")]
pub(crate) fn pin(cpu: usize) -> bool {
    if cpu >= SET_BYTES * 8 {
        return false;
    }
    // SAFETY: a cpu_set_t is plain bits, for which zeros are valid; the index is below its bits.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    restrict(&set)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cores() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_cpu: usize) -> bool {
    false
}

/// The CPU that this thread is on.
#[cfg(target_os = "linux")]
pub(crate) fn current() -> Option<usize> {
    // SAFETY: the call takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Moves this thread to a CPU, which it may leave again.
#[cfg(target_os = "linux")]
pub(crate) fn move_to(cpu: usize) {
    if let Some(before) = affinity()
        && pin(cpu)
    {
        restrict(&before);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn current() -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn move_to(_cpu: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_thread_for_every_core_allowed() {
        let threads = default_threads();
        assert!(threads >= 1 && threads <= std::thread::available_parallelism().map_or(1, usize::from));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_is_moved_stays_free() {
        let before = cores();
        for &core in &before {
            move_to(core);
            assert!(before.contains(&current().unwrap()));
        }
        assert_eq!(cores(), before);
    }
}
