//! Named machines and clusters, from published data. Latencies are typical values, not measured
//! here.

use std::collections::BTreeMap;

use super::fabric::{Fabric, Tier, Wiring};
use super::whole::{HostRun, Topology};
use ccl_core::topology::machine::{GpuLink, GpuLinkKind, Kind, LinkSpeed, Machine, Part};

/// A cluster that is known by name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name of the preset.
    pub name: &'static str,
    /// Description of the cluster.
    pub about: &'static str,
    make: fn() -> Topology,
}

impl Preset {
    /// Returns the cluster.
    #[must_use]
    pub fn topology(&self) -> Topology {
        Topology { name: self.name.to_owned(), ..(self.make)() }
    }
}

/// All presets.
pub const ALL: &[Preset] = &[
    Preset { name: "a100", about: "DGX A100: 8 GPUs, 8 NICs of 200 Gb/s", make: || single("a100") },
    Preset { name: "h100", about: "DGX H100: 8 GPUs, 8 NICs of 400 Gb/s", make: || single("h100") },
    Preset {
        name: "h200",
        about: "DGX H200: the same links as a DGX H100",
        make: || single("h200"),
    },
    Preset { name: "b200", about: "DGX B200: 8 GPUs, 8 NICs of 400 Gb/s", make: || single("b200") },
    Preset {
        name: "nvl72",
        about: "GB200 NVL72: 72 GPUs that NVLink joins, 72 NICs of 400 Gb/s",
        make: || single("nvl72"),
    },
    Preset {
        name: "mi300x",
        about: "AMD MI300X: 8 GPUs, each linked to all others, 8 NICs of 400 Gb/s",
        make: || single("mi300x"),
    },
    Preset {
        name: "p5",
        about: "AWS p5: 8 H100, 32 EFA NICs of 100 Gb/s, four beside each GPU; 16 hosts",
        make: || clustered("p5", 16, vec![tier("leaf", "cluster", 16, 32, Wiring::Rails, 1, EDR)]),
    },
    Preset {
        name: "superpod-256",
        about: "DGX SuperPOD of one unit: 32 DGX H100, 8 leaf switches (one per rail), 4 spines",
        make: || clustered("h100", 32, unit(&[spine(1, 4, 8)])),
    },
    Preset {
        name: "superpod-1024",
        about: "DGX SuperPOD of 4 units: 128 DGX H100, 32 leaf and 16 spine switches",
        make: || clustered("h100", 128, unit(&[spine(4, 16, 2)])),
    },
    Preset {
        name: "superpod-4096",
        about: "DGX SuperPOD of 16 units: 512 DGX H100, 128 leaf, 128 spine and 64 core switches",
        make: || {
            let core = tier("core", "superpod", 4, 64, Wiring::Rails, 16, NDR);
            clustered("h100", 512, unit(&[spine(4, 32, 1), core]))
        },
    },
    Preset {
        name: "meta-24576",
        about: "Meta's RoCE fabric for LLaMA 3: 8 zones of 192 racks of 16 H100; \
                oversubscribed 1:7 between zones",
        make: meta,
    },
];

/// Returns the preset of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Preset> {
    ALL.iter().find(|preset| preset.name == name)
}

/// Returns the kind of machine that has this name in the presets.
#[must_use]
pub fn machine(name: &str) -> Option<Machine> {
    let nvlink = |links, gb_per_s: f64| Some((links, gb_per_s * 1e9));
    let machine = match name {
        "a100" => a100(),
        "h100" | "h200" => paired(name, 4, nvlink(18, 25.0), PCIE_5, 1, NDR),
        "b200" => paired(name, 2, nvlink(18, 50.0), PCIE_5, 1, NDR),
        "p5" => paired(name, 4, nvlink(18, 25.0), PCIE_5, 4, EDR),
        "mi300x" => with_xgmi(paired(name, 0, None, PCIE_5, 1, NDR)),
        "nvl72" => nvl72(),
        _ => return None,
    };
    Some(machine)
}

