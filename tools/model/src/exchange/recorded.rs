//! Job recorded by its ranks: calls from dumps of the flight recorder (`FERROCCL_DUMP`), and from
//! recordings of whole runs (`FERROCCL_TRACE`), which also have times.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::Read as _;
use std::ops::RangeInclusive;

use ccl_core::types::{Collective, DataType, Rank};
use serde::Deserialize;

use super::job::{Action, Entry, Group, Job};
use ccl_traffic::matrix::RANKS_MAX;

/// Largest number of bytes of all files together.
const BYTES_MAX: u64 = 4 << 30;

/// A line of a recording, or the fields of a dump that are used here.
#[derive(Debug, Deserialize)]
struct Line {
    communicator: String,
    rank: Rank,
    ranks: u32,
    process: u32,
    host: String,
    operations: Vec<Operation>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Operation {
    number: u64,
    what: String,
    collective: Option<String>,
    data_type: Option<String>,
    count: Option<u64>,
    bytes: u64,
    root: Option<Rank>,
    /// Peers that the operation sends to, each with the number of bytes.
    #[serde(default)]
    sends: Vec<(Rank, u64)>,
    /// Peers that the operation receives from, each with the number of bytes.
    #[serde(default)]
    recvs: Vec<(Rank, u64)>,
    #[serde(default)]
    sequence: u64,
    #[serde(default)]
    start_us: u64,
    #[serde(default)]
    duration_us: u64,
}

/// Contents of recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Collectives and messages, by rank.
    pub job: Job,
    /// Number of groups of sends and receives that are left out. All groups of a communicator are
    /// left out if its recordings lack a call, or the peers of any group.
    pub messages: u64,
    /// True if calls are missing: a dump has only the last calls of its rank.
    pub is_cut: bool,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorded { job, messages, is_cut } = self;
        let (ranks, groups) = (job.ranks(), job.groups.len());
        let calls: usize = job.lists.iter().map(Vec::len).sum();
        write!(f, "{calls} calls of {ranks} ranks in {groups} groups: {}.*.et", job.prefix)?;
        if *messages > 0 {
            write!(
                f,
                "\n{messages} groups of sends and receives are left out: their peers are \
                 known only from whole recordings (FERROCCL_TRACE)"
            )?;
        }
        if *is_cut {
            f.write_str(
                "\ncalls are missing: a dump has only the last calls of its rank; FERROCCL_TRACE \
                 records all calls",
            )?;
        }
        Ok(())
    }
}

/// Identity of a member of a communicator, independent of its rank there: host and process.
type Member = (String, u32);

#[derive(Debug, Default)]
struct Communicator {
    ranks: u32,
    members: BTreeMap<Rank, Member>,
    operations: BTreeMap<Rank, BTreeMap<u64, Operation>>,
}

/// Reads recordings and dumps. A file may have the recordings of several ranks.
///
/// # Errors
///
/// When a file cannot be read or is not a recording; when a rank has no recording, or recordings of
/// two processes. An error in a line names the file and the line.
pub fn read(paths: &[String], prefix: &str) -> Result<Recorded, String> {
    let (mut found, mut left) = (BTreeMap::new(), BYTES_MAX);
    for path in paths {
        let mut text = String::new();
        let file = fs::File::open(path).map_err(|error| format!("{path}: {error}"))?;
        let read = file.take(left + 1).read_to_string(&mut text);
        let read = read.map_err(|error| format!("{path}: {error}; is it a recording?"))? as u64;
        left = left.checked_sub(read).ok_or_else(|| {
            format!("with {path}, the recordings are longer than 4 GiB; record a shorter run")
        })?;
        parse(path, &text, &mut found)?;
    }
    of(found, prefix)
}

