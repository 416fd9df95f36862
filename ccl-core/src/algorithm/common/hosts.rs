//! Loops of schedules over ranks and over hosts.
//!
//! A schedule names peers by expressions that are affine in loop counters. Ranks of a host, or the
//! hosts themselves, become one loop if they are evenly spaced, as in the usual placements.
//! Otherwise they become several loops, in the worst case one per rank.

use super::{Binomial, Child, Tree, rounds};
use crate::algorithm::Params;
use crate::schedule::{Affine, Builder, Slice, TERM, Terms, scratch};
use crate::topology::Hosts;
use crate::types::Rank;

/// A sequence of tuples; each component of the tuples is an arithmetic progression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithm) struct Run<const N: usize> {
    first: [u32; N],
    steps: [i32; N],
    /// Number of tuples.
    pub(in crate::algorithm) count: u32,
}

impl<const N: usize> Run<N> {
    /// Returns the tuple of the current iteration, as expressions in the loop counter of
    /// `dimension`.
    pub(in crate::algorithm) fn at(&self, dimension: usize) -> [Affine; N] {
        std::array::from_fn(|of| Affine::constant(self.first[of]).step(dimension, self.steps[of]))
    }

    /// Appends `next` if it continues the progression. Returns whether `next` was appended.
    fn extend(&mut self, next: [u32; N]) -> bool {
        let far = i64::from(self.count);
        let fits = |of: usize| {
            let by = i64::from(next[of]) - i64::from(self.first[of]);
            let step = if self.count == 1 { by } else { i64::from(self.steps[of]) };
            (step * far == by).then(|| i32::try_from(step).ok()).flatten()
        };
        let steps: [Option<i32>; N] = std::array::from_fn(fits);
        if steps.contains(&None) {
            return false;
        }
        self.steps = steps.map(Option::unwrap_or_default);
        self.count += 1;
        true
    }
}

/// Divides a list of tuples into runs, each as long as possible.
pub(in crate::algorithm) fn runs<const N: usize>(
    tuples: impl IntoIterator<Item = [u32; N]>,
) -> Vec<Run<N>> {
    let mut runs: Vec<Run<N>> = Vec::new();
    for tuple in tuples {
        if !runs.last_mut().is_some_and(|run| run.extend(tuple)) {
            runs.push(Run { first: tuple, steps: [0; N], count: 1 });
        }
    }
    runs
}

/// Writes `body` into the schedule for every tuple; a run of several tuples becomes one loop.
pub(in crate::algorithm) fn each<const N: usize>(
    b: &mut Builder,
    runs: &[Run<N>],
    mut body: impl FnMut(&mut Builder, [Affine; N]),
) {
    for run in runs {
        match run.count {
            1 => body(b, run.at(b.depth())),
            count => b.repeat(count, |b, dimension| body(b, run.at(dimension))),
        }
    }
}

/// A loop over hosts: from each host to the next, the numbers of the host and of its ranks change
/// by constant steps. A method gets a number (of the host, or of one of its ranks) for the first
/// host, and returns the corresponding number for the current host.
#[derive(Clone, Copy, Debug)]
pub(in crate::algorithm) struct Remote {
    /// The first host.
    pub(in crate::algorithm) host: u32,
    count: u32,
    host_step: i32,
    rank_step: i32,
    dimension: usize,
}

impl Remote {
    /// Returns the rank of the current host that corresponds to `rank` of the first host.
    pub(in crate::algorithm) fn shifted(&self, rank: Affine) -> Affine {
        rank.step(self.dimension, self.rank_step)
    }

    /// Returns `host` plus the current host's number minus the first host's number. `host` stands
    /// for the first host: its number, or a part number that belongs to it.
    pub(in crate::algorithm) fn renumbered(&self, host: Affine) -> Affine {
        host.step(self.dimension, self.host_step)
    }

    fn extend(&mut self, hosts: &Hosts, next: u32) -> bool {
        let small = |number: i64| i32::try_from(number).ok();
        let Some(by) = hosts.shift(self.host, next) else { return false };
        let (count, far) = (i64::from(self.count), i64::from(next) - i64::from(self.host));
        let (host_step, rank_step) = match self.count {
            1 => (far, by),
            _ => (i64::from(self.host_step), i64::from(self.rank_step)),
        };
        let (Some(host), Some(rank)) = (small(host_step), small(rank_step)) else { return false };
        if (host_step * count, rank_step * count) != (far, by) {
            return false;
        }
        (self.host_step, self.rank_step) = (host, rank);
        self.count += 1;
        true
    }
}

