//! Calls of the ranks of a job, as one Chakra trace per rank or as one list on which all ranks
//! agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ccl_core::types::{Collective, Rank};
use serde::Serialize;

use super::chakra::{Attribute, CommType, Node, NodeType, Trace, Value, number, word};
use crate::quantity::{self, Unit};
use ccl_traffic::matrix::RANKS_MAX;

/// Largest number of bytes of a trace, and of the file of groups.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Ranks that call together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of the group in traces; empty for the group of all ranks.
    pub name: String,
    /// Ranks of the members; the index of a member here is its number in the group.
    pub members: Vec<Rank>,
}

/// Action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A collective.
    Collective {
        /// Kind of collective.
        collective: Collective,
        /// Index of the group.
        group: usize,
        /// Bytes of the larger of the two buffers, input and output.
        bytes: u64,
        /// Root, by its number in the group: the member that has the data or gets it. 0 if the
        /// collective has no root.
        root: Rank,
        /// True if ranks may have different numbers of bytes.
        is_uneven: bool,
    },
    /// A message to another rank.
    Send {
        /// Rank that the message goes to.
        to: Rank,
        /// Length of the message in bytes.
        bytes: u64,
        /// Tag: a receive matches a send with the same tag between the same two ranks.
        tag: u64,
    },
    /// A message from another rank.
    Recv {
        /// Rank that the message comes from.
        from: Rank,
        /// Length of the message in bytes.
        bytes: u64,
        /// Tag: a receive matches a send with the same tag between the same two ranks.
        tag: u64,
    },
}

/// Action of a rank with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the node in the trace.
    pub node: u64,
    /// The action.
    pub what: Action,
    /// Time of the beginning, in microseconds; 0 if unknown.
    pub start_us: u64,
    /// Duration in microseconds; 0 if unknown.
    pub duration_us: u64,
}

/// Actions of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Prefix of the names of the job's files.
    pub prefix: String,
    /// Groups of ranks that call together; the first is the group of all ranks.
    pub groups: Vec<Group>,
    /// Actions by rank.
    pub lists: Vec<Vec<Entry>>,
}

/// A collective on which all ranks of its group agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Kind of collective.
    pub collective: Collective,
    /// Index of the group.
    pub group: usize,
    /// Bytes of the larger buffer; for an uneven collective the mean over the ranks.
    pub bytes: u64,
    /// Root, by its number in the group: the member that has the data or gets it.
    pub root: Rank,
    /// True if ranks may have different numbers of bytes.
    pub is_uneven: bool,
    /// Time at which the first rank began, in microseconds.
    pub start_us: u64,
    /// Shortest duration among the ranks, in microseconds; usually that of the last rank to
    /// begin.
    pub duration_us: u64,
}

impl Call {
    /// Returns whether the call's time was recorded.
    pub(super) fn is_timed(&self) -> bool {
        (self.start_us, self.duration_us) != (0, 0)
    }
}

/// Message that was sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Rank that sent the message.
    pub from: Rank,
    /// Rank that received the message.
    pub to: Rank,
    /// Length of the message in bytes.
    pub bytes: u64,
    /// Time at which the sender began, in microseconds.
    pub start_us: u64,
}

/// Calls and messages of a job; each is listed once for all ranks that take part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Collectives in the order of their start times. Collectives with equal times are in the order
    /// of groups, and those of one group in the order of its calls. A collective without a time has
    /// start time 0, but is sorted by the start time of its group's previous timed call, if any.
    pub calls: Vec<Call>,
    /// Messages in the order of the sending ranks; those of one rank in the order of its trace.
    pub messages: Vec<Sent>,
}

fn comm_type(collective: Collective) -> Option<CommType> {
    use Collective as C;
    Some(match collective {
        C::AllReduce => CommType::AllReduce,
        C::Reduce => CommType::Reduce,
        C::AllGather | C::AllGatherV => CommType::AllGather,
        C::Gather | C::GatherV => CommType::Gather,
        C::Scatter | C::ScatterV => CommType::Scatter,
        C::Broadcast => CommType::Broadcast,
        C::AllToAll | C::AllToAllV => CommType::AllToAll,
        C::ReduceScatter | C::ReduceScatterV => CommType::ReduceScatter,
        C::Barrier => CommType::Barrier,
        C::SendRecv => return None,
    })
}

