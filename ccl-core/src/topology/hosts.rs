//! Placement of ranks on hosts, for hierarchical algorithms and the choice of an algorithm.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::types::Rank;

/// The hosts of a communicator. Hosts are numbered in the order of their lowest ranks; the ranks of
/// a host have *local indices* in rank order, from 0.
///
/// Hosts of equal size with consecutive or round-robin ranks are stored as four numbers, however
/// many ranks there are; any other placement is a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    ranks: u32,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Rank `h × host_stride + l × local_stride` has local index l on host h.
    Even {
        hosts: u32,
        size: u32,
        host_stride: u32,
        local_stride: u32,
    },
    Listed(Listed),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    /// Host and local index of each rank.
    seats: Vec<(u32, u32)>,
    /// Ranks of each host, in rank order.
    members: Vec<Vec<Rank>>,
}

impl Hosts {
    /// Returns the placement of all ranks on one host.
    #[must_use]
    pub const fn one(ranks: u32) -> Hosts {
        let kind = Kind::Even { hosts: 1, size: ranks, host_stride: ranks, local_stride: 1 };
        Hosts { ranks, kind }
    }

    /// Returns the placement for a list of host ids, one for each rank in rank order. Ranks with
    /// equal ids share a host.
    #[must_use]
    pub fn of<Id: Ord>(ids: &[Id]) -> Hosts {
        let ranks = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let mut names: BTreeMap<&Id, u32> = BTreeMap::new();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut seats = Vec::with_capacity(ids.len());
        for (rank, id) in (0..ranks).zip(ids) {
            let host = *names.entry(id).or_insert(length(&members));
            if host == length(&members) {
                members.push(Vec::new());
            }
            let here = &mut members[host as usize];
            seats.push((host, length(here)));
            here.push(rank);
        }
        let listed = Listed { seats, members };
        let kind = listed.even().unwrap_or(Kind::Listed(listed));
        Hosts { ranks, kind }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn count(&self) -> u32 {
        match &self.kind {
            Kind::Even { hosts, .. } => *hosts,
            Kind::Listed(listed) => length(&listed.members),
        }
    }

    /// Returns the host of a rank, and the rank's local index there.
    #[must_use]
    pub fn seat(&self, rank: Rank) -> (u32, u32) {
        match &self.kind {
            Kind::Even { hosts, size, host_stride, local_stride } => {
                (rank / host_stride.max(&1) % hosts, rank / local_stride.max(&1) % size.max(&1))
            }
            Kind::Listed(listed) => listed.seats.get(rank as usize).copied().unwrap_or((0, 0)),
        }
    }

    /// Returns the number of ranks on a host.
    #[must_use]
    pub fn size(&self, host: u32) -> u32 {
        match &self.kind {
            Kind::Even { size, .. } => *size,
            Kind::Listed(listed) => length(listed.on(host)),
        }
    }

    /// Returns the rank with this local index on a host; the index must be below the host's size.
    #[must_use]
    pub fn rank(&self, host: u32, local: u32) -> Rank {
        match &self.kind {
            Kind::Even { host_stride, local_stride, .. } => {
                host * host_stride + local * local_stride
            }
            Kind::Listed(listed) => listed.on(host).get(local as usize).copied().unwrap_or(0),
        }
    }

    /// Returns the ranks of a host, in order.
    pub fn members(&self, host: u32) -> impl Iterator<Item = Rank> + '_ {
        (0..self.size(host)).map(move |local| self.rank(host, local))
    }

    /// Returns the number of ranks on the smallest host.
    #[must_use]
    pub fn smallest(&self) -> u32 {
        self.sizes().min().unwrap_or(0)
    }

    /// Returns the number of ranks on the largest host.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.sizes().max().unwrap_or(0)
    }

    /// Returns the difference between each rank of `other` and the rank with the same local index
    /// on `host`; none if these differences vary, or if the hosts' sizes differ.
    #[must_use]
    pub fn shift(&self, host: u32, other: u32) -> Option<i64> {
        let by = |local| i64::from(self.rank(other, local)) - i64::from(self.rank(host, local));
        let like = self.size(host) == self.size(other);
        let even = matches!(self.kind, Kind::Even { .. });
        let alike = even || like && (1..self.size(host)).all(|local| by(local) == by(0));
        alike.then(|| by(0))
    }

    /// Returns a range that contains `rank` and lies entirely on `host` or entirely on other hosts.
    /// The range need not be the longest one if ranks are dealt round-robin.
    #[must_use]
    pub(crate) fn around(&self, host: u32, rank: Rank) -> Range<Rank> {
        let size = self.size(host);
        let next = self.first_from(host, rank);
        let at = |local: u32| self.rank(host, local);
        if next == size || at(next) != rank {
            let start = if next == 0 { 0 } else { at(next - 1) + 1 };
            return start..if next == size { u32::MAX } else { at(next) };
        }
        let (first, last) = (at(0), at(size - 1));
        if last - first + 1 == size { first..last + 1 } else { rank..rank + 1 }
    }

    /// Returns the number of ranks of a host that are below `rank`.
    fn first_from(&self, host: u32, rank: Rank) -> u32 {
        let (mut least, mut most) = (0, self.size(host));
        while least < most {
            let middle = least + (most - least) / 2;
            match self.rank(host, middle) < rank {
                true => least = middle + 1,
                false => most = middle,
            }
        }
        least
    }

    fn sizes(&self) -> impl Iterator<Item = u32> + '_ {
        let different = match &self.kind {
            Kind::Even { .. } => 1,
            Kind::Listed(listed) => length(&listed.members),
        };
        (0..different).map(|host| self.size(host))
    }
}

