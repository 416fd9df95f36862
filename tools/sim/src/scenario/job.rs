//! A collective on a network of the user's choice, for questions that no other experiment asks.

use ccl_core::types::Collective;

use super::{Parameter, Scenario, Setting, demands, tell_links};
use crate::SimError;
use crate::collective::{self, Folding, RunParams};
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Findings, Unit};
use crate::routing::{Router, SCHEMES, Scheme, Te};
use crate::streams::roofline_s;
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "job",
    title: "a collective on all ranks, simulated with real executions",
    source: "",
    parameters: &[
        Parameter { name: "racks", value: 8.0, what: "racks of each zone" },
        Parameter { name: "rack_hosts", value: 2.0, what: "hosts of each rack" },
        Parameter { name: "nics", value: 8.0, what: "ranks, and NICs, of each host" },
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack" },
        Parameter { name: "zones", value: 1.0, what: "zones" },
        Parameter { name: "over", value: 7.0, what: "oversubscription above the zones" },
        Parameter { name: "failed", value: 0.0, what: "uplinks of rack 0 that have failed" },
        Parameter {
            name: "algorithm",
            value: 0.0,
            what: "all_reduce: 0 hierarchical, 1 ring, 2 double_tree; all_to_all: 3 direct, \
                   4 hierarchical; all_gather: 5 ring; reduce_scatter: 6 ring",
        },
        Parameter {
            name: "routing",
            value: 2.0,
            what: "0 ecmp, 1 pinned, 2 e_ecmp, 3 te, 4 flowlet, 5 adaptive, 6 spray",
        },
        Parameter { name: "pairs", value: 4.0, what: "queue pairs of each link" },
        Parameter { name: "mib", value: 64.0, what: "MiB of a rank's buffer" },
        Parameter { name: "channels", value: 2.0, what: "channels" },
        Parameter { name: "slots", value: 8.0, what: "slots of a channel" },
        Parameter { name: "slot_kib", value: 128.0, what: "KiB of a slot" },
        Parameter {
            name: "budget_mib",
            value: 64.0,
            what: "limit on the MiB in flight to a receiver",
        },
        Parameter { name: "nic_kib", value: 2048.0, what: "limit on the KiB in flight from a NIC" },
        Parameter { name: "late_us", value: 0.0, what: "microseconds that rank 0 is late" },
        Parameter { name: "exact", value: 0.0, what: "1: compute rates anew at every event" },
    ],
    run,
};

const ALGORITHMS: [(Collective, &str); 7] = [
    (Collective::AllReduce, "hierarchical"),
    (Collective::AllReduce, "ring"),
    (Collective::AllReduce, "double_tree"),
    (Collective::AllToAll, "direct"),
    (Collective::AllToAll, "hierarchical"),
    (Collective::AllGather, "ring"),
    (Collective::ReduceScatter, "ring"),
];

/// Returns the entry of `list` whose index is the value of the parameter `name`.
fn chosen<T: Copy>(setting: &Setting, name: &str, list: &[T]) -> Result<T, SimError> {
    let remedy = || format!("give a number from 0 to {}", list.len() - 1);
    let found = list.get(setting.whole(name) as usize).copied();
    found.ok_or_else(|| SimError::number(name, setting.number(name), remedy()))
}

/// Cuts `failed` uplinks of the first rack.
fn fail(network: &mut Network, failed: u32) -> Result<(), SimError> {
    if failed > 0 && network.tiers() < 2 {
        let remedy = "give 0: with one tier of switches, racks have no uplinks";
        return Err(SimError::number("failed", failed, remedy));
    }
    let cut: Vec<u32> = match failed {
        0 => Vec::new(),
        _ => network.uplinks(1, 0, 0).take(failed as usize).collect(),
    };
    cut.into_iter().for_each(|link| network.fail(link));
    Ok(())
}

fn params(setting: &Setting, network: &Network) -> RunParams {
    let mut params = RunParams::default();
    params.links.channels = setting.count("channels");
    params.links.slots = setting.count("slots");
    params.links.slot_bytes = setting.count("slot_kib") as usize * 1024;
    params.links.budget_bytes = setting.count("budget_mib") as usize * (1 << 20);
    params.spread.pairs = setting.count("pairs");
    let nics = network.rails() as usize;
    params.spread.budget_bytes = setting.count("nic_kib") as usize * 1024 * nics;
    params.late = vec![(0, setting.number("late_us") * 1e-6)];
    if setting.number("exact") == 0.0 {
        let nic_bytes_per_s = network.plan().nic_bytes_per_s();
        params.settle_s = 0.1 * params.links.slot_bytes as f64 / nic_bytes_per_s;
    }
    params
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone {
        racks: setting.count("racks"),
        rack_hosts: setting.count("rack_hosts"),
        nics: setting.count("nics"),
        uplinks: setting.count("uplinks"),
        zones: setting.count("zones"),
        oversubscription: setting.number("over").max(1.0),
        ..Zone::default()
    };
    let mut network = Network::new(setting.plan(&zone)?)?;
    fail(&mut network, setting.whole("failed"))?;
    let (of, algorithm) = chosen(setting, "algorithm", &ALGORITHMS)?;
    let (routing, scheme) = chosen(setting, "routing", &SCHEMES)?;
    let call = Call::new(of, algorithm, u64::from(setting.count("mib")) << 20)?;
    let folding = if network.ranks() > collective::REAL_RANKS_MAX {
        Folding::closest(&network, scheme, &call)?
    } else {
        Folding::none(network.ranks())
    };
    // No streams are listed if only some of the ranks are simulated (see `Folding`).
    let streams = match folding.is_none() {
        true => Job::first(network.plan().hosts).streams(&network, &call, 1, 0)?,
        false => Vec::new(),
    };
    let mut router = match scheme {
        Scheme::Te => {
            let te = Te::place(&network, &demands(&network, &streams))?;
            Router::with_te(setting.seed, te)
        }
        _ => Router::new(scheme, setting.seed),
    };
    let params = params(setting, &network);
    let outcome = collective::run(&network, &mut router, &call, folding, &params)?;
    let mut findings = Findings::default();
    findings.say(format!("{of} by {algorithm}, routed by {routing}."));
    findings.note("time", Unit::Seconds, outcome.time_s);
    if folding.is_none() {
        let over = outcome.time_s / roofline_s(&network, &streams);
        findings.note("time over the network's roofline", Unit::Ratio, over);
    }
    findings.note("messages", Unit::Count, outcome.messages as f64);
    let in_flight = outcome.in_flight_bytes_max as f64;
    findings.note("most bytes in flight to a rank", Unit::Bytes, in_flight);
    let of_credits = in_flight / outcome.credit_bytes_max.max(1) as f64;
    findings.note("most bytes in flight to a rank, as part of its credits", Unit::Part, of_credits);
    if folding.is_none() {
        let carried = &outcome.carried_bytes;
        tell_links(&mut findings, &network, carried, outcome.time_s, "job-utilisation");
    }
    Ok(findings)
}
