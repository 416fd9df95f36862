//! Provenance of recorded results, and properties of this machine.

use std::fs;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

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
    /// Returns the current time, commit and machine; unknown parts are "unknown".
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

    /// Returns one sentence for the head of a table.
    pub(crate) fn sentence(&self) -> String {
        let Provenance { date, commit, cpu, cores } = self;
        format!("{date}, commit {commit}, {cpu}, {cores} cores")
    }

    /// Returns date, commit and machine, each for a cell of a table.
    pub(crate) fn parts(&self) -> [String; 3] {
        let Provenance { date, commit, cpu, cores } = self;
        [date.clone(), commit.clone(), format!("{cpu}, {cores} cores")]
    }
}

/// Returns at most two of the kernel's RDMA devices, each as its first port in the notation of
/// `FERROCCL_IB_HCA`.
pub(crate) fn rdma_ports() -> Vec<String> {
    let mut names = all_rdma_ports();
    // In the guest, a device reaches only devices of its own network. The first two devices share
    // a network.
    names.truncate(2);
    names
}

/// Returns the first port of each RDMA device of the kernel, in the notation of `FERROCCL_IB_HCA`.
/// In the guest, the two devices of one network are adjacent in the list.
pub(crate) fn all_rdma_ports() -> Vec<String> {
    let names = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        names.map(|entry| format!("{}:1", entry.file_name().to_string_lossy())).collect();
    names.sort();
    names
}

/// Largest disk space, in MiB, that a run of all tests takes if it begins with an empty target
/// directory.
const DISK_MIB: u64 = 5 << 10;
/// Free disk space, in MiB, below which any failure may be due to the disk.
const DISK_FULL_MIB: u64 = 256;

/// Returns a sentence on the free disk space and whether it suffices for a run of all tests; an
/// empty text if the space is unknown.
pub(crate) fn disk_notice() -> String {
    free_mib().map_or_else(String::new, |free| {
        let enough = if free < DISK_MIB { ", which may not suffice" } else { "" };
        format!(
            "In a run of all tests, an empty target directory grows to {DISK_MIB} MiB; {free} MiB \
             are free{enough}."
        )
    })
}

/// Returns advice if the disk is almost full.
pub(crate) fn disk_advice() -> Option<String> {
    let free = free_mib().filter(|free| *free < DISK_FULL_MIB)?;
    Some(format!("only {free} MiB of disk are free: make room, for example with `cargo clean`"))
}

fn free_mib() -> Option<u64> {
    let stat = rustix::fs::statvfs(root()).ok()?;
    Some((stat.f_bavail * stat.f_frsize) >> 20)
}

/// Environment variable with the factor by which this machine is slower than usual. Tests stretch
/// their deadlines by this factor.
pub(crate) const SLOWNESS: &str = "FERROCCL_TEST_SLOWNESS";
/// Seconds that the loop of [`slowness`] takes on an idle machine of the usual kind.
const REFERENCE_S: f64 = 0.25;
/// Steps of the loop of [`slowness`].
const STEPS: u64 = 20_000_000;
/// Largest factor by which deadlines stretch.
const SLOWNESS_MAX: f64 = 10.0;

/// Returns how many times slower than usual this machine is now, 1 to 10. The function measures the
/// time of a fixed loop on two threads; [`SLOWNESS`] overrides the measurement.
pub(crate) fn slowness() -> f64 {
    let stated = std::env::var(SLOWNESS).ok().and_then(|text| text.parse().ok());
    stated.unwrap_or_else(measure_slowness).clamp(1.0, SLOWNESS_MAX)
}

fn measure_slowness() -> f64 {
    let start = Instant::now();
    let work = || (0..STEPS).fold(1u64, |state, step| black_box(state ^ (state << 13) ^ step));
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    start.elapsed().as_secs_f64() / REFERENCE_S
}

/// Returns how many tests run at a time: two per core by default, since many tests mostly wait.
pub(crate) fn width() -> usize {
    let stated = std::env::var("FERROCCL_TEST_THREADS").ok().and_then(|text| text.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    stated.unwrap_or(2 * cores).max(1)
}

/// Returns whether this program runs in CI; every CI system sets `CI=true`.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Arguments that make git list the changed files, except the two pages that the deep tier of the
/// tests writes.
const STATUS: [&str; 5] =
    ["status", "--porcelain", "--", ":!docs/full-run.md", ":!docs/fault-matrix.md"];

/// Returns the working tree's commit, with a note if the tree has uncommitted changes.
pub(crate) fn commit() -> String {
    let root = root();
    let git = |args: &[&str]| {
        process::capture(Command::new("git").current_dir(&root).args(args), PATIENCE)
    };
    let Ok(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&STATUS).is_ok_and(|status| !status.trim().is_empty());
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
