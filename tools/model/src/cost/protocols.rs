//! Cost models of a topology, one for each protocol, for [`ccl_core::cost::predict`].

use crate::topology::Topology;
use ccl_core::cost::figures::processors;
use ccl_core::cost::walk::{Hop, Model, Owner, Processor};
use ccl_core::topology::machine::{Kind, LinkSpeed, Machine};

/// A protocol with its cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// Name of the protocol.
    pub name: &'static str,
    /// Cost model of the protocol.
    pub model: Model,
    /// Largest payload of a message.
    pub slot_bytes: usize,
}

/// Name of a protocol, its latencies, its rate as a share of the bandwidth within a host, and the
/// bytes of a message. A message of the model stands for 16 of NCCL's buffer slots: one of each of
/// 16 channels.
type Row = (&'static str, [f64; 4], f64, usize);

/// NCCL's protocols. The four latencies are from NCCL's model (`tuning.cc` of NCCL 2.30), in
/// microseconds: of a call, of a step over NVLink, of a step over PCIe, of a step over the network.
/// The shares of the bandwidth are calibrated with measurements: of p5 clusters
/// ([`super::cluster`]), and of eight A100 at sizes below and above 1 MiB ([`super::curve`]).
const NCCL: [Row; 3] = [
    ("LL", [6.6, 0.6, 1.0, 2.7], 0.1, 256 << 10),
    ("LL128", [14.0, 1.9, 2.5, 4.0], 0.75, 2 << 20),
    ("Simple", [8.4, 3.4, 5.7, 14.0], 0.82, 8 << 20),
];
/// Factor for the network: a protocol that reaches the share `s` of the bandwidth within a host
/// reaches the share `s · BETWEEN` of the network's bandwidth.
const BETWEEN: f64 = 0.86 / 0.82;

/// Returns the protocols for ranks on the first `hosts` hosts. If the machines differ, the slowest
/// parts determine the models.
///
/// # Errors
///
/// When the bandwidth between hosts is not known.
pub fn of(topology: &Topology, hosts: u32) -> Result<Vec<Protocol>, UnknownNetwork> {
    let (mut slowest, mut left): (Option<Parts>, u32) = (None, hosts);
    for run in &topology.hosts {
        let Some(machine) = topology.machines.get(run.machine).filter(|_| left > 0) else {
            continue;
        };
        left = left.saturating_sub(run.count);
        let mut parts = Parts::of(machine);
        let fabric = &topology.fabric;
        if !fabric.tiers.is_empty() {
            let seats = machine.seats().len().max(1) as f64;
            let share = if parts.owner == Owner::Rank { seats } else { 1.0 };
            parts.between = parts.between.min(fabric.upward_bytes_per_s(0) / share);
        }
        if hosts > 1 && !(parts.between.is_finite() && parts.between > 0.0) {
            return Err(UnknownNetwork { machine: machine.name.clone() });
        }
        slowest = Some(slowest.map_or(parts, |slowest| slowest.and(parts)));
    }
    Ok(slowest.map_or_else(Vec::new, |parts| parts.protocols()))
}

/// Error for a machine that must send to others over a network of unknown bandwidth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the bandwidth between hosts is unknown: \"{machine}\" has no NIC of known speed; give its \
     NICs `network = {{ bandwidth = \"400Gb/s\" }}`"
)]
pub struct UnknownNetwork {
    machine: String,
}

/// Links of a machine that the cost models depend on.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// True if ranks are on accelerators.
    gpus: bool,
    /// True if the accelerators have links of their own, such as NVLink.
    own_links: bool,
    /// Bytes per second of a rank within its machine: over all of its accelerator's own links, if
    /// there are any.
    within: f64,
    /// Bytes per second between machines: of a rank or of the host, as `owner` says.
    between: f64,
    owner: Owner,
}

