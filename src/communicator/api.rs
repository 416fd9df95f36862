//! The collectives with typed buffers: every call checks its lengths before anything moves.

use bytemuck::{cast_slice, cast_slice_mut};
use ccl_core::schedule::shape::{Blocks, Sizes};
use ccl_core::types::{Collective, Rank, ReduceOp};

use super::call::{Buffers, Call, usage};
use super::element::{Element, Reduction};
use super::{Communicator, Error};

impl<T: Element> Reduction<T> {
    fn parts(self) -> (ReduceOp, [u8; 8]) {
        let mut scalar = [0; 8];
        let op = match self {
            Reduction::Sum => ReduceOp::Sum,
            Reduction::Prod => ReduceOp::Prod,
            Reduction::Min => ReduceOp::Min,
            Reduction::Max => ReduceOp::Max,
            Reduction::Avg => ReduceOp::Avg,
            Reduction::PremulSum(factor) => {
                let bytes = bytemuck::bytes_of(&factor);
                scalar[..bytes.len()].copy_from_slice(bytes);
                ReduceOp::PremulSum
            }
        };
        (op, scalar)
    }
}

/// A call with even blocks.
fn even<'a, T: Element>(collective: Collective, count: usize) -> Call<'a> {
    Call::even(collective, T::DATA_TYPE, count)
}

impl Call<'_> {
    /// The same call with this operator.
    #[must_use]
    pub fn reducing<T: Element>(self, op: Reduction<T>) -> Self {
        let (op, scalar) = op.parts();
        Call { op, scalar, ..self }
    }
}

/// `length` as a whole number of elements per rank.
fn per_rank(collective: Collective, length: usize, ranks: u32) -> Result<usize, Error> {
    let ranks = ranks as usize;
    if length.is_multiple_of(ranks) {
        return Ok(length / ranks);
    }
    Err(usage(format!(
        "{collective}: {length} elements cannot be divided evenly among {ranks} ranks; use the \
         variant with counts"
    )))
}

/// Equal lengths of input and output.
fn equal(collective: Collective, input: usize, output: usize) -> Result<usize, Error> {
    if input == output {
        return Ok(input);
    }
    Err(usage(format!("{collective}: the input has {input} elements, the output {output}")))
}

/// Collectives. All ranks make the same calls in the same order.
///
/// # Errors
///
/// All of them return [`Error::Usage`] for lengths that do not fit, before anything moves; and
/// errors that name the rank and the operation when ranks disagree, fail, or stall.
impl Communicator {
    /// `output = input₀ ⊕ input₁ ⊕ …` on every rank. Equal lengths everywhere.
    pub fn all_reduce<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let count = equal(Collective::AllReduce, input.len(), output.len())?;
        let call = even::<T>(Collective::AllReduce, count).reducing(op);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::all_reduce`] in place.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let call = even::<T>(Collective::AllReduce, buffer.len()).reducing(op);
        self.run_in_place(&call, cast_slice_mut(buffer))
    }

    /// Every rank's input, in order of rank: `output.len() == ranks × input.len()`.
    pub fn all_gather<T: Element>(&mut self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let call = even::<T>(Collective::AllGather, input.len());
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::all_gather`] in place: this rank's input is its block of `buffer`.
    pub fn all_gather_in_place<T: Element>(&mut self, buffer: &mut [T]) -> Result<(), Error> {
        let count = per_rank(Collective::AllGather, buffer.len(), self.ranks())?;
        self.run_in_place(&even::<T>(Collective::AllGather, count), cast_slice_mut(buffer))
    }

    /// This rank's block of the reduction: `input.len() == ranks × output.len()`.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let call = even::<T>(Collective::ReduceScatter, output.len()).reducing(op);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::reduce_scatter`] in place: the output is this rank's block of `buffer`, the
    /// other blocks are left undefined.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let count = per_rank(Collective::ReduceScatter, buffer.len(), self.ranks())?;
        let call = even::<T>(Collective::ReduceScatter, count).reducing(op);
        self.run_in_place(&call, cast_slice_mut(buffer))
    }

    /// The root's buffer on every rank.
    pub fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        let call = Call { root, ..even::<T>(Collective::Broadcast, buffer.len()) };
        self.run_in_place(&call, cast_slice_mut(buffer))
    }

    /// The reduction, on the root; `output` may be empty elsewhere.
    pub fn reduce<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: Reduction<T>,
        root: Rank,
    ) -> Result<(), Error> {
        let call = Call { root, ..even::<T>(Collective::Reduce, input.len()) }.reducing(op);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// All inputs in order of rank, on the root; `output` may be empty elsewhere.
    pub fn gather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = Call { root, ..even::<T>(Collective::Gather, input.len()) };
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// This rank's block of the root's input; `input` may be empty elsewhere.
    pub fn scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = Call { root, ..even::<T>(Collective::Scatter, output.len()) };
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// Block j of rank i becomes block i of rank j; all blocks are equally long.
    pub fn all_to_all<T: Element>(&mut self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let length = equal(Collective::AllToAll, input.len(), output.len())?;
        let count = per_rank(Collective::AllToAll, length, self.ranks())?;
        let call = even::<T>(Collective::AllToAll, count);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::all_gather`] with a block per rank; all ranks give the same `blocks`.
    pub fn all_gather_v<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let sizes = Sizes::PerRank(blocks);
        let call = Call::sized(Collective::AllGatherV, T::DATA_TYPE, sizes);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::reduce_scatter`] with a block per rank; all ranks give the same `blocks`.
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        blocks: Blocks<'_>,
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let sizes = Sizes::PerRank(blocks);
        let call = Call::sized(Collective::ReduceScatterV, T::DATA_TYPE, sizes).reducing(op);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::gather`] with a block per rank; only the root needs `blocks`.
    pub fn gather_v<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        blocks: Blocks<'_>,
        root: Rank,
    ) -> Result<(), Error> {
        let at_root = self.rank() == root;
        let sizes = if at_root { Sizes::PerRank(blocks) } else { Sizes::Own(input.len()) };
        let call = Call { root, ..Call::sized(Collective::GatherV, T::DATA_TYPE, sizes) };
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::scatter`] with a block per rank; only the root needs `blocks`.
    pub fn scatter_v<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        blocks: Blocks<'_>,
        root: Rank,
    ) -> Result<(), Error> {
        let at_root = self.rank() == root;
        let sizes = if at_root { Sizes::PerRank(blocks) } else { Sizes::Own(output.len()) };
        let call = Call { root, ..Call::sized(Collective::ScatterV, T::DATA_TYPE, sizes) };
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// [`Communicator::all_to_all`] with a block per pair: what rank i sends to j must be as long
    /// as what j receives from i.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        input: &[T],
        send: Blocks<'_>,
        output: &mut [T],
        recv: Blocks<'_>,
    ) -> Result<(), Error> {
        let sizes = Sizes::Pairs { send, recv };
        let call = Call::sized(Collective::AllToAllV, T::DATA_TYPE, sizes);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let mut token = [0u8];
        self.run_in_place(&even::<u8>(Collective::Barrier, 1), &mut token)
    }

    /// Sends to one peer; returns when `data` may be changed, which may be before it was received.
    pub fn send<T: Element>(&mut self, data: &[T], peer: Rank) -> Result<(), Error> {
        self.group().send(data, peer).run()
    }

    /// Receives from one peer exactly as many elements as it sends.
    pub fn recv<T: Element>(&mut self, data: &mut [T], peer: Rank) -> Result<(), Error> {
        self.group().recv(data, peer).run()
    }
}
