//! Placement of ranks that minimizes the traffic between zones, racks and hosts.
//!
//! From the top of the network down, the ranks are divided among the groups of each tier, so that
//! ranks with much mutual traffic share a group. Two initial divisions are tried. The first has the
//! ranks in order. The second fills one group after the other with free ranks (ranks that have no
//! group yet). The first member of a group is the free rank that has the most traffic with other
//! free ranks; each further member is the free rank that has the most traffic with the members so
//! far. Both divisions are improved by swaps of two ranks, as in [Kernighan and Lin, 1970], until
//! no swap helps or a limit is reached. The division with less traffic between groups is taken.
//! Less traffic at a higher tier outweighs more traffic below it.
//!
//! [Kernighan and Lin, 1970]: https://doi.org/10.1002/j.1538-7305.1970.tb01770.x

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::fabric::Fabric;
use ccl_core::types::Rank;
use ccl_traffic::Bytes;

/// Largest number of rounds of swaps; each round looks at all ranks.
const ROUNDS: usize = 8;
/// Largest number of ranks for which swaps are tried: the time is quadratic in their number.
const SWAPPED_RANKS_MAX: usize = 2048;

/// Bytes between groups and between hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossing {
    /// Bytes between groups of each tier, the highest tier first.
    pub groups: Vec<u64>,
    /// Bytes between hosts.
    pub hosts: u64,
}

impl Crossing {
    /// Returns whether this traffic is less than `other`. The highest tier with different traffic
    /// decides; the traffic between hosts comes last. A difference of at most a thousandth of the
    /// larger value does not count: it is not worth moving ranks.
    #[must_use]
    pub fn is_less_than(&self, other: &Crossing) -> bool {
        let own = self.groups.iter().chain([&self.hosts]);
        let others = other.groups.iter().chain([&other.hosts]);
        let differs = |(own, other): &(&u64, &u64)| own.abs_diff(**other) > **other.max(own) / 1000;
        own.zip(others).find(differs).is_some_and(|(own, other)| own < other)
    }
}

/// Returns the bytes between groups and between hosts, with rank r on host `hosts[r]`. Traffic of
/// ranks without a host is not counted.
#[must_use]
pub fn crossing(bytes: &Bytes, hosts: &[u32], fabric: &Fabric) -> Crossing {
    let mut crossing = Crossing { groups: vec![0; fabric.tiers.len()], hosts: 0 };
    for ((from, to), bytes) in bytes {
        let at = |rank: Rank| hosts.get(rank as usize).copied();
        let (Some(from), Some(to)) = (at(*from), at(*to)) else { continue };
        let tiers = (0..fabric.tiers.len()).rev();
        for (crossed, tier) in crossing.groups.iter_mut().zip(tiers) {
            *crossed += if fabric.group(tier, from) == fabric.group(tier, to) { 0 } else { *bytes };
        }
        crossing.hosts += if from == to { 0 } else { *bytes };
    }
    crossing
}

/// Returns the rank of each seat (a part of a host on which a rank runs). Seat p is on host
/// `hosts[p]`, and has rank p now. Returns the current order if no order with less traffic between
/// groups and between hosts is found.
#[must_use]
pub fn place(bytes: &Bytes, hosts: &[u32], fabric: &Fabric) -> Vec<Rank> {
    let ties = Ties::new(bytes, hosts.len());
    let places: Vec<usize> = (0..hosts.len()).collect();
    let as_given: Vec<Rank> = (0..hosts.len() as Rank).collect();
    let mut order = as_given.clone();
    let mut order_of = |places: &[usize], ranks: &[Rank]| {
        for (place, rank) in places.iter().zip(ranks) {
            order[*place] = *rank;
        }
    };
    // The levels are the tiers, from the highest down, and then the hosts.
    let levels = fabric.tiers.len() + 1;
    let mut open = vec![(0, places, as_given.clone())];
    while let Some((level, places, ranks)) = open.pop() {
        if level == levels {
            order_of(&places, &ranks);
            continue;
        }
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for place in places {
            let host = hosts[place];
            let tier = (levels - 1).checked_sub(level + 1);
            let group = tier.map_or(host, |tier| fabric.group(tier, host));
            groups.entry(group).or_default().push(place);
        }
        let sizes: Vec<usize> = groups.values().map(Vec::len).collect();
        let divided = ties.divide(&ranks, &sizes);
        for (places, ranks) in groups.into_values().zip(divided) {
            open.push((level + 1, places, ranks));
        }
    }
    let moved = |order: &[Rank]| {
        let mut at = vec![0; hosts.len()];
        for (place, rank) in order.iter().enumerate() {
            at[*rank as usize] = hosts[place];
        }
        crossing(bytes, &at, fabric)
    };
    if moved(&order).is_less_than(&moved(&as_given)) { order } else { as_given }
}

