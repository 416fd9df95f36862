//! Model of a machine: NUMA nodes, the PCIe tree below each, accelerators, NICs, and the links
//! between accelerators.

use std::collections::BTreeMap;
use std::fmt;

/// Kind of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Processors and the memory that is nearest to them; the top of a tree.
    Numa,
    /// Start of a PCIe tree, at a processor.
    HostBridge,
    /// A PCIe switch.
    PcieSwitch,
    /// An accelerator.
    Gpu,
    /// Switch that joins accelerators by their own links.
    NvSwitch,
    /// A network card, or one of its ports.
    Nic,
}

/// Speed of a connection in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Latency of the first byte, in nanoseconds.
    pub latency_ns: f64,
}

impl LinkSpeed {
    /// Returns the speed of this connection followed by `next`: the smaller bandwidth, and the sum
    /// of both latencies.
    #[must_use]
    pub fn then(self, next: LinkSpeed) -> LinkSpeed {
        LinkSpeed {
            bytes_per_s: self.bytes_per_s.min(next.bytes_per_s),
            latency_ns: self.latency_ns + next.latency_ns,
        }
    }

    /// Connection of infinite bandwidth without latency.
    pub const NONE: LinkSpeed = LinkSpeed { bytes_per_s: f64::INFINITY, latency_ns: 0.0 };
}

/// A part of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name, unique in this machine: `gpu0`, `mlx5_3`.
    pub name: String,
    /// Kind of the part.
    pub kind: Kind,
    /// Index of the part that this one is plugged into; none for a NUMA node, a host bridge whose
    /// NUMA node is unknown, and a switch that only accelerators' own links reach.
    pub under: Option<usize>,
    /// Speed of the connection to the part that this one is plugged into.
    pub speed: LinkSpeed,
    /// Speed of a NIC towards the network; none for other parts.
    pub network: Option<LinkSpeed>,
    /// PCI address, `0000:17:00.0`.
    pub pci: Option<String>,
    /// Attributes of the part in NCCL's topology file that this model does not use, keyed by NCCL's
    /// names.
    pub nccl: BTreeMap<String, String>,
}

impl Part {
    /// Returns a part with nothing but a name and a kind, plugged into nothing.
    #[must_use]
    pub fn new(name: &str, kind: Kind) -> Part {
        let (name, nccl) = (name.to_owned(), BTreeMap::new());
        Part { name, kind, under: None, speed: LinkSpeed::NONE, network: None, pci: None, nccl }
    }
}

/// Technology of accelerators' own links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLinkKind {
    /// NVLink, by NVIDIA.
    #[default]
    NvLink,
    /// Infinity Fabric, by AMD.
    Xgmi,
}

/// Direct links between two accelerators, or between an accelerator and a switch for such links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuLink {
    /// Indices of the parts at both ends.
    pub ends: [usize; 2],
    /// Number of links.
    pub links: u32,
    /// Speed of one link.
    pub speed: LinkSpeed,
    /// Technology of the links.
    pub kind: GpuLinkKind,
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name of the machine.
    pub name: String,
    /// Speed of the connection between any two NUMA nodes.
    pub smp: LinkSpeed,
    /// Parts, in any order.
    pub parts: Vec<Part>,
    /// Links of accelerators, in any order, each pair once.
    pub gpu_links: Vec<GpuLink>,
}

/// Class of the connection between two parts, nearest first: the classes of `nvidia-smi topo -m`,
/// and XG#, SHM and NET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// X: no connection, both are the same part.
    Same,
    /// NV#: this number of NVLinks between accelerators.
    Nv(u32),
    /// XG#: this number of Infinity Fabric links between AMD's accelerators.
    Xg(u32),
    /// PIX: at most one PCIe switch.
    Pix,
    /// PXB: several PCIe switches, and no host bridge.
    Pxb,
    /// PHB: a PCIe host bridge, usually in the CPU.
    Phb,
    /// NODE: the interconnect between the host bridges of one NUMA node.
    Node,
    /// SYS: the interconnect between NUMA nodes.
    Sys,
    /// SHM: memory, shared between processors.
    Shm,
    /// NET: the network, between two hosts.
    Net,
}

/// Legend of the classes ([`Class`]), in the terms of `nvidia-smi`.
pub const LEGEND: &[(&str, &str)] = &[
    ("X", "itself"),
    ("SYS", "PCIe and the interconnect between NUMA nodes (QPI, UPI, Infinity Fabric)"),
    ("NODE", "PCIe and the interconnect between the PCIe host bridges of a NUMA node"),
    ("PHB", "PCIe and a host bridge, usually the CPU's"),
    ("PXB", "several PCIe switches, and no host bridge"),
    ("PIX", "at most one PCIe switch"),
    ("NV#", "this number of NVLinks"),
    ("XG#", "this number of AMD's Infinity Fabric links"),
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

/// Path from one part to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Class of the path.
    pub class: Class,
    /// Speed of the path.
    pub speed: LinkSpeed,
}

