//! Replay of recorded or computed traffic over a fabric, interval by interval.

use std::collections::BTreeMap;

use ccl_core::types::Rank;
use ccl_plot::Figure;
use ccl_traffic::{Bytes, Traffic};

use super::{Ask, Parameter, Setting, demands, tell_links};
use crate::SimError;
use crate::measure::{mean, spread};
use crate::network::Network;
use crate::report::{Findings, Report, Unit};
use crate::routing::{Interval, Router, Scheme, Te};
use crate::streams::{self, RunParams, Stream, ports_s, roofline_s};
use crate::workload::of_pair;

/// Parameters of a replay.
pub const PARAMETERS: &[Parameter] = &[
    Parameter { name: "pairs", value: 4.0, what: "queue pairs of each pair of NICs" },
    Parameter {
        name: "message_kib",
        value: 1024.0,
        what: "KiB of a message; only flowlet and adaptive routing use it",
    },
];

const TITLE: &str = "recorded traffic, replayed";
/// Largest number of points in a line of the figure.
const POINTS: usize = 400;
/// Largest number of messages of an interval; simulating that many takes minutes.
const MESSAGES_MAX: f64 = 50e6;

/// Replays traffic over the network of `ask`. Ranks fill hosts, and send by the NICs nearest to
/// them. The traffic of an interval starts all at once, with the interval or when all earlier
/// traffic has arrived, whichever is later.
///
/// # Errors
///
/// If the traffic is empty, names a rank out of its range, or has more ranks than the network; if
/// no path joins two of its ranks; if the replay needs more memory than is allowed.
pub fn replay(traffic: &Traffic, routing: Scheme, ask: &Ask<'_>) -> Result<Report, SimError> {
    let setting = Setting::new(ask, PARAMETERS)?;
    let Some(on) = &setting.on else {
        let remedy = "name one (--on): a cluster of `ferroccl topo --list`, or a file";
        return Err(SimError::number("the network to replay on", "not given", remedy));
    };
    let network = Network::new(on.plan.clone())?;
    check(traffic, &network)?;
    let mut replaying = Replaying::new(&network, traffic, routing, &setting)?;
    for number in 0..traffic.intervals.len() {
        replaying.interval(number)?;
    }
    let mut findings = replaying.findings();
    findings.say(format!(
        "Routed by {}. All bytes of an interval start at its beginning, although the recorded run \
         spread them over the interval. So times are an upper bound, and not a forecast.",
        routing.name()
    ));
    Ok(setting.report("replay", TITLE, "", PARAMETERS, findings))
}

fn check(traffic: &Traffic, network: &Network) -> Result<(), SimError> {
    let Traffic { ranks, interval_s, intervals } = traffic;
    if *ranks == 0 || intervals.is_empty() {
        let what = "the number of ranks, or of intervals, of the traffic";
        return Err(SimError::number(what, 0, "record at least one of each"));
    }
    if *ranks > network.ranks() {
        let remedy =
            format!("replay it on a larger network: this one has {} ranks", network.ranks());
        return Err(SimError::number("the number of ranks of the traffic", ranks, remedy));
    }
    if !(interval_s.is_finite() && *interval_s > 0.0) {
        let remedy = "give a number of seconds above 0";
        return Err(SimError::number("the length of an interval", interval_s, remedy));
    }
    for (number, bytes) in intervals.iter().enumerate() {
        let beyond = bytes.keys().find(|(from, to)| from.max(to) >= ranks);
        if let Some((from, to)) = beyond {
            let what = format!("a pair of ranks of interval {number}");
            let remedy = format!("name ranks below {ranks}");
            return Err(SimError::number(what, format!("({from}, {to})"), remedy));
        }
    }
    Ok(())
}

/// Result of an interval.
#[derive(Clone, Copy, Debug)]
struct Seen {
    starts_s: f64,
    /// Simulated time that the traffic of the interval takes, in seconds.
    takes_s: f64,
    /// Value of `takes_s` if only the ports (NICs) limited the traffic between hosts.
    ports_s: f64,
}