/// Position of a rank among hosts.
#[derive(Clone, Copy, Debug)]
pub(in crate::algorithm) struct Position<'a> {
    /// All hosts.
    pub(in crate::algorithm) hosts: &'a Hosts,
    /// Host of the rank.
    pub(in crate::algorithm) host: u32,
    /// Local index of the rank.
    pub(in crate::algorithm) local: u32,
    /// Number of ranks on the host.
    pub(in crate::algorithm) size: u32,
}

impl<'a> Position<'a> {
    pub(in crate::algorithm) fn of(params: &Params<'a>) -> Position<'a> {
        let hosts = params.hosts;
        let (host, local) = hosts.seat(params.rank);
        Position { hosts, host, local, size: hosts.size(host) }
    }

    /// Returns the local indices below `end`, without this rank's own.
    pub(in crate::algorithm) fn others(&self, end: u32) -> impl Iterator<Item = u32> + 'a {
        let own = self.local;
        (0..end).filter(move |local| *local != own)
    }

    /// Returns the other ranks of this host, with their local indices.
    pub(in crate::algorithm) fn neighbours(&self) -> Vec<Run<2>> {
        runs(self.others(self.size).map(|local| [self.hosts.rank(self.host, local), local]))
    }

    /// Returns the contact on `host` of a rank with local index `local`: the rank of `host` whose
    /// local index is `local` modulo the number of ranks of `host`.
    pub(in crate::algorithm) fn contact(&self, host: u32, local: u32) -> Rank {
        self.hosts.rank(host, local % self.hosts.size(host))
    }

    /// Writes `body` into the schedule for every other host: upwards from the next host or, if
    /// `backwards`, downwards from the previous host.
    pub(in crate::algorithm) fn each_remote(
        &self,
        b: &mut Builder,
        backwards: bool,
        mut body: impl FnMut(&mut Builder, Remote),
    ) {
        let (all, dimension) = (self.hosts.count(), b.depth());
        let mut groups: Vec<Remote> = Vec::new();
        for distance in 1..all {
            let distance = if backwards { all - distance } else { distance };
            let host = (self.host + distance) % all;
            if !groups.last_mut().is_some_and(|group| group.extend(self.hosts, host)) {
                groups.push(Remote { host, count: 1, host_step: 0, rank_step: 0, dimension });
            }
        }
        for group in groups {
            match group.count {
                1 => body(b, group),
                count => b.repeat(count, |b, _| body(b, group)),
            }
        }
    }

    /// Calls `body` for each group of remote ranks, with the local index of the group's first rank
    /// and the group's size. A group has at most as many ranks as this host, so that each rank of
    /// the group has its own contact on this host.
    pub(in crate::algorithm) fn each_round(&self, remote: Remote, mut body: impl FnMut(u32, u32)) {
        let size = self.hosts.size(remote.host);
        for first in (0..size).step_by(self.size.max(1) as usize) {
            body(first, self.size.min(size - first));
        }
    }
}

/// Returns ⌈log2⌉ of the number of hosts plus ⌈log2⌉ of the ranks of the largest host: the number
/// of doublings that reach all hosts, and then all ranks.
pub(in crate::algorithm) fn host_rounds(hosts: &Hosts) -> u32 {
    rounds(hosts.count()) + rounds(hosts.largest())
}

/// Returns the position of a rank in a tree of two levels: from the root to one rank of each host,
/// and from that rank to the other ranks of its host. Both levels are binomial trees. Children on
/// other hosts come first, since they are further away.
pub(in crate::algorithm) fn host_tree(params: &Params<'_>) -> Tree {
    let (position, (root_host, root_local)) =
        (Position::of(params), params.hosts.seat(params.root));
    let Position { hosts, host, local, size, .. } = position;
    let among = Binomial::of(host, hosts.count(), root_host);
    let within = Binomial::of(local, size, root_local % size.max(1));
    let local_rank = |child: &Child| hosts.rank(host, child.rank);
    let mut tree = Tree {
        parent: within.parent.map(|parent| hosts.rank(host, parent)),
        children: within.children.iter().map(local_rank).collect(),
    };
    if within.parent.is_none() {
        tree.parent = among.parent.map(|far| position.contact(far, root_local));
        let far = among.children.iter().map(|child| position.contact(child.rank, root_local));
        tree.children.splice(0..0, far);
    }
    tree
}

