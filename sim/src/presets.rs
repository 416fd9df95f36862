//! Networks that are often simulated: those of the paper, with the numbers that it changes.

use ccl_core::topology::fabric::{Fabric, Tier, Wiring};

use crate::network::Plan;

/// Bytes per second of 400 Gbit/s.
pub const GBPS_400: f64 = 50e9;

/// A zone as in [Meta, SIGCOMM 2024], section 4: racks of hosts with a rack switch each, whose
/// uplinks go to as many spine switches, one cable each.
///
/// [Meta, SIGCOMM 2024]: https://doi.org/10.1145/3651890.3672233
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    /// Racks of each zone.
    pub racks: u32,
    /// Hosts in each rack.
    pub rack_hosts: u32,
    /// NICs, and ranks, of each host.
    pub nics: u32,
    /// Spine switches, each with one cable to every rack.
    pub uplinks: u32,
    /// Of a NIC, in bytes per second.
    pub nic_bytes_per_s: f64,
    /// Of an uplink, in bytes per second.
    pub uplink_bytes_per_s: f64,
    /// Zones; more than one are joined by a third tier.
    pub zones: u32,
    /// By how much more goes up to the spine switches than these pass on upwards.
    pub oversubscription: f64,
}

impl Default for Zone {
    /// Racks of two hosts with eight NICs of 400 Gbit/s, and as many uplinks as NICs.
    fn default() -> Zone {
        Zone {
            racks: 2,
            rack_hosts: 2,
            nics: 8,
            uplinks: 16,
            nic_bytes_per_s: GBPS_400,
            uplink_bytes_per_s: GBPS_400,
            zones: 1,
            oversubscription: 7.0,
        }
    }
}

/// Of a cable and the switch at its upper end: a rack switch, a spine switch, one above these.
const LATENCY_NS: [f64; 3] = [600.0, 1_200.0, 2_000.0];

impl Zone {
    /// Hosts in all.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.zones.saturating_mul(self.racks).saturating_mul(self.rack_hosts)
    }

    /// NICs of a rack, and so what its uplinks are compared with.
    #[must_use]
    pub fn rack_nics(&self) -> u32 {
        self.rack_hosts.saturating_mul(self.nics)
    }

    /// The network.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let tier = |name: &str, group: &str, children, switches, bytes_per_s, level: usize| Tier {
            name: name.to_owned(),
            group: group.to_owned(),
            children,
            switches,
            wiring: Wiring::Mesh,
            cables: 1,
            bytes_per_s,
            latency_ns: LATENCY_NS[level],
        };
        let mut tiers = vec![
            tier("rack switch", "rack", self.rack_hosts, 1, self.nic_bytes_per_s, 0),
            tier("spine", "zone", self.racks, self.uplinks, self.uplink_bytes_per_s, 1),
        ];
        if self.zones > 1 {
            // The paper's: 192 cables from below, 192 / 7, that is 28, upwards.
            let above = (f64::from(self.racks) / self.oversubscription).ceil().max(1.0);
            let cores = above as u32;
            tiers.push(tier("aggregator", "site", self.zones, cores, self.uplink_bytes_per_s, 2));
        }
        Plan {
            fabric: Fabric { nics: self.nics, tiers },
            hosts: self.hosts(),
            ranks_per_host: self.nics,
            inner_bytes_per_s: 450e9,
            inner_latency_ns: 1_000.0,
            memory_mib: 4_096,
        }
    }
}