impl Listed {
    fn on(&self, host: u32) -> &[Rank] {
        self.members.get(host as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the compact form of this placement, if there is one.
    fn even(&self) -> Option<Kind> {
        let (hosts, size) = (length(&self.members), length(self.on(0)));
        let same = |host_stride, local_stride| {
            let at = |(host, local): (u32, u32)| host * host_stride + local * local_stride;
            let right = (0..).zip(&self.seats).all(|(rank, seat)| at(*seat) == rank);
            right.then_some(Kind::Even { hosts, size, host_stride, local_stride })
        };
        if self.members.iter().any(|members| length(members) != size) {
            return None;
        }
        same(size, 1).or_else(|| same(1, hosts))
    }
}

fn length<T>(of: &[T]) -> u32 {
    u32::try_from(of.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(hosts: &Hosts) -> Vec<Vec<Rank>> {
        (0..hosts.count()).map(|host| hosts.members(host).collect()).collect()
    }

    fn check(ids: &[&str], compact: bool, expected: &[&[Rank]]) {
        let hosts = Hosts::of(ids);
        assert_eq!(members(&hosts), expected, "{ids:?}");
        assert_eq!(matches!(hosts.kind, Kind::Even { .. }), compact, "{hosts:?}");
        assert_eq!(hosts.ranks() as usize, ids.len());
        for rank in 0..hosts.ranks() {
            let (host, local) = hosts.seat(rank);
            assert_eq!(hosts.rank(host, local), rank, "{hosts:?}");
        }
        let sizes = || expected.iter().map(|members| members.len() as u32);
        assert_eq!(Some(hosts.smallest()), sizes().min());
        assert_eq!(Some(hosts.largest()), sizes().max());
    }

    #[test]
    fn hosts_are_numbered_by_their_lowest_rank() {
        check(&["b", "b", "a", "a"], true, &[&[0, 1], &[2, 3]]);
        check(&["x", "y", "z", "x", "y", "z"], true, &[&[0, 3], &[1, 4], &[2, 5]]);
        check(&["x", "y", "y", "x"], false, &[&[0, 3], &[1, 2]]);
        check(&["x", "y", "y", "x", "z"], false, &[&[0, 3], &[1, 2], &[4]]);
        check(&["x", "y", "z"], true, &[&[0], &[1], &[2]]);
        check(&["x", "x", "x"], true, &[&[0, 1, 2]]);
        let uneven: Vec<u32> = [vec![0; 3], vec![1; 5]].concat();
        assert_eq!(members(&Hosts::of(&uneven)), [vec![0, 1, 2], vec![3, 4, 5, 6, 7]]);
        assert_eq!(Hosts::one(3), Hosts::of(&["x", "x", "x"]));
    }

    #[test]
    fn many_equal_hosts_are_stored_as_a_few_numbers() {
        let ids: Vec<u32> = (0..24_576).map(|rank| rank / 8).collect();
        let hosts = Hosts::of(&ids);
        assert!(matches!(hosts.kind, Kind::Even { hosts: 3072, size: 8, .. }));
        assert_eq!((hosts.seat(8 * 77 + 5), hosts.rank(77, 5)), ((77, 5), 8 * 77 + 5));
        assert_eq!(hosts.shift(3, 5), Some(16));
    }

    #[test]
    fn hosts_have_a_shift_only_if_it_is_the_same_for_all_ranks() {
        let hosts = Hosts::of(&[0, 0, 1, 1, 2, 3, 3, 2, 4]);
        assert_eq!((hosts.shift(0, 1), hosts.shift(1, 0)), (Some(2), Some(-2)));
        assert_eq!((hosts.shift(0, 2), hosts.shift(0, 3)), (None, Some(5)));
        assert_eq!(hosts.shift(0, 4), None);
    }
}
