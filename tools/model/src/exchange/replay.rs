//! A recorded job on another cluster: the traffic of its collectives there, and their predicted
//! times.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use crate::topology::Topology;
use ccl_core::select::tuning::Tuning;
use ccl_core::select::{Situation, check_configured, choose};
use ccl_core::types::{Collective, DataType, Rank};
use ccl_traffic::{Bytes, Sent as Sends, Traffic};
use serde::Serialize;

use super::job::{Agreed, Call, Job};
use super::predicted;
use crate::plan::{Scene, Sized};
use crate::quantity::{self, Unit};
use ccl_traffic::matrix::{INTERVALS_MAX, PAIRS_MAX};

/// Job whose ranks are placed on the first hosts of a cluster.
pub struct Replay<'a> {
    job: &'a Job,
    agreed: &'a Agreed,
    topology: &'a Topology,
    /// Scene of each group; the first scene has all ranks.
    scenes: Vec<Scene>,
    algorithm: &'a str,
    slot_bytes: usize,
}

impl fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replay({} on {})", self.job.prefix, self.topology.name)
    }
}

/// Group, collective, bytes and root of a call, and whether its blocks may have different lengths.
/// Calls with equal keys have the same traffic and prediction.
type Key = (usize, Collective, u64, Rank, bool);

fn key(call: &Call) -> Key {
    (call.group, call.collective, call.bytes, call.root, call.is_uneven)
}

/// Calls with equal group, collective, bytes, root and evenness, as recorded and as predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the collective.
    pub collective: String,
    /// Name of the group; empty for all ranks.
    pub group: String,
    /// Number of ranks of the group.
    pub ranks: u32,
    /// Bytes of the larger buffer; for uneven collectives the mean over the ranks.
    pub bytes: u64,
    /// Number of these calls.
    pub calls: u64,
    /// Recorded time of all calls together, in seconds; none if any of them has no recorded time.
    pub recorded_s: Option<f64>,
    /// Algorithm by which the calls are predicted.
    pub algorithm: String,
    /// Protocol by which the calls are predicted.
    pub protocol: String,
    /// Predicted time of all calls together, in seconds; none for calls that move no data.
    pub predicted_s: Option<f64>,
}

/// Recorded and predicted times of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    ranks: u32,
    topology: String,
    hosts: u32,
    rows: Vec<Row>,
    /// Recorded time of the rows that have a recorded and a predicted time.
    recorded_s: f64,
    /// Predicted time of the same rows.
    beside_s: f64,
    /// Predicted time of all calls that have one.
    predicted_s: f64,
    /// Number of messages between pairs of ranks; the times do not include messages.
    messages: usize,
}

/// Number of rank pairs above which the cached traffic of earlier calls is dropped.
const KNOWN_PAIRS_MAX: usize = 1 << 22;