/// Returns the variant of `collective` whose blocks have equal length: `collective` itself if its
/// blocks are of equal length. Returns `None` if there is no such variant.
pub(super) fn even(collective: Collective) -> Option<Collective> {
    Some(collective_of(comm_type(collective)?))
}

fn collective_of(comm_type: CommType) -> Collective {
    use Collective as C;
    match comm_type {
        CommType::AllReduce => C::AllReduce,
        CommType::Reduce => C::Reduce,
        CommType::AllGather => C::AllGather,
        CommType::Gather => C::Gather,
        CommType::Scatter => C::Scatter,
        CommType::Broadcast => C::Broadcast,
        CommType::AllToAll => C::AllToAll,
        CommType::ReduceScatter | CommType::ReduceScatterBlock => C::ReduceScatter,
        CommType::Barrier => C::Barrier,
    }
}

/// Returns whether traces give, for this collective, the size of the block that each rank sends.
/// For other collectives, traces give the size of the larger buffer.
fn brings_a_block(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::Gather)
}

impl Entry {
    /// Returns whether both entries are messages that their rank sent or received together, in one
    /// `Communicator::group`. Such messages have the same times.
    fn is_beside(&self, other: &Entry) -> bool {
        let is_message = |entry: &Entry| !matches!(entry.what, Action::Collective { .. });
        let times = |entry: &Entry| (entry.start_us, entry.duration_us);
        is_message(self) && is_message(other) && self.start_us > 0 && times(self) == times(other)
    }
}