fn parse(path: &str, text: &str, found: &mut BTreeMap<String, Communicator>) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err(format!("{path} is empty; was a call made?"));
    }
    for (index, line) in text.lines().enumerate() {
        let at = |what: String| format!("{path}:{}: {what}", index + 1);
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(line).map_err(|error| {
            at(format!(
                "{error}; record with FERROCCL_TRACE=FILE.json, or dump with \
                 FERROCCL_DUMP=FILE.json"
            ))
        })?;
        let ranks = line.ranks;
        if ranks == 0 || ranks > RANKS_MAX || line.rank >= ranks {
            return Err(at(format!(
                "rank {} of {ranks} ranks is invalid; is the file a recording?",
                line.rank
            )));
        }
        let communicator = found.entry(line.communicator.clone()).or_default();
        if communicator.ranks != 0 && communicator.ranks != ranks {
            return Err(at(format!(
                "communicator {} has {ranks} ranks here, but {} in an earlier recording; give \
                 recordings of one run",
                line.communicator, communicator.ranks
            )));
        }
        let member = (line.host, line.process);
        let known = communicator.members.entry(line.rank).or_insert_with(|| member.clone());
        if *known != member {
            return Err(at(format!(
                "rank {} of communicator {} was on {} with process {} in an earlier recording; \
                 give recordings of one run",
                line.rank, line.communicator, known.0, known.1
            )));
        }
        communicator.ranks = ranks;
        let operations = communicator.operations.entry(line.rank).or_default();
        for operation in line.operations {
            // A recording and a dump may have the same operation; in a dump it has no times.
            let known = operations.get(&operation.number);
            if known.is_none_or(|known| known.start_us == 0) {
                operations.insert(operation.number, operation);
            }
        }
    }
    Ok(())
}

fn of(found: BTreeMap<String, Communicator>, prefix: &str) -> Result<Recorded, String> {
    let most = found.values().map(|communicator| communicator.ranks).max();
    let most = most.ok_or("there is no recording; give the files of all ranks")?;
    for (name, Communicator { ranks, members, .. }) in &found {
        if let Some(missing) = (0..*ranks).find(|rank| !members.contains_key(rank)) {
            return Err(format!(
                "communicator {name} has {ranks} ranks (recordings here: {}); give the recording \
                 of rank {missing} too",
                members.len()
            ));
        }
    }
    // The first communicator with the most ranks is taken as the communicator of all ranks.
    let whole = found.values().find(|communicator| communicator.ranks == most);
    let whole = whole.map(|whole| whole.members.clone()).unwrap_or_default();
    let places: BTreeMap<&Member, Rank> = whole.iter().map(|(rank, of)| (of, *rank)).collect();
    let mut groups = vec![Group { name: String::new(), members: (0..most).collect() }];
    let mut recorded = Recorded {
        job: Job { prefix: prefix.to_owned(), groups: Vec::new(), lists: Vec::new() },
        messages: 0,
        is_cut: false,
    };
    let mut lists: Vec<Vec<(Operation, Action)>> = Vec::new();
    lists.resize_with(most as usize, Vec::new);
    let several = found.len() > 1;
    for (name, communicator) in &found {
        let processes: BTreeSet<&Member> = communicator.members.values().collect();
        if several && processes.len() < communicator.members.len() {
            return Err(threads(name));
        }
        let common = communicator.common();
        let is_common = |call: &Operation| common.contains(&call.turn());
        let is_cut = *common.start() > 1 || !communicator.calls().all(is_common);
        recorded.is_cut |= is_cut;
        // Sends are usable only if the receives of their peers are known.
        let has_messages = !is_cut && communicator.operations.values().all(is_whole);
        let members = members(name, communicator, &whole, &places)?;
        let group = match members.iter().copied().eq(0..most) {
            true => 0,
            false => {
                groups.push(Group { name: groups.len().to_string(), members: members.clone() });
                groups.len() - 1
            }
        };
        for (operations, rank) in communicator.operations.values().zip(&members) {
            let Some(list) = lists.get_mut(*rank as usize) else { continue };
            for operation in operations.values() {
                let done = match operation.collective {
                    Some(_) if !is_common(operation) => continue,
                    Some(_) => what(operation, group, communicator.ranks)?.map(|what| vec![what]),
                    None if has_messages => Some(messages(operation, (group, &members), *rank)?),
                    None => None,
                };
                match done {
                    Some(done) => list.extend(done.into_iter().map(|one| (operation.clone(), one))),
                    None => recorded.messages += 1,
                }
            }
        }
    }
    recorded.job.groups = groups;
    recorded.job.lists = lists.into_iter().map(entries).collect();
    Ok(recorded)
}

