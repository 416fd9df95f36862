//! The recordings of all ranks of this user on this machine, found through `/proc`. A recording is
//! read even while its process computes, hangs, or is stopped.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use ccl_bootstrap::{Note, Observed, find_stuck};
use serde::Serialize;

use super::page::{self, BYTES, Page};
use super::snapshot::Snapshot;
use super::{NAME, now_ns, retry_until_consistent};

/// Shortest wait that is a reason to blame a rank, in milliseconds.
const WORTH_A_VERDICT_MS: u32 = 1_000;

/// The ranks that were found, grouped by communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// Communicators, in the order of their names.
    pub communicators: Vec<Group>,
}

/// The ranks of one communicator that were found here.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Group {
    /// Name of the communicator.
    pub communicator: String,
    /// Number of the communicator's ranks, here and on other machines.
    pub ranks: u32,
    /// Failure of the communicator, if there is one. Otherwise the rank that holds up the others,
    /// according to the recordings that were found here. None if no running rank has waited for 1 s
    /// or more, or if the cause is not found.
    pub verdict: Option<String>,
    /// The ranks that were found, in ascending order.
    pub members: Vec<Member>,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// Process id, as this machine knows it.
    pub pid: u32,
    /// True if the process is stopped.
    pub stopped: bool,
    /// Activity and last operations of the rank.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    #[serde(skip)]
    note: Note,
}

/// Reads the recordings of all ranks of this user on this machine, or only of the ranks of one
/// process.
///
/// # Errors
///
/// The process does not exist, belongs to another user, or has no rank.
pub fn status(pid: Option<u32>) -> io::Result<Status> {
    let mut found = BTreeMap::new();
    match pid {
        Some(pid) => {
            look_at(pid, &mut found)?;
            if found.is_empty() {
                let text = format!("process {pid} has no rank of a communicator");
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
        }
        None => {
            let own = rustix::process::geteuid().as_raw();
            for entry in fs::read_dir("/proc")?.flatten() {
                let name = entry.file_name();
                let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
                // A process can end meanwhile, or deny access.
                if entry.metadata().is_ok_and(|metadata| metadata.uid() == own) {
                    let _ = look_at(pid, &mut found);
                }
            }
        }
    }
    Ok(grouped(found.into_values()))
}

/// Members, keyed by the device and inode of their memory. A forked child has its parent's
/// descriptors, so a scan may find the same memory twice.
type Found = BTreeMap<(u64, u64), Member>;

fn look_at(pid: u32, found: &mut Found) -> io::Result<()> {
    let explained = |error: io::Error| {
        let text = match error.kind() {
            io::ErrorKind::NotFound => format!("there is no process {pid}"),
            io::ErrorKind::PermissionDenied => {
                format!("process {pid} belongs to another user: run this as that user or as root")
            }
            _ => format!("process {pid}: {error}"),
        };
        io::Error::new(error.kind(), text)
    };
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).map_err(explained)?.flatten() {
        let path = entry.path();
        let target = fs::read_link(&path).unwrap_or_default();
        let name = target.to_str().and_then(|target| target.strip_prefix("/memfd:"));
        if name.is_none_or(|name| name.strip_suffix(" (deleted)").unwrap_or(name) != NAME) {
            continue;
        }
        let Ok((inode, member)) = member(pid, &path) else { continue };
        let is_better = |known: &Member| member.snapshot.process == pid || pid < known.pid;
        if found.get(&inode).is_none_or(is_better) {
            found.insert(inode, member);
        }
    }
    Ok(())
}

fn member(pid: u32, path: &Path) -> io::Result<((u64, u64), Member)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    let inode = file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))?;
    let copy = |file: &File, copy: &mut [u8; BYTES]| file.read_exact_at(&mut copy[..], 0);
    let (mut first, mut second) = (Box::new([0; BYTES]), Box::new([0; BYTES]));
    let mut read = Ok(());
    retry_until_consistent(|| {
        read = copy(&file, &mut first).and_then(|()| copy(&file, &mut second));
        Page::new(&first, &second).is_none_or(|page| !page.is_changing())
    });
    read?;
    let page = Page::new(&first, &second).ok_or(io::ErrorKind::InvalidData)?;
    let now = now_ns();
    let (snapshot, note) = (Snapshot::of(&page, now), page.note(now));
    Ok((inode, Member { pid, stopped: is_stopped(pid), snapshot, note }))
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

