//! A whole cluster: its machines, how many of each, and the network between them.

use super::fabric::Fabric;
use super::placed::Placed;
use ccl_core::topology::machine::{Class, Kind, Machine, Path, Wire};

/// Some hosts in a row that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRun {
    /// Of the kinds of machine, which.
    pub machine: usize,
    /// How many.
    pub count: u32,
}

/// A cluster, or a single machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// By which it is named.
    pub name: String,
    /// Kinds of machine.
    pub machines: Vec<Machine>,
    /// Hosts, in the order of their numbers.
    pub hosts: Vec<HostRun>,
    /// Between hosts.
    pub fabric: Fabric,
    /// Where each host is in its provider's network, by its number; empty if nobody says. It agrees
    /// with the tiers of the fabric, if there are any.
    pub placed: Vec<Placed>,
}

/// A part of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The host's number.
    pub host: u32,
    /// Of its machine's parts, which.
    pub part: usize,
}

impl Topology {
    /// Hosts in all.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts.iter().map(|run| run.count).fold(0, u32::saturating_add)
    }

    /// Accelerators in all.
    #[must_use]
    pub fn gpus(&self) -> u64 {
        let gpus = |run: &HostRun| {
            let each = self.machines.get(run.machine).map_or(0, |kind| kind.of(Kind::Gpu).count());
            each as u64 * u64::from(run.count)
        };
        self.hosts.iter().map(gpus).sum()
    }

    /// Of which kind a host is.
    #[must_use]
    pub fn machine(&self, host: u32) -> Option<&Machine> {
        let mut before = 0_u64;
        let run = self.hosts.iter().find(|run| {
            before += u64::from(run.count);
            u64::from(host) < before
        });
        self.machines.get(run?.machine)
    }

    /// Where a rank is, if ranks fill the seats of one host after the other ([`Machine::seats`]).
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

    /// Between two parts of one host or of two. Between hosts it leads through the NIC nearest to
    /// each and the switches that join their groups; where no NIC or no switches are known, all
    /// that is known is that it is the network.
    #[must_use]
    pub fn way(&self, from: Seat, to: Seat) -> Option<Path> {
        let (here, there) = (self.machine(from.host)?, self.machine(to.host)?);
        if from.host == to.host {
            return Some(here.path(from.part, to.part));
        }
        let (out, into) = (to_network(here, from.part), to_network(there, to.part));
        let between = match self.fabric.meeting(from.host, to.host) {
            None => Wire::NONE,
            Some(tier) => self.cables(tier),
        };
        Some(Path { class: Class::Net, wire: out.then(between).then(into) })
    }

    /// Up to a tier and down again, for one who has the cables alone.
    fn cables(&self, tier: usize) -> Wire {
        let cables = self.fabric.tiers.iter().take(tier + 1);
        let bytes_per_s = cables.map(|tier| tier.bytes_per_s).fold(f64::INFINITY, f64::min);
        Wire { bytes_per_s, latency_ns: self.fabric.latency_ns(tier) }
    }
}

/// From a part to the network, or back.
fn to_network(machine: &Machine, part: usize) -> Wire {
    let is_nic = machine.parts.get(part).is_some_and(|part| part.kind == Kind::Nic);
    let nic = if is_nic { Some(part) } else { machine.nearest_nic(part, &[]) };
    let Some(nic) = nic else { return Wire::NONE };
    let network = machine.parts[nic].network.unwrap_or(Wire::NONE);
    machine.plugged(part, nic).wire.then(network)
}