struct Replaying<'a> {
    network: &'a Network,
    traffic: &'a Traffic,
    setting: &'a Setting,
    router: Router,
    /// Simulated time when all earlier traffic has arrived, in seconds.
    free_s: f64,
    /// Value of `free_s` if only the ports limited the traffic between hosts.
    ports_free_s: f64,
    /// Total time in which traffic crosses the network, in seconds.
    crossing_s: f64,
    /// Sum of the rooflines of all intervals, in seconds.
    roofline_s: f64,
    across_bytes: f64,
    inside_bytes: f64,
    carried_bytes: Vec<f64>,
    /// Per tier: max-to-mean ratios of the intervals that loaded it.
    ratios: Vec<Vec<f64>>,
    seen: Vec<Seen>,
    /// Number of the controller's interval (not the traffic's) in which the current paths were set.
    placed: Option<usize>,
}

/// Largest number of links to visit, in all intervals together: more take hours.
const LINKS_SEEN_MAX: f64 = 2e9;

impl<'a> Replaying<'a> {
    fn new(
        network: &'a Network,
        traffic: &'a Traffic,
        routing: Scheme,
        setting: &'a Setting,
    ) -> Result<Replaying<'a>, SimError> {
        let most = traffic.intervals.iter().map(BTreeMap::len).max().unwrap_or(0);
        let bytes = most as f64 * f64::from(network.rails()) * size_of::<Stream>() as f64
            + traffic.intervals.len() as f64 * size_of::<Seen>() as f64;
        let what = format!("{most} pairs of ranks");
        SimError::if_over(what, bytes, network.plan().memory_mib)?;
        let sending = traffic.intervals.iter().filter(|interval| !interval.is_empty()).count();
        if sending as f64 * f64::from(network.links()) > LINKS_SEEN_MAX {
            let remedy = "take longer intervals, or a smaller network (--hosts)";
            return Err(SimError::number("the number of intervals with traffic", sending, remedy));
        }
        Ok(Replaying {
            network,
            traffic,
            setting,
            router: Router::new(routing, setting.seed),
            free_s: 0.0,
            ports_free_s: 0.0,
            crossing_s: 0.0,
            roofline_s: 0.0,
            across_bytes: 0.0,
            inside_bytes: 0.0,
            carried_bytes: vec![0.0; network.links() as usize],
            ratios: vec![Vec::new(); network.tiers()],
            seen: Vec::new(),
            placed: None,
        })
    }

    fn interval(&mut self, number: usize) -> Result<(), SimError> {
        let network = self.network;
        self.place(number)?;
        let bytes = &self.traffic.intervals[number];
        let streams = across(network, bytes);
        self.across_bytes += streams.iter().map(|stream| stream.bytes).sum::<f64>();
        let inside_s = self.inside_s(bytes);
        let mut takes_s = inside_s;
        let ports_s = ports_s(network, &streams).max(inside_s);
        if !streams.is_empty() {
            let roofline_s = roofline_s(network, &streams);
            let params = self.params(roofline_s, &streams)?;
            let outcome = streams::run(network, &mut self.router, &streams, params)?;
            takes_s = takes_s.max(outcome.time_s);
            self.crossing_s += outcome.time_s;
            self.roofline_s += roofline_s;
            for (tier, ratios) in self.ratios.iter_mut().enumerate() {
                let ratio = spread(network, tier, &outcome.carried_bytes).max_to_mean;
                ratios.extend((ratio > 0.0).then_some(ratio));
            }
            for (sum, carried) in self.carried_bytes.iter_mut().zip(&outcome.carried_bytes) {
                *sum += carried;
            }
        }
        let begins_s = number as f64 * self.traffic.interval_s;
        let starts_s = begins_s.max(self.free_s);
        // An interval without traffic does not delay the end.
        if takes_s > 0.0 {
            self.free_s = starts_s + takes_s;
            self.ports_free_s = begins_s.max(self.ports_free_s) + ports_s;
        }
        self.seen.push(Seen { starts_s, takes_s, ports_s });
        Ok(())
    }

    /// Computes new paths if the scheme is TE and a placement is due at this interval. The
    /// controller knows in advance the traffic of all intervals up to the next placement, and
    /// places the sum of that traffic.
    fn place(&mut self, number: usize) -> Result<(), SimError> {
        let every_s = Interval::default().every_s;
        let period = |number: usize| (number as f64 * self.traffic.interval_s / every_s) as usize;
        let this = period(number);
        if self.router.scheme() != Scheme::Te || self.placed == Some(this) {
            return Ok(());
        }
        let mut sum = Bytes::new();
        let end = (number..self.traffic.intervals.len()).find(|other| period(*other) != this);
        for (pair, bytes) in self.traffic.intervals
            [number..end.unwrap_or(self.traffic.intervals.len())]
            .iter()
            .flatten()
        {
            let all = sum.entry(*pair).or_insert(0u64);
            *all = all.saturating_add(*bytes);
        }
        let streams = across(self.network, &sum);
        let te = Te::place(self.network, &demands(self.network, &streams))?;
        self.router = Router::with_te(self.setting.seed, te);
        self.placed = Some(this);
        Ok(())
    }

    fn params(&self, roofline_s: f64, streams: &[Stream]) -> Result<RunParams, SimError> {
        let pairs = self.setting.count("pairs");
        let params = RunParams { settle_s: roofline_s / 200.0, ..RunParams::at_once(pairs) };
        if !matches!(self.router.scheme(), Scheme::Flowlet { .. } | Scheme::Adaptive) {
            return Ok(params);
        }
        let message_bytes = f64::from(self.setting.count("message_kib")) * 1024.0;
        let messages: f64 =
            streams.iter().map(|stream| (stream.bytes / message_bytes).ceil()).sum();
        if messages > MESSAGES_MAX {
            let remedy =
                "give longer messages (message_kib), or a routing other than flowlet and adaptive";
            return Err(SimError::number(
                "the number of messages of an interval",
                messages,
                remedy,
            ));
        }
        // A stream has at most half as many messages in flight as queue pairs (rounded up), so that
        // flows have pauses.
        Ok(RunParams { message_bytes, in_flight: pairs.div_ceil(2), ..params })
    }

    /// Adds up the bytes inside hosts. Returns the time that these bytes take, in seconds: that of
    /// the busiest rank and direction.
    fn inside_s(&mut self, bytes: &Bytes) -> f64 {
        let each = self.network.plan().ranks_per_host;
        let mut ranks: BTreeMap<(Rank, bool), f64> = BTreeMap::new();
        for ((from, to), bytes) in bytes.iter().filter(|((from, to), _)| from / each == to / each) {
            self.inside_bytes += *bytes as f64;
            // Bytes from a rank to itself do not move.
            if from != to {
                *ranks.entry((*from, false)).or_insert(0.0) += *bytes as f64;
                *ranks.entry((*to, true)).or_insert(0.0) += *bytes as f64;
            }
        }
        ranks.into_values().fold(0.0, f64::max) / self.network.plan().inner_bytes_per_s
    }

    fn findings(self) -> Findings {
        let mut findings = Findings::default();
        let Traffic { interval_s, intervals, .. } = self.traffic;
        let recorded_s = intervals.len() as f64 * interval_s;
        let late = self.seen.iter().filter(|seen| seen.takes_s > *interval_s).count();
        findings.note("recorded time", Unit::Seconds, recorded_s);
        findings.note("time until all traffic has arrived", Unit::Seconds, self.free_s);
        findings.note("simulated time over recorded time", Unit::Ratio, self.free_s / recorded_s);
        let what = "time until all traffic has arrived, if only ports limited it";
        findings.note(what, Unit::Seconds, self.ports_free_s);
        findings.note("bytes between hosts", Unit::Bytes, self.across_bytes);
        findings.note("bytes inside hosts", Unit::Bytes, self.inside_bytes);
        findings.note("intervals", Unit::Count, intervals.len() as f64);
        findings.note("intervals that take longer than their length", Unit::Count, late as f64);
        let takes = |of: fn(&Seen) -> f64| self.seen.iter().map(of).sum::<f64>();
        let (all_s, ports_s) = (takes(|seen| seen.takes_s), takes(|seen| seen.ports_s));
        if ports_s > 0.0 {
            findings.note("time of all intervals", Unit::Seconds, all_s);
            let what = "time of all intervals, over that of ports alone";
            findings.note(what, Unit::Ratio, all_s / ports_s);
        }
        if self.crossing_s > 0.0 {
            let over = self.crossing_s / self.roofline_s;
            findings.note("time between hosts, over the network's roofline", Unit::Ratio, over);
            for (tier, ratios) in self.network.plan().fabric.tiers.iter().zip(&self.ratios) {
                let what =
                    format!("max-to-mean ratio of links to a {}, mean of intervals", tier.name);
                findings.note(what, Unit::Ratio, mean(ratios));
            }
            let (carried, time_s) = (&self.carried_bytes, self.crossing_s);
            tell_links(&mut findings, self.network, carried, time_s, "replay-utilisation");
        }
        findings.figures.push(figure(&self.seen, *interval_s));
        findings
    }
}

