//! Number of bytes that can still be allocated. This crate refuses larger allocations with an
//! error, instead of provoking the kernel's out-of-memory killer.

use std::path::Path;

/// Returns how many bytes can still be allocated within the limits of the system and of this
/// process's control groups; none if neither can be read.
pub(crate) fn available_bytes() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = cgroups(Path::new("/sys/fs/cgroup"), &groups);
    system.into_iter().chain(group).min()
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// File and field names of one version of control groups.
struct Version {
    limit: &'static str,
    usage: &'static str,
    stat_prefix: &'static str,
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    stat_prefix: "total_",
};
const V2: Version = Version { limit: "memory.max", usage: "memory.current", stat_prefix: "" };

/// Returns the smallest number of bytes that can still be allocated in any of this process's groups
/// and their ancestors. `groups` is the text of `/proc/self/cgroup`.
fn cgroups(mount: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|line| hierarchy(mount, line)).min()
}

fn hierarchy(mount: &Path, line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let (base, version) = match controllers {
        "" => (mount.to_owned(), V2),
        names if names.split(',').any(|name| name == "memory") => (mount.join("memory"), V1),
        _ => return None,
    };
    let group = base.join(path.trim_start_matches('/'));
    // A container may see only a part of the tree, mounted at `base`. The path of its group then
    // does not exist, and `base` is its group.
    let above = group.ancestors().take_while(|at| at.starts_with(&base));
    above.filter_map(|at| left(at, &version)).min()
}

fn left(group: &Path, version: &Version) -> Option<u64> {
    let limit = number(group, version.limit)?;
    let usage = number(group, version.usage)?;
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // The kernel reclaims file pages when memory is short.
    let files: u64 = ["inactive_file", "active_file"]
        .iter()
        .filter_map(|name| field(&stat, &format!("{}{name}", version.stat_prefix)))
        .sum();
    Some(limit.saturating_sub(usage.saturating_sub(files)))
}

fn number(group: &Path, file: &str) -> Option<u64> {
    std::fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

fn field(stat: &str, name: &str) -> Option<u64> {
    let words = |line: &str| {
        let (found, value) = line.split_once(' ')?;
        if found == name { value.trim().parse().ok() } else { None }
    };
    stat.lines().find_map(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_with_the_least_free_memory_sets_the_limit() {
        let dir = std::env::temp_dir().join(format!("ccl-headroom-{}", std::process::id()));
        let v1 = dir.join("memory/a/b");
        let v2 = dir.join("x/y");
        std::fs::create_dir_all(&v1).unwrap();
        std::fs::create_dir_all(&v2).unwrap();
        let write = |at: &Path, name: &str, text: &str| {
            std::fs::write(at.join(name), text).unwrap();
        };
        write(&v2, "memory.max", "max\n");
        write(&v2, "memory.current", "5000\n");
        write(&dir.join("x"), "memory.max", "10000\n");
        write(&dir.join("x"), "memory.current", "7000\n");
        write(&dir.join("x"), "memory.stat", "anon 1\ninactive_file 900\nactive_file 100\n");
        assert_eq!(cgroups(&dir, "0::/x/y\n"), Some(4000));
        write(&v1, "memory.limit_in_bytes", "3000\n");
        write(&v1, "memory.usage_in_bytes", "2500\n");
        write(&v1, "memory.stat", "inactive_file 7\ntotal_inactive_file 100\n");
        assert_eq!(cgroups(&dir, "3:cpu:/\n4:hugetlb,memory:/a/b\n0::/x/y\n"), Some(600));
        assert_eq!(cgroups(&dir, "nonsense\n"), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn this_system_reports_available_memory() {
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:      12 kB\n"), Some(12 * 1024));
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
