//! Traffic of a planned collective, by interval of time. If the caller gives the length of an
//! interval, the simulation that predicts the time also records when each message leaves; too many
//! ranks or messages are refused. If no length is given, one interval has all bytes of the
//! schedules.

use std::fmt;

use crate::cost::protocols::Protocol;
use ccl_core::algorithm::{self, Algorithm};
use ccl_core::cost::predict::{self, Prediction, Programs};
use ccl_core::topology::Hosts;
use ccl_traffic::{Bytes, Sent, Traffic};

use crate::plan::{PlanRequest, Scene, Sized};
use crate::quantity::{self, Unit};
use ccl_traffic::matrix::{INTERVALS_MAX, PAIRS_MAX};

/// Largest number of messages to simulate one by one; simulating this number takes about a minute.
const MESSAGES_MAX: u64 = 1 << 24;

/// Predicted traffic of a collective, with its algorithm and protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// Name of the protocol.
    pub protocol: &'static str,
    /// Predicted time in seconds.
    pub time_s: f64,
    /// Bytes between pairs of ranks.
    pub traffic: Traffic,
}

/// Returns the traffic of a collective by the algorithm `algorithm`, or by the fastest. Each
/// interval has `interval_s` seconds; without `interval_s`, one interval covers the collective.
///
/// # Errors
///
/// When the collective cannot be planned; when there is no such algorithm; when too many pairs of
/// ranks send. If `interval_s` is given: also when it is not above 0, or when there are too many
/// intervals, ranks or messages.
pub fn traffic(
    request: &PlanRequest<'_>,
    algorithm: Option<&str>,
    interval_s: Option<f64>,
) -> Result<Predicted, String> {
    let Fastest { scene, sized, algorithm, programs, protocol, seen } = way(request, algorithm)?;
    let Sized { count, element_bytes, .. } = sized;
    let sent = Sent { algorithm, root: 0, count, element_bytes, hosts: &scene.hosts };
    let whole = all(&sent)?;
    let messages = whole.values().sum::<u64>() / protocol.slot_bytes.max(1) as u64;
    let is_walked = predict::is_walked(&scene.hosts) && messages <= MESSAGES_MAX;
    let (time_s, traffic) = match interval_s {
        None => {
            let time_s = seen.time_ns / 1e9;
            (time_s, one(&scene.hosts, time_s, whole))
        }
        Some(interval_s) if is_walked => {
            let call = Scene::call(&programs, &sized, &protocol);
            walked(&call, &protocol, &scene.hosts, interval_s)?
        }
        Some(_) => {
            return Err(format!(
                "{} ranks that send {messages} messages are too many to simulate one by one; leave \
                 out --interval, or take fewer hosts or bytes",
                scene.hosts.ranks()
            ));
        }
    };
    Ok(Predicted { algorithm: algorithm.name, protocol: protocol.name, time_s, traffic })
}

/// Planned collective with the algorithm and protocol that were chosen.
struct Fastest {
    scene: Scene,
    sized: Sized,
    algorithm: &'static Algorithm,
    programs: Programs,
    protocol: Protocol,
    seen: Prediction,
}

/// Plans the collective by the named algorithm, or by the fastest if no name is given.
fn way(request: &PlanRequest<'_>, algorithm: Option<&str>) -> Result<Fastest, String> {
    let PlanRequest { collective, bytes, data_type, topology, hosts } = *request;
    let scene = Scene::of(topology, hosts)?;
    let sized = Sized::of(collective, scene.hosts.ranks(), bytes, data_type)?;
    let named = algorithm.map(|name| algorithm::find(collective, name)).transpose();
    let named = named.map_err(|error| error.to_string())?;
    let mut ways = Vec::new();
    for algorithm in algorithm::of(collective) {
        if named.is_none_or(|named| named.name == algorithm.name) {
            let programs = scene.programs(algorithm, 0);
            if let Some((protocol, seen)) = scene.fastest(&programs, &sized)? {
                ways.push((algorithm, programs, *protocol, seen));
            }
        }
    }
    let least = ways.into_iter().min_by(|one, other| one.3.time_ns.total_cmp(&other.3.time_ns));
    let (algorithm, programs, protocol, seen) =
        least.ok_or_else(|| format!("{} has no hosts; take another topology", topology.name))?;
    Ok(Fastest { scene, sized, algorithm, programs, protocol, seen })
}

