//! Resources that a process holds, to check whether a plugin releases what it took.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::side::Side;
use crate::stop::{Outcome, failed};

/// Tolerated growth of memory: allocators keep some freed memory.
const MEMORY_SLACK_BYTES: usize = 16 << 20;

/// Time that a plugin may take to release its resources, at the default --timeout.
const MOMENT: Duration = Duration::from_secs(4);

/// Resources that this process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    descriptors: usize,
    threads: usize,
    memory_bytes: usize,
}

impl Holdings {
    /// Returns the current holdings of this process.
    pub(crate) fn now() -> Holdings {
        Holdings {
            descriptors: entries("/proc/self/fd"),
            threads: threads(),
            memory_bytes: resident_bytes(),
        }
    }

    /// Fails if the process still holds more than `self` after a grace period.
    pub(crate) fn demand_no_growth(self, side: &Side, after: &str) -> Outcome {
        let mut growth = self.growth();
        let until = Instant::now() + side.arguments.on_this_machine(MOMENT);
        while growth.is_some() && Instant::now() < until && !side.watch.is_over() {
            std::thread::sleep(Duration::from_millis(20));
            growth = self.growth();
        }
        growth.map_or(Ok(()), |growth| failed(format!("{growth} after {after}")))
    }

    fn growth(self) -> Option<String> {
        let now = Holdings::now();
        if now.descriptors > self.descriptors {
            let (before, after) = (self.descriptors, now.descriptors);
            return Some(format!("file descriptors leak: from {before} to {after}"));
        }
        if now.threads > self.threads {
            return Some(format!("threads leak: from {} to {}", self.threads, now.threads));
        }
        let grown = now.memory_bytes.saturating_sub(self.memory_bytes);
        (grown > MEMORY_SLACK_BYTES)
            .then(|| format!("memory leaks: it grew by {} MiB", grown >> 20))
    }
}

/// Returns the number of threads.
pub(crate) fn threads() -> usize {
    entries("/proc/self/task")
}

/// Returns whether all threads of the process `id` are stopped, by a signal or a tracer.
pub(crate) fn is_stopped(id: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return false };
    threads.flatten().all(|thread| {
        // The state follows the thread's name, which is in parentheses and may contain some.
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['T', 't']))
    })
}

/// Returns the CPU time of all threads of this process.
pub(crate) fn computed() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn entries(directory: &str) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

/// Returns this process's share (PSS) of its memory, in bytes: each of `n` processes that share a
/// page counts 1/`n` of the page. Mapped files, such as programs and libraries, do not count, but
/// memory mapped from `/dev` or from a memfd does.
pub(crate) fn share_of_memory_bytes() -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut counts, mut kib) = (false, 0);
    for line in smaps.lines() {
        if let Some(pss) = line.strip_prefix("Pss:") {
            let pss = pss.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<usize>().ok());
            kib += pss.filter(|_| counts).unwrap_or(0);
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            let file = line.split_whitespace().nth(5).filter(|name| name.starts_with('/'));
            let in_memory = |name: &str| name.starts_with("/dev/") || name.starts_with("/memfd:");
            counts = file.is_none_or(in_memory);
        }
    }
    kib << 10
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}