/// Bandwidth of 16 PCIe lanes of the fourth generation, in bytes per second.
const PCIE_4: f64 = 31.5e9;
/// Bandwidth of 16 PCIe lanes of the fifth generation, in bytes per second.
const PCIE_5: f64 = 63.0e9;
/// Bandwidth of a network port of 100 Gb/s, in bytes per second.
const EDR: f64 = 12.5e9;
/// Bandwidth of a network port of 200 Gb/s, in bytes per second.
const HDR: f64 = 25e9;
/// Bandwidth of a network port of 400 Gb/s, in bytes per second.
const NDR: f64 = 50e9;

const PCIE_NS: f64 = 150.0;
const NVLINK_NS: f64 = 250.0;
const NIC_NS: f64 = 600.0;
const SWITCH_NS: f64 = 300.0;
/// Link between the sockets of two processors.
const SMP: LinkSpeed = LinkSpeed { bytes_per_s: 62.4e9, latency_ns: 130.0 };

fn tier(
    name: &str,
    group: &str,
    children: u32,
    switches: u32,
    wiring: Wiring,
    cables: u32,
    bytes_per_s: f64,
) -> Tier {
    let (name, group) = (name.to_owned(), group.to_owned());
    Tier { name, group, children, switches, wiring, cables, bytes_per_s, latency_ns: SWITCH_NS }
}

/// Returns the tiers of a DGX SuperPOD. The lowest tier consists of scalable units, each with 32
/// hosts on 8 leaf switches; the tiers `above` join the units.
fn unit(above: &[Tier]) -> Vec<Tier> {
    [&[tier("leaf", "unit", 32, 8, Wiring::Rails, 1, NDR)], above].concat()
}

fn spine(units: u32, switches: u32, cables: u32) -> Tier {
    tier("spine", "pod", units, switches, Wiring::Mesh, cables, NDR)
}

fn meta() -> Topology {
    clustered(
        "h100",
        8 * 192 * 2,
        vec![
            tier("RTSW", "rack", 2, 1, Wiring::Mesh, 1, NDR),
            tier("CTSW", "zone", 192, 16, Wiring::Mesh, 1, NDR),
            tier("ATSW", "building", 8, 28, Wiring::Mesh, 1, NDR),
        ],
    )
}

fn single(name: &str) -> Topology {
    clustered(name, 1, Vec::new())
}

fn clustered(name: &str, count: u32, tiers: Vec<Tier>) -> Topology {
    let machines = Vec::from_iter(machine(name));
    let nics = machines.first().map_or(0, |machine| machine.of(Kind::Nic).count());
    let nics = if tiers.is_empty() { 0 } else { u32::try_from(nics).unwrap_or(u32::MAX) };
    let hosts = vec![HostRun { machine: 0, count }];
    Topology {
        name: name.to_owned(),
        machines,
        hosts,
        fabric: Fabric { nics, tiers },
        placed: Vec::new(),
    }
}

/// Parts of a machine, added one by one.
struct Parts(Vec<Part>);

impl Parts {
    fn add(&mut self, name: String, kind: Kind, under: Option<usize>, bytes_per_s: f64) -> usize {
        let speed = match under {
            None => LinkSpeed::NONE,
            Some(_) if kind == Kind::HostBridge => LinkSpeed::NONE,
            Some(_) => LinkSpeed { bytes_per_s, latency_ns: PCIE_NS },
        };
        let nccl = BTreeMap::new();
        self.0.push(Part { name, kind, under, speed, network: None, pci: None, nccl });
        self.0.len() - 1
    }

    fn nic(&mut self, number: usize, under: usize, pcie: f64, network: f64) {
        let nic = self.add(format!("mlx5_{number}"), Kind::Nic, Some(under), pcie);
        self.0[nic].network = Some(LinkSpeed { bytes_per_s: network, latency_ns: NIC_NS });
    }
}