/// Writes the schedule of a planned collective as Chakra execution traces, one file per rank, and
/// returns a line that says what was written.
///
/// # Errors
///
/// When the collective cannot be planned, when there is no such algorithm, when the ranks have too
/// many steps together, or when a file cannot be written.
pub fn write_traces(
    request: &PlanRequest<'_>,
    algorithm: Option<&str>,
    prefix: &str,
) -> Result<String, String> {
    let Fastest { scene, sized, algorithm, .. } = way(request, algorithm)?;
    let traces = super::planned::traces(algorithm, &sized, &scene.hosts)?;
    super::job::write_traces(prefix, &traces)?;
    let nodes: usize = traces.iter().map(|trace| trace.nodes.len()).sum();
    Ok(format!(
        "{nodes} nodes of {} ranks, {} by {}: {prefix}.*.et",
        traces.len(),
        request.collective,
        algorithm.name
    ))
}

/// Returns the bytes that all ranks send, or an error if there are too many pairs to hold.
pub(super) fn all(sent: &Sent<'_>) -> Result<Bytes, String> {
    let mut bytes = Bytes::new();
    for rank in 0..sent.hosts.ranks() {
        let to = sent.by(rank).map_err(|error| error.to_string())?;
        bytes.extend(to.into_iter().map(|(peer, bytes)| ((rank, peer), bytes)));
        if bytes.len() > PAIRS_MAX {
            return Err(format!(
                "more than {PAIRS_MAX} pairs of ranks send to each other; take fewer hosts, or an \
                 algorithm that has fewer pairs, such as ring or hierarchical"
            ));
        }
    }
    Ok(bytes)
}

fn one(hosts: &Hosts, interval_s: f64, bytes: Bytes) -> Traffic {
    Traffic { ranks: hosts.ranks(), interval_s, intervals: vec![bytes] }
}

fn walked(
    call: &predict::Call<'_>,
    protocol: &Protocol,
    hosts: &Hosts,
    interval_s: f64,
) -> Result<(f64, Traffic), String> {
    if !(interval_s.is_finite() && interval_s > 0.0) {
        return Err(format!("--interval {interval_s}: give seconds above 0, such as 1e-4"));
    }
    let (mut intervals, mut beyond) = (Vec::new(), false);
    let seen = predict::messages(call, &protocol.model, &mut |left| {
        // A time too large for an index saturates.
        let index = (left.at_ns / 1e9 / interval_s) as usize;
        beyond |= index >= INTERVALS_MAX;
        if beyond || left.bytes == 0 {
            return;
        }
        if intervals.len() <= index {
            intervals.resize_with(index + 1, Bytes::new);
        }
        if let Some(sent) = intervals.get_mut(index) {
            *sent.entry((left.from, left.to)).or_insert(0) += left.bytes as u64;
        }
    });
    let time_s = seen.map_err(|error| error.to_string())?.time_ns / 1e9;
    if beyond {
        return Err(format!(
            "{time_s} s are more than {INTERVALS_MAX} intervals of {interval_s} s; give a longer \
             --interval"
        ));
    }
    Ok((time_s, Traffic { ranks: hosts.ranks(), interval_s, intervals }))
}