impl Parts {
    fn of(machine: &Machine) -> Parts {
        let seats = machine.seats();
        let ends = seats.first().zip(seats.last()).filter(|(first, last)| first != last);
        let speed = ends.map_or(LinkSpeed::NONE, |(first, last)| machine.path(*first, *last).speed);
        let first = seats.first().copied();
        // Sum of all links of an accelerator, although only one of them may lead to a given peer.
        let own = first.map_or(0.0, |gpu| {
            let links = machine.gpu_links.iter().filter(|link| link.ends.contains(&gpu));
            links.map(|link| f64::from(link.links) * link.speed.bytes_per_s).sum()
        });
        let nics = machine.of(Kind::Nic).count();
        let network = machine.network_bytes_per_s();
        let each = nics >= seats.len() && seats.len() > 1;
        Parts {
            gpus: machine.of(Kind::Gpu).next().is_some(),
            own_links: own > 0.0,
            within: if own > 0.0 { own } else { speed.bytes_per_s },
            between: if each { network / seats.len() as f64 } else { network },
            owner: if each { Owner::Rank } else { Owner::Host },
        }
    }

    fn and(self, other: Parts) -> Parts {
        Parts {
            gpus: self.gpus && other.gpus,
            own_links: self.own_links && other.own_links,
            within: self.within.min(other.within),
            between: self.between.min(other.between),
            owner: if self.owner == other.owner { self.owner } else { Owner::Host },
        }
    }

    fn protocols(self) -> Vec<Protocol> {
        let Parts { within, between, owner: network_ports, .. } = self;
        if !self.gpus {
            let model = Model { network_ports, ..processors(between) };
            return vec![Protocol { name: "slots", model, slot_bytes: 128 << 10 }];
        }
        let protocol = |row: Row| {
            let (name, [call, nvlink, pcie, net], reached, slot_bytes) = row;
            let hop = |latency_us: f64, bytes_per_s| Hop {
                message_ns: 0.0,
                byte_ns: 0.0,
                latency_ns: latency_us * 1e3,
                bytes_per_s,
            };
            let processor =
                Processor { call_ns: call * 1e3, fold_ns: 0.0, slot_ns: 0.0, memory_ns: [0.0; 3] };
            let near = if self.own_links { nvlink } else { pcie };
            let model = Model {
                processor,
                within: hop(near, within * reached),
                between: hop(net, between * reached * BETWEEN),
                network_ports,
            };
            Protocol { name, model, slot_bytes }
        };
        NCCL.map(protocol).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;
    use crate::topology::presets;
    use ccl_core::algorithm;
    use ccl_core::cost::predict::{Call, Programs, predict};
    use ccl_core::topology::Hosts;
    use ccl_core::types::Collective;

    fn fastest(name: &str, hosts: u32, bytes: usize, collective: Collective) -> (f64, String) {
        let topology = presets::find(name).unwrap().topology();
        let ids: Vec<u32> = (0..8 * hosts).map(|rank| rank / 8).collect();
        let hosts = Hosts::of(&ids);
        let blocks = collective.even_blocks(8 * hosts.count()).unwrap() as usize;
        let mut best = (f64::INFINITY, String::new());
        for algorithm in algorithm::of(collective) {
            let programs = Programs::new(algorithm, 0, hosts.clone(), 8);
            for protocol in of(&topology, hosts.count()).unwrap() {
                let call = Call {
                    programs: &programs,
                    count: bytes / 4 / blocks,
                    element_bytes: 4,
                    buffer_bytes: bytes,
                    channels: 1,
                    slot_bytes: protocol.slot_bytes,
                };
                let seen = predict(&call, &protocol.model).unwrap().time_ns;
                if seen < best.0 {
                    best = (seen, format!("{} {}", algorithm.name, protocol.name));
                }
            }
        }
        best
    }

    /// Compares with measurements. A node of H100 reaches 370 GB/s without switches that reduce
    /// (NVLink SHARP). p5 clusters reach about 340 GB/s; a prediction above 300 GB/s is enough.
    #[test]
    fn large_messages_reach_the_measured_busbw() {
        let bytes = 1 << 30;
        let (ns, how) = fastest("h100", 1, bytes, Collective::AllReduce);
        about(1.75 * bytes as f64 / ns, 370.0, 0.05);
        assert!(how.ends_with("Simple"), "{how}");
        let (ns, how) = fastest("p5", 4, bytes, Collective::AllReduce);
        let busbw = 2.0 * 31.0 / 32.0 * bytes as f64 / ns;
        assert!(busbw > 300.0, "the busbw is {busbw} GB/s by {how}");
    }

    #[test]
    fn small_messages_use_protocol_ll() {
        let (ns, how) = fastest("h100", 1, 256, Collective::AllReduce);
        assert!(how.ends_with(" LL") && (6_600.0..15_000.0).contains(&ns), "{ns} ns by {how}");
    }
}
