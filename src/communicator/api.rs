//! The collectives with typed buffers: every call checks its lengths before anything is sent.

use bytemuck::{cast_slice, cast_slice_mut};
use ccl_core::schedule::shape::{Blocks, Sizes};
use ccl_core::types::{Collective, Rank, ReduceOp};

use super::call::{Buffers, Call};
use super::element::{Element, Reduction};
use super::{CallError, Communicator, Error};

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

/// Returns a call with blocks of equal length.
fn even<'a, T: Element>(collective: Collective, count: usize) -> Call<'a> {
    Call::even(collective, T::DATA_TYPE, count)
}

impl Call<'_> {
    /// Returns this call with another operator.
    #[must_use]
    pub fn reducing<T: Element>(self, op: Reduction<T>) -> Self {
        let (op, scalar) = op.parts();
        Call { op, scalar, ..self }
    }
}

/// Returns the number of elements per rank in a buffer of this length.
fn per_rank(collective: Collective, length: usize, ranks: u32) -> Result<usize, Error> {
    if length.is_multiple_of(ranks as usize) {
        return Ok(length / ranks as usize);
    }
    Err(CallError::Uneven { collective, elements: length, ranks }.into())
}

/// Returns the common length of input and output.
fn equal(collective: Collective, input: usize, output: usize) -> Result<usize, Error> {
    if input == output {
        return Ok(input);
    }
    Err(CallError::Lengths { collective, input, output }.into())
}

/// Collectives. All ranks make the same calls in the same order.
///
/// # Errors
///
/// All collectives return [`Error::Call`] for lengths that do not fit, before anything is sent.
/// When ranks disagree, fail or stall, the error names the rank and the operation.
impl Communicator {
    /// Reduces to `output = input₀ ⊕ input₁ ⊕ …` on every rank. All lengths are equal.
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

    /// Does what [`Communicator::all_reduce`] does, in place.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let call = even::<T>(Collective::AllReduce, buffer.len()).reducing(op);
        self.run_in_place(&call, cast_slice_mut(buffer))
    }

    /// Gathers every rank's input, in order of rank: `output.len() == ranks × input.len()`.
    pub fn all_gather<T: Element>(&mut self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let call = even::<T>(Collective::AllGather, input.len());
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// Does what [`Communicator::all_gather`] does, in place: this rank's input is its block of
    /// `buffer`.
    pub fn all_gather_in_place<T: Element>(&mut self, buffer: &mut [T]) -> Result<(), Error> {
        let count = per_rank(Collective::AllGather, buffer.len(), self.ranks())?;
        self.run_in_place(&even::<T>(Collective::AllGather, count), cast_slice_mut(buffer))
    }

    /// Computes this rank's block of the reduction: `input.len() == ranks × output.len()`.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let call = even::<T>(Collective::ReduceScatter, output.len()).reducing(op);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// Does what [`Communicator::reduce_scatter`] does, in place: the output is this rank's block
    /// of `buffer`. The other blocks are left undefined.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        op: Reduction<T>,
    ) -> Result<(), Error> {
        let count = per_rank(Collective::ReduceScatter, buffer.len(), self.ranks())?;
        let call = even::<T>(Collective::ReduceScatter, count).reducing(op);
        self.run_in_place(&call, cast_slice_mut(buffer))
    }

    /// Copies the root's buffer to every rank.
    pub fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        let call = Call { root, ..even::<T>(Collective::Broadcast, buffer.len()) };
        self.run_in_place(&call, cast_slice_mut(buffer))
    }

    /// Reduces to the root; `output` may be empty on other ranks.
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

    /// Gathers all inputs in order of rank, on the root; `output` may be empty on other ranks.
    pub fn gather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = Call { root, ..even::<T>(Collective::Gather, input.len()) };
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// Hands each rank its block of the root's input; `input` may be empty on other ranks.
    pub fn scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = Call { root, ..even::<T>(Collective::Scatter, output.len()) };
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// Exchanges blocks: block j of rank i becomes block i of rank j. All blocks are equally long.
    pub fn all_to_all<T: Element>(&mut self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let length = equal(Collective::AllToAll, input.len(), output.len())?;
        let count = per_rank(Collective::AllToAll, length, self.ranks())?;
        let call = even::<T>(Collective::AllToAll, count);
        self.run(&call, Buffers::apart(cast_slice(input), cast_slice_mut(output)))
    }

    /// Does what [`Communicator::all_gather`] does, with blocks of different lengths; all ranks
    /// give the same `blocks`.
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

    /// Does what [`Communicator::reduce_scatter`] does, with blocks of different lengths; all ranks
    /// give the same `blocks`.
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

    /// Does what [`Communicator::gather`] does, with blocks of different lengths; only the root
    /// needs `blocks`.
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

    /// Does what [`Communicator::scatter`] does, with blocks of different lengths; only the root
    /// needs `blocks`.
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

    /// Does what [`Communicator::all_to_all`] does, with blocks of different lengths: the block
    /// that rank i sends to rank j must be as long as the block that rank j receives from rank i.
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

    /// Waits until every rank has called `barrier`.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let mut token = [0u8];
        self.run_in_place(&even::<u8>(Collective::Barrier, 1), &mut token)
    }

    /// Sends to one peer. Returns once `data` is no longer needed, possibly before the peer has
    /// received the message.
    pub fn send<T: Element>(&mut self, data: &[T], peer: Rank) -> Result<(), Error> {
        self.group().send(data, peer).run()
    }

    /// Receives from one peer; `data` must be exactly as long as the peer's message.
    pub fn recv<T: Element>(&mut self, data: &mut [T], peer: Rank) -> Result<(), Error> {
        self.group().recv(data, peer).run()
    }
}