/// Returns a machine of two NUMA nodes; below each are four PCIe switches, each with one GPU and
/// `nics` NICs. The links of each GPU are spread over `switches` NVSwitches.
fn paired(
    name: &str,
    switches: usize,
    nvlink: Option<(u32, f64)>,
    pcie: f64,
    nics: usize,
    network: f64,
) -> Machine {
    let mut parts = Parts(Vec::new());
    let numa: Vec<usize> = (0..2)
        .map(|node| parts.add(format!("numa{node}"), Kind::Numa, None, f64::INFINITY))
        .collect();
    let mut gpus = Vec::new();
    for pair in 0..8 {
        let bridge =
            parts.add(format!("bridge{pair}"), Kind::HostBridge, Some(numa[pair / 4]), pcie);
        let switch = parts.add(format!("switch{pair}"), Kind::PcieSwitch, Some(bridge), pcie);
        gpus.push(parts.add(format!("gpu{pair}"), Kind::Gpu, Some(switch), pcie));
        for nic in 0..nics {
            parts.nic(pair * nics + nic, switch, pcie, network);
        }
    }
    let gpu_links =
        nvlink.map_or_else(Vec::new, |nvlink| dealt(&mut parts, &gpus, switches, nvlink));
    Machine { name: name.to_owned(), smp: SMP, parts: parts.0, gpu_links }
}

/// Adds NVSwitches, and returns the links of each GPU, spread over these switches.
fn dealt(
    parts: &mut Parts,
    gpus: &[usize],
    switches: usize,
    (links, bytes_per_s): (u32, f64),
) -> Vec<GpuLink> {
    let speed = LinkSpeed { bytes_per_s, latency_ns: NVLINK_NS };
    let switches: Vec<usize> = (0..switches)
        .map(|switch| parts.add(format!("nvswitch{switch}"), Kind::NvSwitch, None, f64::INFINITY))
        .collect();
    let count = u32::try_from(switches.len()).unwrap_or(1).max(1);
    let link = |gpu: usize, (number, switch): (u32, &usize)| GpuLink {
        ends: [gpu, *switch],
        links: links / count + u32::from(number < links % count),
        speed,
        kind: GpuLinkKind::NvLink,
    };
    gpus.iter().flat_map(|gpu| (0..).zip(&switches).map(|at| link(*gpu, at))).collect()
}

/// Adds one link between every pair of accelerators.
fn with_xgmi(mut machine: Machine) -> Machine {
    let gpus: Vec<usize> = machine.of(Kind::Gpu).collect();
    let speed = LinkSpeed { bytes_per_s: 64e9, latency_ns: NVLINK_NS };
    let link =
        |one, other| GpuLink { ends: [one, other], links: 1, speed, kind: GpuLinkKind::Xgmi };
    for (number, one) in gpus.iter().enumerate() {
        machine.gpu_links.extend(gpus[number + 1..].iter().map(|other| link(*one, *other)));
    }
    machine
}

/// Returns a machine of four NUMA nodes. In each, two GPUs are below one switch and two NICs below
/// another, and both switches are below a third.
fn a100() -> Machine {
    let mut parts = Parts(Vec::new());
    let numa: Vec<usize> = (0..4)
        .map(|node| parts.add(format!("numa{node}"), Kind::Numa, None, f64::INFINITY))
        .collect();
    let mut gpus = Vec::new();
    for (quarter, numa) in numa.into_iter().enumerate() {
        let bridge = parts.add(format!("bridge{quarter}"), Kind::HostBridge, Some(numa), PCIE_4);
        let top = parts.add(format!("switch{quarter}"), Kind::PcieSwitch, Some(bridge), PCIE_4);
        let named = |side: &str| format!("switch{quarter}{side}");
        let left = parts.add(named("-gpus"), Kind::PcieSwitch, Some(top), PCIE_4);
        let right = parts.add(named("-nics"), Kind::PcieSwitch, Some(top), PCIE_4);
        for number in [2 * quarter, 2 * quarter + 1] {
            gpus.push(parts.add(format!("gpu{number}"), Kind::Gpu, Some(left), PCIE_4));
            parts.nic(number, right, PCIE_4, HDR);
        }
    }
    let gpu_links = dealt(&mut parts, &gpus, 6, (12, 25e9));
    Machine { name: "a100".to_owned(), smp: SMP, parts: parts.0, gpu_links }
}