/// Returns 1 if there are several hosts, otherwise 0.
pub(in crate::algorithm) fn across(hosts: &Hosts) -> u32 {
    u32::from(hosts.count() > 1)
}

/// Returns 1 if some host has several ranks, otherwise 0.
pub(in crate::algorithm) fn inside(hosts: &Hosts) -> u32 {
    u32::from(hosts.largest() > 1)
}

/// Names for scratch buffers. A message with a name of its own is folded directly from its slot.
/// When the names run out, all further messages share the last name. Messages with the same name
/// are copied to scratch first, so the result stays correct.
#[derive(Debug)]
pub(in crate::algorithm) struct Names {
    sum: u8,
    arrived: u8,
}

impl Names {
    const FIRST_ARRIVED: u8 = 100;

    pub(in crate::algorithm) fn new() -> Names {
        Names { sum: 0, arrived: Names::FIRST_ARRIVED }
    }

    /// Returns scratch for a sum that is forwarded.
    pub(in crate::algorithm) fn sum(&mut self, like: Slice) -> Slice {
        let name = self.sum;
        self.sum = (name + 1).min(Names::FIRST_ARRIVED - 1);
        scratch(name, 0, like)
    }

    /// Receives the contribution of each peer into scratch that has the extent of `own`. The first
    /// number of each tuple of `peers` is a peer. Adds the contributions to `terms`, the terms of
    /// one fold.
    pub(in crate::algorithm) fn receive<const N: usize>(
        &mut self,
        b: &mut Builder,
        peers: &[Run<N>],
        own: Slice,
        terms: &mut Vec<Terms>,
    ) {
        for run in peers {
            let name = self.arrived;
            self.arrived = name.saturating_add(1);
            let before: u32 = terms.iter().map(|terms| terms.repeat).sum();
            let number = |d| scratch(name, Affine::constant(before).step(d, 1), own);
            match run.count {
                1 => b.recv(run.at(TERM)[0], scratch(name, before, own)),
                count => b.repeat(count, |b, d| b.recv(run.at(d)[0], number(d))),
            }
            terms.push(match run.count {
                1 => scratch(name, before, own).into(),
                count => number(TERM).repeat(count),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenly_spaced_tuples_are_one_run() {
        let found = runs([[0, 9], [2, 8], [4, 7], [5, 6], [9, 6]]);
        let counts: Vec<u32> = found.iter().map(|run| run.count).collect();
        assert_eq!(counts, [3, 2]);
        let [up, down] = found[0].at(1);
        assert_eq!((up.eval(&[0, 2, 0]), down.eval(&[0, 2, 0])), (4, 7));
        assert_eq!(runs::<1>([]), []);
    }

    #[test]
    fn equal_hosts_are_visited_in_one_loop() {
        let walk = |ids: &[u32], rank: Rank, backwards: bool| {
            let hosts = Hosts::of(ids);
            let params = Params { rank, ranks: hosts.ranks(), root: 0, hosts: &hosts };
            let mut b = Builder::new(rank, hosts.ranks(), 1);
            let position = Position::of(&params);
            position.each_remote(&mut b, backwards, |b, remote| {
                let peer = remote.shifted(Affine::constant(hosts.rank(remote.host, 0)));
                b.send(peer, crate::schedule::input(0));
            });
            let (mut seen, schedule) = (Vec::new(), b.finish());
            schedule.for_each(&mut |op, at| {
                if let crate::schedule::Op::Send { peer, .. } = op {
                    seen.push(peer.eval(at));
                }
            });
            (seen, schedule.body.len())
        };
        let equal: Vec<u32> = (0..10).map(|rank| rank / 2).collect();
        assert_eq!(walk(&equal, 3, false), (vec![4, 6, 8, 0], 2));
        assert_eq!(walk(&equal, 3, true), (vec![0, 8, 6, 4], 2));
        assert_eq!(walk(&[0, 0, 1, 1, 1, 2, 2], 0, false), (vec![2, 5], 2));
    }
}
