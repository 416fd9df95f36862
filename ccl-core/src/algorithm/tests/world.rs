//! What each rank has, knows and must get: the definition of every collective, by itself.

use crate::algorithm::Params;
use crate::lower::Alias;
use crate::schedule::{Buffer, Layout};
use crate::types::{Collective, Rank};

/// A collective with lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) root: Rank,
    /// Elements of an even block; uneven ones vary around it.
    pub(super) count: usize,
}

use Collective as C;

impl World {
    pub(super) fn params(&self, rank: Rank) -> Params {
        Params { rank, ranks: self.ranks, root: self.root }
    }

    /// Elements of rank r's block in an uneven collective.
    fn uneven(&self, block: Rank) -> usize {
        (self.count * (block as usize * 5 % 4)) / 2
    }

    /// Elements of each block of a buffer as the rank knows them; none if there is no buffer.
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
            _ => return None,
        })
    }

    pub(super) fn layout(&self, rank: Rank, buffer: Buffer, split: u32) -> Layout {
        let counts = self.blocks(rank, buffer).unwrap_or_default();
        let starts: Vec<usize> =
            counts.iter().scan(0, |at, count| Some(std::mem::replace(at, *at + count))).collect();
        Layout::vector(&counts, &starts, split, 1)
    }

    /// Which blocks of whose inputs make up block `block` of `rank`'s output.
    pub(super) fn expected(&self, rank: Rank, block: u32) -> Vec<(Rank, u32)> {
        let everybody = |block: u32| (0..self.ranks).map(|from| (from, block)).collect();
        match self.collective {
            C::AllReduce | C::Reduce | C::Barrier => everybody(0),
            C::ReduceScatter | C::ReduceScatterV => everybody(rank),
            C::Broadcast => vec![(self.root, 0)],
            C::AllGather | C::AllGatherV | C::Gather | C::GatherV => vec![(block, 0)],
            C::Scatter | C::ScatterV => vec![(self.root, rank)],
            C::AllToAll | C::AllToAllV => vec![(block, rank)],
            C::SendRecv => Vec::new(),
        }
    }

    /// Whether the collective has an in-place form, and which parts coincide in it.
    pub(super) fn alias(&self, rank: Rank, split: u32) -> Alias {
        Alias::of(self.collective, rank, split)
    }
}

/// Every collective, rank count up to `ranks` and root.
pub(super) fn worlds(collective: Collective, ranks: u32, count: usize) -> Vec<World> {
    let roots = |n: u32| if collective.has_root() { n } else { 1 };
    (1..=ranks)
        .flat_map(|n| (0..roots(n)).map(move |root| World { collective, ranks: n, root, count }))
        .collect()
}