impl Job {
    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.lists.len() as u32
    }

    /// Returns the traces of all ranks. A rank's nodes form a chain: each call depends on the
    /// previous one, and messages of one `Communicator::group` have the same dependencies.
    #[must_use]
    pub fn traces(&self) -> Vec<Trace> {
        let ranks = self.ranks();
        let of = |(rank, list): (u32, &Vec<Entry>)| {
            let mut trace = Trace::new(head(rank, ranks));
            let (mut before, mut link): (Vec<u64>, Vec<&Entry>) = (Vec::new(), Vec::new());
            for entry in list {
                if !link.last().is_some_and(|last| last.is_beside(entry)) {
                    before = link.drain(..).map(|entry| entry.node).collect();
                }
                link.push(entry);
                trace.nodes.push(self.node(rank, entry, &before));
            }
            trace
        };
        (0..).zip(&self.lists).map(of).collect()
    }

    fn node(&self, rank: Rank, entry: &Entry, before: &[u64]) -> Node {
        let mut node = match entry.what {
            Action::Send { to, bytes, tag } => message_node(true, rank, to, bytes, tag),
            Action::Recv { from, bytes, tag } => message_node(false, from, rank, bytes, tag),
            Action::Collective { collective, group, bytes, root, is_uneven } => {
                let comm_type = comm_type(collective).map_or(0, |kind| kind as i64);
                let members = self.groups.get(group).map_or(1, |group| group.members.len().max(1));
                let share = if brings_a_block(collective) { members as u64 } else { 1 };
                let mut attr = vec![
                    Attribute::new("is_cpu_op", Value::Bool(false)),
                    Attribute::new("comm_type", Value::Int64(comm_type)),
                    Attribute::new("comm_size", Value::Int64(signed(bytes / share))),
                ];
                if collective.has_root() {
                    attr.push(Attribute::new("root", Value::Int64(root.into())));
                }
                if is_uneven {
                    attr.push(Attribute::new("uneven", Value::Bool(true)));
                }
                if let Some(group) = self.groups.get(group).filter(|_| group > 0) {
                    attr.push(Attribute::new("pg_name", Value::String(group.name.clone())));
                }
                let r#type = NodeType::CommColl.into();
                Node { name: collective.to_string(), r#type, attr, ..Node::default() }
            }
        };
        node.id = entry.node;
        node.ctrl_deps = before.to_vec();
        (node.start_time_micros, node.duration_micros) = (entry.start_us, entry.duration_us);
        node
    }

    /// Writes `PREFIX.RANK.et` for each rank, and `PREFIX.groups.json` with the members of each
    /// group, in ASTRA-sim's format.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn write(&self, prefix: &str) -> Result<(), String> {
        let groups: BTreeMap<&str, &[Rank]> = self
            .groups
            .get(1..)
            .unwrap_or_default()
            .iter()
            .map(|group| (group.name.as_str(), &group.members[..]))
            .collect();
        let json = serde_json::to_string(&groups).map_err(|error| error.to_string())? + "\n";
        write_traces(prefix, &self.traces())?;
        super::write(&format!("{prefix}.groups.json"), json.as_bytes())
    }

    /// Reads the traces of all ranks: `PREFIX.0.et`, `PREFIX.1.et` and so on; for a directory, the
    /// traces of the one job in it. Groups come from the given file, or else from
    /// `PREFIX.groups.json` if it exists.
    ///
    /// # Errors
    ///
    /// When a rank's trace is missing or invalid; when a node has an unknown type, size or group.
    /// Each error names the file or the node.
    pub fn read(prefix: &str, groups: Option<&str>) -> Result<Job, String> {
        let prefix = whole_prefix(prefix)?;
        let ranks = ranks_of(&prefix)?;
        let default = format!("{prefix}.groups.json");
        let default = Some(default.as_str()).filter(|path| Path::new(path).exists());
        let mut all = vec![Group { name: String::new(), members: (0..ranks).collect() }];
        if let Some(path) = groups.or(default) {
            all.extend(read_groups(path, ranks)?);
        }
        let mut job = Job { prefix, groups: all, lists: Vec::new() };
        for rank in 0..ranks {
            let path = path_of(&job.prefix, rank);
            let trace = Trace::decode(&path, &contents(&path)?)?;
            let said = number(&trace.metadata.attr, "ranks").unwrap_or(None);
            if let Some(said) = said.filter(|said| *said != u64::from(ranks)) {
                return Err(format!(
                    "{path} is from a job of {said} ranks, but there are {ranks} files {}.*.et; \
                     these files must be the traces of all ranks of one run",
                    job.prefix
                ));
            }
            let list = list(&path, &trace, rank, &job.groups)?;
            job.lists.push(list);
        }
        Ok(job)
    }

    fn place(&self, rank: Rank, entry: &Entry) -> String {
        format!("{}, node {}", path_of(&self.prefix, rank), entry.node)
    }

    /// Checks that the ranks agree on all calls and messages, and lists each of these once.
    ///
    /// # Errors
    ///
    /// When the ranks of a group called different collectives, or different numbers of them; when a
    /// message has no matching send or receive. Each error names files and nodes, and has a remedy.
    pub fn agreed(&self) -> Result<Agreed, String> {
        let mut agreed = Agreed::default();
        let mut starts = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            self.calls(index, group, &mut agreed.calls)?;
            // A call without a time stays after the previous call of its group.
            let mut last_us = 0;
            for call in &agreed.calls[starts.len()..] {
                last_us = if call.is_timed() { call.start_us } else { last_us };
                starts.push(last_us);
            }
        }
        let mut calls: Vec<_> = starts.into_iter().zip(agreed.calls).collect();
        calls.sort_by_key(|(start_us, _)| *start_us);
        agreed.calls = calls.into_iter().map(|(_, call)| call).collect();
        agreed.messages = self.messages()?;
        Ok(agreed)
    }

    fn calls(&self, index: usize, group: &Group, calls: &mut Vec<Call>) -> Result<(), String> {
        let of = |rank: Rank| {
            let list = self.lists.get(rank as usize).map_or(&[][..], Vec::as_slice);
            let is_member = move |action: &Action| match action {
                Action::Collective { group, .. } => *group == index,
                _ => false,
            };
            list.iter().filter(move |entry| is_member(&entry.what))
        };
        let Some((&first, others)) = group.members.split_first() else { return Ok(()) };
        let mut others: Vec<_> = others.iter().map(|rank| (*rank, of(*rank))).collect();
        for (turn, entry) in of(first).enumerate() {
            let mut sum = u128::from(bytes_of(entry));
            let mut call = call_of(entry);
            for (rank, rest) in &mut others {
                let other = rest.next().ok_or_else(|| self.short(*rank, turn, first, entry))?;
                if !is_same(&entry.what, &other.what) {
                    return Err(format!(
                        "the ranks disagree in call {turn} of {}: {} is {}, but {} is {}; the \
                         traces are not of one run, or calls are missing: record the run again",
                        named(group),
                        self.place(first, entry),
                        in_words(&entry.what),
                        self.place(*rank, other),
                        in_words(&other.what)
                    ));
                }
                sum += u128::from(bytes_of(other));
                // A rank with neither start nor duration was not timed.
                match ((call.start_us, call.duration_us), (other.start_us, other.duration_us)) {
                    (_, (0, 0)) => {}
                    ((0, 0), times) => (call.start_us, call.duration_us) = times,
                    _ => {
                        call.start_us = call.start_us.min(other.start_us);
                        call.duration_us = call.duration_us.min(other.duration_us);
                    }
                }
            }
            call.bytes = (sum / group.members.len().max(1) as u128) as u64;
            calls.push(call);
        }
        for (rank, rest) in &mut others {
            if let Some(more) = rest.next() {
                let turn = of(first).count();
                return Err(self.short(first, turn, *rank, more));
            }
        }
        Ok(())
    }

    fn short(&self, rank: Rank, calls: usize, other: Rank, entry: &Entry) -> String {
        let path = path_of(&self.prefix, rank);
        format!(
            "{path} has only {calls} calls of a group, but {} is a further call of that group \
             ({}); a trace is truncated, or the traces are not of one run: record the run again",
            self.place(other, entry),
            in_words(&entry.what)
        )
    }

    fn messages(&self) -> Result<Vec<Sent>, String> {
        let mut received: BTreeMap<_, Vec<(u64, Rank, &Entry)>> = BTreeMap::new();
        for (rank, list) in (0..).zip(&self.lists) {
            for entry in list {
                if let Action::Recv { from, bytes, tag } = entry.what {
                    received.entry((from, rank, tag)).or_default().push((bytes, rank, entry));
                }
            }
        }
        received.values_mut().for_each(|messages| messages.reverse());
        let mut sent = Vec::new();
        for (rank, list) in (0..).zip(&self.lists) {
            for entry in list {
                let Action::Send { to, bytes, tag } = entry.what else { continue };
                let place = self.place(rank, entry);
                let matching = received.get_mut(&(rank, to, tag)).and_then(Vec::pop);
                match matching {
                    Some((length, ..)) if length == bytes => {}
                    Some((length, at, other)) => {
                        return Err(format!(
                            "{place} sends {bytes} bytes to rank {to}, which expects {length} \
                             bytes ({}); record the run again",
                            self.place(at, other)
                        ));
                    }
                    None => {
                        return Err(format!(
                            "{place} sends {bytes} bytes to rank {to}, which does not receive \
                             them; a trace is truncated, or the traces are not of one run: \
                             record the run again"
                        ));
                    }
                }
                sent.push(Sent { from: rank, to, bytes, start_us: entry.start_us });
            }
        }
        match received.values().flatten().next() {
            None => Ok(sent),
            Some((bytes, rank, entry)) => Err(format!(
                "{} receives {bytes} bytes that nobody sends; a trace is truncated, or the traces \
                 are not of one run: record the run again",
                self.place(*rank, entry)
            )),
        }
    }
}

