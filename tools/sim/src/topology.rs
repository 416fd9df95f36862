//! Networks of described clusters: presets, or topologies that the caller has read from a file.

use ccl_core::topology::machine::{Kind, Machine};
use ccl_model::topology::Topology;

use crate::SimError;
use crate::network::Plan;

/// Ranks, NICs and bandwidths of a kind of host.
#[derive(Clone, Debug, PartialEq)]
struct Host {
    ranks: u32,
    rank_nics: Vec<u32>,
    inner_bytes_per_s: f64,
    inner_latency_ns: f64,
    /// Bandwidth of the host's slowest NIC, in bytes per second.
    nic_bytes_per_s: f64,
}

impl Plan {
    /// Creates the plan of the first `hosts` hosts of a cluster, or of all its hosts. Each host has
    /// one rank on each accelerator, or else on each NUMA node ([`Machine::seats`]). Ranks send by
    /// the NICs nearest to them. If hosts differ in speed, the plan has the lowest bandwidths and
    /// the highest latency.
    ///
    /// # Errors
    ///
    /// If the cluster has no switches, or fewer than `hosts` hosts; if the ranks or their NICs
    /// differ between hosts.
    pub fn of(topology: &Topology, hosts: Option<u32>) -> Result<Plan, SimError> {
        let name = &topology.name;
        let all = topology.hosts();
        let hosts = hosts.unwrap_or(all);
        if hosts == 0 || hosts > all {
            let what = format!("the number of hosts of {name}");
            return Err(SimError::number(what, hosts, format!("give 1 to {all}")));
        }
        let fabric = topology.fabric.clone();
        if fabric.tiers.is_empty() || fabric.nics == 0 {
            return Err(SimError::NoFabric { name: name.clone() });
        }
        let (mut slowest, mut left): (Option<Host>, u32) = (None, hosts);
        for run in &topology.hosts {
            let kind = topology.machines.get(run.machine).filter(|_| left > 0);
            let Some(machine) = kind else { continue };
            left = left.saturating_sub(run.count);
            let host = Host::of(machine, fabric.nics)?;
            slowest = Some(match slowest {
                None => host,
                Some(before) => before.and(host, &machine.name)?,
            });
        }
        let Some(host) = slowest else {
            return Err(SimError::NoFabric { name: name.clone() });
        };
        let mut plan = Plan {
            fabric,
            hosts,
            ranks_per_host: host.ranks,
            rank_nics: host.rank_nics,
            inner_bytes_per_s: host.inner_bytes_per_s,
            inner_latency_ns: host.inner_latency_ns,
            memory_mib: 4_096,
            work_millions: 1_000,
        };
        // A NIC can be slower than its cables.
        let slower = host.nic_bytes_per_s / plan.nic_bytes_per_s();
        if slower < 1.0 {
            plan.fabric.tiers[0].bytes_per_s *= slower;
        }
        Ok(plan)
    }
}

impl Host {
    fn of(machine: &Machine, nics: u32) -> Result<Host, SimError> {
        let seats = machine.seats();
        let known: Vec<usize> = machine.of(Kind::Nic).take(nics as usize).collect();
        if seats.is_empty() || known.is_empty() {
            let what =
                format!("the number of NICs, or of seats for ranks, in \"{}\"", machine.name);
            let remedy = "describe its NUMA nodes or accelerators, and its NICs";
            return Err(SimError::number(what, 0, remedy));
        }
        let inner = inner(machine, &seats);
        let networks = known.iter().filter_map(|nic| machine.parts[*nic].network);
        Ok(Host {
            ranks: u32::try_from(seats.len()).unwrap_or(u32::MAX),
            rank_nics: rank_nics(machine, &seats, &known),
            inner_bytes_per_s: inner.0,
            inner_latency_ns: inner.1,
            nic_bytes_per_s: networks.map(|speed| speed.bytes_per_s).fold(f64::INFINITY, f64::min),
        })
    }

    fn and(self, other: Host, name: &str) -> Result<Host, SimError> {
        if (self.ranks, &self.rank_nics) != (other.ranks, &other.rank_nics) {
            return Err(SimError::number(
                "the kind of some hosts",
                format!("\"{name}\""),
                "its ranks or their NICs differ from those of earlier hosts: simulate hosts of \
                 one kind, with --hosts or another topology",
            ));
        }
        Ok(Host {
            inner_bytes_per_s: self.inner_bytes_per_s.min(other.inner_bytes_per_s),
            inner_latency_ns: self.inner_latency_ns.max(other.inner_latency_ns),
            nic_bytes_per_s: self.nic_bytes_per_s.min(other.nic_bytes_per_s),
            ..self
        })
    }
}

/// Returns the bandwidth from a rank to the other ranks of its host, in bytes per second, and the
/// latency in ns. Both are values of the path from the first seat to the last seat. If the first
/// seat has GPU links, the bandwidth is the sum over these links instead.
fn inner(machine: &Machine, seats: &[usize]) -> (f64, f64) {
    let (first, last) = (seats[0], seats[seats.len() - 1]);
    let speed = machine.path(first, last).speed;
    let own = machine.gpu_links.iter().filter(|link| link.ends.contains(&first));
    let own: f64 = own.map(|link| f64::from(link.links) * link.speed.bytes_per_s).sum();
    let bytes_per_s = if own > 0.0 { own } else { speed.bytes_per_s };
    // The bandwidth is infinite for a single rank, and for parts of unknown speed.
    (if bytes_per_s.is_finite() { bytes_per_s } else { UNKNOWN_BYTES_PER_S }, speed.latency_ns)
}