/// Returns the streams from host to host: for each pair of ranks, one stream per rail.
fn across(network: &Network, bytes: &Bytes) -> Vec<Stream> {
    let each = network.plan().ranks_per_host;
    let crosses =
        bytes.iter().filter(|((from, to), bytes)| from / each != to / each && **bytes > 0);
    crosses.flat_map(|(pair, bytes)| of_pair(network, *pair, *bytes as f64, 0)).collect()
}

/// Draws the time of the intervals; a point for several intervals shows the longest.
fn figure(seen: &[Seen], interval_s: f64) -> Figure {
    let together = seen.len().div_ceil(POINTS).max(1);
    let line = |of: fn(&Seen) -> f64| -> Vec<(f64, f64)> {
        let most = |some: &[Seen]| {
            let first = some.first().map_or(0.0, |seen| seen.starts_s);
            (first, some.iter().map(of).fold(0.0, f64::max))
        };
        seen.chunks(together).map(most).collect()
    };
    let axes = ("seconds", "seconds that an interval takes");
    let figure = Figure::lines("replay-intervals", TITLE, axes, (false, false));
    let figure = figure.with("simulated", line(|seen| seen.takes_s));
    let figure = figure.with("ports alone", line(|seen| seen.ports_s));
    let ends = [seen.first(), seen.last()].into_iter().flatten();
    figure.with("recorded", ends.map(|seen| (seen.starts_s, interval_s)).collect())
}