impl Communicator {
    /// Returns the collectives of all ranks.
    fn calls(&self) -> impl Iterator<Item = &Operation> {
        let all = self.operations.values().flat_map(BTreeMap::values);
        all.filter(|operation| operation.collective.is_some())
    }

    /// Returns the numbers of the collectives that all ranks have, as a range. Dumps of ranks that
    /// have advanced unequally begin and end at different collectives.
    fn common(&self) -> RangeInclusive<u64> {
        let ends = self.operations.values().map(|of| {
            let mut turns = of.values().filter(|one| one.collective.is_some()).map(Operation::turn);
            let first = turns.next().unwrap_or(0);
            (first, turns.next_back().unwrap_or(first))
        });
        let (first, last) = ends
            .fold((0, u64::MAX), |(first, last), (begin, end)| (first.max(begin), last.min(end)));
        first..=last
    }
}

impl Operation {
    /// Returns the number of the collective within its communicator.
    fn turn(&self) -> u64 {
        if self.sequence > 0 { self.sequence } else { self.number }
    }
}

/// Returns whether a rank's recording is complete: it has every operation, and the peers of each
/// group of sends and receives.
fn is_whole(operations: &BTreeMap<u64, Operation>) -> bool {
    let is_known = |operation: &Operation| {
        let Operation { collective, sends, recvs, .. } = operation;
        collective.is_some() || !(sends.is_empty() && recvs.is_empty())
    };
    operations.keys().copied().eq(1..=operations.len() as u64) && operations.values().all(is_known)
}

/// Returns the messages that a rank sends to and receives from other ranks in one operation. `own`
/// is the number of the rank in the job. The tag of a message is the index of its [`Group`], so
/// messages between the same two ranks in different groups do not match.
fn messages(
    operation: &Operation,
    (group, members): (usize, &[Rank]),
    own: Rank,
) -> Result<Vec<Action>, String> {
    let Operation { number, what, sends, recvs, .. } = operation;
    let tag = group as u64;
    let other = |(peer, bytes): &(Rank, u64)| {
        let peer = members.get(*peer as usize).copied();
        let peer = peer.filter(|_| i64::try_from(*bytes).is_ok());
        let wrong = || {
            format!(
                "operation {number} ({what}): a message has an unknown peer or is too long; are \
                 the files recordings?"
            )
        };
        Ok::<_, String>((peer.ok_or_else(wrong)?, *bytes))
    };
    let (sends, recvs) = (sends.iter().map(other), recvs.iter().map(other));
    let sends = sends.map(|sent| sent.map(|(to, bytes)| (to, Action::Send { to, bytes, tag })));
    let recvs = recvs.map(|got| got.map(|(from, bytes)| (from, Action::Recv { from, bytes, tag })));
    let all = sends.chain(recvs).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().filter(|(peer, _)| *peer != own).map(|(_, done)| done).collect())
}

/// Sorts operations by start time. Operations without times come first, in unchanged order.
fn entries(mut list: Vec<(Operation, Action)>) -> Vec<Entry> {
    list.sort_by_key(|(operation, _)| operation.start_us);
    let entry = |(node, (operation, what)): (u64, (Operation, Action))| {
        let Operation { start_us, duration_us, .. } = operation;
        Entry { node, what, start_us, duration_us }
    };
    (0..).zip(list).map(entry).collect()
}

