//! One call of a collective, before it is planned. The call is checked here, so that nothing is
//! sent when something is wrong.

use std::cmp::Ordering;

use ccl_core::schedule::shape::{Blocks, Seat, ShapeError, Sizes};
use ccl_core::types::{Collective, DataType, Rank, ReduceOp};

use super::error::{CallError, Error};

/// Parameters of a call of a collective, without its buffers. The safe interface and the perf
/// programs make these.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The collective.
    pub collective: Collective,
    /// The type of the elements.
    pub data_type: DataType,
    /// Reduction operator, for collectives that reduce.
    pub op: ReduceOp,
    /// This rank's factor in a premultiplied sum, as the bytes of one element.
    pub scalar: [u8; 8],
    /// The root, for collectives that have one.
    pub root: Rank,
    /// Numbers of elements.
    pub sizes: Sizes<'a>,
    /// The algorithm to use; none for the planner's choice.
    pub algorithm: Option<&'a str>,
}

impl<'a> Call<'a> {
    /// Makes a call with equal blocks of `count` elements.
    #[must_use]
    pub fn even(collective: Collective, data_type: DataType, count: usize) -> Call<'a> {
        Call::sized(collective, data_type, Sizes::Even(count))
    }

    /// Makes a call with these sizes.
    #[must_use]
    pub fn sized(collective: Collective, data_type: DataType, sizes: Sizes<'a>) -> Call<'a> {
        let op = ReduceOp::Sum;
        Call { collective, data_type, op, scalar: [0; 8], root: 0, sizes, algorithm: None }
    }

    pub(super) fn seat(&self, rank: Rank, ranks: u32) -> Seat {
        Seat { collective: self.collective, rank, ranks, root: self.root }
    }

    /// Compares the numbers of blocks that input and output would have with two ranks: the buffer
    /// with more blocks is the larger one. With the actual number of ranks, both numbers would be 1
    /// for a single rank. Even then the larger buffer must be known, because the rank's block can
    /// begin at any element of it.
    fn proportion(&self) -> Ordering {
        let (input, output) = self.seat(0, 2).blocks();
        input.cmp(&output)
    }

    /// Returns the number of elements in the larger of the two buffers, on a rank that has both.
    /// Returns 0 unless all ranks know the counts. The planner chooses the algorithm
    /// according to this number of elements.
    pub(super) fn elements(&self, ranks: u32) -> usize {
        match self.sizes {
            Sizes::Even(count) => {
                let (input, output) = self.seat(0, ranks).blocks();
                count.saturating_mul(input.max(output) as usize)
            }
            Sizes::PerRank(blocks) if self.knows_all_counts() => {
                blocks.counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
            }
            // Not all ranks know these counts, so the choice must not depend on them.
            _ => 0,
        }
    }

    /// Returns the count that ranks compare: the count of an even call, or a digest of all ranks'
    /// counts; 0 if not all ranks know the counts.
    pub(super) fn compared_count(&self) -> u64 {
        match self.sizes {
            Sizes::Even(count) => count as u64,
            Sizes::PerRank(blocks) if self.knows_all_counts() => {
                blocks.counts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &count| {
                    (hash ^ count as u64).wrapping_mul(0x100_0000_01b3)
                })
            }
            _ => 0,
        }
    }

    fn knows_all_counts(&self) -> bool {
        matches!(self.collective, Collective::AllGatherV | Collective::ReduceScatterV)
    }

    /// Checks all that can be checked on one rank; returns the bytes that the call touches in input
    /// and output.
    pub(super) fn check(&self, rank: Rank, ranks: u32) -> Result<(usize, usize), Error> {
        if self.collective.has_root() && self.root >= ranks {
            let Call { collective, root, .. } = *self;
            return Err(CallError::Root { collective, root, ranks }.into());
        }
        self.check_blocks(ranks)?;
        self.check_own_blocks(rank)?;
        self.check_apart()?;
        let seat = self.seat(rank, ranks);
        let (input, output) = seat.blocks();
        let (input, output) = match self.sizes {
            // A barrier's schedule moves one element, whatever the call's count is.
            _ if self.collective == Collective::Barrier => (Some(1), Some(1)),
            Sizes::Even(count) => {
                (count.checked_mul(input as usize), count.checked_mul(output as usize))
            }
            Sizes::Own(count) => (Some(count), Some(count)),
            Sizes::PerRank(blocks) => {
                let own = blocks.counts.get(rank as usize).copied();
                let all = extent(blocks);
                if self.proportion() == Ordering::Greater { (all, own) } else { (own, all) }
            }
            Sizes::Pairs { send, recv } => (extent(send), extent(recv)),
        };
        let bytes = |elements: Option<usize>, there: bool| {
            if !there {
                return Some(0);
            }
            elements?.checked_mul(self.data_type.bytes()).filter(|bytes| *bytes <= BYTES_MAX)
        };
        let both = (bytes(input, seat.has_input()), bytes(output, seat.has_output()));
        let (Some(input), Some(output)) = both else {
            return Err(CallError::TooManyBytes { collective: self.collective }.into());
        };
        Ok((input, output))
    }
}

