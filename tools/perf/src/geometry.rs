//! Shape of a call, given its size and collective: counts, buffers, and offsets in the in-place
//! buffer. All are as in nccl-tests, so that results can be compared with those of nccl-tests.

use ccl_core::types::{Collective, DataType, Rank};

use super::subject::Shape;

/// Owned form of the shape of one call; see [`Shape`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Equal counts; see [`Shape::Even`].
    Even(usize),
    /// A count for each pair; see [`Shape::Vector`].
    Vector {
        /// Elements to each rank.
        send: Vec<usize>,
        /// Elements from each rank.
        recv: Vec<usize>,
    },
    /// Messages between two ranks; see [`Shape::Pair`].
    Pair {
        /// Rank that sends.
        from: Rank,
        /// Rank that receives.
        to: Rank,
        /// Number of messages.
        messages: usize,
        /// Number of elements of a message.
        count: usize,
    },
}

impl Counts {
    /// Returns the borrowed form that goes into a request.
    #[must_use]
    pub fn shape(&self) -> Shape<'_> {
        match self {
            Counts::Even(count) => Shape::Even { count: *count },
            Counts::Vector { send, recv } => Shape::Vector { send, recv },
            Counts::Pair { from, to, messages, count } => {
                Shape::Pair { from: *from, to: *to, messages: *messages, count: *count }
            }
        }
    }
}

/// Sizes of the buffers of one rank in one call, and their offsets in the in-place buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of elements of the input.
    pub input: usize,
    /// Number of elements of the output.
    pub output: usize,
    /// Offset of the input in the in-place buffer, in elements.
    pub input_offset: usize,
    /// Offset of the output in the in-place buffer, in elements.
    pub output_offset: usize,
}

impl Layout {
    /// Returns the layout of `counts` for `rank` of `ranks`.
    #[must_use]
    pub fn of(collective: Collective, counts: &Counts, rank: Rank, ranks: u32) -> Layout {
        let (rank, ranks) = (rank as usize, ranks as usize);
        match counts {
            Counts::Even(count) => Self::even(collective, *count, rank, ranks),
            Counts::Vector { send, recv } => Layout {
                input: send.iter().sum(),
                output: recv.iter().sum(),
                input_offset: 0,
                output_offset: 0,
            },
            Counts::Pair { from, to, messages, count } => Layout {
                input: if rank == *from as usize { *count } else { 0 },
                output: if rank == *to as usize { messages * count } else { 0 },
                input_offset: 0,
                output_offset: 0,
            },
        }
    }

    fn even(collective: Collective, count: usize, rank: usize, ranks: usize) -> Layout {
        let mut layout = Layout { input: count, output: count, input_offset: 0, output_offset: 0 };
        match collective {
            Collective::AllGather | Collective::Gather => {
                layout.output = count * ranks;
                layout.input_offset = count * rank;
            }
            Collective::ReduceScatter | Collective::Scatter => {
                layout.input = count * ranks;
                layout.output_offset = count * rank;
            }
            Collective::AllToAll => {
                layout.input = count * ranks;
                layout.output = count * ranks;
            }
            _ => {}
        }
        layout
    }

    /// Returns the number of elements of the in-place buffer.
    #[must_use]
    pub fn whole(&self) -> usize {
        self.input.max(self.output)
    }
}

/// Returns whether the call has an in-place form. All-to-all and send/recv have none in NCCL.
#[must_use]
pub fn has_in_place(collective: Collective) -> bool {
    !matches!(collective, Collective::AllToAll | Collective::AllToAllV | Collective::SendRecv)
}

/// Returns whether the size is divided among the ranks.
fn is_divided(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
            | Collective::AllToAllV
    )
}

