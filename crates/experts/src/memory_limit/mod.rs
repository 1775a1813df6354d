//! How much memory a process may take: what the system has left and what its control group allows.

mod cgroup;
mod size;

use std::fs;
use std::path::Path;

pub use cgroup::{Cgroup, CgroupVersion};
pub use size::{MemorySize, MemorySizeError, format_bytes};

/// The memory that this process can count on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes of the machine.
    pub total: u64,
    /// Bytes that the system could give without swapping.
    pub free: u64,
    /// The tightest control group above this process, if one has a limit.
    pub cgroup: Option<Cgroup>,
}

impl MemoryLimit {
    /// Asks the system; none where it is not known how to.
    pub fn read() -> Option<MemoryLimit> {
        #[cfg(target_os = "linux")]
        return MemoryLimit::read_below(Path::new("/"));
        #[cfg(target_os = "macos")]
        return macos();
        #[cfg(not(any(target_os = "linux", target_os = "macos")))]
        None
    }

    /// Reads Linux's files below `root` instead of `/`.
    pub fn read_below(root: &Path) -> Option<MemoryLimit> {
        let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let (total, free) = (field("MemTotal:")?, field("MemAvailable:").or_else(|| field("MemFree:"))?);
        Some(MemoryLimit { total, free, cgroup: Cgroup::tightest(root, total) })
    }

    /// The most that could ever be had: the machine's memory, or the group's limit.
    pub fn most(&self) -> u64 {
        self.cgroup.as_ref().map_or(self.total, |group| group.limit.min(self.total))
    }

    /// What is left now.
    pub fn available(&self) -> u64 {
        self.cgroup.as_ref().map_or(self.free, |group| group.left().min(self.free))
    }

    /// What `auto` leaves to others: a tenth of what is left, between 256 MiB and 2 GiB, never more than half.
    pub fn reserve(&self) -> u64 {
        let available = self.available();
        (available / 10).clamp(256 << 20, 2 << 30).min(available / 2)
    }

    /// What `auto` takes.
    pub fn auto(&self) -> u64 {
        self.available() - self.reserve()
    }
}

#[cfg(target_os = "macos")]
fn macos() -> Option<MemoryLimit> {
    let mut total = 0u64;
    let mut length = size_of::<u64>();
    // SAFETY: the name ends in zero, and the value has the length given with it.
    let status = unsafe {
        libc::sysctlbyname(
            c"hw.memsize".as_ptr(),
            (&raw mut total).cast(),
            &raw mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    // The system compresses and drops what others do not use: half is what it gives without a fuss.
    (status == 0).then_some(MemoryLimit { total, free: total / 2, cgroup: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> MemoryLimit {
        let directory = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable:  8388608 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        MemoryLimit::read_below(directory.path()).unwrap()
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn without_a_group_the_system_decides() {
        let limit = machine(&[]);
        assert_eq!((limit.total, limit.free, limit.cgroup.clone()), (16 * GIB, 8 * GIB, None));
        assert_eq!((limit.most(), limit.available()), (16 * GIB, 8 * GIB));
        assert_eq!(limit.auto(), 8 * GIB - 8 * GIB / 10);
    }

    #[test]
    fn version_2_counts_the_tightest_parent_and_what_can_be_reclaimed() {
        let limit = machine(&[
            ("proc/self/cgroup", "0::/user/app\n"),
            ("sys/fs/cgroup/user/app/memory.max", "max\n"),
            ("sys/fs/cgroup/user/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/user/memory.current", "3221225472\n"),
            ("sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 1073741824\n"),
        ]);
        let group = limit.cgroup.clone().unwrap();
        assert_eq!((group.version, group.limit), (CgroupVersion::V2, 4 * GIB));
        assert_eq!(group.left(), 2 * GIB);
        assert_eq!((limit.most(), limit.available()), (4 * GIB, 2 * GIB));
    }

    #[test]
    fn version_1_is_read_too_and_no_limit_is_a_huge_number() {
        let limit = machine(&[
            ("proc/self/cgroup", "3:cpu:/x\n4:memory:/jobs/one\n0::/\n"),
            ("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        let group = limit.cgroup.unwrap();
        assert_eq!((group.version, group.limit, group.left()), (CgroupVersion::V1, 2 * GIB, GIB));
    }

    #[test]
    fn a_container_that_does_not_see_its_path_has_its_limit_at_the_root() {
        let limit = machine(&[
            ("proc/self/cgroup", "0::/docker/0123\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
        ]);
        assert_eq!(limit.available(), GIB);
        assert_eq!(limit.reserve(), 256 << 20);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory() {
        let limit = MemoryLimit::read().unwrap();
        assert!(limit.available() > 0 && limit.available() <= limit.most());
    }
}
