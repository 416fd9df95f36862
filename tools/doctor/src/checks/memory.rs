//! Shared memory, and the restrictions of containers.

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices;

/// Least size of /dev/shm: the size that published commands for containers set (`--shm-size`).
const SHARED_BYTES_MIN: u64 = 1 << 30;
/// Least free bytes of /dev/shm: NCCL takes up to 10 MiB for each pair of neighbours.
const FREE_BYTES_MIN: u64 = 256 << 20;
const SYS_NICE: u32 = 23;

const ENLARGE: &str = "containers: `--shm-size=1g` or more, or `--ipc=host`; Kubernetes: an \
                       emptyDir of medium Memory at /dev/shm; else: `mount -o \
                       remount,size=50% /dev/shm`";

/// Checks the size of /dev/shm. NCCL and data loaders use it; ferroccl's own shared memory has no
/// name there and takes none of its space.
pub(super) fn shared(host: &Host) -> Vec<Finding> {
    let Some(mounts) = host.text("/proc/self/mountinfo") else {
        let remedy = "look at `df -h /dev/shm` where the ranks run";
        return vec![Finding::unknown("/dev/shm", "/proc/self/mountinfo cannot be read", remedy)];
    };
    let Some(mount) = mounts.lines().rev().find_map(shm_mount) else {
        let evidence = "nothing is mounted there: NCCL's shared memory goes to a disk, or fails; \
                        ferroccl's own shared memory does not use /dev/shm";
        return vec![Finding::warning("/dev/shm", evidence, ENLARGE)];
    };
    let memory_kib = memory_kib(host);
    let (size, free) = match live_size(host) {
        Some((size, free)) => (Some(size), Some(free)),
        // Without a size option, /dev/shm has half the size of the memory.
        None => (mount.or(memory_kib.map(|kib| kib.saturating_mul(512))), None),
    };
    let Some(size) = size else {
        let evidence = "its size cannot be read from /proc/self/mountinfo";
        return vec![Finding::unknown("/dev/shm", evidence, "look at `df -h /dev/shm`")];
    };
    let mib = |bytes: u64| bytes >> 20;
    vec![if size < SHARED_BYTES_MIN {
        let evidence = format!(
            "{} MiB: NCCL's shared memory and data loaders may fail; ferroccl's own shared memory \
             does not use /dev/shm",
            mib(size)
        );
        Finding::warning("/dev/shm", evidence, ENLARGE)
    } else if free.is_some_and(|free| free < FREE_BYTES_MIN) {
        let evidence = format!("{} of {} MiB are free", mib(free.unwrap_or(0)), mib(size));
        let remedy = "look for files of dead processes with `ls -l /dev/shm` (nccl-*, torch_*, \
                      ferroccl-ofi-*), and remove those that no process has open";
        Finding::warning("/dev/shm", evidence, remedy)
    } else {
        Finding::ok("/dev/shm", format!("{} MiB", mib(size)))
    }]
}

/// Parses a line of mountinfo. The outer `None` means that the line does not describe /dev/shm, the
/// inner `None` that the mount has no readable size option.
fn shm_mount(line: &str) -> Option<Option<u64>> {
    let (mount, kind) = line.split_once(" - ")?;
    (mount.split(' ').nth(4)? == "/dev/shm").then_some(())?;
    let options = kind.split(' ').nth(2)?;
    let size = options.split(',').find_map(|option| option.strip_prefix("size="));
    Some(size.and_then(bytes))
}

fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn memory_kib(host: &Host) -> Option<u64> {
    let text = host.text("/proc/meminfo")?;
    text.lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Returns size and free bytes of /dev/shm.
fn live_size(host: &Host) -> Option<(u64, u64)> {
    if !host.is_live() {
        return None;
    }
    let found = rustix::fs::statvfs("/dev/shm").ok()?;
    let of = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some((of(found.f_blocks), of(found.f_bavail)))
}

/// Reports what a container or a virtual machine withholds: system calls for NUMA, the PCI bus in
/// sysfs, the switches above GPUs.
pub(super) fn container(host: &Host) -> Vec<Finding> {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    let mark = marks.into_iter().find(|mark| host.has(mark));
    let place = mark.map_or_else(
        || "there is no sign of a container (/.dockerenv, /run/.containerenv)".to_owned(),
        |mark| format!("this is a container ({mark})"),
    );
    let Some(status) = host.text("/proc/self/status") else {
        let remedy = "make sure that /proc is mounted where the ranks run";
        return vec![Finding::unknown("", "/proc/self/status cannot be read", remedy)];
    };
    let is_filtered = super::field(&status, "Seccomp:") == Some("2");
    let mut found = Vec::new();
    if is_filtered && !super::capable(host, SYS_NICE) {
        let evidence = format!(
            "{place}; system calls are filtered, and CAP_SYS_NICE is missing: calls that place \
             memory on NUMA nodes may be refused; NCCL allocates its host memory with such calls"
        );
        found.push(Finding::advice("NUMA calls", evidence, "containers: `--cap-add SYS_NICE`"));
    }
    let has_gpu_nodes = host.names("/dev").iter().any(|name| name == "nvidia0");
    if host.names("/sys/bus/pci/devices").is_empty() && has_gpu_nodes {
        let evidence = format!("{place}; there are GPUs, but sysfs shows no PCI bus");
        let remedy = "mount the host's /sys (read-only is enough): paths between GPUs and network \
                      devices cannot be chosen without it";
        found.push(Finding::warning("/sys", evidence, remedy));
    }
    let gpus = devices::gpus(host);
    if !gpus.is_empty() && gpus.iter().all(|(gpu, _)| gpu.bridges().is_empty()) {
        let evidence = "all GPUs are on the bus of the host bridge itself, as a virtual machine \
                        shows them: the switches that GPUs and network devices share are hidden";
        let remedy = "use the provider's topology instead: set NCCL_TOPO_FILE, and \
                      FERROCCL_NEAR_PCI or FERROCCL_IB_HCA for each rank";
        found.push(Finding::advice("PCI topology", evidence, remedy));
    }
    if found.is_empty() {
        found.push(Finding::ok("", format!("{place}; no harmful restriction was found")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_mounts_are_understood() {
        let line = "30 25 0:27 / /dev/shm rw,relatime - tmpfs shm rw,size=65536k,inode64";
        assert_eq!(shm_mount(line), Some(Some(64 << 20)));
        assert_eq!(shm_mount("30 25 0:27 / /dev/shm rw - tmpfs shm rw"), Some(None));
        assert_eq!(shm_mount("30 25 0:27 / /dev/shmx rw - tmpfs shm rw,size=1"), None);
        assert_eq!(
            shm_mount("30 25 0:27 / /dev/shm rw shared:3 - tmpfs x size=1g"),
            Some(Some(1 << 30))
        );
        for odd in ["", " - ", "1 2 3 4 /dev/shm - ", "1 2 3 4 /dev/shm - a b size="] {
            assert!(!matches!(shm_mount(odd), Some(Some(_))), "{odd}");
        }
        assert_eq!(bytes("99999999999999999999k"), None);
        assert_eq!(bytes("18446744073709551615g"), None);
        assert_eq!(bytes("50%"), None);
    }
}