fn named(group: &Group) -> String {
    if group.name.is_empty() { "all ranks".to_owned() } else { format!("group {}", group.name) }
}

fn bytes_of(entry: &Entry) -> u64 {
    match entry.what {
        Action::Collective { bytes, .. }
        | Action::Send { bytes, .. }
        | Action::Recv { bytes, .. } => bytes,
    }
}

fn call_of(entry: &Entry) -> Call {
    let Entry { what, start_us, duration_us, .. } = *entry;
    let (collective, group, bytes, root, is_uneven) = match what {
        Action::Collective { collective, group, bytes, root, is_uneven } => {
            (collective, group, bytes, root, is_uneven)
        }
        _ => (Collective::SendRecv, 0, bytes_of(entry), 0, true),
    };
    Call { collective, group, bytes, root, is_uneven, start_us, duration_us }
}

fn is_same(one: &Action, other: &Action) -> bool {
    let key = |what: &Action| match *what {
        Action::Collective { collective, group, bytes, root, is_uneven } => {
            let bytes = if is_uneven { 0 } else { bytes };
            Some((collective, group, bytes, root, is_uneven))
        }
        _ => None,
    };
    key(one) == key(other)
}

fn in_words(what: &Action) -> String {
    match *what {
        Action::Collective { collective, bytes, root, .. } if collective.has_root() => {
            format!("{collective} of {bytes} bytes, root {root}")
        }
        Action::Collective { collective, bytes, .. } => format!("{collective} of {bytes} bytes"),
        Action::Send { to, bytes, .. } => format!("a send of {bytes} bytes to {to}"),
        Action::Recv { from, bytes, .. } => format!("a receive of {bytes} bytes from {from}"),
    }
}