/// Returns the members of a communicator as ranks of the job.
fn members(
    name: &str,
    communicator: &Communicator,
    whole: &BTreeMap<Rank, Member>,
    places: &BTreeMap<&Member, Rank>,
) -> Result<Vec<Rank>, String> {
    if communicator.members == *whole {
        return Ok(whole.keys().copied().collect());
    }
    let place = |member: &Member| {
        places.get(member).copied().ok_or_else(|| {
            format!(
                "process {} on {} is in communicator {name}, but not in the largest \
                 communicator; give recordings of one job",
                member.1, member.0
            )
        })
    };
    let members: Vec<Rank> = communicator.members.values().map(place).collect::<Result<_, _>>()?;
    let distinct: BTreeSet<Rank> = members.iter().copied().collect();
    if distinct.len() != members.len() || places.len() != whole.len() {
        return Err(threads(name));
    }
    Ok(members)
}

fn threads(name: &str) -> String {
    format!(
        "several ranks of communicator {name} share one process, so their ranks in the whole job \
         are unknown; leave out the recordings of this communicator, or run each rank as a process"
    )
}

fn what(operation: &Operation, group: usize, ranks: u32) -> Result<Option<Action>, String> {
    let Some(name) = &operation.collective else { return Ok(None) };
    let collective: Collective = name.parse().map_err(|error| {
        format!("operation {}: {error}; was it recorded by a newer version?", operation.number)
    })?;
    let is_uneven = super::job::even(collective) != Some(collective);
    let Some(collective) = super::job::even(collective) else { return Ok(None) };
    let wrong = |what: String| {
        format!(
            "operation {} ({}): {what}; are the files recordings?",
            operation.number, operation.what
        )
    };
    let root = operation.root.filter(|_| collective.has_root()).unwrap_or(0);
    if root >= ranks {
        return Err(wrong(format!("root {root} is too high for {ranks} ranks")));
    }
    // If a rank is not the root and has only the smaller buffer, `operation.bytes` is the size of
    // the smaller buffer. So the larger size is computed from `count`, the same on all ranks.
    let blocks = collective.even_blocks(ranks).filter(|_| !is_uneven);
    let bytes = match (blocks, operation.count, &operation.data_type) {
        _ if collective == Collective::Barrier => Some(0),
        (Some(blocks), Some(count), Some(data_type)) => {
            let width = data_type.parse::<DataType>().map_err(|error| wrong(error.to_string()))?;
            let block = count.checked_mul(width.bytes() as u64);
            block.and_then(|block| block.checked_mul(u64::from(blocks)))
        }
        _ => Some(operation.bytes),
    };
    let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or_else(|| wrong("it has 2^63 bytes or more".to_owned()))?;
    Ok(Some(Action::Collective { collective, group, bytes, root, is_uneven }))
}