impl Machine {
    /// Returns the parts of a kind, in their order.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = usize> + '_ {
        (0..self.parts.len()).filter(move |part| self.parts[*part].kind == kind)
    }

    /// Returns the parts that processes compute on: the accelerators, or, without accelerators, the
    /// NUMA nodes.
    #[must_use]
    pub fn seats(&self) -> Vec<usize> {
        let gpus: Vec<usize> = self.of(Kind::Gpu).collect();
        if gpus.is_empty() { self.of(Kind::Numa).collect() } else { gpus }
    }

    /// Returns a part, the part that it is plugged into, and so on up to the top.
    pub fn upwards(&self, part: usize) -> impl Iterator<Item = usize> + '_ {
        let mut at = self.parts.get(part).map(|_| part);
        // Takes at most as many steps as there are parts, in case the parts form a cycle.
        (0..self.parts.len()).map_while(move |_| {
            let here = at?;
            at = self.parts[here].under.filter(|above| *above < self.parts.len());
            Some(here)
        })
    }

    /// Returns the NUMA node of a part.
    #[must_use]
    pub fn numa(&self, part: usize) -> Option<usize> {
        self.upwards(part).find(|part| self.parts[*part].kind == Kind::Numa)
    }

    /// Returns the path between two parts: by the accelerators' own links if there are some,
    /// otherwise by the parts that the two are plugged into.
    #[must_use]
    pub fn path(&self, from: usize, to: usize) -> Path {
        if from == to {
            return Path { class: Class::Same, speed: LinkSpeed::NONE };
        }
        self.own_links(from, to).unwrap_or_else(|| self.plugged(from, to))
    }

    /// Returns the path between accelerators by their own links, direct or through switches.
    fn own_links(&self, from: usize, to: usize) -> Option<Path> {
        let mut found: Option<(u32, GpuLinkKind, LinkSpeed)> = None;
        let mut add = |links: u32, kind, speed: LinkSpeed| {
            let all = LinkSpeed { bytes_per_s: speed.bytes_per_s * f64::from(links), ..speed };
            let (before, _, sum) =
                found.unwrap_or((0, kind, LinkSpeed { bytes_per_s: 0.0, ..all }));
            let sum = LinkSpeed {
                bytes_per_s: sum.bytes_per_s + all.bytes_per_s,
                latency_ns: sum.latency_ns.max(all.latency_ns),
            };
            found = Some((before + links, kind, sum));
        };
        for (link, over) in self.links_of(from) {
            if over == to {
                add(link.links, link.kind, link.speed);
            } else if self.parts.get(over).is_some_and(|part| part.kind == Kind::NvSwitch) {
                let second = self.links_of(to).find(|(_, end)| *end == over);
                if let Some((second, _)) = second {
                    add(link.links.min(second.links), link.kind, link.speed.then(second.speed));
                }
            }
        }
        let (links, kind, speed) = found?;
        let class = match kind {
            GpuLinkKind::NvLink => Class::Nv(links),
            GpuLinkKind::Xgmi => Class::Xg(links),
        };
        Some(Path { class, speed })
    }

    /// Returns the bandwidth of all NICs to the network, in one direction, in bytes per second.
    #[must_use]
    pub fn network_bytes_per_s(&self) -> f64 {
        let networks = self.parts.iter().filter_map(|part| part.network);
        networks.map(|network| network.bytes_per_s).sum()
    }

    /// Returns the links of an accelerator, with their other ends.
    fn links_of(&self, part: usize) -> impl Iterator<Item = (&GpuLink, usize)> {
        self.gpu_links.iter().filter_map(move |link| match link.ends {
            [one, other] if one == part => Some((link, other)),
            [one, other] if other == part => Some((link, one)),
            _ => None,
        })
    }

    /// Returns the path between two parts that takes none of the accelerators' own links: up to a
    /// common part, and down again.
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
            // Both paths end at the common switch, so a count of 2 means one switch.
            Some(Kind::PcieSwitch) if count(Kind::PcieSwitch) == 2 => Class::Pix,
            Some(Kind::PcieSwitch) => Class::Pxb,
            Some(Kind::Numa) if count(Kind::HostBridge) == 2 => Class::Node,
            // One part is plugged into the other: they are functions of one card.
            Some(Kind::Gpu | Kind::Nic) => Class::Pix,
            Some(_) => Class::Phb,
        };
        let climbed = up.iter().chain(&down).filter(|part| Some(**part) != top);
        let climbed = climbed.filter(|part| self.parts[**part].under.is_some());
        let speed =
            climbed.map(|part| self.parts[*part].speed).fold(LinkSpeed::NONE, LinkSpeed::then);
        let between = if together { LinkSpeed::NONE } else { self.smp };
        Path { class, speed: speed.then(between) }
    }

    /// Returns the NIC nearest to a part. Among equally near NICs, the least used one according to
    /// `taken` wins, then the first one. If the caller counts each choice in `taken`, n
    /// accelerators with the same n nearest NICs get one NIC each.
    #[must_use]
    pub fn nearest_nic(&self, part: usize, taken: &[u32]) -> Option<usize> {
        let used = |nic: &usize| taken.get(*nic).copied().unwrap_or(0);
        self.of(Kind::Nic).min_by_key(|nic| (self.plugged(part, *nic).class, used(nic), *nic))
    }
}