/// Bytes between any two ranks, both directions together.
struct Ties {
    of: Vec<Vec<(usize, u64)>>,
}

impl Ties {
    fn new(bytes: &Bytes, ranks: usize) -> Ties {
        let mut both: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for ((from, to), bytes) in bytes {
            let (from, to) = (*from as usize, *to as usize);
            if from != to && from.max(to) < ranks {
                let pair = both.entry((from.min(to), from.max(to))).or_insert(0);
                *pair = pair.saturating_add(*bytes);
            }
        }
        let mut of = vec![Vec::new(); ranks];
        for ((one, other), bytes) in both {
            of[one].push((other, bytes));
            of[other].push((one, bytes));
        }
        Ties { of }
    }

    /// Divides ranks into groups of these sizes, which add up to the number of ranks; each group is
    /// in rank order.
    fn divide(&self, ranks: &[Rank], sizes: &[usize]) -> Vec<Vec<Rank>> {
        let mut divisions = vec![Division::new(self, ranks, sizes, ranks.to_vec())];
        if sizes.len() > 1 {
            divisions.push(Division::new(self, ranks, sizes, self.grown(ranks, sizes)));
            divisions.iter_mut().for_each(Division::swap);
        }
        let best = divisions.into_iter().min_by_key(Division::cut);
        best.map_or_else(Vec::new, Division::groups)
    }

    /// Returns the ranks in the order in which the second initial division (see the module) puts
    /// them into groups of these sizes, group after group.
    fn grown(&self, ranks: &[Rank], sizes: &[usize]) -> Vec<Rank> {
        let mut is_free = vec![false; self.of.len()];
        ranks.iter().for_each(|rank| is_free[*rank as usize] = true);
        let mut order = Vec::with_capacity(ranks.len());
        let free_ties = |rank: usize, is_free: &[bool]| -> u64 {
            let ties = self.of[rank].iter().filter(|(other, _)| is_free[*other]);
            ties.map(|(_, bytes)| bytes).fold(0, |sum, bytes| sum.saturating_add(*bytes))
        };
        for size in sizes {
            let mut tied = vec![0_u64; self.of.len()];
            for index in 0..*size {
                let free = ranks.iter().map(|rank| *rank as usize).filter(|rank| is_free[*rank]);
                let next = match index {
                    0 => greatest(free, |rank| free_ties(rank, &is_free)),
                    _ => greatest(free, |rank| tied[rank]),
                };
                let Some(next) = next else { break };
                is_free[next] = false;
                order.push(next as Rank);
                for (other, bytes) in &self.of[next] {
                    tied[*other] = tied[*other].saturating_add(*bytes);
                }
            }
        }
        order
    }
}

/// Returns the rank with the greatest key; of several such ranks, the first.
fn greatest<K: Ord>(ranks: impl Iterator<Item = usize>, key: impl Fn(usize) -> K) -> Option<usize> {
    ranks.min_by_key(|rank| Reverse(key(*rank)))
}

/// Ranks in groups, and their traffic with each group.
struct Division<'t> {
    ties: &'t Ties,
    ranks: Vec<usize>,
    /// Group of each rank; none for ranks that are not in the division.
    group: Vec<Option<usize>>,
    /// Bytes between each rank and each group: a list indexed by rank, of maps keyed by group.
    tied: Vec<BTreeMap<usize, u64>>,
    groups: usize,
}