impl Call<'_> {
    /// Checks that both directions have the same blocks, as the in-place form requires.
    pub(super) fn same_blocks(&self) -> Result<(), Error> {
        match self.sizes {
            Sizes::Pairs { send, recv } if send != recv => {
                Err(CallError::InPlaceBlocks { collective: self.collective }.into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that a rank's block for itself is as long in the input as in the output.
    fn check_own_blocks(&self, rank: Rank) -> Result<(), Error> {
        let Sizes::Pairs { send, recv } = self.sizes else { return Ok(()) };
        let own = |blocks: Blocks<'_>| blocks.counts.get(rank as usize).copied();
        match (own(send), own(recv)) {
            (from, to) if from == to => Ok(()),
            (from, to) => {
                let (sent, expected) = (from.unwrap_or(0), to.unwrap_or(0));
                let collective = self.collective;
                Err(CallError::OwnBlock { collective, rank, sent, expected }.into())
            }
        }
    }

    /// Checks that no two received blocks overlap in the output: blocks arrive in any order.
    fn check_apart(&self) -> Result<(), Error> {
        let blocks = match self.sizes {
            Sizes::PerRank(blocks) if self.proportion() != Ordering::Greater => blocks,
            Sizes::Pairs { recv, .. } => recv,
            _ => return Ok(()),
        };
        let ranges = blocks.starts.iter().zip(blocks.counts).enumerate();
        let ranges = ranges.filter(|(_, (_, count))| **count > 0);
        let ranges =
            ranges.map(|(rank, (start, count))| (*start, start.saturating_add(*count), rank));
        let mut free = 0;
        // Mostly the blocks are in order of rank.
        if ranges.clone().all(|(start, end, _)| start >= std::mem::replace(&mut free, end)) {
            return Ok(());
        }
        let mut sorted = Vec::from_iter(ranges);
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            None => Ok(()),
            Some(pair) => {
                let (first, second) = (pair[0].2 as Rank, pair[1].2 as Rank);
                let collective = self.collective;
                Err(CallError::BlocksOverlap { collective, first, second }.into())
            }
        }
    }

    /// Checks that every list of blocks in the call has one block per rank.
    fn check_blocks(&self, ranks: u32) -> Result<(), Error> {
        let collective = self.collective;
        let all = match self.sizes {
            Sizes::Even(_) | Sizes::Own(_) => return Ok(()),
            Sizes::PerRank(blocks) => [blocks, blocks],
            Sizes::Pairs { send, recv } => [send, recv],
        };
        let mut lengths = all.into_iter().map(|blocks| (blocks.counts.len(), blocks.starts.len()));
        match lengths.find(|given| *given != (ranks as usize, ranks as usize)) {
            None => Ok(()),
            Some((counts, starts)) => {
                let error = ShapeError::Length { collective, ranks, counts, starts };
                Err(CallError::Shape(error).into())
            }
        }
    }
}

const BYTES_MAX: usize = isize::MAX as usize;

/// Returns the number of elements from the beginning of a buffer to the end of its last block; none
/// if the number overflows.
fn extent(blocks: Blocks<'_>) -> Option<usize> {
    blocks
        .starts
        .iter()
        .zip(blocks.counts)
        .map(|(start, count)| start.checked_add(*count))
        .try_fold(0, |most, end| Some(most.max(end?)))
}

/// The memory of a call as the caller gave it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) input: *const u8,
    pub(super) input_bytes: usize,
    pub(super) output: *mut u8,
    pub(super) output_bytes: usize,
    /// True if the buffers are the in-place form.
    pub(super) in_place: bool,
}

impl Buffers {
    /// Returns the buffers of a call whose input and output are apart.
    pub(super) fn apart(input: &[u8], output: &mut [u8]) -> Buffers {
        Buffers {
            input: input.as_ptr(),
            input_bytes: input.len(),
            output: output.as_mut_ptr(),
            output_bytes: output.len(),
            in_place: false,
        }
    }

    /// Returns the buffers of NCCL's in-place form: `buffer` is the larger of input and output, and
    /// the smaller one is this rank's block of it.
    pub(super) fn in_place(buffer: &mut [u8], call: &Call<'_>, rank: Rank) -> Buffers {
        let (start, bytes) = (buffer.as_mut_ptr(), buffer.len());
        let whole = Buffers {
            input: start,
            input_bytes: bytes,
            output: start,
            output_bytes: bytes,
            in_place: true,
        };
        let (offset, own) = call.own_block(rank);
        let (offset, own) = (offset.min(bytes), own.min(bytes - offset.min(bytes)));
        let at = start.wrapping_add(offset);
        match call.proportion() {
            Ordering::Equal => whole,
            Ordering::Less => Buffers { input: at, input_bytes: own, ..whole },
            Ordering::Greater => Buffers { output: at, output_bytes: own, ..whole },
        }
    }
}

impl Call<'_> {
    /// Returns the offset and the length, in bytes, of this rank's own block in the larger
    /// buffer.
    fn own_block(&self, rank: Rank) -> (usize, usize) {
        let index = rank as usize;
        let (start, count) = match self.sizes {
            Sizes::Even(count) => (count.saturating_mul(index), count),
            Sizes::PerRank(blocks) => (
                blocks.starts.get(index).copied().unwrap_or(0),
                blocks.counts.get(index).copied().unwrap_or(0),
            ),
            Sizes::Own(count) => (0, count),
            Sizes::Pairs { .. } => (0, 0),
        };
        let width = self.data_type.bytes();
        (start.saturating_mul(width), count.saturating_mul(width))
    }
}
