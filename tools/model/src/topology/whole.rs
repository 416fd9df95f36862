//! A whole cluster: its machines, the number of each, and the network between them.

use super::fabric::Fabric;
use super::placed::Placed;
use ccl_core::topology::machine::{Class, Kind, LinkSpeed, Machine, Path};

/// Consecutive hosts of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRun {
    /// Index of the hosts' kind of machine in [`Topology::machines`].
    pub machine: usize,
    /// Number of hosts.
    pub count: u32,
}

/// A cluster, or a single machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Name of the topology.
    pub name: String,
    /// Kinds of machine.
    pub machines: Vec<Machine>,
    /// Hosts, in the order of their numbers.
    pub hosts: Vec<HostRun>,
    /// Network between hosts.
    pub fabric: Fabric,
    /// Position of each host in its cloud provider's network, by the host's number; empty if
    /// unknown. The positions agree with the tiers of the fabric, if the fabric has tiers.
    pub placed: Vec<Placed>,
}

/// Part of a host on which a rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Number of the host.
    pub host: u32,
    /// Index of the part in its machine.
    pub part: usize,
}

impl Topology {
    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts.iter().map(|run| run.count).fold(0, u32::saturating_add)
    }

    /// Returns the number of accelerators.
    #[must_use]
    pub fn gpus(&self) -> u64 {
        let gpus = |run: &HostRun| {
            let each = self.machines.get(run.machine).map_or(0, |kind| kind.of(Kind::Gpu).count());
            each as u64 * u64::from(run.count)
        };
        self.hosts.iter().map(gpus).sum()
    }

    /// Returns the kind of machine of a host.
    #[must_use]
    pub fn machine(&self, host: u32) -> Option<&Machine> {
        let mut before = 0_u64;
        let run = self.hosts.iter().find(|run| {
            before += u64::from(run.count);
            u64::from(host) < before
        });
        self.machines.get(run?.machine)
    }

    /// Returns the seat of a rank; none if there are too few seats. Ranks fill the seats
    /// ([`Machine::seats`]) of one host after the other.
    #[must_use]
    pub fn seat(&self, rank: u64) -> Option<Seat> {
        let (mut host, mut left) = (0, rank);
        for run in &self.hosts {
            let seats = self.machines.get(run.machine)?.seats();
            let all = seats.len() as u64 * u64::from(run.count);
            if left < all {
                let each = seats.len() as u64;
                let part = *seats.get(usize::try_from(left % each).ok()?)?;
                return Some(Seat { host: host + u32::try_from(left / each).ok()?, part });
            }
            left -= all;
            host += run.count;
        }
        None
    }

    /// Returns the path between two parts, on one host or on two. Between hosts, the path goes
    /// through the NIC nearest to each part and the switches between the hosts. Unknown NICs or
    /// switches count as infinitely fast.
    #[must_use]
    pub fn way(&self, from: Seat, to: Seat) -> Option<Path> {
        let (here, there) = (self.machine(from.host)?, self.machine(to.host)?);
        if from.host == to.host {
            return Some(here.path(from.part, to.part));
        }
        let (out, into) = (to_network(here, from.part), to_network(there, to.part));
        let between = match self.fabric.meeting(from.host, to.host) {
            None => LinkSpeed::NONE,
            Some(tier) => self.cables(tier),
        };
        Some(Path { class: Class::Net, speed: out.then(between).then(into) })
    }

    /// Returns the speed of the path up to a tier and down again, for a flow that shares no cable.
    fn cables(&self, tier: usize) -> LinkSpeed {
        let cables = self.fabric.tiers.iter().take(tier + 1);
        let bytes_per_s = cables.map(|tier| tier.bytes_per_s).fold(f64::INFINITY, f64::min);
        LinkSpeed { bytes_per_s, latency_ns: self.fabric.latency_ns(tier) }
    }
}

/// Returns the speed between a part and the network, in either direction, over the nearest NIC.
fn to_network(machine: &Machine, part: usize) -> LinkSpeed {
    let is_nic = machine.parts.get(part).is_some_and(|part| part.kind == Kind::Nic);
    let nic = if is_nic { Some(part) } else { machine.nearest_nic(part, &[]) };
    let Some(nic) = nic else { return LinkSpeed::NONE };
    let network = machine.parts[nic].network.unwrap_or(LinkSpeed::NONE);
    machine.plugged(part, nic).speed.then(network)
}
