//! F8: all_reduce and all_to_all on many hosts, with traffic engineering and with hashing.

use ccl_core::types::Collective;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, run as run_streams};
use crate::SimError;
use crate::measure::mean;
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, Stream, roofline_s};
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f8",
    title: "all_reduce and all_to_all on 128 hosts: TE over E-ECMP",
    source: "with 16 uplinks, on 128 training nodes, TE is 5 % to 10 % faster than E-ECMP in \
             all_reduce and all_to_all (§5.5.2, Figure 10)",
    parameters: &[
        Parameter { name: "hosts", value: 128.0, what: "hosts of eight NICs; two hosts to a rack" },
        Parameter {
            name: "uplinks",
            value: 16.0,
            what: "uplinks of a rack; a second run has 1/8 more",
        },
        Parameter { name: "ring_pairs", value: 16.0, what: "queue pairs in all_reduce" },
        Parameter { name: "all_pairs", value: 4.0, what: "queue pairs in all_to_all" },
        Parameter { name: "peers", value: 1023.0, what: "peers that a rank sends to at a time" },
        Parameter {
            name: "inside",
            value: 0.25,
            what: "idle time of the network in each call, as a multiple of the call's roofline",
        },
        Parameter { name: "trials", value: 1.0, what: TRIALS },
        Parameter { name: "ring_trials", value: 40.0, what: "trials of all_reduce" },
    ],
    run,
};

/// Returns the streams of a hierarchical all_to_all. Data for another host first moves, inside the
/// sender's host, to the rank whose NIC is on the destination's rail.
fn all_to_all(network: &Network, hosts: u32) -> Result<Vec<Stream>, SimError> {
    let call = Call::new(Collective::AllToAll, "hierarchical", 1 << 30)?;
    Job::first(hosts).streams(network, &call, 1, 0)
}

/// Returns how much faster TE is than E-ECMP in each of the two collectives, with `uplinks` uplinks
/// per rack.
fn gains(setting: &Setting, uplinks: u32) -> Result<[f64; 2], SimError> {
    let hosts = setting.count("hosts");
    let zone = Zone { racks: hosts.div_ceil(2), uplinks, ..Zone::default() };
    let network = setting.network(&zone)?;
    let ring = Call::new(Collective::AllReduce, "ring", 1 << 30)?;
    let rings = Job::first(hosts).streams(&network, &ring, zone.nics, 0)?;
    let cases = [(rings, "ring_pairs"), (all_to_all(&network, hosts)?, "all_pairs")];
    let mut gains = [0.0; 2];
    for (gain, (streams, pairs)) in gains.iter_mut().zip(&cases) {
        let roofline_s = roofline_s(&network, streams);
        let (peers, settle_s) = (setting.count("peers"), roofline_s / 64.0);
        let params = RunParams { peers, settle_s, ..RunParams::at_once(setting.count(pairs)) };
        let inside_s = setting.number("inside") * roofline_s;
        let mut ratios = Vec::new();
        // Rings have few flows: the results of their hashes vary more, and trials are cheap.
        let trials = if *pairs == "ring_pairs" { "ring_trials" } else { "trials" };
        for seed in setting.seeds(trials) {
            let time_s = |scheme| {
                let outcome = run_streams(&network, scheme, streams, params, seed)?;
                Ok::<f64, SimError>(outcome.time_s + inside_s)
            };
            ratios.push(time_s(Scheme::HashedPairs)? / time_s(Scheme::Te)? - 1.0);
        }
        *gain = mean(&ratios);
    }
    Ok(gains)
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let mut findings = Findings::default();
    let title = "How much faster TE is than E-ECMP";
    let groups = ["all_reduce", "all_to_all"];
    let mut figure = Figure::bars("f8-gain", title, "gain", &groups);
    let (even, zone_nics) = (setting.count("uplinks"), Zone::default().rack_nics());
    for uplinks in [even, (even * 9).div_ceil(8)] {
        let gains = gains(setting, uplinks)?;
        for (name, gain) in groups.iter().zip(gains) {
            let what = format!("TE faster than E-ECMP in {name}, {uplinks} uplinks");
            // In the paper's benchmark, a rack has as many uplinks as NICs.
            match uplinks == zone_nics {
                true => findings.expect(what, Unit::Part, gain, Expected::Between(0.05, 0.10)),
                false => findings.note(what, Unit::Part, gain),
            }
        }
        figure = figure.with_bars(format!("{uplinks} uplinks"), &gains);
    }
    findings.figures.push(figure);
    findings.say(
        "In each call, the network is idle for the same multiple of the roofline as in F7's \
         benchmark, where TE uses 80 % of the links' bandwidth. Each pair of a source and a \
         destination has 16 queue pairs in all_reduce, and 4 in all_to_all (§5.3.3). The gain \
         depends on how much the uplinks have to spare: with an eighth more uplinks, hashing has \
         room enough. With few peers at a time (peers=4), TE loses in all_to_all: its paths share \
         the load evenly only on average over time.",
    );
    Ok(findings)
}