/// Fuzz target: any recording becomes a job or is refused.
#[cfg(any(test, fuzzing))]
pub fn fuzzed(data: &[u8]) {
    let mut found = BTreeMap::new();
    let read = parse("input", &String::from_utf8_lossy(data), &mut found);
    // A recording with fewer ranks than it claims is refused before a list is allocated.
    let Ok(recorded) = read.and_then(|()| of(found, "input")) else { return };
    let _ = (recorded.job.traces(), recorded.job.agreed());
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::Dir;
    use super::*;

    /// Returns a line of a recording: the operations of one rank, which is one process.
    fn line(communicator: &str, rank: u32, ranks: u32, process: u32, operations: &str) -> String {
        format!(
            "{{\"communicator\":\"{communicator}\",\"rank\":{rank},\"ranks\":{ranks},\
             \"process\":{process},\"host\":\"a\",\"state\":\"computing\",\
             \"operations\":[{operations}]}}\n"
        )
    }

    fn call(number: u64, collective: &str, count: u64, root: &str, start_us: u64) -> String {
        format!(
            "{{\"number\":{number},\"what\":\"it\",\"collective\":\"{collective}\",\
             \"data_type\":\"float\",\"count\":{count},\"root\":{root},\"bytes\":{},\
             \"start_us\":{start_us},\"duration_us\":7}}",
            4 * count
        )
    }

    fn read(text: &str) -> Result<Recorded, String> {
        let mut found = BTreeMap::new();
        parse("calls.json", text, &mut found)?;
        of(found, "t")
    }

    #[test]
    fn recordings_of_all_ranks_become_a_job() {
        let mut text = String::new();
        for rank in 0..4 {
            let first = call(1, "all_reduce", 100, "null", 1_000);
            let messages = "{\"number\":3,\"what\":\"a send\",\"collective\":null,\"bytes\":4}";
            let last = call(2, "gather", 25, "3", 3_000);
            text += &line("b", rank, 4, 10 + rank, &first);
            text += &line("b", rank, 4, 10 + rank, &[last, messages.to_owned()].join(","));
            // One communicator of the even ranks, one of the odd ranks, each in reverse order.
            let pair = call(1, "all_gather", 50, "null", 2_000);
            let name = if rank % 2 == 0 { "even" } else { "odd" };
            text += &line(name, 1 - rank / 2, 2, 10 + rank, &pair);
        }
        let recorded = read(&text).unwrap();
        assert_eq!((recorded.messages, recorded.is_cut), (4, false));
        let members: Vec<_> = recorded.job.groups.iter().map(|group| &group.members[..]).collect();
        assert_eq!(members, [&[0, 1, 2, 3][..], &[2, 0], &[3, 1]]);
        let calls = recorded.job.agreed().unwrap().calls;
        let seen: Vec<_> =
            calls.iter().map(|call| (call.collective, call.bytes, call.root)).collect();
        use Collective as C;
        assert_eq!(
            seen,
            [
                (C::AllReduce, 400, 0),
                (C::AllGather, 400, 0),
                (C::AllGather, 400, 0),
                (C::Gather, 400, 3)
            ]
        );
        assert_eq!((calls[0].start_us, calls[0].duration_us), (1_000, 7));
        let dir = Dir::new("recorded");
        let prefix = dir.at("job");
        recorded.job.write(&prefix).unwrap();
        let again = Job::read(&prefix, None).unwrap();
        assert_eq!((again.lists, again.groups), (recorded.job.lists, recorded.job.groups));
    }

    /// Returns a group of sends and receives of a rank, in the form of a recording.
    fn group(number: u64, sequence: u64, sends: &str, recvs: &str) -> String {
        format!(
            "{{\"number\":{number},\"sequence\":{sequence},\"what\":\"messages\",\
             \"collective\":null,\"bytes\":9,\"sends\":[{sends}],\"recvs\":[{recvs}],\
             \"start_us\":{},\"duration_us\":3}}",
            10 * number
        )
    }

    /// Checks messages of a pipeline: its ranks record different numbers of groups of messages, but
    /// the same collectives.
    #[test]
    fn sends_are_matched_with_the_receives_of_their_peers() {
        let reduce = |number: u64| {
            let call = call(number, "all_reduce", 100, "null", 10 * number);
            call.replace("\"what\"", "\"sequence\":1,\"what\"")
        };
        let lines = |last: &str| {
            // In "b", ranks 2, 0 and 1 of the job are ranks 0, 1 and 2. Rank 0 of "b" also sends to
            // itself.
            let first = [group(1, 0, "[1,70],[0,8]", "[0,8]"), reduce(2)].join(",");
            let second = [group(1, 0, "[2,30]", "[0,70]"), reduce(2), group(3, 1, "[2,5]", "")];
            let third = [group(1, 0, "", "[1,30]"), reduce(2), last.to_owned()].join(",");
            let whole = |rank| line("a", rank, 3, 10 + rank, "");
            let own =
                |rank: u32, process, operations: &str| line("b", rank, 3, process, operations);
            let all = [own(0, 12, &first), own(1, 10, &second.join(",")), own(2, 11, &third)];
            (0..3).map(whole).collect::<String>() + &all.concat()
        };
        let recorded = read(&lines(&group(3, 1, "", "[1,5]"))).unwrap();
        assert_eq!((recorded.messages, recorded.is_cut), (0, false));
        let agreed = recorded.job.agreed().unwrap();
        let sent: Vec<_> =
            agreed.messages.iter().map(|sent| (sent.from, sent.to, sent.bytes)).collect();
        assert_eq!(sent, [(0, 1, 30), (0, 1, 5), (2, 0, 70)]);
        assert_eq!((agreed.calls.len(), agreed.messages[1].start_us), (1, 30));
        // Nodes that began together wait for earlier nodes, and not for each other.
        let trace = &recorded.job.traces()[0];
        let waits: Vec<_> = trace.nodes.iter().map(|node| &node.ctrl_deps[..]).collect();
        assert_eq!(waits, [&[][..], &[], &[0, 1], &[2]]);
        // Cases: a send without a receive, a rank without recorded peers, a wrong peer or length.
        let error = read(&lines(&group(3, 1, "", "[0,5]"))).unwrap().job.agreed().unwrap_err();
        assert!(error.contains("which does not receive them"), "{error}");
        let silent = read(&lines(&group(3, 1, "", ""))).unwrap();
        assert_eq!((silent.messages, silent.job.agreed().unwrap().messages.len()), (5, 0));
        for wrong in ["[3,5]", "[1,18446744073709551615]"] {
            let error = read(&lines(&group(3, 1, "", wrong))).unwrap_err();
            assert!(error.contains("a message has an unknown peer or is too long"), "{error}");
        }
        // If calls of one rank are missing, no rank's messages are usable.
        let cut = lines(&group(3, 1, "", "[1,5]")).replacen("\"sequence\":1", "\"sequence\":2", 1);
        let cut = read(&cut).unwrap();
        assert_eq!((cut.is_cut, cut.messages), (true, 5));
    }

    #[test]
    fn a_dump_without_times_leaves_the_recorded_times_in_the_job() {
        let timed = line("b", 0, 1, 9, &call(1, "all_reduce", 1, "null", 5));
        let bare = line("b", 0, 1, 9, &call(1, "all_reduce", 1, "null", 0));
        for text in [timed.clone() + &bare, bare + &timed] {
            assert_eq!(read(&text).unwrap().job.lists[0][0].start_us, 5);
        }
        assert!(read(&line("b", 0, 1, 9, &call(17, "barrier", 0, "null", 0))).unwrap().is_cut);
    }

    #[test]
    fn invalid_recordings_are_refused_with_the_reason() {
        let good = call(1, "all_reduce", 100, "null", 1);
        let one = |rank, ranks, process| line("b", rank, ranks, process, &good);
        for (text, said) in [
            (String::new(), "calls.json is empty"),
            (one(0, 2, 9) + "nonsense", "calls.json:2: expected ident"),
            ("ferroccl: rank 0 of 2".to_owned(), "dump with FERROCCL_DUMP=FILE.json"),
            (one(0, 2, 9), "(recordings here: 1); give the recording of rank 1 too"),
            (one(0, 4_000_000_000, 9), "is invalid"),
            (one(0, 262_144, 9), "give the recording of rank 1 too"),
            (one(2, 2, 9), "rank 2 of 2 ranks is invalid"),
            (one(0, 2, 9) + &one(0, 2, 10), "calls.json:2: rank 0 of communicator b was on a with"),
            (one(0, 2, 9) + &one(1, 3, 9), "2: communicator b has 3 ranks here, but 2 in"),
            (
                one(0, 1, 9) + &line("c", 0, 1, 8, ""),
                "is in communicator c, but not in the largest",
            ),
            (line("b", 0, 1, 9, &call(1, "all_reduc", 1, "null", 1)), "unknown collective"),
            (line("b", 0, 1, 9, &call(1, "reduce", 1, "5", 1)), "root 5 is too high for 1 ranks"),
            (
                line("b", 0, 1, 9, &call(1, "reduce", u64::MAX / 4, "0", 1)),
                "has 2^63 bytes or more",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        // Ranks 0 and 1 of "b" are threads of process 9. In a second communicator, process 9 could
        // be either rank, so the recordings are refused.
        let two = one(0, 2, 9) + &one(1, 2, 9);
        assert!(read(&two).is_ok());
        let split = two + &line("c", 0, 1, 9, &good);
        assert!(read(&split).unwrap_err().contains("several ranks of communicator b share one"));
    }
}
