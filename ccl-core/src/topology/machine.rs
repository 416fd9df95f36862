//! What is inside of a machine: NUMA nodes, the PCIe tree below each, accelerators, NICs, and the
//! links between accelerators.

use std::collections::BTreeMap;
use std::fmt;

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Processors and the memory that is nearest to them. It is under nothing.
    Numa,
    /// Where a PCIe tree begins, at a processor.
    HostBridge,
    /// A PCIe switch.
    PcieSwitch,
    /// An accelerator.
    Gpu,
    /// What joins accelerators by links of their own.
    NvSwitch,
    /// A network card, or one port of one.
    Nic,
}

/// How fast something is, in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// For the first byte.
    pub latency_ns: f64,
}

impl Wire {
    /// One after the other: as slow as the slower, as late as both.
    #[must_use]
    pub fn then(self, next: Wire) -> Wire {
        Wire {
            bytes_per_s: self.bytes_per_s.min(next.bytes_per_s),
            latency_ns: self.latency_ns + next.latency_ns,
        }
    }

    /// What slows nothing.
    pub const NONE: Wire = Wire { bytes_per_s: f64::INFINITY, latency_ns: 0.0 };
}

/// A part of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// By which it is named, in this machine alone: `gpu0`, `mlx5_3`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Of the parts, the one that it is plugged into; none for a NUMA node, for a host bridge of
    /// which nobody knows it, and for a switch that only accelerators' own links lead to.
    pub under: Option<usize>,
    /// Between it and what it is under.
    pub wire: Wire,
    /// What a NIC sends to the network; nothing for anything else.
    pub network: Option<Wire>,
    /// Its PCI address, `0000:17:00.0`.
    pub pci: Option<String>,
    /// What NCCL's topology file says of it and this model does not keep, by NCCL's names.
    pub nccl: BTreeMap<String, String>,
}

impl Part {
    /// A part of which nothing more is known, under nothing.
    #[must_use]
    pub fn new(name: &str, kind: Kind) -> Part {
        let (name, nccl) = (name.to_owned(), BTreeMap::new());
        Part { name, kind, under: None, wire: Wire::NONE, network: None, pci: None, nccl }
    }
}

/// Of which make the links of accelerators are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLinkKind {
    /// NVIDIA's.
    #[default]
    NvLink,
    /// AMD's Infinity Fabric.
    Xgmi,
}

/// Links of their own between two accelerators, or an accelerator and a switch for these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuLink {
    /// Both ends, of the parts.
    pub ends: [usize; 2],
    /// How many.
    pub links: u32,
    /// Of one link.
    pub wire: Wire,
    /// Of which make.
    pub kind: GpuLinkKind,
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// By which it is named.
    pub name: String,
    /// Between any two NUMA nodes.
    pub smp: Wire,
    /// In any order.
    pub parts: Vec<Part>,
    /// In any order, each pair once.
    pub gpu_links: Vec<GpuLink>,
}

/// What lies between two places, nearest first, by the legend of `nvidia-smi topo -m`, and two of
/// ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// X: nothing, it is the same.
    Same,
    /// NV#: so many links of accelerators.
    Nv(u32),
    /// XG#: so many links of AMD's accelerators.
    Xg(u32),
    /// PIX: at most one PCIe switch.
    Pix,
    /// PXB: several PCIe switches, and no host bridge.
    Pxb,
    /// PHB: a PCIe host bridge, which is the CPU's.
    Phb,
    /// NODE: what joins the host bridges of one NUMA node.
    Node,
    /// SYS: what joins NUMA nodes.
    Sys,
    /// SHM: memory, shared between processors.
    Shm,
    /// NET: the network, they are on two hosts.
    Net,
}

/// The legend, in the words of those who know `nvidia-smi`.
pub const LEGEND: &[(&str, &str)] = &[
    ("X", "itself"),
    ("SYS", "PCIe and what joins NUMA nodes (QPI, UPI, Infinity Fabric)"),
    ("NODE", "PCIe and what joins the PCIe host bridges of a NUMA node"),
    ("PHB", "PCIe and a host bridge, as a rule the CPU's"),
    ("PXB", "several PCIe switches, and no host bridge"),
    ("PIX", "at most one PCIe switch"),
    ("NV#", "so many NVLinks"),
    ("XG#", "so many links of AMD's Infinity Fabric"),
    ("SHM", "memory that processors share"),
    ("NET", "the network: another host"),
];

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Class::Same => f.pad("X"),
            Class::Nv(links) => f.pad(&format!("NV{links}")),
            Class::Xg(links) => f.pad(&format!("XG{links}")),
            Class::Pix => f.pad("PIX"),
            Class::Pxb => f.pad("PXB"),
            Class::Phb => f.pad("PHB"),
            Class::Node => f.pad("NODE"),
            Class::Sys => f.pad("SYS"),
            Class::Shm => f.pad("SHM"),
            Class::Net => f.pad("NET"),
        }
    }
}

/// From one place to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// What lies between.
    pub class: Class,
    /// How fast that is.
    pub wire: Wire,
}

