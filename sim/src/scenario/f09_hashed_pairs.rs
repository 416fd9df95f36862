//! F9: queue pairs, hashed, against plain ECMP.

use ccl_core::types::Collective;

use super::{Parameter, Scenario, Setting, TRIALS, run as run_streams};
use crate::SimError;
use crate::measure::mean;
use crate::network::Network;
use crate::plot::Figure;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{Manner, Stream, roofline_s};
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f9",
    title: "all_reduce with queue pairs that are hashed, over plain ECMP",
    source: "E-ECMP with queue pair scaling makes all_reduce up to 40 % faster than ECMP without \
             (§5.3.2, Figure 7)",
    parameters: &[
        Parameter { name: "hosts", value: 16.0, what: "hosts of the job, of eight NICs each" },
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "width", value: 2.0, what: "bandwidth of an uplink, over that of a NIC" },
        Parameter { name: "pairs", value: 16.0, what: "queue pairs of E-ECMP, per connection" },
        Parameter {
            name: "channels",
            value: 1.0,
            what: "connections between two NICs, each with its own port, as NCCL's channels",
        },
        Parameter {
            name: "inside",
            value: 0.25,
            what: "time of a call in which nothing crosses the network, over its roofline",
        },
        Parameter { name: "trials", value: 100.0, what: TRIALS },
    ],
    run,
};

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let (hosts, pairs) = (setting.count("hosts"), setting.count("pairs"));
    let racks = hosts.div_ceil(2);
    let uplink_bytes_per_s = Zone::default().nic_bytes_per_s * setting.number("width").max(0.01);
    let uplinks = setting.count("uplinks");
    let zone = Zone { racks, uplinks, uplink_bytes_per_s, ..Zone::default() };
    let network = setting.network(&zone)?;
    let streams = in_channels(&rings(&network)?, setting.count("channels"));
    let inside_s = setting.number("inside") * roofline_s(&network, &streams);
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let cases = [(Scheme::Ecmp, 1), (Scheme::Ecmp, pairs), (Scheme::HashedPairs, pairs)];
    for seed in setting.trials() {
        for ((scheme, pairs), times) in cases.into_iter().zip(&mut times) {
            let manner = Manner::at_once(pairs);
            let outcome = run_streams(&network, scheme, &streams, manner, seed)?;
            times.push(outcome.time_s + inside_s);
        }
    }
    let times = times.map(|times| mean(&times));
    let mut findings = Findings::default();
    let gain = |case: usize| times[0] / times[case] - 1.0;
    let what = format!("gain of {pairs} queue pairs that are not hashed");
    findings.expect(what, Unit::Part, gain(1), Expected::About(0.0));
    let what = format!("gain of {pairs} queue pairs that are hashed");
    findings.expect(what, Unit::Part, gain(2), Expected::About(0.40));
    let title = "Time of an all_reduce";
    let groups = ["ECMP, 1 pair", "ECMP, pairs", "E-ECMP, pairs"];
    let figure = Figure::bars("f9-time", title, "time / roofline", &groups);
    let roofline_s = roofline_s(&network, &streams);
    findings.figures.push(figure.with_bars("", &times.map(|time_s| time_s / roofline_s)));
    findings.say(
        "Uplinks are twice as wide as NICs, as they were when this was tried (§5.2.3, phase 2 of \
         F11), and queue pairs are counted for each source and destination (§5.5.1). The gain \
         hangs on what is not published: without time inside hosts (inside=0) it is 40 %, with two \
         connections between NICs (channels=2) ECMP hardly collides.",
    );
    Ok(findings)
}

/// An all_reduce of one job on the whole network, by a ring for every NIC.
fn rings(network: &Network) -> Result<Vec<Stream>, SimError> {
    let call = Call::new(Collective::AllReduce, "ring", 1 << 30)?;
    let rings = network.plan().ranks_per_host;
    Job::first(network.plan().hosts).streams(network, &call, rings, 0)
}

/// Each stream over several connections.
fn in_channels(streams: &[Stream], channels: u32) -> Vec<Stream> {
    let part = |stream: Stream, channel| Stream {
        bytes: stream.bytes / f64::from(channels),
        channel,
        ..stream
    };
    streams.iter().flat_map(|stream| (0..channels).map(|at| part(*stream, at))).collect()
}
