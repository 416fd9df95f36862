//! Many senders to one receiver, and a bystander: a sender to another receiver. The path of the
//! bystander shares at least a switch with the paths of the other senders.

use ccl_core::admission;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, queued};
use crate::SimError;
use crate::network::{Network, Plan};
use crate::presets::{GBPS_400, Zone};
use crate::queues::{Buffer, Dcqcn, RunParams, Transport};
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::Stream;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "incast",
    title: "many senders to one receiver, which may be slow, and a bystander that sends to another \
            receiver",
    source: "pauses spread hop by hop and hold up flows to other receivers (head-of-line \
             blocking, §6.3); instead, receivers limit what they admit (§6.3.2)",
    parameters: &[
        Parameter { name: "senders", value: 15.0, what: "senders in another rack" },
        Parameter { name: "mib", value: 8.0, what: "MiB that each sender sends" },
        Parameter { name: "slowness", value: 1.0, what: "slowdown factor of the receiver's link" },
        Parameter { name: "budget_mib", value: 1.0, what: "MiB of credits that a receiver grants" },
    ],
    run,
};

/// Returns the network and the streams; the last stream is the bystander's. A group is all hosts
/// that one set of switches of the lowest tier joins directly, such as a rack. The first ranks send
/// to the first rank of the last group, the bystander to the second rank of that group.
fn set_up(setting: &Setting) -> Result<(Network, Vec<Stream>), SimError> {
    // One wide uplink stands for perfectly spread traffic: only queues matter here.
    let uplink_bytes_per_s = f64::from(Zone::default().rack_nics()) * GBPS_400;
    let zone = Zone { racks: 3, uplinks: 1, uplink_bytes_per_s, ..Zone::default() };
    let mut network = Network::new(setting.plan(&zone)?.collapsed())?;
    let Plan { fabric, hosts, ranks_per_host, .. } = network.plan();
    // If all hosts are in one group, each host counts as a group.
    let group = u32::try_from(fabric.hosts_in_group(0)).unwrap_or(*hosts);
    let group = if group < *hosts { group.max(1) } else { 1 };
    let first = (hosts - 1) / group * group * ranks_per_host;
    if first < 2 || network.ranks() - first < 2 {
        let remedy = "give more: at least two groups of hosts (racks, or single hosts if all are \
                      in one rack), with two ranks in the last group and two in the groups before \
                      it";
        return Err(SimError::number("the number of hosts", *hosts, remedy));
    }
    let [receiver, beside] = [first, first + 1].map(|rank| network.port(rank));
    let bytes = setting.number("mib") * f64::from(1 << 20);
    let senders = setting.count("senders").min(first - 1);
    let to = |from, to, group| Stream { from: network.port(from), to, bytes, channel: 0, group };
    let mut streams: Vec<Stream> = (0..senders).map(|from| to(from, receiver, 0)).collect();
    streams.push(to(senders, beside, 1));
    if let Some(link) = network.uplinks(0, receiver.host, receiver.nic).next() {
        network.scale(link + 1, 1.0 / setting.number("slowness").max(1.0));
    }
    Ok((network, streams))
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let (network, streams) = set_up(setting)?;
    let receiver = streams[0].to;
    let slots = admission::Config {
        channels: 1,
        slots: 64,
        slot_bytes: 16 << 10,
        slots_min: 1,
        budget_bytes: (setting.number("budget_mib").max(0.1) * f64::from(1 << 20)) as usize,
        zero_copy_bytes_min: usize::MAX,
        registered_bytes_max: 0,
    };
    let cases = [
        ("pauses alone", Transport::PauseOnly),
        ("DCQCN", Transport::Dcqcn(Dcqcn::default())),
        ("credits", Transport::Admission { slots, credit_s: 4e-6 }),
    ];
    let ideal_s = streams[0].bytes / network.plan().nic_bytes_per_s();
    let mut findings = Findings::default();
    let watched: Vec<u32> = network.uplinks(0, receiver.host, receiver.nic).collect();
    let watched: Vec<u32> = watched.iter().map(|link| link + 1).collect();
    let axes = ("seconds", "bytes queued before the receiver's link");
    let mut queue = Figure::lines("incast-queue", "Queue to the receiver", axes, (false, false));
    let (mut late, mut paused) = (Vec::new(), Vec::new());
    for (name, transport) in cases {
        let flows = queued(&network, Scheme::Pinned, &streams, 1, setting.seed)?;
        let params = RunParams {
            step_s: 0.5e-6,
            buffers: vec![Buffer::of(1.5e6), Buffer::of(4e6)],
            transport,
            limit_s: 1e3 * ideal_s * setting.number("slowness").max(1.0),
            seed: setting.seed,
            watched: watched.clone(),
        };
        let outcome = crate::queues::run(&network, &flows, &params)?;
        let bystander = outcome.ends_s.last().copied().unwrap_or(0.0) / ideal_s;
        findings.note(format!("{name}: time of all"), Unit::Seconds, outcome.time_s);
        findings.note(
            format!("{name}: time of the bystander, over its time alone"),
            Unit::Ratio,
            bystander,
        );
        let most = outcome.queue_bytes_max.iter().copied().fold(0.0, f64::max);
        findings.note(format!("{name}: longest queue"), Unit::Bytes, most);
        let paused_s = outcome.paused_s.iter().sum::<f64>();
        findings.note(format!("{name}: time paused, sum over links"), Unit::Seconds, paused_s);
        late.push(bystander);
        paused.push(paused_s);
        queue = queue.with(name, outcome.watched.into_iter().next().unwrap_or_default());
    }
    let what = "time of the bystander with credits, over that with pauses alone";
    findings.expect(what, Unit::Ratio, late[2] / late[0], Expected::AtMost(1.0));
    findings.expect(
        "time paused with credits",
        Unit::Seconds,
        paused[2],
        Expected::AtMost(paused[0]),
    );
    let groups = cases.map(|(name, _)| name);
    let figure = Figure::bars("incast-bystander", "Bystander's time", "time / alone", &groups);
    findings.figures.extend([queue, figure.with_bars("bystander", &late)]);
    Ok(findings)
}
