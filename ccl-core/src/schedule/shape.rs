//! Layouts that a collective gives to the buffers of one rank. The communicator and the verifier
//! both use this module.

use super::Layout;
use crate::types::{Collective, Rank};

/// Position of a rank in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The collective.
    pub collective: Collective,
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// The root, if the collective has one.
    pub root: Rank,
}

/// Counts and first elements of the blocks of one buffer; both have one entry per rank, or, for
/// `send_recv`, per message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'a> {
    /// Number of elements of each block.
    pub counts: &'a [usize],
    /// First element of each block in the buffer.
    pub starts: &'a [usize],
}

/// Numbers of elements that one rank must know for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes<'a> {
    /// Elements of every block, for collectives with equal blocks; the barrier ignores the number.
    Even(usize),
    /// Count per rank, for `all_gather_v`, `reduce_scatter_v`, and the root of `gather_v` and
    /// `scatter_v`.
    PerRank(Blocks<'a>),
    /// Elements of this rank's own block, for the ranks other than the root in `gather_v` and
    /// `scatter_v`.
    Own(usize),
    /// Blocks that go to and come from each rank, for `all_to_all_v`; blocks of each send and each
    /// receive of a group, for `send_recv`.
    Pairs {
        /// The blocks of the input.
        send: Blocks<'a>,
        /// The blocks of the output.
        recv: Blocks<'a>,
    },
}

/// Error for sizes that do not fit the collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Sizes of another kind than the collective takes.
    #[error("{collective} on rank {rank} takes {expected}")]
    Kind {
        /// The collective.
        collective: Collective,
        /// Rank that called the collective.
        rank: Rank,
        /// Description of the sizes that the collective takes.
        expected: &'static str,
    },
    /// Too few or too many blocks.
    #[error(
        "{collective} among {ranks} ranks takes {ranks} counts and starts; \
         {counts} counts and {starts} starts were given"
    )]
    Length {
        /// The collective.
        collective: Collective,
        /// Number of ranks.
        ranks: u32,
        /// Number of counts given.
        counts: usize,
        /// Number of starts given.
        starts: usize,
    },
}

impl Seat {
    /// Returns the number of blocks of the input and of the output. Both are 0 for `send_recv`: its
    /// blocks are the messages of a group, and a [`Seat`] does not contain the number of messages.
    #[must_use]
    pub const fn blocks(&self) -> (u32, u32) {
        use Collective as C;
        match self.collective {
            C::AllReduce | C::Reduce | C::Broadcast | C::Barrier => (1, 1),
            C::AllGather | C::AllGatherV | C::Gather | C::GatherV => (1, self.ranks),
            C::ReduceScatter | C::ReduceScatterV | C::Scatter | C::ScatterV => (self.ranks, 1),
            C::AllToAll | C::AllToAllV => (self.ranks, self.ranks),
            C::SendRecv => (0, 0),
        }
    }

    /// Returns whether the rank has an input. A rank without an input still knows the input's
    /// layout if all counts are equal, so that a schedule can express lengths by this layout.
    #[must_use]
    pub fn has_input(&self) -> bool {
        use Collective as C;
        let only_root = matches!(self.collective, C::Broadcast | C::Scatter | C::ScatterV);
        !only_root || self.rank == self.root
    }

    /// Returns whether the rank has an output. A rank without one still knows the output's layout
    /// if all counts are equal.
    #[must_use]
    pub fn has_output(&self) -> bool {
        use Collective as C;
        let only_root = matches!(self.collective, C::Reduce | C::Gather | C::GatherV);
        !only_root || self.rank == self.root
    }

    /// Returns the layouts of input and output if every block is cut into `split` parts whose
    /// lengths are multiples of `grain` elements.
    ///
    /// # Errors
    ///
    /// When the sizes are not of the kind or number that the collective takes on this rank.
    pub fn layouts(
        &self,
        sizes: Sizes<'_>,
        split: u32,
        grain: usize,
    ) -> Result<(Layout, Layout), ShapeError> {
        let (mut input, mut output) = (Layout::even(0, 1, 1), Layout::even(0, 1, 1));
        self.bind(sizes, (split, grain), &mut input, &mut output)?;
        Ok((input, output))
    }