/// Returns a machine of 18 trays with two Grace processors each; every processor has two GPUs, each
/// with a NIC. All parts that NVLink joins are one machine here, though every tray runs its own
/// system.
fn nvl72() -> Machine {
    let mut parts = Parts(Vec::new());
    let mut gpus = Vec::new();
    for grace in 0..36 {
        let numa = parts.add(format!("numa{grace}"), Kind::Numa, None, f64::INFINITY);
        for number in [2 * grace, 2 * grace + 1] {
            let bridge = parts.add(format!("bridge{number}"), Kind::HostBridge, Some(numa), PCIE_5);
            let switch =
                parts.add(format!("switch{number}"), Kind::PcieSwitch, Some(bridge), PCIE_5);
            gpus.push(parts.add(format!("gpu{number}"), Kind::Gpu, Some(switch), PCIE_5));
            parts.nic(number, switch, PCIE_5, NDR);
        }
    }
    let gpu_links = dealt(&mut parts, &gpus, 18, (18, 50e9));
    Machine { name: "nvl72".to_owned(), smp: SMP, parts: parts.0, gpu_links }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches(name: &str) -> Vec<u64> {
        let Topology { fabric, hosts, .. } = find(name).unwrap().topology();
        let hosts = hosts.iter().map(|run| run.count).sum();
        (0..fabric.tiers.len()).map(|tier| fabric.switches(tier, hosts)).collect()
    }

    fn oversubscribed(name: &str) -> Option<(usize, f64)> {
        find(name).unwrap().topology().fabric.bottleneck()
    }

    #[test]
    fn all_presets_are_valid() {
        for preset in ALL {
            let topology = preset.topology();
            assert_eq!(topology.check(), Ok(()), "{}", preset.name);
            assert_eq!(topology.name, preset.name);
        }
    }

    #[test]
    fn clusters_have_the_switches_that_are_published() {
        let pod = find("superpod-1024").unwrap().topology();
        assert_eq!((pod.hosts(), pod.gpus()), (128, 1024));
        let nvswitches = u64::from(pod.hosts()) * pod.machines[0].of(Kind::NvSwitch).count() as u64;
        let network = switches("superpod-1024");
        assert_eq!((nvswitches, &network[..]), (512, &[32, 16][..]));
        assert_eq!(nvswitches + network.iter().sum::<u64>(), 560);
        assert_eq!(switches("superpod-256"), [8, 4]);
        assert_eq!(switches("superpod-4096"), [128, 128, 64]);
        for name in ["superpod-256", "superpod-1024", "superpod-4096", "p5"] {
            assert_eq!(oversubscribed(name), None, "{name}");
        }
    }

    #[test]
    fn traffic_between_zones_is_oversubscribed_one_to_seven() {
        let meta = find("meta-24576").unwrap().topology();
        assert_eq!((meta.hosts(), meta.gpus()), (3072, 24_576));
        assert_eq!(8 * meta.fabric.hosts_in_group(1), 3072);
        assert_eq!(switches("meta-24576"), [1536, 128, 28]);
        let (tier, over) = oversubscribed("meta-24576").unwrap();
        assert_eq!(tier, 2);
        assert!((over - 192.0 / 28.0).abs() < 1e-9, "{over}");
    }

    #[test]
    fn machines_have_the_published_bandwidths() {
        for (name, to_gpus, to_network) in [
            ("a100", 300e9, 200e9),
            ("h100", 450e9, 400e9),
            ("b200", 900e9, 400e9),
            ("nvl72", 900e9, 3600e9),
            ("mi300x", 448e9, 400e9),
            ("p5", 450e9, 400e9),
        ] {
            let machine = machine(name).unwrap();
            let gpu = machine.of(Kind::Gpu).next().unwrap();
            let links = machine.gpu_links.iter().filter(|link| link.ends.contains(&gpu));
            let own: f64 = links.map(|link| f64::from(link.links) * link.speed.bytes_per_s).sum();
            assert_eq!((own, machine.network_bytes_per_s()), (to_gpus, to_network), "{name}");
        }
    }
}