/// Bandwidth within a host of unknown speed: so high that it limits nothing.
const UNKNOWN_BYTES_PER_S: f64 = 1e15;

/// Returns the NICs that each seat sends by, equally many for each seat. A seat gets its nearest
/// NICs. Among equally near NICs, it gets those that the fewest seats have
/// ([`Machine::nearest_nic`]).
fn rank_nics(machine: &Machine, seats: &[usize], nics: &[usize]) -> Vec<u32> {
    let each = (nics.len() / seats.len()).max(1);
    let mut taken = vec![0u32; nics.len()];
    let mut own = vec![Vec::with_capacity(each); seats.len()];
    for _ in 0..each {
        for (seat, own) in seats.iter().zip(&mut own) {
            let far = |at: &usize| (machine.path(*seat, nics[*at]).class, taken[*at], *at);
            let others = (0..nics.len()).filter(|at| !own.contains(&(*at as u32)));
            let nearest = others.min_by_key(far).unwrap_or(0);
            taken[nearest] += 1;
            own.push(nearest as u32);
        }
    }
    own.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use ccl_model::topology::presets;

    use super::*;
    use crate::network::{Network, Port};

    fn plan(name: &str) -> Plan {
        Plan::of(&presets::find(name).unwrap().topology(), None).unwrap()
    }

    #[test]
    fn presets_have_the_numbers_that_are_published() {
        let meta = plan("meta-24576");
        assert_eq!((meta.hosts, meta.ranks_per_host), (3072, 8));
        assert_eq!(meta.rank_nics, Vec::from_iter(0..8));
        assert_eq!((meta.nic_bytes_per_s(), meta.inner_bytes_per_s), (50e9, 450e9));
        assert_eq!(meta.fabric.bottleneck().unwrap().0, 2);
        let p5 = plan("p5");
        assert_eq!((p5.hosts, p5.ranks_per_host, p5.nic_bytes_per_s()), (16, 8, 12.5e9));
        assert_eq!(p5.rank_nics, Vec::from_iter(0..32));
        let network = Network::new(p5).unwrap();
        assert_eq!((network.rails(), network.port(9)), (4, Port { host: 1, nic: 4 }));
    }

    #[test]
    fn traffic_to_another_rail_leaves_by_the_nic_on_the_receivers_rail() {
        let network = Network::new(plan("p5")).unwrap();
        let (from, to) = network.ports(0, 8 + 3, 1);
        assert_eq!((from, to), (Port { host: 0, nic: 13 }, Port { host: 1, nic: 13 }));
        assert_eq!(network.meeting(from, to), Ok(0));
        // Spines join the rails of a SuperPOD's scalable unit, so the sender uses its own NIC.
        let network = Network::new(plan("superpod-256")).unwrap();
        let (from, to) = network.ports(0, 8 + 3, 0);
        assert_eq!((from.nic, to.nic, network.meeting(from, to)), (0, 3, Ok(1)));
    }

    #[test]
    fn ranks_share_scarce_nics_and_a_slow_nic_slows_its_cable() {
        let mut topology = presets::find("superpod-256").unwrap().topology();
        topology.fabric.nics = 4;
        for part in &mut topology.machines[0].parts {
            if let Some(network) = &mut part.network {
                network.bytes_per_s = 10e9;
            }
        }
        let plan = Plan::of(&topology, Some(2)).unwrap();
        let mut sorted = plan.rank_nics.clone();
        sorted.sort_unstable();
        assert_eq!((plan.hosts, sorted), (2, vec![0, 0, 1, 1, 2, 2, 3, 3]));
        assert_eq!(plan.nic_bytes_per_s(), 10e9);
    }

    #[test]
    fn clusters_that_cannot_be_simulated_are_refused_with_the_reason() {
        let of = |topology: &Topology, hosts| Plan::of(topology, hosts).unwrap_err().to_string();
        let h100 = presets::find("h100").unwrap().topology();
        assert!(of(&h100, None).contains("h100 has no switches between hosts"));
        let mut p5 = presets::find("p5").unwrap().topology();
        for hosts in [0, 17] {
            assert!(of(&p5, Some(hosts)).contains("give 1 to 16"));
        }
        let mut odd = p5.machines[0].clone();
        odd.name = "odd".to_owned();
        let gpu = odd.of(Kind::Gpu).next().unwrap();
        odd.parts[gpu].kind = Kind::PcieSwitch;
        p5.machines.push(odd);
        p5.hosts.push(ccl_model::topology::HostRun { machine: 1, count: 1 });
        assert!(of(&p5, None).contains("the kind of some hosts is \"odd\""));
        assert!(Plan::of(&p5, Some(16)).is_ok());
        p5.machines[0].parts.clear();
        assert!(of(&p5, Some(1)).contains("describe its NUMA nodes"));
    }
}