    /// Writes the result of [`Seat::layouts`] into existing layouts, whose memory it reuses.
    ///
    /// # Errors
    ///
    /// When [`Seat::layouts`] fails; the content of the layouts is then unspecified.
    pub fn bind(
        &self,
        sizes: Sizes<'_>,
        (split, grain): (u32, usize),
        input: &mut Layout,
        output: &mut Layout,
    ) -> Result<(), ShapeError> {
        use Collective as C;
        let even = |layout: &mut Layout, count| layout.set_even(count, split, grain);
        let one = |layout: &mut Layout, count| layout.set_vector(&[count], &[0], split, grain);
        let vector = |layout: &mut Layout, blocks: Blocks<'_>| {
            self.check(blocks)?;
            layout.set_vector(blocks.counts, blocks.starts, split, grain);
            Ok(())
        };
        let own = |layout: &mut Layout, blocks: Blocks<'_>| {
            one(layout, blocks.counts.get(self.rank as usize).copied().unwrap_or(0));
        };
        match (self.collective, sizes) {
            (C::Barrier, _) => {
                even(input, 1);
                even(output, 1);
            }
            (C::AllGatherV | C::GatherV, Sizes::PerRank(all)) => {
                own(input, all);
                vector(output, all)?;
            }
            (C::ReduceScatterV | C::ScatterV, Sizes::PerRank(all)) => {
                vector(input, all)?;
                own(output, all);
            }
            (C::GatherV, Sizes::Own(count)) if self.rank != self.root => {
                one(input, count);
                even(output, 0);
            }
            (C::ScatterV, Sizes::Own(count)) if self.rank != self.root => {
                even(input, 0);
                one(output, count);
            }
            (C::AllToAllV | C::SendRecv, Sizes::Pairs { send, recv }) => {
                vector(input, send)?;
                vector(output, recv)?;
            }
            (collective, Sizes::Even(count)) if !takes_counts(collective) => {
                even(input, count);
                even(output, count);
            }
            (collective, _) => {
                let expected = expected(collective, self.rank == self.root);
                return Err(ShapeError::Kind { collective, rank: self.rank, expected });
            }
        }
        Ok(())
    }

    fn check(&self, blocks: Blocks<'_>) -> Result<(), ShapeError> {
        let (counts, starts) = (blocks.counts.len(), blocks.starts.len());
        let any = self.collective == Collective::SendRecv;
        if starts == counts && (any || counts == self.ranks as usize) {
            return Ok(());
        }
        let (collective, ranks) = (self.collective, self.ranks);
        Err(ShapeError::Length { collective, ranks, counts, starts })
    }
}

const fn takes_counts(collective: Collective) -> bool {
    use Collective as C;
    matches!(
        collective,
        C::AllGatherV | C::ReduceScatterV | C::GatherV | C::ScatterV | C::AllToAllV | C::SendRecv
    )
}

const fn expected(collective: Collective, root: bool) -> &'static str {
    use Collective as C;
    match collective {
        C::AllGatherV | C::ReduceScatterV => "one count per rank",
        C::SendRecv => "one count per send and one per receive",
        C::GatherV | C::ScatterV if root => "one count per rank, because this rank is the root",
        C::GatherV | C::ScatterV => "this rank's own count, because it is not the root",
        C::AllToAllV => "one count per rank for the input and one for the output",
        _ => "one count for all blocks",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(collective: Collective, rank: Rank) -> Seat {
        Seat { collective, rank, ranks: 3, root: 1 }
    }

    #[test]
    fn the_input_of_all_gather_v_is_as_long_as_this_ranks_block() {
        let all = Blocks { counts: &[4, 0, 2], starts: &[0, 9, 5] };
        let seat = seat(Collective::AllGatherV, 2);
        let (input, output) = seat.layouts(Sizes::PerRank(all), 1, 1).unwrap();
        assert_eq!(input.part(0), (0, 2));
        assert_eq!(output.part(2), (5, 2));
        assert_eq!(seat.blocks(), (1, 3));
    }

    #[test]
    fn only_the_root_has_the_output_of_reduce_and_the_input_of_scatter() {
        for rank in 0..3 {
            assert_eq!(seat(Collective::Reduce, rank).has_output(), rank == 1);
            assert_eq!(seat(Collective::Scatter, rank).has_input(), rank == 1);
            assert!(seat(Collective::AllReduce, rank).has_output());
        }
    }

    #[test]
    fn errors_for_wrong_sizes_name_the_right_sizes() {
        let error = seat(Collective::GatherV, 0).layouts(Sizes::Even(3), 1, 1).unwrap_err();
        assert!(error.to_string().contains("own count"), "{error}");
        let few = Blocks { counts: &[1], starts: &[0] };
        let error = seat(Collective::AllGatherV, 0).layouts(Sizes::PerRank(few), 1, 1).unwrap_err();
        assert!(error.to_string().contains("takes 3 counts"), "{error}");
    }
}
