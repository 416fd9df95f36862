//! F11: a zone in four phases of its history. In phases 1 and 2, flows have pinned paths; in phases
//! 3 and 4, a controller does traffic engineering (TE). The uplinks of a rack together have 1, 2, 2
//! and 1.125 times the bandwidth of the rack's NICs.

use ccl_plot::Figure;

use super::f04_queue_pairs::scattered;
use super::{Parameter, Scenario, Setting, TRIALS, group_ends_s, run as run_streams};
use crate::SimError;
use crate::measure::{mean, quantile};
use crate::network::Network;
use crate::presets::{GBPS_400, Zone};
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, Stream, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f11",
    title: "all_reduce bandwidth through the phases of a zone",
    source: "doubling the rack switches' uplinks removed the collisions of static routing; TE \
             performs alike on the same network, and also with a ratio of NIC to uplink bandwidth \
             of 1:1.125 instead of 1:2 (§7.2, Figure 16)",
    parameters: &[
        Parameter { name: "racks", value: 32.0, what: "racks of two hosts" },
        Parameter { name: "trials", value: 4.0, what: TRIALS },
    ],
    run,
};

/// Phases: name, bandwidth of an uplink divided by the bandwidth of a NIC, number of uplinks per
/// rack (a rack has 16 NICs), and routing. The name has the ratio of the bandwidth of all NICs to
/// that of all uplinks.
const PHASES: [(&str, f64, u32, Scheme); 4] = [
    ("1: pinned, 1:1", 1.0, 16, Scheme::Pinned),
    ("2: pinned, 1:2", 2.0, 16, Scheme::Pinned),
    ("3: TE, 1:2", 2.0, 16, Scheme::Te),
    ("4: TE, 1:1.125", 1.0, 18, Scheme::Te),
];

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let mut findings = Findings::default();
    let (mut means, mut lows) = (Vec::new(), Vec::new());
    for (name, factor, uplinks, scheme) in PHASES {
        // The zone's NICs have 200 Gbit/s.
        let nic_bytes_per_s = GBPS_400 / 2.0;
        let uplink_bytes_per_s = nic_bytes_per_s * factor;
        let racks = setting.count("racks");
        let zone = Zone { racks, uplinks, nic_bytes_per_s, uplink_bytes_per_s, ..Zone::default() };
        let network = setting.network(&zone)?;
        let mut parts = Vec::new();
        for seed in setting.trials() {
            parts.extend(parts_of_roofline(&network, scheme, seed)?);
        }
        findings.note(format!("phase {name}: mean part of the roofline"), Unit::Part, mean(&parts));
        means.push(mean(&parts));
        lows.push(quantile(&parts, 0.05));
    }
    let over = |phase: usize, of: usize| means[phase] / means[of];
    let expected = Expected::AtLeast(1.1);
    findings.expect("phase 2 over phase 1", Unit::Ratio, over(1, 0), expected);
    for phase in [2, 3] {
        let what = format!("phase {} over phase 2", phase + 1);
        findings.expect(what, Unit::Ratio, over(phase, 1), Expected::About(1.0));
    }
    let groups = PHASES.map(|(name, ..)| name);
    let title = "All-reduce bandwidth by phase, relative to the roofline";
    let figure = Figure::bars("f11-phases", title, "part of the roofline", &groups);
    findings.figures.push(figure.with_bars("mean", &means).with_bars("5th percentile", &lows));
    Ok(findings)
}

/// Returns, for each job, the part of the job's roofline that the job reaches.
fn parts_of_roofline(network: &Network, scheme: Scheme, seed: u64) -> Result<Vec<f64>, SimError> {
    let streams = scattered(network, seed)?;
    let outcome = run_streams(network, scheme, &streams, RunParams::at_once(1), seed)?;
    let part = |(group, end_s): (u32, f64)| {
        let own: Vec<Stream> =
            streams.iter().filter(|stream| stream.group == group).copied().collect();
        roofline_s(network, &own) / end_s
    };
    Ok(group_ends_s(&streams, &outcome).into_iter().map(part).collect())
}