impl fmt::Display for Predicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Predicted { algorithm, protocol, time_s, traffic } = self;
        let whole = traffic.whole();
        let (intervals, interval_s) = (traffic.intervals.len(), traffic.interval_s);
        let plural = if intervals == 1 { "" } else { "s" };
        write!(
            f,
            "traffic of {algorithm} by {protocol}, {}: {} between {} pairs of ranks, in \
             {intervals} interval{plural} of {}",
            quantity::show(*time_s, Unit::Seconds),
            quantity::show(whole.values().sum::<u64>() as f64, Unit::Bytes),
            whole.len(),
            quantity::show(interval_s, Unit::Seconds),
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::topology::presets;
    use ccl_core::types::{Collective, DataType, Rank};

    use super::*;

    fn of(name: &str, collective: Collective, bytes: usize, by: &str, s: Option<f64>) -> Predicted {
        let topology = presets::find(name).unwrap().topology();
        let (data_type, hosts) = (DataType::Float32, Some(topology.hosts().min(4)));
        let request = PlanRequest { collective, bytes, data_type, topology: &topology, hosts };
        traffic(&request, Some(by), s).unwrap()
    }

    /// Compares, for each pair of ranks, the bytes of all messages with those of the schedules,
    /// also for lengths that do not divide evenly among the ranks.
    #[test]
    fn intervals_add_up_to_the_bytes_of_the_schedules() {
        for (name, bytes) in [("h100", 4 * 1_000_003), ("p5", 4 * 100_003), ("p5", 512)] {
            for collective in Collective::ALL {
                for algorithm in algorithm::of(collective) {
                    if collective.even_blocks(2).is_none() {
                        continue;
                    }
                    let whole = of(name, collective, bytes, algorithm.name, None);
                    let interval_s = whole.time_s / 7.5;
                    let parts = of(name, collective, bytes, algorithm.name, Some(interval_s));
                    let mut sent = whole.traffic.whole();
                    sent.retain(|_, bytes| *bytes > 0);
                    assert_eq!(sent, parts.traffic.whole(), "{collective} {}", algorithm.name);
                    assert_eq!(whole.traffic.intervals.len(), 1);
                }
            }
        }
    }

    #[test]
    fn the_traffic_of_a_long_call_is_spread_over_intervals() {
        let ring = of("h100", Collective::AllReduce, 1 << 28, "ring", None);
        let parts = of("h100", Collective::AllReduce, 1 << 28, "ring", Some(ring.time_s / 10.0));
        let intervals = parts.traffic.intervals;
        assert!((8..=11).contains(&intervals.len()), "{}", intervals.len());
        let all = ring.traffic.whole().values().sum::<u64>();
        let sums = intervals.iter().map(|sent| sent.values().sum::<u64>());
        assert!(sums.max().unwrap() < all / 5, "each interval has less than a fifth of all bytes");
        let pairs: Vec<(Rank, Rank)> = ring.traffic.whole().into_keys().collect();
        assert!(pairs.iter().all(|(from, to)| (from + 1) % 8 == *to), "{pairs:?}");
    }

    #[test]
    fn traffic_that_cannot_be_predicted_is_refused_with_the_reason() {
        let topology = presets::find("superpod-1024").unwrap().topology();
        let collective = Collective::AllReduce;
        let request = PlanRequest {
            collective,
            bytes: 1 << 20,
            data_type: DataType::Float32,
            topology: &topology,
            hosts: None,
        };
        let many = traffic(&request, Some("ring"), Some(1e-3)).unwrap_err();
        assert!(many.contains("1024 ranks") && many.contains("leave out --interval"), "{many}");
        let unknown = traffic(&request, Some("rign"), None).unwrap_err();
        assert!(unknown.contains("rign") && unknown.contains("ring"), "{unknown}");
        let few = PlanRequest { hosts: Some(1), ..request };
        for (interval_s, said) in
            [(1e-12, "give a longer"), (0.0, "above 0"), (f64::NAN, "above 0"), (-1.0, "above 0")]
        {
            let error = traffic(&few, None, Some(interval_s)).unwrap_err();
            assert!(error.contains(said), "{interval_s}: {error}");
        }
    }
}