impl<'a> Replay<'a> {
    /// Places the ranks of a job on the first hosts of a topology, filling each host. A collective
    /// takes the algorithm or family that `algorithm` names. If none is named, or the collective
    /// has no such algorithm, it takes the library's choice.
    ///
    /// # Errors
    ///
    /// When the topology has fewer ranks than the job; when there is no such algorithm.
    pub fn new(
        job: &'a Job,
        agreed: &'a Agreed,
        topology: &'a Topology,
        algorithm: Option<&'a str>,
    ) -> Result<Replay<'a>, String> {
        let algorithm = algorithm.unwrap_or_default();
        check_configured(algorithm)
            .map_err(|error| error.to_string().replace("FERROCCL_ALGO=", "--algo "))?;
        let (all, ranks) = (Scene::of(topology, None)?, job.ranks());
        if ranks == 0 || ranks > all.hosts.ranks() {
            return Err(format!(
                "{} has {ranks} ranks, but {} has room for {}; take a larger topology: ferroccl \
                 topo --list",
                job.prefix,
                topology.name,
                all.hosts.ranks()
            ));
        }
        let used = Scene::of(topology, Some(all.hosts.seat(ranks - 1).0 + 1))?;
        let scenes = job.groups.iter().map(|group| used.among(&group.members)).collect();
        let slot_bytes = ccl_core::config::Config::default().slot_bytes.0;
        Ok(Replay { job, agreed, topology, scenes, algorithm, slot_bytes })
    }

    /// Returns the call with its algorithm; none if no data moves.
    fn chosen(&self, call: &Call) -> Result<Option<Chosen<'_>>, String> {
        let Some(scene) = self.scenes.get(call.group) else { return Ok(None) };
        let ranks = scene.hosts.ranks();
        let blocks = call.collective.even_blocks(ranks).unwrap_or(0);
        if u64::from(blocks) > call.bytes || blocks == 0 || ranks < 2 {
            return Ok(None);
        }
        let bytes =
            usize::try_from(call.bytes).map_err(|_| "a call has too many bytes".to_owned())?;
        let sized = Sized::of(call.collective, ranks, bytes, DataType::Uint8)?;
        let situation = Situation {
            collective: call.collective,
            bytes,
            hosts: &scene.hosts,
            deterministic: false,
            slot_bytes: self.slot_bytes,
            call: None,
            configured: self.algorithm,
            tuning: &Tuning::default(),
            predicted: &[],
        };
        let choice = choose(&situation).map_err(|error| error.to_string())?;
        Ok(Some(Chosen { scene, sized, algorithm: choice.algorithm }))
    }

    /// Returns the traffic by interval and pair of ranks. Each interval lasts `interval_s` seconds;
    /// a call belongs to the interval in which it began. Without `interval_s`, one interval covers
    /// the job.
    ///
    /// # Errors
    ///
    /// When there are too many intervals or bytes, or when `interval_s` is given and no call or
    /// message has a time.
    pub fn traffic(&self, interval_s: Option<f64>) -> Result<Traffic, String> {
        let (begin_us, end_us) = self.span()?;
        let whole_s = (end_us - begin_us) as f64 / 1e6;
        let interval_s = match interval_s {
            Some(interval_s) if !(interval_s.is_finite() && interval_s > 0.0) => {
                return Err(format!("--interval {interval_s}: give seconds above 0, such as 0.01"));
            }
            Some(_) if end_us == 0 => {
                return Err("no call was recorded with its time; leave out --interval, or record \
                            with FERROCCL_TRACE"
                    .to_owned());
            }
            Some(interval_s) => interval_s,
            None if whole_s > 0.0 => whole_s,
            // Without recorded times, the interval is as long as the predicted time.
            None => Some(self.compare()?.predicted_s).filter(|s| *s > 0.0).unwrap_or(1.0),
        };
        let count = (whole_s / interval_s).ceil().max(1.0);
        if count > INTERVALS_MAX as f64 {
            return Err(format!(
                "{whole_s} s are more than {INTERVALS_MAX} intervals of {interval_s} s; give a \
                 longer --interval"
            ));
        }
        let mut intervals = vec![Bytes::new(); count as usize];
        let mut known: BTreeMap<Key, Bytes> = BTreeMap::new();
        let (mut pairs, mut sum) = (0, 0_u64);
        let mut add = |start_us: u64, sent: &Bytes| -> Result<(), String> {
            let at = (start_us.saturating_sub(begin_us)) as f64 / 1e6 / interval_s;
            let index = (at as usize).min(intervals.len() - 1);
            for (pair, bytes) in sent {
                sum = sum.checked_add(*bytes).ok_or("the ranks send 2^64 bytes or more")?;
                let entry = intervals[index].entry(*pair).or_insert_with(|| {
                    pairs += 1;
                    0
                });
                *entry += bytes;
            }
            match pairs > PAIRS_MAX {
                true => Err(format!(
                    "the traffic has more than {PAIRS_MAX} lines, one for each interval and pair \
                     of ranks; give a longer --interval"
                )),
                false => Ok(()),
            }
        };
        // A call without a time counts in the interval of the previous call.
        let mut last_us = begin_us;
        for call in &self.agreed.calls {
            let key = key(call);
            if known.values().map(Bytes::len).sum::<usize>() > KNOWN_PAIRS_MAX {
                known.clear();
            }
            last_us = if call.is_timed() { call.start_us } else { last_us };
            let sent = match known.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.sent(call)?),
            };
            add(last_us, sent)?;
        }
        for message in &self.agreed.messages {
            add(message.start_us, &[((message.from, message.to), message.bytes)].into())?;
        }
        Ok(Traffic { ranks: self.job.ranks(), interval_s, intervals })
    }

    /// Returns the earliest start and the latest end of all timed calls and messages, in
    /// microseconds.
    fn span(&self) -> Result<(u64, u64), String> {
        let calls = self.agreed.calls.iter().map(|call| (call.start_us, call.duration_us));
        let messages = self.agreed.messages.iter().map(|message| (message.start_us, 0));
        let (mut begin, mut end) = (u64::MAX, 0);
        for (start, duration) in calls.chain(messages).filter(|times| *times != (0, 0)) {
            let ended = start.checked_add(duration).ok_or_else(|| {
                format!(
                    "a call that began at {start} µs took {duration} µs; is the unit microseconds?"
                )
            })?;
            (begin, end) = (begin.min(start), end.max(ended));
        }
        Ok((begin.min(end), end))
    }

    /// Returns the bytes that a call sends, by pair of ranks. Ranks are numbered as in the job, not
    /// as in the group.
    fn sent(&self, call: &Call) -> Result<Bytes, String> {
        let Some(Chosen { scene, sized, algorithm }) = self.chosen(call)? else {
            return Ok(Bytes::new());
        };
        let Sized { count, element_bytes, .. } = sized;
        let hosts = &scene.hosts;
        let sends = Sends { algorithm, root: call.root, count, element_bytes, hosts };
        let members = self.job.groups.get(call.group).map_or(&[][..], |group| &group.members);
        let all = |rank: Rank| members.get(rank as usize).copied().unwrap_or(rank);
        let sent = predicted::all(&sends)?;
        Ok(sent.into_iter().map(|((from, to), bytes)| ((all(from), all(to)), bytes)).collect())
    }

    /// Returns the recorded and the predicted times of the calls.
    ///
    /// # Errors
    ///
    /// When a call cannot be predicted.
    pub fn compare(&self) -> Result<Comparison, String> {
        let mut rows: Vec<Row> = Vec::new();
        let mut known: BTreeMap<Key, usize> = BTreeMap::new();
        for call in &self.agreed.calls {
            let key = key(call);
            let index = match known.get(&key) {
                Some(index) => *index,
                None => {
                    rows.push(self.row(call)?);
                    known.insert(key, rows.len() - 1);
                    rows.len() - 1
                }
            };
            let Some(row) = rows.get_mut(index) else { continue };
            row.calls += 1;
            let took = (call.duration_us > 0).then_some(call.duration_us as f64 / 1e6);
            row.recorded_s = row.recorded_s.zip(took).map(|(all, took)| all + took);
        }
        for row in &mut rows {
            row.predicted_s = row.predicted_s.map(|each| each * row.calls as f64);
        }
        // The calls that take the most time come first.
        let most = |row: &Row| row.predicted_s.or(row.recorded_s).unwrap_or(0.0);
        rows.sort_by(|one, other| most(other).total_cmp(&most(one)));
        let scene = self.scenes.first();
        let both = || rows.iter().filter_map(|row| row.recorded_s.zip(row.predicted_s));
        Ok(Comparison {
            ranks: self.job.ranks(),
            topology: self.topology.name.clone(),
            hosts: scene.map_or(0, |scene| scene.hosts.count()),
            // Only rows with both times are compared.
            recorded_s: both().map(|(recorded, _)| recorded).sum(),
            beside_s: both().map(|(_, predicted)| predicted).sum(),
            predicted_s: rows.iter().filter_map(|row| row.predicted_s).sum(),
            rows,
            messages: self.agreed.messages.len(),
        })
    }

    /// Returns a row that counts 0 calls and has the predicted time of one call.
    fn row(&self, call: &Call) -> Result<Row, String> {
        let group = self.job.groups.get(call.group);
        let mut row = Row {
            collective: call.collective.to_string() + if call.is_uneven { " (uneven)" } else { "" },
            group: group.map(|group| group.name.clone()).unwrap_or_default(),
            ranks: group.map_or(0, |group| group.members.len() as u32),
            bytes: call.bytes,
            calls: 0,
            recorded_s: Some(0.0),
            algorithm: String::new(),
            protocol: String::new(),
            predicted_s: None,
        };
        if let Some(Chosen { scene, sized, algorithm }) = self.chosen(call)? {
            let programs = scene.programs(algorithm, call.root);
            let fastest = scene.fastest(&programs, &sized)?;
            if let Some((protocol, seen)) = fastest {
                algorithm.name.clone_into(&mut row.algorithm);
                protocol.name.clone_into(&mut row.protocol);
                row.predicted_s = Some(seen.time_ns / 1e9);
            }
        }
        Ok(row)
    }
}

