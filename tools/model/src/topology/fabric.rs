//! The network between hosts: tiers of switches, a folded Clos.
//!
//! A *group* of the lowest tier is the set of hosts that one set of switches joins directly, such
//! as a rack or a scalable unit. A group of a higher tier joins groups of the tier below. Hosts are
//! numbered across all groups. In the lowest tier, host h is in group h / `children`. In a higher
//! tier, group g of the tier below is in group g / `children`.

/// Wiring between the switches of a group and the children below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Wiring of each switch to all NICs or switches below.
    Mesh,
    /// Wiring by number. Each child has n NICs or switches. NIC or switch k of each child has
    /// cables to the group's switches k, k + n, k + 2 n and so on; or, if the group has only s < n
    /// switches, to switch k modulo s. This wiring forms *rails* at the lowest tier, and *planes*
    /// above.
    Rails,
}

/// Level of the network's switches, in groups that are all alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Name of a switch: leaf, spine, core.
    pub name: String,
    /// Name of a group: rack, unit, zone.
    pub group: String,
    /// Number of children of a group: hosts in the lowest tier, else groups of the tier below.
    pub children: u32,
    /// Number of switches in a group.
    pub switches: u32,
    /// Wiring between the switches and the children below.
    pub wiring: Wiring,
    /// Number of cables between a switch and each NIC or switch below, if the two are wired.
    pub cables: u32,
    /// Bytes per second of one cable, in one direction.
    pub bytes_per_s: f64,
    /// Latency of a cable and the switch above it, in one direction.
    pub latency_ns: f64,
}

/// Tiers of switches, from the hosts upwards. Without tiers, nothing is known of the network
/// between hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fabric {
    /// Number of NICs that each host has on the network; cables of the lowest tier end at them.
    pub nics: u32,
    /// Tiers from the lowest upwards.
    pub tiers: Vec<Tier>,
}

impl Fabric {
    /// Returns the number of ends of each child of a tier: NICs of a host, or switches of a group.
    #[must_use]
    pub fn below(&self, tier: usize) -> u32 {
        match tier.checked_sub(1) {
            None => self.nics,
            Some(lower) => self.tiers.get(lower).map_or(0, |lower| lower.switches),
        }
    }

    /// Returns the switches of a group that are joined with end `below` of each child.
    pub fn above(&self, tier: usize, below: u32) -> impl Iterator<Item = u32> + use<> {
        let numbers = self.below(tier).max(1);
        let (switches, wiring) =
            self.tiers.get(tier).map_or((0, Wiring::Mesh), |tier| (tier.switches, tier.wiring));
        let (first, step) = match wiring {
            Wiring::Mesh => (0, 1),
            Wiring::Rails if switches >= numbers => (below, numbers),
            Wiring::Rails => (below % switches.max(1), numbers.max(switches)),
        };
        (first..switches).step_by(step as usize)
    }

    /// Returns the number of cables to this tier from end `below` of one child: a NIC of a host, or
    /// a switch of a group of the tier below.
    #[must_use]
    pub fn uplinks(&self, tier: usize, below: u32) -> u32 {
        let cables = self.tiers.get(tier).map_or(0, |tier| tier.cables);
        let above = u32::try_from(self.above(tier, below).count()).unwrap_or(u32::MAX);
        cables.saturating_mul(above)
    }

    /// Returns the number of hosts in a full group of this tier.
    #[must_use]
    pub fn hosts_in_group(&self, tier: usize) -> u64 {
        let children = |tier: &Tier| u64::from(tier.children);
        self.tiers.iter().take(tier + 1).map(children).fold(1, u64::saturating_mul)
    }

    /// Returns the group of this tier that a host is in.
    #[must_use]
    pub fn group(&self, tier: usize, host: u32) -> u32 {
        u32::try_from(u64::from(host) / self.hosts_in_group(tier).max(1)).unwrap_or(0)
    }

    /// Returns the number of groups of this tier that `hosts` hosts need.
    #[must_use]
    pub fn groups(&self, tier: usize, hosts: u32) -> u32 {
        let groups = u64::from(hosts).div_ceil(self.hosts_in_group(tier).max(1));
        u32::try_from(groups).unwrap_or(u32::MAX)
    }

    /// Returns the number of switches of this tier that `hosts` hosts need.
    #[must_use]
    pub fn switches(&self, tier: usize, hosts: u32) -> u64 {
        let switches = self.tiers.get(tier).map_or(0, |tier| tier.switches);
        u64::from(self.groups(tier, hosts)) * u64::from(switches)
    }

    /// Returns the lowest tier with a group that has both hosts; none if no tier joins them.
    #[must_use]
    pub fn meeting(&self, one: u32, other: u32) -> Option<usize> {
        (0..self.tiers.len()).find(|tier| self.group(*tier, one) == self.group(*tier, other))
    }