impl<'t> Division<'t> {
    fn new(ties: &'t Ties, ranks: &[Rank], sizes: &[usize], order: Vec<Rank>) -> Division<'t> {
        let mut group = vec![None; ties.of.len()];
        let mut left = order.into_iter();
        for (index, size) in sizes.iter().enumerate() {
            left.by_ref().take(*size).for_each(|rank| group[rank as usize] = Some(index));
        }
        let ranks: Vec<usize> = ranks.iter().map(|rank| *rank as usize).collect();
        let mut tied = vec![BTreeMap::new(); ties.of.len()];
        for rank in &ranks {
            for (other, bytes) in &ties.of[*rank] {
                if let Some(group) = group[*other] {
                    *tied[*rank].entry(group).or_insert(0) += bytes;
                }
            }
        }
        Division { ties, ranks, group, tied, groups: sizes.len() }
    }

    /// Returns the bytes between a rank and a group, both directions together.
    fn to(&self, rank: usize, group: usize) -> i128 {
        self.tied[rank].get(&group).map_or(0, |bytes| i128::from(*bytes))
    }

    /// Returns the bytes between groups; each pair of ranks counts twice.
    fn cut(&self) -> u128 {
        let out = |rank: &usize| {
            let all: u128 = self.tied[*rank].values().map(|bytes| u128::from(*bytes)).sum();
            let own = self.group[*rank].map_or(0, |group| self.to(*rank, group));
            all - own.unsigned_abs()
        };
        self.ranks.iter().map(out).sum()
    }

    /// Swaps pairs of ranks while that reduces the bytes between groups, for at most `ROUNDS`
    /// rounds. Changes nothing if there are more than `SWAPPED_RANKS_MAX` ranks.
    fn swap(&mut self) {
        if self.ranks.len() > SWAPPED_RANKS_MAX {
            return;
        }
        for _ in 0..ROUNDS {
            let mut is_better = false;
            for index in 0..self.ranks.len() {
                let one = self.ranks[index];
                let best = greatest(self.ranks.iter().copied(), |other| self.gain(one, other));
                if let Some(other) = best.filter(|other| self.gain(one, *other) > 0) {
                    self.exchange(one, other);
                    is_better = true;
                }
            }
            if !is_better {
                break;
            }
        }
    }

    /// Returns by how much the bytes between groups shrink if the two ranks swap groups. A result
    /// of 0 or less is only an upper bound of the true value.
    fn gain(&self, one: usize, other: usize) -> i128 {
        let (Some(here), Some(there)) = (self.group[one], self.group[other]) else { return 0 };
        if here == there {
            return 0;
        }
        let moved =
            self.to(one, there) - self.to(one, here) + self.to(other, here) - self.to(other, there);
        // The lookup is needed only for a positive gain.
        if moved <= 0 {
            return moved;
        }
        let between = self.ties.of[one].iter().find(|(peer, _)| *peer == other);
        moved - between.map_or(0, |(_, bytes)| 2 * i128::from(*bytes))
    }

    fn exchange(&mut self, one: usize, other: usize) {
        for (rank, from, to) in
            [(one, self.group[one], self.group[other]), (other, self.group[other], self.group[one])]
        {
            let (Some(from), Some(to)) = (from, to) else { continue };
            for (peer, bytes) in &self.ties.of[rank] {
                let tied = &mut self.tied[*peer];
                if let Some(left) = tied.get_mut(&from) {
                    *left = left.saturating_sub(*bytes);
                }
                *tied.entry(to).or_insert(0) += bytes;
            }
        }
        self.group.swap(one, other);
    }

    fn groups(self) -> Vec<Vec<Rank>> {
        let mut groups = vec![Vec::new(); self.groups];
        let mut ranks = self.ranks;
        ranks.sort_unstable();
        for rank in ranks {
            if let Some(group) = self.group[rank] {
                groups[group].push(rank as Rank);
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::presets;
    use ccl_core::random::Random;

    fn fabric() -> Fabric {
        presets::find("meta-24576").unwrap().topology().fabric
    }

    fn ring(order: &[Rank]) -> Bytes {
        let next = order.iter().cycle().skip(1);
        order.iter().zip(next).map(|(one, next)| ((*one, *next), 1000)).collect()
    }

    fn after(bytes: &Bytes, hosts: &[u32], order: &[Rank]) -> Crossing {
        let mut at = vec![0; hosts.len()];
        order.iter().zip(hosts).for_each(|(rank, host)| at[*rank as usize] = *host);
        crossing(bytes, &at, &fabric())
    }

    #[test]
    fn crossing_bytes_are_listed_from_the_highest_tier_down() {
        // Racks of two hosts, zones of 192 racks.
        let bytes = Bytes::from([((0, 1), 1), ((1, 2), 10), ((2, 3), 100), ((3, 9), 1)]);
        let crossing = crossing(&bytes, &[0, 0, 1, 400], &fabric());
        assert_eq!((crossing.groups, crossing.hosts), (vec![0, 100, 100], 110));
    }

    /// Checks a ring over hosts that alternate between two zones. At first every hop between hosts
    /// crosses zones; after placement, only two hops do.
    #[test]
    fn a_ring_crosses_zones_no_more_than_it_must() {
        let hosts: Vec<u32> = (0..32).map(|place| (place / 4) % 2 * 384 + place / 8 * 2).collect();
        let in_turns: Vec<Rank> = (0..32).collect();
        let bytes = ring(&in_turns);
        let before = after(&bytes, &hosts, &in_turns);
        assert_eq!((before.groups, before.hosts), (vec![0, 8_000, 8_000], 8_000));
        let order = place(&bytes, &hosts, &fabric());
        let now = after(&bytes, &hosts, &order);
        assert_eq!((now.groups, now.hosts), (vec![0, 2_000, 8_000], 8_000));
        let mut all = order.clone();
        all.sort_unstable();
        assert_eq!(all, in_turns, "every rank must have exactly one seat");
    }

    /// Checks that each rank shares a host with its only partner after placement, for random pairs.
    #[test]
    fn ranks_that_exchange_the_most_share_a_host() {
        let mut random = Random::new(3);
        for ranks in [2_u32, 6, 16, 64] {
            let mut shuffled: Vec<Rank> = (0..ranks).collect();
            random.shuffle(&mut shuffled);
            let pairs = shuffled.chunks_exact(2).map(|pair| ((pair[0], pair[1]), 7));
            let bytes: Bytes = pairs.collect();
            let hosts: Vec<u32> = (0..ranks).map(|place| place / 2 * 3).collect();
            let order = place(&bytes, &hosts, &fabric());
            assert_eq!(after(&bytes, &hosts, &order).hosts, 0, "{ranks}");
        }
    }

    #[test]
    fn a_difference_of_a_thousandth_does_not_count() {
        let of = |top, hosts| Crossing { groups: vec![top], hosts };
        assert!(of(9, 100).is_less_than(&of(10, 1)) && !of(10, 1).is_less_than(&of(9, 100)));
        assert!(of(9_999, 10).is_less_than(&of(10_000, 20)));
        assert!(!of(9_999, 20).is_less_than(&of(10_000, 20)));
        assert!(!of(0, 0).is_less_than(&of(0, 0)) && of(0, 0).is_less_than(&of(1, 0)));
    }

    #[test]
    fn an_order_that_cannot_be_improved_is_kept() {
        let all_to_all: Bytes =
            (0..8).flat_map(|from| (0..8).map(move |to| ((from, to), 5))).collect();
        let in_order: Vec<Rank> = (0..8).collect();
        for bytes in [all_to_all, Bytes::new(), ring(&in_order)] {
            let hosts: Vec<u32> = (0..8).map(|place| place / 4).collect();
            assert_eq!(place(&bytes, &hosts, &fabric()), in_order);
        }
        assert_eq!(place(&Bytes::new(), &[], &fabric()), Vec::<u32>::new());
        assert_eq!(place(&ring(&[0]), &[7], &Fabric::default()), [0]);
        // Ranks without seats.
        let strangers = Bytes::from([((0, 99), 5), ((4_000_000_000, 1), 5)]);
        assert_eq!(place(&strangers, &[0, 1], &Fabric::default()), [0, 1]);
    }

    /// Checks, with random traffic, that crossing traffic never grows, and that each rank has one
    /// seat.
    #[test]
    fn placement_never_adds_crossing_traffic() {
        let mut random = Random::new(9);
        for _ in 0..40 {
            let ranks = 1 + random.below(40) as u32;
            let mut bytes = Bytes::new();
            for _ in 0..random.below(200) {
                let mut rank = || random.below(u64::from(ranks)) as Rank;
                let pair = (rank(), rank());
                bytes.insert(pair, random.below(1_000));
            }
            let hosts: Vec<u32> = (0..ranks).map(|_| random.below(900) as u32 / 3).collect();
            let as_given: Vec<Rank> = (0..ranks).collect();
            let order = place(&bytes, &hosts, &fabric());
            let (now, before) = (after(&bytes, &hosts, &order), after(&bytes, &hosts, &as_given));
            assert!(!before.is_less_than(&now), "{before:?} {now:?}");
            let mut all = order;
            all.sort_unstable();
            assert_eq!(all, as_given);
        }
    }
}
