//! Placement of data: the contents of each rank's input, and of its output after the call.

use ccl_core::types::{Collective, Rank};

use crate::geometry::{Counts, Layout};

/// Source of the content of a segment of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Input of a rank or a pair; see [`Recipe::input`](super::generate::Recipe::input).
    Input {
        /// Identifier of the sequence of elements (the stream) of that rank or pair.
        stream: u64,
    },
    /// Reduction over all ranks.
    Reduction,
    /// No source: nothing may be written here.
    Untouched,
}

/// Segment of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Source of the content.
    pub source: Source,
    /// Index of the segment's first element in the source.
    pub first: usize,
    /// Number of elements.
    pub count: usize,
}

/// One rank's part in one call.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Kind of collective.
    pub collective: Collective,
    /// Counts of the call on this rank.
    pub counts: &'a Counts,
    /// Root, if the collective has one.
    pub root: Rank,
    /// This rank, from 0 to `ranks - 1`.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
}

/// Returns the stream of the block that `from` sends to `to`, for [`Counts::Vector`]. Each pair has
/// a stream of its own, so that the receiver need not know the position of the block in the
/// sender's buffer.
fn pair_stream(from: Rank, to: Rank) -> u64 {
    1 << 63 | u64::from(from) << 32 | u64::from(to)
}

fn input(rank: Rank, first: usize, count: usize) -> Segment {
    Segment { source: Source::Input { stream: u64::from(rank) }, first, count }
}

fn untouched(count: usize) -> Segment {
    Segment { source: Source::Untouched, first: 0, count }
}

impl Place<'_> {
    /// Returns the sizes and offsets of the buffers.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::of(self.collective, self.counts, self.rank, self.ranks)
    }

    /// Returns the segments of the input.
    #[must_use]
    pub fn input(&self) -> Vec<Segment> {
        match self.counts {
            Counts::Vector { send, .. } => (0..self.ranks)
                .zip(send)
                .map(|(peer, &count)| Segment {
                    source: Source::Input { stream: pair_stream(self.rank, peer) },
                    first: 0,
                    count,
                })
                .collect(),
            _ => vec![input(self.rank, 0, self.layout().input)],
        }
    }

    /// Returns the segments that the output must have after the call.
    #[must_use]
    pub fn output(&self, in_place: bool) -> Vec<Segment> {
        match self.counts {
            Counts::Vector { recv, .. } => (0..self.ranks)
                .zip(recv)
                .map(|(peer, &count)| Segment {
                    source: Source::Input { stream: pair_stream(peer, self.rank) },
                    first: 0,
                    count,
                })
                .collect(),
            Counts::Pair { from, to, messages, count } if self.rank == *to => {
                vec![input(*from, 0, *count); *messages]
            }
            Counts::Pair { .. } => Vec::new(),
            Counts::Even(count) => self.even_output(*count, in_place),
        }
    }

    fn even_output(&self, count: usize, in_place: bool) -> Vec<Segment> {
        let reduction = |first| vec![Segment { source: Source::Reduction, first, count }];
        let of_each = |first| (0..self.ranks).map(|peer| input(peer, first, count)).collect();
        let own_block = count * self.rank as usize;
        let before = (self.rank + self.ranks - 1) % self.ranks;
        match self.collective {
            Collective::AllReduce => reduction(0),
            Collective::Reduce if self.rank == self.root => reduction(0),
            Collective::ReduceScatter => reduction(own_block),
            Collective::AllGather => of_each(0),
            Collective::Gather if self.rank == self.root => of_each(0),
            Collective::AllToAll => of_each(own_block),
            Collective::Broadcast => vec![input(self.root, 0, count)],
            Collective::Scatter => vec![input(self.root, own_block, count)],
            Collective::SendRecv => vec![input(before, 0, count)],
            Collective::Reduce if in_place => vec![input(self.rank, 0, count)],
            Collective::Gather if in_place => vec![
                untouched(own_block),
                input(self.rank, 0, count),
                untouched(count * (self.ranks - 1 - self.rank) as usize),
            ],
            _ => vec![untouched(self.layout().output)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_the_buffers() {
        for collective in Collective::ALL {
            for rank in 0..4 {
                let counts = Counts::Even(10);
                let place = Place { collective, counts: &counts, root: 2, rank, ranks: 4 };
                let total =
                    |segments: Vec<Segment>| segments.iter().map(|s| s.count).sum::<usize>();
                assert_eq!(total(place.input()), place.layout().input, "{place:?}");
                for in_place in [false, true] {
                    assert_eq!(total(place.output(in_place)), place.layout().output, "{place:?}");
                }
            }
        }
    }

    #[test]
    fn only_the_root_of_a_gather_gets_anything() {
        let counts = Counts::Even(3);
        let place =
            Place { collective: Collective::Gather, counts: &counts, root: 0, rank: 1, ranks: 3 };
        assert_eq!(place.output(false), [untouched(9)]);
        assert_eq!(place.output(true), [untouched(3), input(1, 0, 3), untouched(3)]);
        assert_eq!(
            Place { rank: 0, ..place }.output(true),
            [input(0, 0, 3), input(1, 0, 3), input(2, 0, 3)]
        );
    }
}