    /// Returns the bandwidth of all cables from one host (for the lowest tier) or from one group of
    /// the tier below (for a higher tier) to this tier, in one direction.
    #[must_use]
    pub fn upward_bytes_per_s(&self, tier: usize) -> f64 {
        let uplinks: u64 =
            (0..self.below(tier)).map(|below| u64::from(self.uplinks(tier, below))).sum();
        self.tiers.get(tier).map_or(0.0, |tier| tier.bytes_per_s * uplinks as f64)
    }

    /// Returns the oversubscription of a full group of the tier below this one: the bandwidth into
    /// the group from below, divided by its bandwidth upwards; 1 if both are equal. At the lowest
    /// tier the result is 1: a host sends no more than its NICs do.
    #[must_use]
    pub fn oversubscription(&self, tier: usize) -> f64 {
        let Some(lower) = tier.checked_sub(1).and_then(|lower| self.tiers.get(lower)) else {
            return 1.0;
        };
        let from_below = self.upward_bytes_per_s(tier - 1) * f64::from(lower.children);
        from_below / self.upward_bytes_per_s(tier)
    }

    /// Returns the idle latency from a NIC up to this tier and down to another NIC.
    #[must_use]
    pub fn latency_ns(&self, tier: usize) -> f64 {
        2.0 * self.tiers.iter().take(tier + 1).map(|tier| tier.latency_ns).sum::<f64>()
    }

    /// Returns the lowest tier whose oversubscription is more than 1, and that oversubscription.
    #[must_use]
    pub fn bottleneck(&self) -> Option<(usize, f64)> {
        let over = (0..self.tiers.len()).map(|tier| (tier, self.oversubscription(tier)));
        over.into_iter().find(|(_, over)| *over > 1.0 + 1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(children: u32, switches: u32, wiring: Wiring, cables: u32) -> Tier {
        let (name, group) = (String::new(), String::new());
        Tier {
            name,
            group,
            children,
            switches,
            wiring,
            cables,
            bytes_per_s: 50e9,
            latency_ns: 500.0,
        }
    }

    fn above(fabric: &Fabric, tier: usize) -> Vec<Vec<u32>> {
        (0..fabric.below(tier)).map(|below| fabric.above(tier, below).collect()).collect()
    }

    #[test]
    fn cables_follow_the_wiring_of_each_tier() {
        let fabric = Fabric {
            nics: 4,
            tiers: vec![
                tier(2, 2, Wiring::Rails, 1),
                tier(3, 3, Wiring::Mesh, 2),
                tier(2, 6, Wiring::Rails, 1),
            ],
        };
        assert_eq!(above(&fabric, 0), [[0], [1], [0], [1]]);
        assert_eq!(above(&fabric, 1), [[0, 1, 2], [0, 1, 2]]);
        assert_eq!(above(&fabric, 2), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!((fabric.uplinks(0, 3), fabric.uplinks(1, 0), fabric.uplinks(2, 2)), (1, 6, 2));
        let rails = Fabric { nics: 8, tiers: vec![tier(32, 8, Wiring::Rails, 1)] };
        assert_eq!(above(&rails, 0), Vec::from_iter((0..8).map(|nic| [nic])));
        let uneven = Fabric { nics: 3, tiers: vec![tier(32, 5, Wiring::Rails, 1)] };
        assert_eq!(above(&uneven, 0), [vec![0, 3], vec![1, 4], vec![2]]);
    }

    #[test]
    fn hosts_meet_at_the_lowest_tier_that_joins_them() {
        let fabric = Fabric {
            nics: 8,
            tiers: vec![tier(2, 1, Wiring::Mesh, 1), tier(192, 16, Wiring::Mesh, 1)],
        };
        assert_eq!((fabric.meeting(0, 1), fabric.meeting(1, 2)), (Some(0), Some(1)));
        assert_eq!(fabric.meeting(383, 384), None);
        assert_eq!((fabric.groups(0, 384), fabric.groups(1, 385)), (192, 2));
        assert_eq!((fabric.switches(0, 384), fabric.switches(1, 384)), (192, 16));
        assert_eq!((fabric.latency_ns(0), fabric.latency_ns(1)), (1000.0, 2000.0));
        assert_eq!((fabric.oversubscription(1), fabric.bottleneck()), (1.0, None));
    }

    #[test]
    fn without_switches_nothing_is_joined() {
        let none = Fabric::default();
        assert_eq!((none.meeting(0, 0), none.below(0), none.uplinks(0, 0)), (None, 0, 0));
        assert_eq!((none.oversubscription(0), none.latency_ns(3)), (1.0, 0.0));
    }
}
