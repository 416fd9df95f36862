//! Stragglers: the cost of one late rank, and of one slow host, for all other ranks.

use ccl_core::types::Collective;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting};
use crate::SimError;
use crate::collective::{self, Folding, RunParams};
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::{Router, Scheme};
use crate::workload::Call;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "straggler",
    title: "an all_reduce with a late rank, and with a slow host",
    source: "",
    parameters: &[
        Parameter { name: "racks", value: 4.0, what: "racks of two hosts of eight ranks" },
        Parameter { name: "mib", value: 32.0, what: "MiB of the buffer" },
        Parameter { name: "late_us", value: 500.0, what: "microseconds that rank 3 is late" },
        Parameter { name: "slowness", value: 4.0, what: "slowdown factor of host 1's NICs" },
    ],
    run,
};

const ALGORITHMS: [&str; 2] = ["ring", "hierarchical"];

/// Refuses the runs if all of them together need too much work, by an estimate.
fn check_work(network: &Network, bytes: u64) -> Result<(), SimError> {
    let (mut steps, each) = (0.0, 3.0);
    for algorithm in ALGORITHMS {
        let call = Call::new(Collective::AllReduce, algorithm, bytes)?;
        steps += each * collective::steps(network, Scheme::Spray, &call, &RunParams::default())?;
    }
    let what = format!("6 runs of {} ranks", network.ranks());
    SimError::if_long(what, steps, network.plan().work_millions)
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { racks: setting.count("racks"), ..Zone::default() };
    let network = Network::new(setting.plan(&zone)?)?;
    if network.plan().hosts < 2 || network.ranks() < 4 {
        let remedy = "give two hosts and four ranks at least";
        return Err(SimError::number("the number of hosts", network.plan().hosts, remedy));
    }
    let mut slow = network.clone();
    for nic in 0..network.plan().fabric.nics {
        for link in network.uplinks(0, 1, nic) {
            let factor = 1.0 / setting.number("slowness").max(1.0);
            slow.scale(link, factor);
            slow.scale(link + 1, factor);
        }
    }
    let bytes = u64::from(setting.count("mib")) << 20;
    check_work(&network, bytes)?;
    let late_s = setting.number("late_us") * 1e-6;
    let mut findings = Findings::default();
    let title = "What a straggler costs";
    let groups = ["all alike", "a late rank", "a slow host"];
    let mut figure = Figure::bars("straggler", title, "time in seconds", &groups);
    for algorithm in ALGORITHMS {
        let call = Call::new(Collective::AllReduce, algorithm, bytes)?;
        let time_s = |network: &Network, late: Vec<(u32, f64)>| {
            let mut params = RunParams { late, ..RunParams::default() };
            params.settle_s =
                0.1 * params.links.slot_bytes as f64 / network.plan().nic_bytes_per_s();
            let mut router = Router::new(Scheme::Spray, setting.seed);
            let folding = Folding::none(network.ranks());
            let outcome = collective::run(network, &mut router, &call, folding, &params)?;
            Ok::<f64, SimError>(outcome.time_s)
        };
        let times = [
            time_s(&network, Vec::new())?,
            time_s(&network, vec![(3, late_s)])?,
            time_s(&slow, Vec::new())?,
        ];
        for (group, time_s) in groups.iter().zip(times) {
            findings.note(format!("{algorithm}, {group}"), Unit::Seconds, time_s);
        }
        let what = format!("{algorithm}: time that a late rank costs, as a part of its delay");
        let cost = (times[1] - times[0]) / late_s.max(1e-12);
        findings.expect(what, Unit::Part, cost, Expected::Between(0.0, 1.0));
        let what = format!("{algorithm}: time with a slow host, over the time without it");
        let slowness = Expected::Between(1.0, setting.number("slowness").max(1.0));
        findings.expect(what, Unit::Ratio, times[2] / times[0], slowness);
        figure = figure.with_bars(algorithm, &times);
    }
    findings.figures.push(figure);
    Ok(findings)
}