/// Returns the counts of a call whose larger buffer has `bytes` bytes. If this size is divided
/// among the ranks and `exact` is false, each count is rounded down to whole units of 16 bytes, as
/// in nccl-tests.
#[must_use]
pub fn counts_of_size(
    collective: Collective,
    bytes: usize,
    data_type: DataType,
    exact: bool,
    (rank, ranks): (Rank, u32),
) -> Counts {
    let elements = bytes / data_type.bytes();
    let quantum = if exact { 1 } else { 16 / data_type.bytes() };
    match collective {
        Collective::AllToAllV => {
            let share = |from, to| skewed_count(elements, quantum, (from, to), ranks);
            Counts::Vector {
                send: (0..ranks).map(|peer| share(rank, peer)).collect(),
                recv: (0..ranks).map(|peer| share(peer, rank)).collect(),
            }
        }
        _ if is_divided(collective) => {
            let share = elements / ranks as usize;
            Counts::Even(share - share % quantum)
        }
        _ => Counts::Even(elements),
    }
}

/// Returns the number of elements from one rank to another when each rank sends at most `elements`
/// in all. The count is proportional to 1 + d if the receiver is d ranks after the sender (rank 0
/// follows the last rank), and is rounded down to a multiple of `quantum`. Every rank sends and
/// receives the same total. A rank can compute all its counts without communication.
#[must_use]
pub fn skewed_count(
    elements: usize,
    quantum: usize,
    (from, to): (Rank, Rank),
    ranks: u32,
) -> usize {
    let steps = u128::from((to + ranks - from) % ranks + 1);
    let all_steps = u128::from(ranks) * u128::from(ranks + 1) / 2;
    // The share is at most `elements`, so the conversion is lossless.
    let share = (elements as u128 * steps / all_steps) as usize;
    share - share % quantum
}

/// Returns the `count` column: the count of the call; for `all_to_all_v` the mean count per peer.
#[must_use]
pub fn count_column(counts: &Counts) -> usize {
    match counts {
        Counts::Even(count) | Counts::Pair { count, .. } => *count,
        Counts::Vector { send, .. } => send.iter().sum::<usize>() / send.len().max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(collective: Collective, bytes: usize, ranks: u32) -> usize {
        let counts = counts_of_size(collective, bytes, DataType::Float32, false, (0, ranks));
        count_column(&counts)
    }

    #[test]
    fn sizes_give_the_same_counts_as_in_nccl_tests() {
        assert_eq!(count(Collective::AllReduce, 1000, 3), 250);
        // 250 elements over 3 ranks: 83, cut to whole blocks of 4.
        assert_eq!(count(Collective::AllGather, 1000, 3), 80);
        assert_eq!(count(Collective::ReduceScatter, 8, 2), 0);
        let exact = counts_of_size(Collective::Gather, 1000, DataType::Float32, true, (0, 3));
        assert_eq!(exact, Counts::Even(83));
        let small = counts_of_size(Collective::AllToAll, 100, DataType::Int8, false, (0, 3));
        assert_eq!(small, Counts::Even(32));
    }

    #[test]
    fn every_rank_sends_and_receives_the_same_skewed_total() {
        for ranks in 1..=9 {
            let totals: Vec<(usize, usize)> = (0..ranks)
                .map(|rank| {
                    let counts = counts_of_size(
                        Collective::AllToAllV,
                        100_000,
                        DataType::Float32,
                        false,
                        (rank, ranks),
                    );
                    let layout = Layout::of(Collective::AllToAllV, &counts, rank, ranks);
                    (layout.input, layout.output)
                })
                .collect();
            assert!(totals.iter().all(|&total| total == (totals[0].0, totals[0].0)), "{totals:?}");
            assert!(totals[0].0 <= 25_000);
        }
        assert_ne!(skewed_count(1000, 1, (0, 1), 4), skewed_count(1000, 1, (1, 0), 4));
    }

    #[test]
    fn in_place_offsets_are_those_of_nccl() {
        let of = |collective| Layout::of(collective, &Counts::Even(10), 2, 4);
        let gather = Layout { input: 10, output: 40, input_offset: 20, output_offset: 0 };
        assert_eq!(of(Collective::AllGather), gather);
        assert_eq!(of(Collective::Gather), gather);
        let scatter = Layout { input: 40, output: 10, input_offset: 0, output_offset: 20 };
        assert_eq!(of(Collective::ReduceScatter), scatter);
        assert_eq!(of(Collective::Scatter), scatter);
        assert_eq!(of(Collective::AllReduce).whole(), 10);
    }
}