fn grouped(members: impl Iterator<Item = Member>) -> Status {
    let mut groups: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for member in members {
        groups.entry(member.snapshot.communicator.clone()).or_default().push(member);
    }
    let communicators = groups.into_iter().map(|(communicator, mut members)| {
        members.sort_unstable_by_key(|member| (member.snapshot.rank, member.pid));
        let ranks = members.first().map_or(0, |member| member.snapshot.ranks);
        Group { communicator, ranks, verdict: verdict(&members), members }
    });
    Status { communicators: communicators.collect() }
}

fn verdict(members: &[Member]) -> Option<String> {
    if let Some(failure) = members.iter().find_map(|member| member.snapshot.failure.clone()) {
        return Some(failure);
    }
    let waits = |member: &Member| {
        let is_waiting = member.note.activity == ccl_bootstrap::Activity::Waiting;
        is_waiting && !member.stopped && member.note.unchanged_ms >= WORTH_A_VERDICT_MS
    };
    members.iter().find(|member| waits(member))?;
    let sight = |member: &Member| {
        let silent_ms = (member.snapshot.sampled_s_ago * 1000.0) as u32;
        match member.stopped {
            true => Observed::Silent { silent_ms },
            false => Observed::Noted(member.note.clone()),
        }
    };
    let seen = members.iter().map(|member| (member.snapshot.rank, sight(member))).collect();
    find_stuck(&seen).map(|stuck| stuck.to_string())
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.communicators.is_empty() {
            return writeln!(f, "no rank of a communicator runs here under this user");
        }
        self.communicators.iter().try_for_each(|group| write!(f, "{group}"))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Group { communicator, ranks, members, .. } = self;
        writeln!(f, "communicator {communicator}: {} of {ranks} ranks are here", members.len())?;
        let hosts = members.iter().map(|member| member.snapshot.host.len());
        let width = hosts.max().unwrap_or(0).max("host".len());
        writeln!(
            f,
            "{:>6} {:>8}  {:<width$}  {:<9} {:>8} {:>23}  last operation",
            "rank", "pid", "host", "state", "since", "bytes done"
        )?;
        for member in members {
            row(f, member, width)?;
        }
        match &self.verdict {
            Some(verdict) => writeln!(f, "{verdict}"),
            None => Ok(()),
        }
    }
}

fn row(f: &mut fmt::Formatter<'_>, member: &Member, width: usize) -> fmt::Result {
    let Member { pid, stopped, snapshot, .. } = member;
    let state = if *stopped { "stopped" } else { snapshot.state };
    // A stopped process has not changed since the last sample of its control thread.
    let since = if *stopped { snapshot.sampled_s_ago } else { snapshot.unchanged_s };
    let last = snapshot.operations.last();
    let bytes = match last {
        None => String::new(),
        Some(last) => match last.bytes_done {
            Some(done) => format!("{done} of {}", last.bytes),
            None => format!("? of {}", last.bytes),
        },
    };
    let since = format!("{since:.1} s");
    write!(
        f,
        "{:>6} {pid:>8}  {:<width$}  {state:<9} {since:>8} {bytes:>23}  ",
        snapshot.rank, snapshot.host
    )?;
    match last {
        None => f.write_str("none")?,
        Some(last) => {
            f.write_str(&last.call.what)?;
            last.algorithm.map_or(Ok(()), |algorithm| write!(f, ", {algorithm}"))?;
        }
    }
    if snapshot.state == "aside" {
        write!(f, "; in {}", snapshot.last)?;
    }
    if !snapshot.waits_for.is_empty() {
        write!(f, "; waits for {}", snapshot.waits_in_words())?;
    }
    writeln!(f)
}

const _: () = assert!(page::FAILURE + page::FAILURE_BYTES <= BYTES);
