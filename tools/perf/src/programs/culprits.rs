//! Common features of the paths that are slower than in the baseline: a host, a NIC, a rank, or one
//! direction of these.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ccl_core::types::Rank;
use serde::Serialize;

/// Largest number of reported culprits. More would mean that the cause is not a few slow hosts,
/// NICs or ranks.
const MOST: usize = 16;

/// Direction of the paths of a host, a NIC or a rank: all its paths, paths from it, or paths to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    Both,
    From,
    To,
}

/// Paths with a common feature. If two groups explain the slower paths equally well, the one that
/// comes first in the derived order is reported. Wider groups are declared before narrower ones, so
/// that wider groups are preferred. A host's number is the first rank on that host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    All,
    BetweenHosts,
    WithinHosts,
    /// Paths from one host to another. This variant precedes `Host`, because with only two hosts it
    /// is unknown which of them is slow.
    Pair(usize, usize),
    /// Paths between a host and others.
    Host(Direction, usize),
    Within(usize),
    /// Paths of a NIC. The number is the first rank with that host and NIC.
    Nic(Direction, usize),
    Rank(Direction, Rank),
}

/// Hosts and NICs of the ranks.
#[derive(Clone, Copy, Debug)]
pub struct Ranks<'a> {
    /// Host of each rank.
    pub hosts: &'a [String],
    /// NIC of each rank; empty if unknown.
    pub nics: &'a [String],
}

/// Common feature of slower paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// Description for people.
    pub what: String,
    /// Number of paths that share the feature.
    pub paths: usize,
    /// Number of these paths that are slower.
    pub slower: usize,
}

impl Ranks<'_> {
    fn host(&self, rank: Rank) -> &str {
        self.hosts.get(rank as usize).map_or("", String::as_str)
    }

    fn nic(&self, rank: Rank) -> &str {
        self.nics.get(rank as usize).map_or("", String::as_str)
    }

    /// Returns a text that names a rank and its host.
    #[must_use]
    pub fn name(&self, rank: Rank) -> String {
        format!("rank {rank} on {}", self.host(rank))
    }

    /// Returns all groups that a path is in.
    fn groups(&self, from: Rank, to: Rank, first: &Firsts) -> Vec<Group> {
        let (here, there) = (first.host(from), first.host(to));
        let mut all = vec![
            Group::All,
            Group::Rank(Direction::Both, from),
            Group::Rank(Direction::Both, to),
            Group::Rank(Direction::From, from),
            Group::Rank(Direction::To, to),
        ];
        if here == there {
            all.extend([Group::WithinHosts, Group::Within(here)]);
            return all;
        }
        all.extend([Group::BetweenHosts, Group::Pair(here, there)]);
        for (direction, host) in [
            (Direction::From, here),
            (Direction::To, there),
            (Direction::Both, here),
            (Direction::Both, there),
        ] {
            all.push(Group::Host(direction, host));
        }
        for (direction, rank) in [
            (Direction::From, from),
            (Direction::To, to),
            (Direction::Both, from),
            (Direction::Both, to),
        ] {
            if !self.nic(rank).is_empty() {
                all.push(Group::Nic(direction, first.nic(rank)));
            }
        }
        all
    }

    fn told(&self, group: Group) -> String {
        let of = |direction, what: String| match direction {
            Direction::Both => what,
            Direction::From => format!("sends of {what}"),
            Direction::To => format!("receives of {what}"),
        };
        let host = |first: usize| format!("host {}", self.host(first as Rank));
        match group {
            Group::All => "all paths".to_owned(),
            Group::BetweenHosts => "the network between all hosts".to_owned(),
            Group::WithinHosts => "paths within hosts".to_owned(),
            Group::Host(direction, first) => of(direction, host(first)),
            Group::Within(first) => format!("paths within {}", host(first)),
            Group::Pair(one, other) => format!("the path from {} to {}", host(one), host(other)),
            Group::Nic(direction, first) => {
                let (nic, host) = (self.nic(first as Rank), host(first));
                of(direction, format!("NIC {nic} of {host}"))
            }
            Group::Rank(direction, rank) => of(direction, self.name(rank)),
        }
    }
}

