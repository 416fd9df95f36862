//! F13: admission by receivers, without any congestion control.

use ccl_core::admission;
use ccl_plot::Figure;

use super::f12_dcqcn::all_to_all;
use super::{Parameter, Scenario, Setting, in_turn, queued};
use crate::SimError;
use crate::network::Network;
use crate::presets::Zone;
use crate::queues::{Buffer, Outcome, RunParams, Transport};
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::roofline_s;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f13",
    title: "an all_to_all with credits, and with pauses alone",
    source: "in four years without DCQCN but with receiver-driven admission, spine switches never \
             sent sustained pauses to rack switches (§6.4); receivers' channel buffers limit what \
             is in flight (§6.3.2)",
    parameters: &[
        Parameter { name: "racks", value: 3.0, what: "racks of 16 NICs of 400 Gbit/s" },
        Parameter { name: "kib", value: 2048.0, what: "KiB from each NIC to each remote NIC" },
        Parameter { name: "at_a_time", value: 4.0, what: "flows of a NIC in flight at a time" },
        Parameter { name: "channels", value: 2.0, what: "channels of each link" },
        Parameter { name: "slot_kib", value: 32.0, what: "KiB of a slot" },
        Parameter { name: "slots", value: 8.0, what: "slots of a channel" },
        Parameter {
            name: "budget_mib",
            value: 4.0,
            what: "limit on the MiB in flight to a receiver",
        },
        Parameter {
            name: "rack_kb",
            value: 500.0,
            what: "KB per port before a rack switch pauses",
        },
        Parameter { name: "spine_kb", value: 4000.0, what: "KB per port before a spine pauses" },
    ],
    run,
};

/// Returns the total time in seconds, and the number, of the pauses of links from rack switches up
/// to spine switches.
fn paused_upwards(network: &Network, outcome: &Outcome) -> (f64, u32) {
    let links = || network.tier_links(1, true).map(|link| link as usize);
    let pauses = links().map(|link| outcome.pauses[link]).sum();
    (links().map(|link| outcome.paused_s[link]).sum(), pauses)
}

/// Adds the results of queues and pauses. `credit_bytes` is the largest number of bytes that the
/// credits of a receiver admit at once; None without admission.
fn tell(
    findings: &mut Findings,
    network: &Network,
    outcome: &Outcome,
    name: &str,
    credit_bytes: Option<f64>,
) {
    let (upwards_s, upwards) = paused_upwards(network, outcome);
    let pauses: u32 = outcome.pauses.iter().sum();
    findings.note(format!("{name}: pauses of all links"), Unit::Count, f64::from(pauses));
    let most = outcome.queue_bytes_max.iter().copied().fold(0.0, f64::max);
    findings.note(format!("{name}: longest queue"), Unit::Bytes, most);
    let what = format!("{name}: pauses of links from rack to spine switches");
    findings.note(what, Unit::Count, f64::from(upwards));
    let part = upwards_s / network.tier_links(1, true).count() as f64 / outcome.time_s;
    let what =
        format!("{name}: part of the run in which links from rack to spine switches are paused");
    match credit_bytes {
        // Pauses of up to a thousandth of the time, as a mean over the links, do not count as
        // sustained.
        Some(_) => findings.expect(what, Unit::Part, part, Expected::AtMost(0.001)),
        None => findings.note(what, Unit::Part, part),
    }
    let in_flight = outcome.in_flight_bytes_max;
    match credit_bytes {
        Some(credit_bytes) => {
            let what = format!("{name}: in flight to a receiver / its credits");
            findings.expect(what, Unit::Part, in_flight / credit_bytes, Expected::AtMost(1.0));
        }
        None => findings.note(format!("{name}: in flight to a receiver"), Unit::Bytes, in_flight),
    }
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { racks: setting.count("racks"), ..Zone::default() };
    let network = setting.network(&zone)?;
    let streams = all_to_all(&zone, setting.number("kib") * 1024.0);
    let mut flows = queued(&network, Scheme::HashedPairs, &streams, 1, setting.seed)?;
    in_turn(&mut flows, setting.count("at_a_time"), setting.seed);
    let roofline_s = roofline_s(&network, &streams);
    let slots = admission::Config {
        channels: setting.count("channels"),
        slots: setting.count("slots"),
        slot_bytes: setting.count("slot_kib") as usize * 1024,
        slots_min: 1,
        budget_bytes: setting.count("budget_mib") as usize * (1 << 20),
        zero_copy_bytes_min: usize::MAX,
        registered_bytes_max: 0,
    };
    let cases = [
        ("pauses alone", Transport::PauseOnly),
        ("credits", Transport::Admission { slots, credit_s: 4e-6 }),
    ];
    let mut findings = Findings::default();
    let watched: Vec<u32> = network.tier_links(1, false).take(1).collect();
    let axes = ("seconds", "bytes queued before a spine's link to a rack");
    let mut queue = Figure::lines("f13-queue", "A queue in a spine switch", axes, (false, false));
    let mut paused = Vec::new();
    for (name, transport) in cases {
        let buffers =
            ["rack_kb", "spine_kb"].map(|name| Buffer::of(setting.number(name) * 1e3)).to_vec();
        let params = RunParams {
            step_s: 1e-6,
            buffers,
            transport,
            limit_s: 100.0 * roofline_s,
            seed: setting.seed,
            watched: watched.clone(),
        };
        let outcome = crate::queues::run(&network, &flows, &params)?;
        let time = outcome.time_s / roofline_s;
        findings.note(format!("{name}: time over roofline"), Unit::Ratio, time);
        let credit_bytes = matches!(transport, Transport::Admission { .. })
            .then(|| slots.equal_bytes((network.ranks() - zone.nics) as usize) as f64);
        tell(&mut findings, &network, &outcome, name, credit_bytes);
        paused.push(outcome.paused_s.iter().sum::<f64>());
        queue = queue.with(name, outcome.watched.into_iter().next().unwrap_or_default());
    }
    let groups = cases.map(|(name, _)| name);
    let pauses = Figure::bars("f13-pauses", "Pauses", "seconds, all links", &groups);
    findings.figures.extend([queue, pauses.with_bars("paused", &paused)]);
    Ok(findings)
}
