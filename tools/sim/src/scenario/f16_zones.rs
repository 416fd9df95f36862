//! F16: a job over two zones, oversubscribed 1:7 between them.

use ccl_core::types::Collective;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, run as run_streams};
use crate::SimError;
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, Stream, roofline_s};
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f16",
    title: "all_reduce of a job on two zones, oversubscribed 1:7 between them",
    source: "the upward bandwidth of spine switches is a seventh of their downward bandwidth, so \
             the scheduler keeps traffic within zones (§4.2): a ring whose every step crosses \
             zones gets at most a seventh of its speed within a zone; a hierarchical algorithm \
             sends fewer bytes between zones, by a factor of the number of ranks per host",
    parameters: &[
        Parameter { name: "racks", value: 14.0, what: "racks of two hosts in each zone" },
        Parameter { name: "over", value: 7.0, what: "oversubscription of the third tier" },
    ],
    run,
};

/// Returns the bytes that go up to the third tier, and all bytes that leave a host.
fn crossing(network: &Network, streams: &[Stream]) -> (f64, f64) {
    let zone = |host| network.plan().fabric.group(1, host);
    let crosses = streams.iter().filter(|stream| zone(stream.from.host) != zone(stream.to.host));
    (crosses.map(|stream| stream.bytes).sum(), streams.iter().map(|stream| stream.bytes).sum())
}

/// Returns the streams of a ring over all ranks that alternates between the zones, so that every
/// step leaves the host and the zone.
fn dealt(network: &Network, call: &Call, hosts: u32) -> Vec<Stream> {
    let each = network.plan().ranks_per_host;
    let half = hosts / 2 * each;
    // Even ranks of the ring are in the first zone, odd ones in the second.
    let seat = |rank: u32| if rank.is_multiple_of(2) { rank / 2 } else { half + rank / 2 };
    let ranks = hosts * each;
    let bytes = 2.0 * f64::from(ranks - 1) / f64::from(ranks) * call.bytes as f64;
    let stream = |rank: u32| Stream {
        from: network.port(seat(rank)),
        to: network.port(seat((rank + 1) % ranks)),
        bytes,
        channel: 0,
        group: 0,
    };
    (0..ranks).map(stream).collect()
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone {
        racks: setting.count("racks"),
        zones: 2,
        oversubscription: setting.number("over").max(1.0),
        ..Zone::default()
    };
    let network = setting.network(&zone)?;
    let (hosts, each) = (zone.hosts(), zone.nics);
    let ring = Call::new(Collective::AllReduce, "ring", 1 << 28)?;
    let hierarchical = Call::new(Collective::AllReduce, "hierarchical", 1 << 28)?;
    let cases = [
        ("ring, dealt to both zones", dealt(&network, &ring, hosts)),
        ("ring, zone by zone", Job::first(hosts).streams(&network, &ring, each, 0)?),
        ("hierarchical", Job::first(hosts).streams(&network, &hierarchical, 1, 0)?),
    ];
    // Time that a NIC needs for the dealt ring's bytes if all hosts are in one zone.
    let nic_s = 2.0 * ring.bytes as f64 / zone.nic_bytes_per_s;
    let mut findings = Findings::default();
    let (mut speeds, mut across) = (Vec::new(), Vec::new());
    for (name, streams) in &cases {
        let settle_s = roofline_s(&network, streams) / 50.0;
        let params = RunParams { settle_s, ..RunParams::at_once(1) };
        let outcome = run_streams(&network, Scheme::Spray, streams, params, setting.seed)?;
        let (crosses, leaves) = crossing(&network, streams);
        findings.note(format!("{name}: time"), Unit::Seconds, outcome.time_s);
        findings.note(format!("{name}: bytes from zone to zone"), Unit::Bytes, crosses);
        speeds.push(nic_s / outcome.time_s);
        across.push((crosses, leaves));
    }
    let expected = Expected::About(1.0 / setting.number("over").max(1.0));
    let what = "speed of the dealt ring, as a part of its speed within a zone";
    findings.expect(what, Unit::Part, speeds[0], expected);
    let fewer = Expected::About(f64::from(each));
    let what = "bytes between hosts, dealt ring over hierarchical";
    findings.expect(what, Unit::Ratio, across[0].1 / across[2].1, fewer);
    let what = "bytes between zones, dealt ring over hierarchical";
    let least = Expected::AtLeast(f64::from(each));
    findings.expect(what, Unit::Ratio, across[0].0 / across[2].0, least);
    let what = "speed, hierarchical over dealt ring";
    findings.expect(what, Unit::Ratio, speeds[2] / speeds[0], Expected::AtLeast(1.0));
    let groups = ["dealt ring", "ring by zones", "hierarchical"];
    let title = "All-reduce over two zones";
    let figure = Figure::bars("f16-zones", title, "speed / speed of a NIC", &groups);
    findings.figures.push(figure.with_bars("speed", &speeds));
    findings.say(
        "The dealt ring alternates between the zones. A ring that goes through one zone and then \
         the other crosses between the zones only twice, and a ring loses time only where \
         neighbours are in different zones. With an oversubscription of 7, the ring that goes \
         zone by zone is even faster than the hierarchical algorithm. The numbers of bytes are \
         computed, not simulated.",
    );
    Ok(findings)
}
