//! Specification of each collective: the buffers of a rank, and the required content of its output.

use super::value::Mode;
use super::violation::Violation;
use super::{Case, Counts};
use crate::execution::CallParams;
use crate::schedule::shape::{Blocks, Seat, Sizes};
use crate::types::{Collective, Rank};

/// Role of one rank in a case.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) rank: Rank,
    pub(super) collective: Collective,
    pub(super) root: Rank,
    pub(super) numbers: CallParams,
    /// Number of blocks of the input, and number of blocks of the output.
    pub(super) blocks: (u32, u32),
    pub(super) has_input: bool,
    pub(super) has_output: bool,
    pub(super) in_place: bool,
    /// Elements of the longest block of any rank.
    longest: usize,
    /// Rank and input block that each output block of `send_recv` comes from.
    matches: Vec<(Rank, u32)>,
}

/// Required content of an output element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// Rank whose contribution is required; none if the contributions of all ranks are required.
    pub(super) of: Option<Rank>,
    /// Block of the inputs that holds the contribution.
    pub(super) block: u32,
}

impl Setup {
    /// Returns the role of `rank` in a case with `ranks` ranks. The schedules cut each block into
    /// `split` parts.
    pub(super) fn new(case: &Case, rank: Rank, ranks: u32, split: u32) -> Result<Setup, Violation> {
        let seat = Seat { collective: case.collective, rank, ranks, root: case.root };
        let (input, output) = with_sizes(case, &seat, |sizes| {
            seat.layouts(sizes, split, case.grain)
                .map_err(|error| Violation::Case(error.to_string()))
        })?;
        let numbers = CallParams {
            input,
            output,
            element_bytes: case.element_bytes,
            slot_bytes: case.slot_bytes,
        };
        Ok(Setup {
            rank,
            collective: case.collective,
            root: case.root,
            numbers,
            blocks: blocks(case, &seat),
            has_input: seat.has_input(),
            has_output: seat.has_output(),
            in_place: case.in_place,
            longest: case.counts.longest(),
            matches: matches(case, rank)?,
        })
    }

    /// Returns the number of elements of the input's memory, and that of the output's memory.
    pub(super) fn elements(&self) -> (usize, usize) {
        let input = if self.has_input { self.numbers.input.span(self.blocks.0) } else { 0 };
        let output = if self.has_output { self.numbers.output.span(self.blocks.1) } else { 0 };
        (input, output)
    }

    /// Returns the indices at which input and output begin in the memory that they share in place.
    pub(super) fn bases(&self) -> (usize, usize) {
        use Collective as C;
        match self.collective {
            C::AllGather | C::AllGatherV | C::Gather | C::GatherV => {
                (self.numbers.output.block_elements(self.rank).start, 0)
            }
            C::ReduceScatter | C::ReduceScatterV | C::Scatter | C::ScatterV => {
                (0, self.numbers.input.block_elements(self.rank).start)
            }
            _ => (0, 0),
        }
    }

    /// Returns the number of elements of the longest block of any rank, at least 1.
    pub(super) fn longest(&self) -> usize {
        self.longest.max(1)
    }

    /// Returns the number that identifies an element of an input block.
    pub(super) fn element(&self, block: u32, index: usize) -> u32 {
        u32::try_from(block as usize * self.longest() + index).unwrap_or(u32::MAX)
    }

    /// Returns the required content of block `block` of the output.
    pub(super) fn expected(&self, block: u32) -> Expected {
        use Collective as C;
        match self.collective {
            C::AllReduce | C::Reduce | C::Barrier => Expected { of: None, block: 0 },
            C::ReduceScatter | C::ReduceScatterV => Expected { of: None, block: self.rank },
            C::Broadcast => Expected { of: Some(self.root), block: 0 },
            C::AllGather | C::AllGatherV | C::Gather | C::GatherV => {
                Expected { of: Some(block), block: 0 }
            }
            C::Scatter | C::ScatterV => Expected { of: Some(self.root), block: self.rank },
            C::AllToAll | C::AllToAllV => Expected { of: Some(block), block: self.rank },
            C::SendRecv => {
                let (rank, block) = self.matches.get(block as usize).copied().unwrap_or((0, 0));
                Expected { of: Some(rank), block }
            }
        }
    }
}