#[cfg(test)]
mod tests {
    use ccl_core::topology::Hosts;
    use ccl_core::types::Collective;
    use ccl_model::topology::presets;
    use ccl_traffic::Sent;

    use super::*;
    use crate::network::Plan;
    use crate::routing::SCHEMES;
    use crate::scenario::On;

    fn on(name: &str, hosts: u32) -> On {
        let topology = presets::find(name).unwrap().topology();
        On { name: name.to_owned(), plan: Plan::of(&topology, Some(hosts)).unwrap() }
    }

    fn traffic(ranks: u32, intervals: &[&[((u32, u32), u64)]]) -> Traffic {
        let bytes = |pairs: &&[((u32, u32), u64)]| pairs.iter().copied().collect();
        Traffic { ranks, interval_s: 1.0, intervals: intervals.iter().map(bytes).collect() }
    }

    fn replayed(traffic: &Traffic, on: &On, scheme: Scheme) -> Result<Report, SimError> {
        replay(traffic, scheme, &Ask { on: Some(on), ..Ask::default() })
    }

    fn value(report: &Report, what: &str) -> f64 {
        let found = report.findings.findings.iter().find(|finding| finding.what == what);
        found.unwrap_or_else(|| panic!("{what}: {report:?}")).measured
    }

    fn near(one: f64, other: f64) -> bool {
        (one / other - 1.0).abs() < 1e-4
    }

    #[test]
    fn an_interval_waits_for_the_one_before() {
        // Over a NIC of 50 GB/s, 100 GB take two seconds, and 5 GB take a tenth of a second.
        let (long, short) = (100_000_000_000, 5_000_000_000);
        let both = traffic(16, &[&[((0, 8), long)], &[((0, 8), short)], &[], &[((0, 8), short)]]);
        // Empty intervals at the end do not delay the end.
        let mut trailing = both.clone();
        trailing.intervals.resize(100, Bytes::new());
        let on = on("meta-24576", 4);
        for (name, scheme) in SCHEMES {
            let report = replayed(&trailing, &on, scheme).unwrap();
            let ends = value(&report, "time until all traffic has arrived");
            assert!(near(ends, 3.1) && value(&report, "recorded time") == 100.0, "{name}: {ends}");
            let report = replayed(&both, &on, scheme).unwrap();
            assert_eq!(value(&report, "recorded time"), 4.0);
            // The second interval waits until 2 s; the last one begins on time, at 3 s.
            let ends = value(&report, "time until all traffic has arrived");
            assert!(near(ends, 3.1), "{name}: {ends}");
            assert!(near(value(&report, "time of all intervals"), 2.2), "{name}");
            assert_eq!(value(&report, "intervals that take longer than their length"), 1.0);
            assert_eq!(value(&report, "bytes between hosts"), (long + 2 * short) as f64);
            let over = value(&report, "time of all intervals, over that of ports alone");
            assert!(near(over, 1.0), "{name}: {over}");
        }
    }

