//! F10: pinned paths are perfect for whole racks, and bad for scattered jobs.

use ccl_core::random::Random;
use ccl_core::types::Collective;
use ccl_plot::Figure;

use super::f04_queue_pairs::of_all;
use super::{Parameter, Scenario, Setting, TRIALS, group_ends_s, run as run_streams};
use crate::SimError;
use crate::measure::mean;
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, Stream, roofline_s};
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f10",
    title: "path pinning with jobs on whole racks, with a failed uplink, and with scattered jobs",
    source: "path pinning is very good where racks are allocated whole to a job and nothing has \
             failed; scattered jobs lose more than 30 %; where something has failed, flows that \
             are moved collide with others (§5.2.2)",
    parameters: &[
        Parameter { name: "racks", value: 16.0, what: "racks of two hosts" },
        Parameter { name: "job_hosts", value: 8.0, what: "hosts of each job" },
        Parameter { name: "trials", value: 20.0, what: TRIALS },
    ],
    run,
};

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { racks: setting.count("racks"), ..Zone::default() };
    let whole = setting.network(&zone)?;
    let mut cut = whole.clone();
    let failed = cut.uplinks(1, 0, 0).next();
    failed.into_iter().for_each(|link| cut.fail(link));
    let job_hosts = setting.count("job_hosts");
    let cases = [
        ("whole racks", &whole, false),
        ("one failed uplink", &cut, false),
        ("scattered", &whole, true),
    ];
    let mut findings = Findings::default();
    let mut bars = Vec::new();
    for (name, network, scattered) in cases {
        let mut parts = Vec::new();
        for seed in setting.trials() {
            parts.push(of_roofline(network, job_hosts, scattered.then_some(seed), seed)?);
        }
        let lost = 1.0 - mean(&parts);
        let what = format!("performance lost: {name}");
        match name {
            "whole racks" => findings.expect(what, Unit::Part, lost, Expected::AtMost(0.01)),
            "scattered" => findings.expect(what, Unit::Part, lost, Expected::AtLeast(0.3)),
            // Two flows share an uplink, but only in the one job on the rack of the failed uplink.
            _ => findings.expect(what, Unit::Part, lost, Expected::AtLeast(0.01)),
        }
        bars.push(1.0 - lost);
    }
    let title = "Bandwidth with pinned paths, relative to the roofline";
    let groups = cases.map(|(name, ..)| name);
    let figure = Figure::bars("f10-pinned", title, "part of the roofline", &groups);
    findings.figures.push(figure.with_bars("mean over jobs", &bars));
    Ok(findings)
}

/// Orders a job's hosts so that neighbours are in different racks: first the first host of each
/// rack, then the second ones. In this order, all NICs of a rack send over its uplinks. In rack
/// order, only the NICs of one host per rack would send over uplinks: half of the uplinks would be
/// idle, and a failed uplink could go unnoticed.
fn deal(network: &Network, job: &mut Job) {
    let rack_hosts = network.plan().fabric.hosts_in_group(0).max(1);
    job.hosts.sort_by_key(|host| (u64::from(*host) % rack_hosts, *host));
}

/// Returns the part of the roofline that jobs reach on average.
fn of_roofline(
    network: &Network,
    job_hosts: u32,
    scattered: Option<u64>,
    seed: u64,
) -> Result<f64, SimError> {
    let call = Call::new(Collective::AllReduce, "ring", 1 << 30)?;
    let mut random = scattered.map(Random::new);
    let mut jobs = Job::fill(network, &[job_hosts], random.as_mut());
    if scattered.is_none() {
        jobs.iter_mut().for_each(|job| deal(network, job));
    }
    let rings = network.plan().ranks_per_host;
    let streams = of_all(network, &jobs, &call, rings)?;
    let outcome = run_streams(network, Scheme::Pinned, &streams, RunParams::at_once(1), seed)?;
    let of = |(group, end_s): (u32, f64)| {
        let own: Vec<Stream> =
            streams.iter().filter(|stream| stream.group == group).copied().collect();
        let nics_s = own.iter().map(|stream| stream.bytes).fold(0.0, f64::max);
        let nics_s = nics_s / network.plan().fabric.upward_bytes_per_s(0)
            * f64::from(network.plan().fabric.nics);
        (roofline_s(network, &own).min(nics_s) / end_s).min(1.0)
    };
    Ok(mean(&group_ends_s(&streams, &outcome).into_iter().map(of).collect::<Vec<_>>()))
}
