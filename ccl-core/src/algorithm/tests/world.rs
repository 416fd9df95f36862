//! Definition of every collective for the tests: the data that each rank has, knows and must get.

use std::rc::Rc;

use crate::algorithm::{Algorithm, Family, Params};
use crate::lower::Alias;
use crate::schedule::{Buffer, Layout};
use crate::topology::Hosts;
use crate::types::{Collective, Rank};
use crate::verify::placements;

/// A collective with its root, the placement of its ranks on hosts, and the lengths of its blocks.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) root: Rank,
    /// Number of elements of an even block; an uneven block has up to 1.5 times as many.
    pub(super) count: usize,
    pub(super) hosts: Rc<Hosts>,
}

use Collective as C;

impl World {
    /// Returns a collective on one host.
    pub(super) fn new(collective: Collective, ranks: u32, root: Rank, count: usize) -> World {
        World { collective, ranks, root, count, hosts: Rc::new(Hosts::one(ranks)) }
    }

    /// Returns the number of messages from one rank to another in a made-up group.
    fn messages(&self, from: Rank, to: Rank) -> u32 {
        (from * 7 + to * 3) % 4 * u32::from(!(from + to).is_multiple_of(3))
    }

    /// Returns the peers that a rank sends to in the made-up group, the highest rank first, and the
    /// peers that the rank receives from, the lowest rank first.
    pub(super) fn group(params: &Params<'_>) -> (Vec<Rank>, Vec<Rank>) {
        let rank = params.rank;
        let world = World::new(C::SendRecv, params.ranks, params.root, 0);
        let ranks = world.ranks;
        let repeat = |peer: Rank, count: u32| std::iter::repeat_n(peer, count as usize);
        let sends = (0..ranks).rev().flat_map(|to| repeat(to, world.messages(rank, to)));
        let recvs = (0..ranks).flat_map(|from| repeat(from, world.messages(from, rank)));
        (sends.collect(), recvs.collect())
    }

    /// Returns the send that matches receive `recv` of `rank` in the made-up group: the peer that
    /// sends, and the index of the send among all sends of that peer.
    fn matching(&self, rank: Rank, recv: u32) -> (Rank, u32) {
        let recvs = World::group(&self.params(rank)).1;
        let peer = recvs[recv as usize];
        let nth = recvs[..recv as usize].iter().filter(|other| **other == peer).count();
        let sends = World::group(&self.params(peer)).0;
        let mut own = (0..).zip(sends).filter(|(_, to)| *to == rank);
        (peer, own.nth(nth).unwrap().0)
    }

    pub(super) fn params(&self, rank: Rank) -> Params<'_> {
        Params { rank, ranks: self.ranks, root: self.root, hosts: &self.hosts }
    }

    /// Returns the number of elements of a block in an uneven collective.
    fn uneven(&self, block: Rank) -> usize {
        (self.count * (block as usize * 5 % 4)) / 2
    }

    /// Returns the lengths of a buffer's blocks in elements, as far as the rank knows them; `None`
    /// if the rank has no such buffer.
    pub(super) fn blocks(&self, rank: Rank, buffer: Buffer) -> Option<Vec<usize>> {
        let (here, one) = (rank == self.root, vec![self.count]);
        let all = || vec![self.count; self.ranks as usize];
        let all_uneven = || (0..self.ranks).map(|block| self.uneven(block)).collect();
        let pairs = |from_me: bool| {
            let count = |a: Rank, b: Rank| self.uneven(a * 3 + b);
            let block = |q: Rank| if from_me { count(rank, q) } else { count(q, rank) };
            (0..self.ranks).map(block).collect()
        };
        let input = buffer == Buffer::Input;
        Some(match self.collective {
            C::AllReduce => one,
            C::Barrier => vec![1],
            C::Reduce if input || here => one,
            C::Broadcast if !input || here => one,
            C::AllGather if input => one,
            C::AllGather => all(),
            C::ReduceScatter if !input => one,
            C::ReduceScatter => all(),
            C::Gather if input => one,
            C::Gather if here => all(),
            C::Scatter if !input => one,
            C::Scatter if here => all(),
            C::AllToAll => all(),
            C::AllGatherV | C::GatherV if input => vec![self.uneven(rank)],
            C::ReduceScatterV | C::ScatterV if !input => vec![self.uneven(rank)],
            C::AllGatherV | C::ReduceScatterV => all_uneven(),
            C::GatherV | C::ScatterV if here => all_uneven(),
            C::AllToAllV => pairs(input),
            C::SendRecv if input => {
                let sends = 0..World::group(&self.params(rank)).0.len() as u32;
                sends.map(|send| self.uneven(rank + send)).collect()
            }
            C::SendRecv => {
                let recvs = 0..World::group(&self.params(rank)).1.len() as u32;
                let matching = recvs.map(|recv| self.matching(rank, recv));
                matching.map(|(peer, send)| self.uneven(peer + send)).collect()
            }
            _ => return None,
        })
    }

    pub(super) fn layout(&self, rank: Rank, buffer: Buffer, split: u32) -> Layout {
        let counts = self.blocks(rank, buffer).unwrap_or_default();
        let starts: Vec<usize> =
            counts.iter().scan(0, |at, count| Some(std::mem::replace(at, *at + count))).collect();
        Layout::vector(&counts, &starts, split, 1)
    }

    /// Returns the input blocks that make up block `block` of `rank`'s output. Each input block is
    /// given by the rank that has it, and by its number in that rank's input.
    pub(super) fn expected(&self, rank: Rank, block: u32) -> Vec<(Rank, u32)> {
        let everybody = |block: u32| (0..self.ranks).map(|from| (from, block)).collect();
        match self.collective {
            C::AllReduce | C::Reduce | C::Barrier => everybody(0),
            C::ReduceScatter | C::ReduceScatterV => everybody(rank),
            C::Broadcast => vec![(self.root, 0)],
            C::AllGather | C::AllGatherV | C::Gather | C::GatherV => vec![(block, 0)],
            C::Scatter | C::ScatterV => vec![(self.root, rank)],
            C::AllToAll | C::AllToAllV => vec![(block, rank)],
            C::SendRecv => vec![self.matching(rank, block)],
        }
    }

    /// Returns whether input and output may coincide: each block must have the same length in both.
    pub(super) fn has_in_place(&self) -> bool {
        !matches!(self.collective, C::AllToAllV | C::SendRecv)
    }

    /// Returns the parts of input and output that coincide.
    pub(super) fn alias(&self, rank: Rank, split: u32, in_place: bool) -> Alias {
        if in_place { Alias::of(self.collective, rank, split) } else { Alias::APART }
    }
}

/// Returns every rank count up to `ranks` with every root, and with every placement for
/// hierarchical algorithms.
pub(super) fn worlds(algorithm: &Algorithm, ranks: u32, count: usize) -> Vec<World> {
    let collective = algorithm.collective;
    let mut worlds = Vec::new();
    for ranks in 1..=ranks {
        let placements = match algorithm.family {
            Family::Hierarchical => placements(ranks),
            _ => vec![Hosts::one(ranks)],
        };
        for hosts in placements.into_iter().map(Rc::new) {
            for root in 0..if collective.has_root() { ranks } else { 1 } {
                let hosts = hosts.clone();
                worlds.push(World { collective, ranks, root, count, hosts });
            }
        }
    }
    worlds
}