    #[test]
    fn hashed_flows_take_longer_than_sprayed_flows() {
        let hosts = Hosts::of(&Vec::from_iter((0..128u32).map(|rank| rank / 8)));
        let algorithm = ccl_core::algorithm::find(Collective::AllToAll, "direct").unwrap();
        let sent = Sent { algorithm, root: 0, count: 1 << 22, element_bytes: 4, hosts: &hosts };
        let bytes = sent.by_all().unwrap();
        let all: u64 = bytes.values().sum();
        let traffic = Traffic { ranks: 128, interval_s: 1e-2, intervals: vec![bytes; 3] };
        let on = on("meta-24576", 16);
        let over = |scheme| {
            let report = replayed(&traffic, &on, scheme).unwrap();
            let (across, inside) =
                (value(&report, "bytes between hosts"), value(&report, "bytes inside hosts"));
            assert!(near(across + inside, 3.0 * all as f64), "{across} {inside}");
            assert!(value(&report, "highest utilisation of links to a CTSW") <= 1.0 + 1e-9);
            value(&report, "time between hosts, over the network's roofline")
        };
        let (hashed, sprayed) = (over(Scheme::HashedPairs), over(Scheme::Spray));
        assert!(sprayed < 1.05, "{sprayed}");
        assert!(hashed > 1.03 * sprayed, "{hashed} {sprayed}");
    }

    #[test]
    fn hosts_with_more_nics_than_ranks_send_by_all_nics() {
        // Each rank sends by its four NICs of 12.5 GB/s, to a rank on its own rail or on another.
        let traffic = traffic(16, &[&[((0, 8), 10_000_000_000), ((1, 10), 10_000_000_000)]]);
        let report = replayed(&traffic, &on("p5", 2), Scheme::HashedPairs).unwrap();
        assert!(near(value(&report, "time until all traffic has arrived"), 0.2), "{report:?}");
    }

    #[test]
    fn traffic_inside_a_host_takes_the_time_of_its_inner_links() {
        let traffic = traffic(8, &[&[((0, 1), 450_000_000_000), ((2, 2), u64::MAX), ((3, 4), 0)]]);
        let report = replayed(&traffic, &on("superpod-256", 1), Scheme::Te).unwrap();
        assert!(near(value(&report, "time until all traffic has arrived"), 1.0), "{report:?}");
        assert_eq!(value(&report, "bytes between hosts"), 0.0);
    }

    #[test]
    fn traffic_that_cannot_be_replayed_is_refused_with_the_reason() {
        let on = on("p5", 2);
        let wrong =
            |traffic: &Traffic| replayed(traffic, &on, Scheme::Ecmp).unwrap_err().to_string();
        assert!(wrong(&traffic(17, &[&[]])).contains("this one has 16"));
        assert!(wrong(&traffic(0, &[&[]])).contains("record at least one"));
        assert!(wrong(&traffic(8, &[])).contains("record at least one"));
        let beyond = wrong(&traffic(8, &[&[], &[((0, 8), 1)]]));
        assert!(beyond.contains("interval 1 is (0, 8); name ranks below 8"), "{beyond}");
        for interval_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let traffic = Traffic { interval_s, ..traffic(8, &[&[((0, 1), 1)]]) };
            assert!(wrong(&traffic).contains("the length of an interval"));
        }
        let traffic = traffic(8, &[&[((0, 1), 1)]]);
        let nowhere = replay(&traffic, Scheme::Ecmp, &Ask::default());
        assert!(nowhere.unwrap_err().to_string().contains("name one (--on)"));
        let changed = [("pairs".to_owned(), 60_000.0)];
        let ask = Ask { on: Some(&on), changed: &changed, memory_mib: 1, ..Ask::default() };
        let many = (0..8).map(|from| ((from, 8 + from), 1 << 40));
        let many = Traffic { ranks: 16, interval_s: 1.0, intervals: vec![many.collect()] };
        let refused = replay(&many, Scheme::Ecmp, &ask).unwrap_err().to_string();
        assert!(refused.contains("1 MiB are allowed"), "{refused}");
    }
}
