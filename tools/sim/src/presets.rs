//! Networks of Meta's paper on RoCE, with adjustable numbers.

use ccl_model::topology::presets;

use crate::SimError;
use crate::network::Plan;

/// Bytes per second of 400 Gbit/s.
pub const GBPS_400: f64 = 50e9;

/// One or more equal zones as in [Meta, SIGCOMM 2024], section 4: racks of hosts, with one rack
/// switch per rack. Each rack switch has one uplink to every spine switch of its zone.
///
/// [Meta, SIGCOMM 2024]: https://doi.org/10.1145/3651890.3672233
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    /// Racks of each zone.
    pub racks: u32,
    /// Hosts in each rack.
    pub rack_hosts: u32,
    /// Number of NICs of each host, which has one rank per NIC.
    pub nics: u32,
    /// Spine switches of each zone, each with one cable to every rack of the zone.
    pub uplinks: u32,
    /// Bandwidth of a NIC, in bytes per second.
    pub nic_bytes_per_s: f64,
    /// Bandwidth of an uplink, in bytes per second.
    pub uplink_bytes_per_s: f64,
    /// Number of zones; if there are several, a third tier joins them.
    pub zones: u32,
    /// Oversubscription of the third tier: bandwidth into the spine switches from below, divided by
    /// their bandwidth upwards.
    pub oversubscription: f64,
}

impl Default for Zone {
    /// Returns two racks of two hosts. Each host has eight NICs of 400 Gbit/s; each rack has 16
    /// uplinks, as many as NICs.
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

/// Name of the preset of the paper's fabric. Every zone here is a variant of that fabric.
const META: &str = "meta-24576";

impl Zone {
    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.zones.saturating_mul(self.racks).saturating_mul(self.rack_hosts)
    }

    /// Returns the number of NICs of a rack. Experiments compare the number of uplinks with it.
    #[must_use]
    pub fn rack_nics(&self) -> u32 {
        self.rack_hosts.saturating_mul(self.nics)
    }

    /// Returns the plan of the paper's network, with the numbers of this zone.
    ///
    /// # Errors
    ///
    /// If the preset of the paper's network is missing.
    pub fn plan(&self) -> Result<Plan, SimError> {
        let meta = presets::find(META).ok_or_else(|| SimError::Unknown {
            what: "topology",
            name: META.to_owned(),
            known: presets::ALL.iter().map(|preset| preset.name).collect::<Vec<_>>().join(" "),
        })?;
        let mut plan = Plan::of(&meta.topology(), None)?;
        let cores = (f64::from(self.racks) / self.oversubscription).ceil().max(1.0) as u32;
        let numbers = [
            (self.rack_hosts, 1, self.nic_bytes_per_s),
            (self.racks, self.uplinks, self.uplink_bytes_per_s),
            // In the paper, a spine switch has 192 cables to racks and 192 / 7, rounded up to 28,
            // to switches of the third tier.
            (self.zones, cores, self.uplink_bytes_per_s),
        ];
        for (tier, (children, switches, bytes_per_s)) in plan.fabric.tiers.iter_mut().zip(numbers) {
            (tier.children, tier.switches, tier.bytes_per_s) = (children, switches, bytes_per_s);
        }
        plan.fabric.tiers.truncate(if self.zones > 1 { 3 } else { 2 });
        plan.fabric.nics = self.nics;
        (plan.hosts, plan.ranks_per_host) = (self.hosts(), self.nics);
        plan.rank_nics = (0..self.nics).collect();
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_with_the_papers_numbers_equals_the_named_preset() {
        let zone = Zone { racks: 192, zones: 8, ..Zone::default() };
        let meta = presets::find(META).unwrap().topology();
        assert_eq!(zone.plan(), Plan::of(&meta, None));
    }
}
