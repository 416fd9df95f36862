//! F9: ECMP whose hash includes the queue pair (E-ECMP), compared with plain ECMP. With plain ECMP,
//! all queue pairs of a connection take the same path.

use ccl_core::types::Collective;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, run as run_streams};
use crate::SimError;
use crate::measure::mean;
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, Stream};
use crate::workload::{Call, Job};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f9",
    title: "all_reduce with ECMP that hashes queue pairs, compared with plain ECMP",
    source: "E-ECMP with queue pair scaling makes all_reduce up to 40 % faster than ECMP \
             without scaling (§5.3.2, Figure 7)",
    parameters: &[
        Parameter { name: "hosts", value: 16.0, what: "hosts of the job, of eight NICs each" },
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "width", value: 2.0, what: "bandwidth of an uplink / that of a NIC" },
        Parameter { name: "pairs", value: 16.0, what: "queue pairs of E-ECMP, per connection" },
        Parameter {
            name: "channels",
            value: 1.0,
            what: "connections between two NICs, each with its own UDP port, like NCCL's channels",
        },
        Parameter {
            name: "inter_us",
            value: 14.0,
            what: "latency of a ring's step from host to host, in µs, as in NCCL's tuning",
        },
        Parameter { name: "intra_us", value: 3.4, what: "latency of a step within a host, in µs" },
        Parameter { name: "trials", value: 100.0, what: TRIALS },
    ],
    run,
};

/// Buffer sizes of a benchmark, in MiB.
const SIZES_MIB: [u32; 5] = [64, 256, 1024, 4096, 16384];
/// Simulated buffer size, in MiB; the times of other sizes are in proportion.
const RUN_MIB: u32 = 1024;

/// Returns the sum of the latencies of all steps of a ring, in seconds. The time to transmit the
/// bytes is not included. With n ranks on M hosts, the ring has 2 (n − 1) steps, of which 2 (M − 1)
/// cross the network.
fn latency_s(setting: &Setting, network: &Network) -> f64 {
    let [ranks, hosts] = [network.ranks(), network.plan().hosts].map(f64::from);
    let across = 2.0 * (hosts - 1.0);
    let within = 2.0 * (ranks - 1.0) - across;
    1e-6 * (across * setting.number("inter_us") + within * setting.number("intra_us"))
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let (hosts, pairs) = (setting.count("hosts"), setting.count("pairs"));
    let racks = hosts.div_ceil(2);
    let uplink_bytes_per_s = Zone::default().nic_bytes_per_s * setting.number("width").max(0.01);
    let uplinks = setting.count("uplinks");
    let zone = Zone { racks, uplinks, uplink_bytes_per_s, ..Zone::default() };
    let network = setting.network(&zone)?;
    let streams = in_channels(&rings(&network)?, setting.count("channels"));
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let cases = [(Scheme::Ecmp, 1), (Scheme::Ecmp, pairs), (Scheme::HashedPairs, pairs)];
    for seed in setting.trials() {
        for ((scheme, pairs), times) in cases.into_iter().zip(&mut times) {
            let outcome = run_streams(&network, scheme, &streams, RunParams::at_once(pairs), seed)?;
            times.push(outcome.time_s);
        }
    }
    let times = times.map(|times| mean(&times));
    let latency_s = latency_s(setting, &network);
    let gain = |case: usize, mib: u32| {
        let larger = f64::from(mib) / f64::from(RUN_MIB);
        let [plain, own] = [times[0], times[case]].map(|time_s| larger * time_s + latency_s);
        plain / own - 1.0
    };
    let mut findings = Findings::default();
    let largest = SIZES_MIB[SIZES_MIB.len() - 1];
    let what = format!("gain of {pairs} queue pairs with plain ECMP");
    findings.expect(what, Unit::Part, gain(1, largest), Expected::About(0.0));
    let gains = SIZES_MIB.map(|mib| (f64::from(mib) * f64::from(1 << 20), gain(2, mib)));
    for (bytes, gain) in gains {
        let size = Unit::Bytes.text(bytes);
        let what = format!("gain of {pairs} queue pairs with E-ECMP, {size}");
        findings.note(what, Unit::Part, gain);
    }
    let most = gains.iter().map(|(_, gain)| *gain).fold(f64::NEG_INFINITY, f64::max);
    let what = format!("largest gain of {pairs} queue pairs with E-ECMP");
    findings.expect(what, Unit::Part, most, Expected::About(0.40));
    let axes = ("bytes of the buffer", "gain");
    let figure =
        Figure::lines("f9-gain", "Gain of hashed queue pairs over plain ECMP", axes, (true, false));
    findings.figures.push(figure.with(format!("{pairs} queue pairs"), gains.to_vec()));
    findings.say(
        "The paper states the largest gain over the sizes of a benchmark (\"up to\", Figure 7), so \
         the largest gain is compared. Small sizes gain less: their time is mostly \
         latency, which routing does not change. The mean over seeds is more than the paper's \
         gain; seed 1 alone gives 39.9 %. Uplinks are twice as wide as NICs, as they were when \
         E-ECMP was tried (§5.2.3, phase 2 of F11), and queue pairs are counted for each pair of \
         a source and a destination (§5.5.1). With two connections between NICs (channels=2), each \
         with a UDP port of its own, flows hardly collide under ECMP.",
    );
    Ok(findings)
}

/// Returns the streams of an all_reduce of one job on the whole network, with as many rings as a
/// host has ranks.
fn rings(network: &Network) -> Result<Vec<Stream>, SimError> {
    let call = Call::new(Collective::AllReduce, "ring", 1 << 30)?;
    let rings = network.plan().ranks_per_host;
    Job::first(network.plan().hosts).streams(network, &call, rings, 0)
}

/// Splits each stream over several connections.
fn in_channels(streams: &[Stream], channels: u32) -> Vec<Stream> {
    let part = |stream: Stream, channel| Stream {
        bytes: stream.bytes / f64::from(channels),
        channel,
        ..stream
    };
    streams.iter().flat_map(|stream| (0..channels).map(|at| part(*stream, at))).collect()
}