/// Calls of a job, in order, for display as text and JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    ranks: u32,
    groups: BTreeMap<String, Vec<Rank>>,
    calls: Vec<ShownCall>,
    /// Number of messages between pairs of ranks, and their bytes.
    messages: (usize, u64),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ShownCall {
    collective: String,
    group: String,
    bytes: u64,
    uneven: bool,
    root: Option<Rank>,
    /// Time since the first call that has a time, in microseconds; 0 without a time.
    start_us: u64,
    duration_us: u64,
}

/// Largest number of calls that are shown to people; further calls are only counted.
const SHOWN_MAX: usize = 50;
/// Largest number of a group's members that are shown.
const SHOWN_MEMBERS: usize = 16;

impl Job {
    /// Returns the calls of the ranks for display.
    ///
    /// # Errors
    ///
    /// When the ranks do not agree.
    pub fn shown(&self) -> Result<Shown, String> {
        let Agreed { calls, messages } = self.agreed()?;
        let first_us = calls.iter().find(|call| call.is_timed()).map_or(0, |call| call.start_us);
        let name = |group: usize| self.groups.get(group).map(|group| group.name.clone());
        let shown = |call: &Call| ShownCall {
            collective: call.collective.to_string(),
            group: name(call.group).unwrap_or_default(),
            bytes: call.bytes,
            uneven: call.is_uneven,
            root: call.collective.has_root().then_some(call.root),
            start_us: call.start_us.saturating_sub(first_us),
            duration_us: call.duration_us,
        };
        let sum = messages.iter().try_fold(0_u64, |sum, message| sum.checked_add(message.bytes));
        let sum = sum.ok_or("all messages together have 2^64 bytes or more")?;
        let groups = self.groups.iter().skip(1);
        Ok(Shown {
            ranks: self.ranks(),
            groups: groups.map(|group| (group.name.clone(), group.members.clone())).collect(),
            calls: calls.iter().map(shown).collect(),
            messages: (messages.len(), sum),
        })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { ranks, groups, calls, messages } = self;
        writeln!(f, "{} calls of {ranks} ranks", calls.len())?;
        for (name, members) in groups {
            let more = if members.len() <= SHOWN_MEMBERS { "" } else { " ..." };
            let shown = members.iter().take(SHOWN_MEMBERS).map(Rank::to_string);
            writeln!(f, "group {name}: {}{more}", shown.collect::<Vec<_>>().join(" "))?;
        }
        let heads = ["start", "took", "collective", "group", "bytes", "root"].map(str::to_owned);
        let time = |us: u64| quantity::show(us as f64 / 1e6, Unit::Seconds);
        let row = |call: &ShownCall| {
            vec![
                time(call.start_us),
                time(call.duration_us),
                call.collective.clone() + if call.uneven { " (uneven)" } else { "" },
                if call.group.is_empty() { "all".to_owned() } else { call.group.clone() },
                quantity::show(call.bytes as f64, Unit::Bytes),
                call.root.map_or_else(|| "-".to_owned(), |root| root.to_string()),
            ]
        };
        let mut table = vec![heads.to_vec()];
        table.extend(calls.iter().take(SHOWN_MAX).map(row));
        if !calls.is_empty() {
            write!(f, "\n{}", crate::topology::columns(&table))?;
        }
        if calls.len() > SHOWN_MAX {
            writeln!(f, "and {} more; --json shows all calls", calls.len() - SHOWN_MAX)?;
        }
        match messages {
            (0, _) => Ok(()),
            (count, bytes) => {
                let bytes = quantity::show(*bytes as f64, Unit::Bytes);
                writeln!(f, "\n{count} messages between pairs of ranks, {bytes}")
            }
        }
    }
}

