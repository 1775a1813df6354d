use std::fs;
use std::path::{Path, PathBuf};

/// Which kind of control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// memory.limit_in_bytes
    V1,
    /// memory.max
    V2,
}

/// A control group with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Which kind.
    pub version: CgroupVersion,
    /// Its directory.
    pub path: PathBuf,
    /// Bytes that its processes may take, page cache included.
    pub limit: u64,
    /// Bytes they take now.
    pub used: u64,
    /// Of these, page cache that the system drops when more is asked for.
    pub reclaimable: u64,
}

impl Cgroup {
    /// Bytes that can still be had.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used.saturating_sub(self.reclaimable))
    }

    /// Of the groups that this process is in, and those above, the one with least left. A limit beyond the
    /// machine's memory is none.
    pub(super) fn tightest(root: &Path, total: u64) -> Option<Cgroup> {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let mut found: Option<Cgroup> = None;
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let mounts: &[(&str, CgroupVersion)] = match (id, controllers) {
                // A hybrid system has version 2 beside version 1.
                ("0", "") => {
                    &[("sys/fs/cgroup", CgroupVersion::V2), ("sys/fs/cgroup/unified", CgroupVersion::V2)]
                }
                (_, list) if list.split(',').any(|name| name == "memory") => {
                    &[("sys/fs/cgroup/memory", CgroupVersion::V1)]
                }
                _ => continue,
            };
            for &(mount, version) in mounts {
                let mount = root.join(mount);
                let mut group = mount.join(path.trim_start_matches('/'));
                // In a container the path may be the host's, which is not seen there; its root then is.
                loop {
                    let read = Cgroup::read(&group, version).filter(|group| group.limit < total);
                    found = [found, read].into_iter().flatten().min_by_key(Cgroup::left);
                    if group == mount || !group.pop() || !group.starts_with(&mount) {
                        break;
                    }
                }
            }
        }
        found
    }

    fn read(path: &Path, version: CgroupVersion) -> Option<Cgroup> {
        let number = |name: &str| fs::read_to_string(path.join(name)).ok()?.trim().parse::<u64>().ok();
        let (limit, used, inactive) = match version {
            CgroupVersion::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
            CgroupVersion::V2 => ("memory.max", "memory.current", "inactive_file "),
        };
        let limit = number(limit)?; // "max" is no limit.
        let stat = fs::read_to_string(path.join("memory.stat")).unwrap_or_default();
        let reclaimable = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse().ok());
        let (used, reclaimable) = (number(used).unwrap_or(0), reclaimable.unwrap_or(0));
        Some(Cgroup { version, path: path.to_owned(), limit, used, reclaimable })
    }
}