/// A call that moves data, with its algorithm.
struct Chosen<'a> {
    scene: &'a Scene,
    sized: Sized,
    algorithm: &'static ccl_core::algorithm::Algorithm,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison {
            ranks,
            topology,
            hosts,
            rows,
            recorded_s,
            beside_s,
            predicted_s,
            messages,
        } = self;
        let calls: u64 = rows.iter().map(|row| row.calls).sum();
        writeln!(f, "{calls} calls of {ranks} ranks, on {hosts} hosts of {topology}\n")?;
        let time = |time: Option<f64>| {
            time.map_or_else(|| "-".to_owned(), |time| quantity::show(time, Unit::Seconds))
        };
        let show = |row: &Row| {
            let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
            vec![
                row.collective.clone(),
                if row.group.is_empty() { "all".to_owned() } else { row.group.clone() },
                row.ranks.to_string(),
                quantity::show(row.bytes as f64, Unit::Bytes),
                row.calls.to_string(),
                time(row.recorded_s.filter(|recorded| *recorded > 0.0)),
                time(row.predicted_s),
                or_dash(&row.algorithm),
                or_dash(&row.protocol),
            ]
        };
        let heads = [
            "collective",
            "group",
            "ranks",
            "bytes",
            "calls",
            "recorded",
            "predicted",
            "algorithm",
            "protocol",
        ];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        table.extend(rows.iter().map(show));
        f.write_str(&crate::topology::columns(&table))?;
        let known = Some(*recorded_s).filter(|recorded| *recorded > 0.0);
        write!(f, "\nrecorded {}, predicted {}", time(known), time(Some(*predicted_s)))?;
        if let Some(recorded) = known.filter(|_| *beside_s > 0.0) {
            if beside_s < predicted_s {
                write!(f, ", of which {} for rows with a recorded time", time(Some(*beside_s)))?;
            }
            write!(f, ": {:.3} times the recorded time", beside_s / recorded)?;
        }
        writeln!(f)?;
        match messages {
            0 => Ok(()),
            _ => writeln!(f, "the times do not include {messages} messages between pairs of ranks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::topology::presets;

    use super::super::job::{self, Action, Group};
    use super::*;

    /// Returns a job of sixteen ranks: a call of all ranks, one of the even ranks, and one of all
    /// ranks, at these times.
    fn job(times: [u64; 3]) -> Job {
        let even: Vec<Rank> = (0..16).step_by(2).collect();
        let groups = vec![
            Group { name: String::new(), members: (0..16).collect() },
            Group { name: "1".to_owned(), members: even },
        ];
        let entry = |node: usize, collective, group, bytes| job::Entry {
            node: node as u64,
            what: Action::Collective { collective, group, bytes, root: 0, is_uneven: false },
            start_us: times[node],
            duration_us: if times[node] > 0 { 500 } else { 0 },
        };
        let list = |rank: Rank| {
            let mut list = vec![entry(0, Collective::AllReduce, 0, 1 << 20)];
            if rank.is_multiple_of(2) {
                list.push(entry(1, Collective::AllGather, 1, 8 << 10));
            }
            list.push(entry(2, Collective::AllReduce, 0, 1 << 20));
            list
        };
        Job { prefix: "t".to_owned(), groups, lists: (0..16).map(list).collect() }
    }

    fn with<T>(times: [u64; 3], algorithm: Option<&str>, then: impl FnOnce(&Replay<'_>) -> T) -> T {
        let (job, topology) = (job(times), presets::find("p5").unwrap().topology());
        let agreed = job.agreed().unwrap();
        then(&Replay::new(&job, &agreed, &topology, algorithm).unwrap())
    }

    #[test]
    fn a_call_sends_its_algorithms_traffic_in_the_interval_of_its_start() {
        let traffic = with([1_000_000, 1_250_000, 1_999_500], Some("ring"), |replay| {
            replay.traffic(Some(0.25)).unwrap()
        });
        assert_eq!((traffic.ranks, traffic.intervals.len()), (16, 4));
        let ring = |sent: &Bytes| sent.keys().all(|(from, to)| (from + 1) % 16 == *to);
        assert!(ring(&traffic.intervals[0]) && ring(&traffic.intervals[3]));
        assert_eq!(traffic.intervals[0].len(), 16);
        let all: u64 = traffic.intervals[0].values().sum();
        assert_eq!(all, 2 * 15 * (1 << 20));
        // Ranks are numbered as in the job, not as in the group. Each of the group's 8 ranks sends
        // 7 blocks of 1 KiB.
        let of_group = &traffic.intervals[1];
        assert_eq!(of_group.values().sum::<u64>(), 8 * 7 * 1024);
        assert!(of_group.keys().all(|(from, to)| from % 2 == 0 && (from + 2) % 16 == *to));
        assert!(traffic.intervals[2].is_empty());
        let whole = with([1_000_000, 1_250_000, 1_999_500], Some("ring"), |replay| {
            replay.traffic(None).unwrap()
        });
        assert_eq!((whole.whole(), whole.interval_s), (traffic.whole(), 1.0));
    }

    #[test]
    fn recorded_and_predicted_times_are_compared() {
        let seen = with([1, 1_000, 2_000], None, |replay| replay.compare().unwrap());
        assert_eq!((seen.hosts, seen.rows.len()), (2, 2));
        let reduce = &seen.rows[0];
        assert_eq!((reduce.calls, reduce.recorded_s, reduce.bytes), (2, Some(0.001), 1 << 20));
        assert!(reduce.predicted_s.unwrap() > 0.0 && !reduce.algorithm.is_empty());
        assert_eq!(seen.recorded_s, 0.0015);
        let text = seen.to_string();
        assert!(text.contains("3 calls of 16 ranks, on 2 hosts of p5"), "{text}");
        // `plan` predicts the same time for the same call.
        let topology = presets::find("p5").unwrap().topology();
        let request = crate::plan::PlanRequest {
            collective: Collective::AllReduce,
            bytes: 1 << 20,
            data_type: DataType::Float32,
            topology: &topology,
            hosts: Some(2),
        };
        let plan = predicted::traffic(&request, Some(&reduce.algorithm), None).unwrap();
        assert!((plan.time_s * 2.0 / reduce.predicted_s.unwrap() - 1.0).abs() < 0.01);
    }

    /// Checks that the recorded time is compared with the prediction of the same calls only.
    #[test]
    fn a_call_without_a_time_is_left_out_of_the_comparison() {
        let (job, topology) = (job([1, 1_000, 2_000]), presets::find("p5").unwrap().topology());
        let mut agreed = job.agreed().unwrap();
        agreed.calls[2].duration_us = 0;
        let seen = Replay::new(&job, &agreed, &topology, None).unwrap().compare().unwrap();
        let sum = |rows: &[&Row]| rows.iter().filter_map(|row| row.predicted_s).sum::<f64>();
        let timed: Vec<&Row> = seen.rows.iter().filter(|row| row.recorded_s.is_some()).collect();
        assert_eq!((timed.len(), seen.beside_s), (1, sum(&timed)));
        assert!(seen.beside_s < seen.predicted_s, "{seen:?}");
        assert!(seen.to_string().contains(" for rows with a recorded time: "), "{seen}");
    }

    #[test]
    fn without_times_one_interval_has_the_predicted_length() {
        with([0; 3], None, |replay| {
            let traffic = replay.traffic(None).unwrap();
            assert_eq!(traffic.intervals.len(), 1);
            assert_eq!(traffic.interval_s, replay.compare().unwrap().predicted_s);
            let error = replay.traffic(Some(0.1)).unwrap_err();
            assert!(error.contains("FERROCCL_TRACE"), "{error}");
        });
        with([1, 2, u64::MAX - 500], None, |replay| {
            let error = replay.traffic(Some(1e-6)).unwrap_err();
            assert!(error.contains("give a longer --interval"), "{error}");
            assert!(replay.traffic(Some(f64::NAN)).unwrap_err().contains("above 0"));
        });
        let error = with([1, 2, u64::MAX - 5], None, |replay| replay.traffic(None).unwrap_err());
        assert!(error.contains("is the unit microseconds?"), "{error}");
    }

    #[test]
    fn a_call_without_a_time_counts_in_the_interval_of_the_previous_call() {
        let traffic = with([1_999_000, 1_000_000, 0], Some("ring"), |replay| {
            replay.traffic(Some(0.5)).unwrap()
        });
        let sums = traffic.intervals.iter().map(|sent| sent.values().sum::<u64>());
        assert_eq!(Vec::from_iter(sums), [8 * 7 * 1024, 2 * 2 * 15 * (1 << 20)]);
    }

    #[test]
    fn an_unknown_algorithm_and_a_job_with_too_many_ranks_are_refused() {
        let (job, topology) = (job([0; 3]), presets::find("h100").unwrap().topology());
        let agreed = job.agreed().unwrap();
        let error = Replay::new(&job, &agreed, &topology, None).unwrap_err();
        assert!(error.contains("t has 16 ranks, but h100 has room for 8"), "{error}");
        let topology = presets::find("p5").unwrap().topology();
        let error = Replay::new(&job, &agreed, &topology, Some("rign")).unwrap_err();
        assert!(error.contains("--algo rign: no algorithm or family has this name"), "{error}");
    }
}