/// Returns the metadata of a rank's trace.
pub(super) fn head(rank: Rank, ranks: u32) -> Vec<Attribute> {
    let number = |name, value| Attribute::new(name, Value::Uint32(value));
    let by = format!("ferroccl {}", env!("CARGO_PKG_VERSION"));
    vec![
        number("rank", rank),
        number("ranks", ranks),
        Attribute::new("written_by", Value::String(by)),
    ]
}

pub(super) fn message_node(sends: bool, from: Rank, to: Rank, bytes: u64, tag: u64) -> Node {
    let (name, r#type) = match sends {
        true => (format!("send to {to}"), NodeType::CommSend),
        false => (format!("receive from {from}"), NodeType::CommRecv),
    };
    let number = |name, value| Attribute::new(name, Value::Int32(value as i32));
    let attr = vec![
        Attribute::new("is_cpu_op", Value::Bool(false)),
        Attribute::new("comm_size", Value::Int64(signed(bytes))),
        number("comm_src", from),
        number("comm_dst", to),
        Attribute::new("comm_tag", Value::Int32(i32::try_from(tag).unwrap_or(i32::MAX))),
    ];
    Node { name, r#type: r#type.into(), attr, ..Node::default() }
}

/// Converts a number of bytes to the signed type of Chakra's sizes.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn path_of(prefix: &str, rank: Rank) -> String {
    format!("{prefix}.{rank}.et")
}

/// Writes one file for each rank.
pub(super) fn write_traces(prefix: &str, traces: &[Trace]) -> Result<(), String> {
    for (rank, trace) in (0..).zip(traces) {
        super::write(&path_of(prefix, rank), &trace.encode())?;
    }
    Ok(())
}

fn contents(path: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|error| format!("{path}: {error}"))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    if read.map_err(|error| format!("{path}: {error}"))? as u64 > FILE_BYTES_MAX {
        return Err(format!("{path} is longer than 1 GiB; trace a shorter run"));
    }
    Ok(bytes)
}

/// Splits the name of a trace into prefix and rank.
fn parts(name: &str) -> Option<(&str, Rank)> {
    let (prefix, rank) = name.strip_suffix(".et")?.rsplit_once('.')?;
    // Only the canonical spelling counts, so that two file names never mean the same rank.
    let rank: Rank = rank.parse().ok().filter(|number: &Rank| number.to_string() == rank)?;
    Some((prefix, rank))
}