/// Tables by rank: the first rank on the same host, and the first rank with the same host and NIC.
struct Firsts {
    hosts: Vec<usize>,
    nics: Vec<usize>,
}

impl Firsts {
    fn new(ranks: Ranks<'_>) -> Firsts {
        let count = ranks.hosts.len();
        let (mut hosts, mut nics) = (BTreeMap::new(), BTreeMap::new());
        let all = || (0..count).map(|rank| (rank, rank as Rank));
        let host = |(at, rank)| *hosts.entry(ranks.host(rank)).or_insert(at);
        let by_host = all().map(host).collect();
        let nic = |(at, rank)| *nics.entry((ranks.host(rank), ranks.nic(rank))).or_insert(at);
        Firsts { hosts: by_host, nics: all().map(nic).collect() }
    }

    fn host(&self, rank: Rank) -> usize {
        self.hosts.get(rank as usize).copied().unwrap_or(0)
    }

    fn nic(&self, rank: Rank) -> usize {
        self.nics.get(rank as usize).copied().unwrap_or(0)
    }
}

/// Returns the common features of slower paths. Each step counts, in every group, the slower paths
/// that are not yet explained. Of the groups with at least two such paths (a single path has
/// nothing in common with others), the step takes the one in which they outnumber the healthy paths
/// by the most. This group then explains all its paths.
#[must_use]
pub fn culprits(ranks: Ranks<'_>, paths: &[(Rank, Rank, bool)]) -> Vec<Culprit> {
    let first = Firsts::new(ranks);
    let mut open: Vec<bool> = paths.iter().map(|(.., is_slower)| *is_slower).collect();
    let mut found = Vec::new();
    while found.len() < MOST {
        // Per group: slower paths that are not yet explained, all slower paths, other paths.
        let mut counts: BTreeMap<Group, [usize; 3]> = BTreeMap::new();
        for ((from, to, is_slower), open) in paths.iter().zip(&open) {
            for group in ranks.groups(*from, *to, &first) {
                let [left, slower, healthy] = counts.entry(group).or_default();
                *left += usize::from(*open);
                *slower += usize::from(*is_slower);
                *healthy += usize::from(!is_slower);
            }
        }
        let candidates =
            counts.into_iter().filter(|(_, [left, _, healthy])| *left >= 2 && left > healthy);
        let best =
            candidates.max_by_key(|(group, [left, _, healthy])| (left - healthy, Reverse(*group)));
        let Some((group, [_, slower, healthy])) = best else { break };
        for ((from, to, _), open) in paths.iter().zip(&mut open) {
            *open &= !ranks.groups(*from, *to, &first).contains(&group);
        }
        found.push(Culprit { what: ranks.told(group), paths: slower + healthy, slower });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the descriptions of the culprits; `hosts` and `nics` are in rank order.
    fn told(hosts: &[&str], nics: &[&str], slower: impl Fn(Rank, Rank) -> bool) -> Vec<String> {
        let owned = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (hosts, nics) = (owned(hosts), owned(nics));
        let ranks = Ranks { hosts: &hosts, nics: &nics };
        let all = 0..hosts.len() as Rank;
        let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
        let paths = pairs.filter(|(from, to)| from != to);
        let paths: Vec<_> = paths.map(|(from, to)| (from, to, slower(from, to))).collect();
        let line = |one: Culprit| format!("{} {}/{}", one.what, one.slower, one.paths);
        culprits(ranks, &paths).into_iter().map(line).collect()
    }

    const FOUR: [&str; 8] = ["a", "a", "b", "b", "c", "c", "d", "d"];

    #[test]
    fn a_host_is_named() {
        let of_c = |rank: Rank| rank / 2 == 2;
        let either = |from, to| of_c(from) != of_c(to);
        assert_eq!(told(&FOUR, &[], either), ["host c 24/24"]);
        assert_eq!(told(&FOUR, &[], |from, to| of_c(from) && !of_c(to)), ["sends of host c 12/12"]);
        let into = |from, to| !of_c(from) && of_c(to);
        assert_eq!(told(&FOUR, &[], into), ["receives of host c 12/12"]);
        assert_eq!(
            told(&FOUR, &[], |from, to| of_c(from) && of_c(to)),
            ["paths within host c 2/2"]
        );
        // Most paths of the host are slower, not all.
        let most = |from, to| either(from, to) && (from, to) != (4, 0) && (from, to) != (1, 5);
        assert_eq!(told(&FOUR, &[], most), ["host c 22/24"]);
        // One rank on each host.
        assert_eq!(told(&["a", "b", "c"], &[], |from, to| from == 1 || to == 1), ["host b 4/4"]);
    }

    #[test]
    fn groups_wider_or_narrower_than_a_host_are_named() {
        assert_eq!(told(&FOUR, &[], |_, _| true), ["all paths 56/56"]);
        let between = |from: Rank, to: Rank| from / 2 != to / 2;
        assert_eq!(told(&FOUR, &[], between), ["the network between all hosts 48/48"]);
        assert_eq!(told(&FOUR, &[], |from, to| !between(from, to)), ["paths within hosts 8/8"]);
        let pair = |from: Rank, to: Rank| from / 2 == 0 && to / 2 == 3;
        assert_eq!(told(&FOUR, &[], pair), ["the path from host a to host d 4/4"]);
        assert_eq!(told(&FOUR, &[], |from, to| from == 3 || to == 3), ["rank 3 on b 14/14"]);
        assert_eq!(told(&FOUR, &[], |_, to| to == 3), ["receives of rank 3 on b 7/7"]);
        // With two hosts it is unknown which of them is slow.
        let two = told(&["a", "a", "b", "b"], &[], between);
        assert_eq!(two, ["the network between all hosts 8/8"]);
        let two = told(&["a", "a", "b", "b"], &[], |from, to| from > 1 && to < 2);
        assert_eq!(two, ["the path from host b to host a 4/4"]);
    }

    #[test]
    fn a_nic_is_named() {
        let nics = ["m0", "m1", "m0", "m1", "m0", "m1", "m0", "m1"];
        let of = |rank: Rank| rank == 5;
        let slower = |from: Rank, to: Rank| (of(from) || of(to)) && from / 2 != to / 2;
        assert_eq!(told(&FOUR, &nics, slower), ["NIC m1 of host c 12/12"]);
        let hosts = ["a", "a", "a", "a", "b", "b", "b", "b"];
        let nics = ["m0", "m0", "m1", "m1", "m0", "m0", "m1", "m1"];
        let slower = |from: Rank, to: Rank| from / 4 != to / 4 && from / 2 == 1;
        assert_eq!(told(&hosts, &nics, slower), ["sends of NIC m1 of host a 8/8"]);
    }

    #[test]
    fn several_culprits_are_named_and_single_paths_are_not() {
        let of = |rank: Rank, host: Rank| rank / 2 == host;
        let two = |from: Rank, to: Rank| {
            from / 2 != to / 2 && (of(from, 0) || of(to, 0) || of(from, 3) && of(to, 2))
        };
        assert_eq!(told(&FOUR, &[], two), ["host a 24/24", "the path from host d to host c 4/4"]);
        assert!(told(&FOUR, &[], |from, to| (from, to) == (1, 6)).is_empty());
        assert!(told(&FOUR, &[], |_, _| false).is_empty());
        assert!(told(&[], &[], |_, _| true).is_empty());
        // Scattered paths have nothing in common.
        assert!(told(&FOUR, &[], |from, to| (from * 5 + to * 3) % 11 == 0).is_empty());
    }
}
