//! What a recorded result must say about where it comes from.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::process;
use crate::workspace::root;

const PATIENCE: Duration = Duration::from_secs(20);

/// Date, commit and machine of a run.
#[derive(Debug)]
pub(crate) struct Provenance {
    date: String,
    commit: String,
    cpu: String,
    cores: usize,
}

impl Provenance {
    /// Of this moment, this working tree and this machine; what cannot be found out is "unknown".
    pub(crate) fn now() -> Provenance {
        Provenance {
            date: line_of(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])),
            commit: commit(),
            cpu: fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| cpu_model(&text))
                .unwrap_or_else(|| format!("unknown {} CPU", std::env::consts::ARCH)),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// One sentence for the head of a table.
    pub(crate) fn sentence(&self) -> String {
        let Provenance { date, commit, cpu, cores } = self;
        format!("{date}, commit {commit}, {cpu}, {cores} cores")
    }
}

/// The first port of each RDMA device that the kernel has, as `FERROCCL_IB_HCA` names them.
pub(crate) fn rdma_ports() -> Vec<String> {
    let names = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        names.map(|entry| format!("{}:1", entry.file_name().to_string_lossy())).collect();
    names.sort();
    // Those of the guest's other link reach none of these.
    names.truncate(2);
    names
}

/// What a run of all tests from nothing leaves on the disk at most, in MiB.
const DISK_MIB: u64 = 5 << 10;
/// With less, in MiB, any failure may be the disk's.
const DISK_FULL_MIB: u64 = 256;

/// One sentence on the room for builds that is left, and whether it will do.
pub(crate) fn disk_notice() -> String {
    free_mib().map_or_else(String::new, |free| {
        let enough = if free < DISK_MIB { ", which it may not have" } else { "" };
        format!("A run from nothing takes up to {DISK_MIB} MiB of disk{enough}: {free} are free.")
    })
}

/// Advice where the disk is all but full.
pub(crate) fn disk_advice() -> Option<String> {
    let free = free_mib().filter(|free| *free < DISK_FULL_MIB)?;
    Some(format!("only {free} MiB of disk are free: make room, with `cargo clean` for one"))
}

fn free_mib() -> Option<u64> {
    let stat = rustix::fs::statvfs(root()).ok()?;
    Some((stat.f_bavail * stat.f_frsize) >> 20)
}

/// By so much longer than their budget suites may take before it is a failure: machines of one kind
/// were seen to be half as fast on some days. Beyond, CI ends what runs in any case (90 minutes).
pub(crate) const SLOW_DAY: f64 = 1.9;
/// What takes so many times its budget hangs, and is killed.
pub(crate) const HANGS: u32 = 3;

/// Whether budgets are enforced: `CI=true`, as every CI system sets it. On a machine that is shared
/// with other work they are only a warning.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// This working tree's commit, and whether it has changed since.
pub(crate) fn commit() -> String {
    let root = root();
    let git = |args: &[&str]| {
        process::capture(Command::new("git").current_dir(&root).args(args), PATIENCE)
    };
    let Ok(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain"]).is_ok_and(|status| !status.trim().is_empty());
    format!("{}{}", commit.trim(), if changed { " with local changes" } else { "" })
}

fn line_of(command: &mut Command) -> String {
    process::capture(command, PATIENCE)
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_model_is_read_from_cpuinfo() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n";
        assert_eq!(cpu_model(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_model("processor: 0\n"), None);
    }
}
