//! Large collectives with folded ranks, where each simulated rank stands for many: all_reduce
//! (hierarchical or ring) and all_to_all.

use ccl_core::types::Collective;

use super::{Parameter, Scenario, Setting};
use crate::SimError;
use crate::collective::{self, Folding, REAL_RANKS_MAX, RunParams};
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Findings, Unit};
use crate::routing::{Router, Scheme};
use crate::streams::roofline_s;
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "scale",
    title: "a large collective, simulated with folded ranks",
    source: "",
    parameters: &[
        Parameter { name: "zones", value: 1.0, what: "zones" },
        Parameter { name: "racks", value: 192.0, what: "racks of two hosts in each zone" },
        Parameter { name: "ranks_per_host", value: 8.0, what: "ranks, and NICs, of a host" },
        Parameter {
            name: "algorithm",
            value: 0.0,
            what: "0: all_reduce hierarchical, 1: all_reduce ring, 2: all_to_all direct",
        },
        Parameter { name: "kib", value: 32.0, what: "KiB of a rank's buffer / number of ranks" },
        Parameter { name: "channels", value: 1.0, what: "channels" },
        Parameter { name: "slot_kib", value: 32.0, what: "KiB of a slot" },
        Parameter { name: "under_way", value: 4.0, what: "slots in flight from a NIC" },
        Parameter {
            name: "settle",
            value: 2.0,
            what: "time between updates of the rates / time that a slot takes on a NIC",
        },
        Parameter { name: "folded", value: 1.0, what: "0: simulate every rank, 1: fold ranks" },
    ],
    run,
};

/// Runs one case. Parallel cables are merged, because all traffic is sprayed.
fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone {
        racks: setting.count("racks"),
        zones: setting.count("zones"),
        nics: setting.count("ranks_per_host"),
        uplinks: 2 * setting.count("ranks_per_host"),
        ..Zone::default()
    };
    let network = Network::new(setting.plan(&zone)?.collapsed())?;
    let nics = network.rails() as usize;
    let (of, algorithm) = match setting.whole("algorithm") {
        0 => (Collective::AllReduce, "hierarchical"),
        1 => (Collective::AllReduce, "ring"),
        _ => (Collective::AllToAll, "direct"),
    };
    let each_bytes = u64::from(setting.count("kib")) * 1024;
    let call = Call::new(of, algorithm, each_bytes * u64::from(network.ranks()))?;
    let folded = setting.number("folded") > 0.0;
    let folding = if folded {
        Folding::closest(&network, Scheme::Spray, &call)?
    } else {
        Folding::none(network.ranks())
    };
    let mut params = RunParams { lean: network.ranks() > REAL_RANKS_MAX, ..RunParams::default() };
    params.links.channels = setting.count("channels");
    params.links.slot_bytes = setting.count("slot_kib") as usize * 1024;
    params.links.slots = 2;
    let chunk = params.links.slot_bytes.min(each_bytes as usize);
    params.spread.budget_bytes = setting.count("under_way") as usize * chunk * nics;
    params.settle_s = setting.number("settle") * chunk as f64 / network.plan().nic_bytes_per_s();
    let mut router = Router::new(Scheme::Spray, setting.seed);
    let outcome = collective::run(&network, &mut router, &call, folding, &params)?;
    let mut findings = Findings::default();
    findings.note("ranks", Unit::Count, f64::from(network.ranks()));
    findings.note("ranks that were simulated", Unit::Count, f64::from(outcome.simulated));
    findings.note("bytes of a rank's buffer", Unit::Bytes, call.bytes as f64);
    findings.note("time", Unit::Seconds, outcome.time_s);
    if network.ranks() <= REAL_RANKS_MAX {
        let job = Job::first(network.plan().hosts);
        let streams = job.streams(&network, &call, 1, 0)?;
        findings.note(
            "time over roofline",
            Unit::Ratio,
            outcome.time_s / roofline_s(&network, &streams),
        );
    }
    findings.note("messages simulated", Unit::Count, outcome.messages as f64);
    findings.note("computations of the rates", Unit::Count, outcome.settled as f64);
    Ok(findings)
}