fn names(dir: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Returns `given`, or, if `given` is a directory, the prefix of the traces in it.
fn whole_prefix(given: &str) -> Result<String, String> {
    let path = Path::new(given);
    if !path.is_dir() {
        return Ok(given.to_owned());
    }
    let names = names(path)?;
    let prefixes: BTreeSet<&str> =
        names.iter().filter_map(|name| parts(name)).map(|(prefix, _)| prefix).collect();
    let mut each = prefixes.iter();
    match (each.next(), each.next()) {
        (Some(prefix), None) => Ok(path.join(prefix).to_string_lossy().into_owned()),
        (None, _) => Err(format!(
            "{given} has no traces; traces are files PREFIX.0.et, PREFIX.1.et and so on, one for \
             each rank"
        )),
        _ => {
            let all: Vec<&str> = prefixes.into_iter().collect();
            Err(format!("{given} has traces of several jobs; name one: {}", all.join(" ")))
        }
    }
}

/// Returns the number of ranks: the highest rank that has a file, plus 1. Returns an error if a
/// lower rank has no file.
fn ranks_of(prefix: &str) -> Result<u32, String> {
    let path = PathBuf::from(prefix);
    let stem = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let stem = stem.unwrap_or_default();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names = names(dir)?;
    let ranks: BTreeSet<Rank> = names
        .iter()
        .filter_map(|name| parts(name))
        .filter_map(|(prefix, rank)| (prefix == stem).then_some(rank))
        .collect();
    let last = *ranks.last().ok_or_else(|| {
        format!("there is no {}; give the prefix that precedes .RANK.et", path_of(prefix, 0))
    })?;
    if last >= RANKS_MAX {
        return Err(format!(
            "the rank of {} is too high: the limit is {RANKS_MAX} ranks",
            path_of(prefix, last)
        ));
    }
    let missing = || (0..last).filter(|rank| !ranks.contains(rank));
    if let Some(first) = missing().next() {
        return Err(format!(
            "{} is missing (traces missing: {} of {}); copy the missing traces here",
            path_of(prefix, first),
            missing().count(),
            last + 1
        ));
    }
    Ok(last + 1)
}

/// Reads groups in ASTRA-sim's format: an object of lists of ranks.
fn read_groups(path: &str, ranks: u32) -> Result<Vec<Group>, String> {
    let groups: BTreeMap<String, Vec<Rank>> =
        serde_json::from_slice(&contents(path)?).map_err(|error| {
            format!(
                "{path}:{}: {error}; write the ranks of each group, such as {{\"1\": [0, 1]}}",
                error.line()
            )
        })?;
    let mut all = Vec::new();
    for (name, members) in groups {
        let mut seen = BTreeSet::new();
        let wrong = members.iter().find(|rank| **rank >= ranks || !seen.insert(**rank));
        if let Some(rank) = wrong {
            return Err(format!(
                "{path}: group {name:?} has rank {rank}, which is above {} or listed twice",
                ranks - 1
            ));
        }
        if members.is_empty() {
            return Err(format!(
                "{path}: group {name:?} has no ranks; list its ranks, or leave the group out"
            ));
        }
        all.push(Group { name, members });
    }
    Ok(all)
}

/// Returns the actions in the trace of a rank.
fn list(path: &str, trace: &Trace, rank: Rank, groups: &[Group]) -> Result<Vec<Entry>, String> {
    let (mut list, mut ids) = (Vec::new(), BTreeSet::new());
    for node in &trace.nodes {
        let at = |what: String| format!("{path}, node {}: {what}", node.id);
        if !ids.insert(node.id) {
            return Err(at("two nodes have this number; give each node its own".to_owned()));
        }
        if let Some(what) = what(node, rank, groups).map_err(at)? {
            let (start_us, duration_us) = (node.start_time_micros, node.duration_micros);
            list.push(Entry { node: node.id, what, start_us, duration_us });
        }
    }
    Ok(list)
}

fn what(node: &Node, rank: Rank, groups: &[Group]) -> Result<Option<Action>, String> {
    let kind = NodeType::try_from(node.r#type).ok().filter(|kind| *kind != NodeType::Invalid);
    match kind {
        None => Err(format!(
            "type {} is not one of Chakra's types, 1 to 7; is the file a trace of schema 1.0?",
            node.r#type
        )),
        Some(NodeType::CommColl) => collective(node, rank, groups).map(Some),
        Some(NodeType::CommSend | NodeType::CommRecv) => message(node, rank, groups).map(Some),
        Some(_) => Ok(None),
    }
}

fn required(node: &Node, name: &str) -> Result<u64, String> {
    let found = number(&node.attr, name)?;
    found.ok_or_else(|| format!("{} has no attribute {name}; add it", node.name))
}

fn collective(node: &Node, rank: Rank, groups: &[Group]) -> Result<Action, String> {
    let kind = required(node, "comm_type")?;
    let known = i32::try_from(kind).ok().and_then(|kind| CommType::try_from(kind).ok());
    let known =
        known.ok_or_else(|| format!("comm_type {kind} is not one of Chakra's types, 0 to 9"))?;
    let collective = collective_of(known);
    let name = word(&node.attr, "pg_name")?.unwrap_or_default();
    let group = groups.iter().position(|group| group.name == name).ok_or_else(|| {
        format!(
            "the members of group {name:?} are unknown; write {{\"{name}\": [0, 1]}} to a file, \
             and pass the file with --groups"
        )
    })?;
    let members = groups.get(group).map_or(&[][..], |group| &group.members);
    if !members.contains(&rank) {
        return Err(format!("rank {rank} is not in group {name:?}; correct the file of groups"));
    }
    let brought = match collective {
        Collective::Barrier => 0,
        _ => required(node, "comm_size")?,
    };
    let share = if brings_a_block(collective) { members.len() as u64 } else { 1 };
    let bytes = brought.checked_mul(share).filter(|bytes| i64::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or_else(|| {
        format!(
            "comm_size {brought} is too large: the buffer of {} ranks would have 2^63 bytes or \
             more; is the unit bytes?",
            members.len()
        )
    })?;
    let root = if collective.has_root() { number(&node.attr, "root")?.unwrap_or(0) } else { 0 };
    let root = Rank::try_from(root).ok().filter(|root| (*root as usize) < members.len());
    let root = root.ok_or_else(|| format!("the root is too high for {} ranks", members.len()))?;
    let is_uneven = number(&node.attr, "uneven")? == Some(1);
    Ok(Action::Collective { collective, group, bytes, root, is_uneven })
}

fn message(node: &Node, rank: Rank, groups: &[Group]) -> Result<Action, String> {
    let ranks = groups.first().map_or(0, |all| all.members.len());
    let peer = |name: &str| {
        let peer = required(node, name)?;
        let known = Rank::try_from(peer).ok().filter(|peer| (*peer as usize) < ranks);
        known.ok_or_else(|| format!("{name} {peer} is too high for {ranks} ranks; correct it"))
    };
    let sends = node.r#type == i32::from(NodeType::CommSend);
    let own = if sends { "comm_src" } else { "comm_dst" };
    if number(&node.attr, own)?.is_some() && peer(own)? != rank {
        return Err(format!("{own} is not rank {rank}; is the file the trace of another rank?"));
    }
    let bytes = required(node, "comm_size")?;
    if i64::try_from(bytes).is_err() {
        return Err(format!("{bytes} bytes are 2^63 or more; is the unit bytes?"));
    }
    let tag = number(&node.attr, "comm_tag")?.unwrap_or(0);
    let peer = peer(if sends { "comm_dst" } else { "comm_src" })?;
    if peer == rank {
        return Err("the rank sends this message to itself; leave the message out".to_owned());
    }
    Ok(match sends {
        true => Action::Send { to: peer, bytes, tag },
        false => Action::Recv { from: peer, bytes, tag },
    })
}

/// Fuzz target: converts any trace to a list, or refuses it.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed_list(trace: &Trace) -> Result<Agreed, String> {
    let group =
        |name: &str, members: &[Rank]| Group { name: name.to_owned(), members: members.to_vec() };
    let groups = vec![group("", &[0, 1, 2]), group("3", &[0, 2])];
    let mut job = Job { prefix: "input".to_owned(), groups, lists: Vec::new() };
    for rank in 0..3 {
        let list = list("input", trace, rank, &job.groups)?;
        job.lists.push(list);
    }
    for (rank, trace) in (0..).zip(job.traces()) {
        assert_eq!(
            list("again", &trace, rank, &job.groups).as_ref(),
            Ok(&job.lists[rank as usize])
        );
    }
    job.agreed()
}

#[cfg(test)]
pub(super) mod tests;