impl Machine {
    /// Parts of a kind, in their order.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = usize> + '_ {
        (0..self.parts.len()).filter(move |part| self.parts[*part].kind == kind)
    }

    /// What processes compute on: its accelerators, or its NUMA nodes if it has none.
    #[must_use]
    pub fn seats(&self) -> Vec<usize> {
        let gpus: Vec<usize> = self.of(Kind::Gpu).collect();
        if gpus.is_empty() { self.of(Kind::Numa).collect() } else { gpus }
    }

    /// A part and what it is under, up to the top.
    pub fn upwards(&self, part: usize) -> impl Iterator<Item = usize> + '_ {
        let mut at = self.parts.get(part).map(|_| part);
        // No more steps than there are parts, should they lead in a circle.
        (0..self.parts.len()).map_while(move |_| {
            let here = at?;
            at = self.parts[here].under.filter(|above| *above < self.parts.len());
            Some(here)
        })
    }

    /// The NUMA node that a part is of.
    #[must_use]
    pub fn numa(&self, part: usize) -> Option<usize> {
        self.upwards(part).find(|part| self.parts[*part].kind == Kind::Numa)
    }

    /// Between two parts: by the accelerators' own links where there are some, else through what
    /// they are plugged into.
    #[must_use]
    pub fn path(&self, from: usize, to: usize) -> Path {
        if from == to {
            return Path { class: Class::Same, wire: Wire::NONE };
        }
        self.own_links(from, to).unwrap_or_else(|| self.plugged(from, to))
    }

    /// Of accelerators, straight or through switches of their own.
    fn own_links(&self, from: usize, to: usize) -> Option<Path> {
        let mut found: Option<(u32, GpuLinkKind, Wire)> = None;
        let mut add = |links: u32, kind, wire: Wire| {
            let all = Wire { bytes_per_s: wire.bytes_per_s * f64::from(links), ..wire };
            let (before, _, sum) = found.unwrap_or((0, kind, Wire { bytes_per_s: 0.0, ..all }));
            let sum = Wire {
                bytes_per_s: sum.bytes_per_s + all.bytes_per_s,
                latency_ns: sum.latency_ns.max(all.latency_ns),
            };
            found = Some((before + links, kind, sum));
        };
        for (link, over) in self.links_of(from) {
            if over == to {
                add(link.links, link.kind, link.wire);
            } else if self.parts.get(over).is_some_and(|part| part.kind == Kind::NvSwitch) {
                let second = self.links_of(to).find(|(_, end)| *end == over);
                if let Some((second, _)) = second {
                    add(link.links.min(second.links), link.kind, link.wire.then(second.wire));
                }
            }
        }
        let (links, kind, wire) = found?;
        let class = match kind {
            GpuLinkKind::NvLink => Class::Nv(links),
            GpuLinkKind::Xgmi => Class::Xg(links),
        };
        Some(Path { class, wire })
    }

    /// What all its NICs send to the network, in one direction.
    #[must_use]
    pub fn network_bytes_per_s(&self) -> f64 {
        let networks = self.parts.iter().filter_map(|part| part.network);
        networks.map(|network| network.bytes_per_s).sum()
    }

    /// The links of an accelerator, with their other ends.
    fn links_of(&self, part: usize) -> impl Iterator<Item = (&GpuLink, usize)> {
        self.gpu_links.iter().filter_map(move |link| match link.ends {
            [one, other] if one == part => Some((link, other)),
            [one, other] if other == part => Some((link, one)),
            _ => None,
        })
    }

    /// Returns the way between two parts without the links of accelerators: up to what both are
    /// under, and down again.
    #[must_use]
    pub fn plugged(&self, from: usize, to: usize) -> Path {
        let mut up: Vec<usize> = self.upwards(from).collect();
        let mut down: Vec<usize> = self.upwards(to).collect();
        while up.len() > 1 && down.len() > 1 && up[up.len() - 2..] == down[down.len() - 2..] {
            up.pop();
            down.pop();
        }
        let together = up.last() == down.last();
        let top = up.last().copied().filter(|_| together);
        let kind = |part: &usize| self.parts[*part].kind;
        let crossed: Vec<usize> = up.iter().chain(&down).copied().collect();
        let count = |sought| crossed.iter().filter(|part| kind(part) == sought).count();
        let class = match top.map(|top| kind(&top)) {
            _ if kind(&from) == Kind::Numa && kind(&to) == Kind::Numa => Class::Shm,
            None => Class::Sys,
            // The switch that joins them is on both ways.
            Some(Kind::PcieSwitch) if count(Kind::PcieSwitch) == 2 => Class::Pix,
            Some(Kind::PcieSwitch) => Class::Pxb,
            Some(Kind::Numa) if count(Kind::HostBridge) == 2 => Class::Node,
            // One is plugged into the other: functions of one card.
            Some(Kind::Gpu | Kind::Nic) => Class::Pix,
            Some(_) => Class::Phb,
        };
        let climbed = up.iter().chain(&down).filter(|part| Some(**part) != top);
        let climbed = climbed.filter(|part| self.parts[**part].under.is_some());
        let wire = climbed.map(|part| self.parts[*part].wire).fold(Wire::NONE, Wire::then);
        let between = if together { Wire::NONE } else { self.smp };
        Path { class, wire: wire.then(between) }
    }

    /// The NIC that is nearest to a part, the first of several; of `taken`, those that fewest have
    /// taken come first, so that accelerators with as many NICs beside them take one each.
    #[must_use]
    pub fn nearest_nic(&self, part: usize, taken: &[u32]) -> Option<usize> {
        let used = |nic: &usize| taken.get(*nic).copied().unwrap_or(0);
        self.of(Kind::Nic).min_by_key(|nic| (self.plugged(part, *nic).class, used(nic), *nic))
    }
}