/// Returns the rule by which folds of the collective are checked.
pub(super) fn mode(collective: Collective) -> Mode {
    match collective {
        Collective::Barrier => Mode::Barrier,
        reduces if reduces.reduces() => Mode::Reduce,
        _ => Mode::Move,
    }
}

fn blocks(case: &Case, seat: &Seat) -> (u32, u32) {
    let Counts::Messages { sends, recvs } = &case.counts else { return seat.blocks() };
    let of =
        |lists: &[Vec<(Rank, usize)>]| lists.get(seat.rank as usize).map_or(0, Vec::len) as u32;
    (of(sends), of(recvs))
}

/// Returns the rank and input block that match each receive of `rank`. The k-th receive from a peer
/// matches the k-th send of that peer to `rank`.
fn matches(case: &Case, rank: Rank) -> Result<Vec<(Rank, u32)>, Violation> {
    let Counts::Messages { sends, recvs } = &case.counts else { return Ok(Vec::new()) };
    let own = recvs.get(rank as usize).map_or(&[][..], Vec::as_slice);
    let matched = |(index, &(peer, _)): (usize, &(Rank, usize))| {
        let before = own[..index].iter().filter(|(other, _)| *other == peer).count();
        let of_peer = sends.get(peer as usize).map_or(&[][..], Vec::as_slice);
        let to_us = (0..).zip(of_peer).filter(|(_, (to, _))| *to == rank);
        let block = to_us.map(|(block, _)| block).nth(before);
        block.map(|block| (peer, block)).ok_or_else(|| {
            Violation::Case(format!(
                "rank {rank} receives more messages from rank {peer} than rank {peer} sends to it"
            ))
        })
    };
    own.iter().enumerate().map(matched).collect()
}

/// Calls `with` with the counts that `seat.rank` knows.
fn with_sizes<T>(
    case: &Case,
    seat: &Seat,
    with: impl Fn(Sizes<'_>) -> Result<T, Violation>,
) -> Result<T, Violation> {
    let rank = seat.rank as usize;
    let starts = |counts: &[usize]| -> Vec<usize> {
        let ends = counts.iter().scan(case.gap, |end, count| {
            let start = *end;
            *end += count + case.gap;
            Some(start)
        });
        ends.collect()
    };
    let only_root = matches!(case.collective, Collective::GatherV | Collective::ScatterV);
    match &case.counts {
        Counts::Messages { sends, recvs } => {
            if case.in_place {
                return Err(Violation::Case("send_recv never runs in place".to_owned()));
            }
            let of = |lists: &[Vec<(Rank, usize)>]| -> Vec<usize> {
                lists.get(rank).into_iter().flatten().map(|&(_, count)| count).collect()
            };
            let (send, recv) = (of(sends), of(recvs));
            with(Sizes::Pairs {
                send: Blocks { counts: &send, starts: &starts(&send) },
                recv: Blocks { counts: &recv, starts: &starts(&recv) },
            })
        }
        Counts::Even(count) => with(Sizes::Even(*count)),
        Counts::PerRank(counts) if only_root && seat.rank != case.root => {
            with(Sizes::Own(counts.get(rank).copied().unwrap_or(0)))
        }
        Counts::PerRank(counts) => with(Sizes::PerRank(Blocks { counts, starts: &starts(counts) })),
        Counts::Pairs(matrix) => {
            let ranks = seat.ranks as usize;
            if matrix.len() != ranks || matrix.iter().any(|row| row.len() != ranks) {
                let error =
                    format!("{} takes a count for each pair of {ranks} ranks", case.collective);
                return Err(Violation::Case(error));
            }
            let row = &matrix[rank];
            let column: Vec<usize> = matrix.iter().map(|row| row[rank]).collect();
            if case.in_place && *row != column {
                let error = "in place, each pair must exchange equal counts".to_owned();
                return Err(Violation::Case(error));
            }
            with(Sizes::Pairs {
                send: Blocks { counts: row, starts: &starts(row) },
                recv: Blocks { counts: &column, starts: &starts(&column) },
            })
        }
    }
}
