//! F4: the worst of many jobs, with few and with many queue pairs.

use ccl_core::random::Random;
use ccl_core::types::Collective;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, group_ends_s, run as run_streams};
use crate::SimError;
use crate::measure::{mean, quantile};
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, Stream, roofline_s};
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f4",
    title: "speed of jobs scattered over a zone, as a part of their roofline, by queue pairs",
    source: "with 32 instead of 4 queue pairs the worst case goes from 20 % to 52 % of the \
             roofline; most jobs still do not reach it (§5.5.1)",
    parameters: &[
        Parameter { name: "pairs", value: 0.0, what: "queue pairs; 0 for 4 and 32" },
        Parameter { name: "racks", value: 64.0, what: "racks of two hosts" },
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "failed", value: 2.0, what: "failed uplinks of every fourth rack" },
        Parameter { name: "trials", value: 4.0, what: TRIALS },
    ],
    run,
};

/// Numbers of hosts that jobs have. With 8 ranks per host, jobs have 16 to 128 ranks, like the
/// paper's groups.
const JOB_HOSTS: [u32; 4] = [2, 4, 8, 16];

/// Returns the streams of jobs that fill the zone in random order. Each job makes one all_reduce
/// over rings.
pub(super) fn scattered(network: &Network, seed: u64) -> Result<Vec<Stream>, SimError> {
    let call = Call::new(Collective::AllReduce, "ring", 1 << 30)?;
    let jobs = Job::fill(network, &JOB_HOSTS, Some(&mut Random::new(seed)));
    let rings = network.plan().ranks_per_host;
    of_all(network, &jobs, &call, rings)
}

/// Returns the streams of jobs that all make the same call; the streams of a job are a group.
pub(super) fn of_all(
    network: &Network,
    jobs: &[Job],
    call: &Call,
    rings: u32,
) -> Result<Vec<Stream>, SimError> {
    let streams = (0..).zip(jobs).map(|(group, job)| job.streams(network, call, rings, group));
    Ok(streams.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Returns, for each trial, the roofline time of each job divided by the job's simulated time.
fn of_roofline(
    setting: &Setting,
    network: &Network,
    pairs: u32,
) -> Result<Vec<Vec<f64>>, SimError> {
    let mut trials = Vec::new();
    for seed in setting.trials() {
        let streams = scattered(network, seed)?;
        let settle_s = roofline_s(network, &streams) / 100.0;
        let params = RunParams { settle_s, ..RunParams::at_once(pairs) };
        let outcome = run_streams(network, Scheme::HashedPairs, &streams, params, seed)?;
        let part = |(group, end_s): (u32, f64)| {
            let own: Vec<Stream> =
                streams.iter().filter(|stream| stream.group == group).copied().collect();
            roofline_s(network, &own) / end_s
        };
        trials.push(group_ends_s(&streams, &outcome).into_iter().map(part).collect());
    }
    Ok(trials)
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone {
        racks: setting.count("racks"),
        uplinks: setting.count("uplinks"),
        ..Zone::default()
    };
    let mut network = setting.network(&zone)?;
    fail_some(&mut network, setting.whole("failed"));
    let mut findings = Findings::default();
    let axes = ("part of jobs", "part of the roofline at most");
    let mut figure =
        Figure::lines("f4-jobs", "Jobs by the part of the roofline", axes, (false, false));
    for (pairs, worst) in setting.pairs(&[(4, 0.20), (32, 0.52)]) {
        let trials = of_roofline(setting, &network, pairs)?;
        let worst_job = trials.iter().flatten().copied().fold(1.0, f64::min);
        let what = format!("speed of the worst job with {pairs} queue pairs / its roofline");
        match worst {
            Some(worst) => {
                findings.expect(what, Unit::Part, worst_job, Expected::About(worst));
            }
            None => findings.note(what, Unit::Part, worst_job),
        }
        let jobs: Vec<f64> = trials.into_iter().flatten().collect();
        let below = jobs.iter().filter(|part| **part < 0.99).count() as f64 / jobs.len() as f64;
        let what = format!("jobs below the roofline with {pairs} queue pairs");
        findings.expect(what, Unit::Part, below, Expected::AtLeast(0.5));
        let what = format!("mean speed of the jobs with {pairs} queue pairs / their roofline");
        findings.note(what, Unit::Part, mean(&jobs));
        let points = (0..=20).map(|step| f64::from(step) / 20.0);
        let points = points.map(|part| (part, quantile(&jobs, part))).collect();
        figure = figure.with(format!("{pairs} queue pairs"), points);
    }
    findings.figures.push(figure);
    findings.say(
        "The paper's placements are not published: jobs of 2 to 16 hosts lie anywhere here, and \
         some uplinks have failed. What is reproduced is the order: the worst job is faster with \
         32 queue pairs than with 4. With 4 queue pairs per connection, an uplink has 4 queue \
         pairs on average; if an uplink has 20, the jobs that use it are at a fifth of their \
         roofline. An even hash puts 20 on an uplink only once in a hundred million times, so the \
         worst of 2,176 jobs (trials=128,pairs=4) reaches 23 % to 25 % of its roofline, depending \
         on the seed. So the paper's switches hash less evenly, or the paper's worst job lost more \
         elsewhere.",
    );
    Ok(findings)
}

/// Cuts `failed` uplinks of every fourth rack.
pub(super) fn fail_some(network: &mut Network, failed: u32) {
    for rack in (0..network.children(1)).step_by(4) {
        let links: Vec<u32> = network.uplinks(1, rack, 0).take(failed as usize).collect();
        links.into_iter().for_each(|link| network.fail(link));
    }
}
