//! Errors of exchanges and of shared memory, outside of operations.

use ccl_core::encoding::MessageError;
use ccl_core::types::Rank;

/// Error of an exchange of records: a record from another rank does not fit the step (for example,
/// `split`) at which this rank is in the user's program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Ranks that are at different steps. Every rank notices the difference in the same exchange,
    /// so the communicator is unharmed.
    #[error(
        "the ranks disagree: rank {rank} is at {own}, but rank {peer} at {theirs}. All ranks must \
         make the same calls in the same order"
    )]
    Disagree {
        /// This rank.
        rank: Rank,
        /// Step of this rank.
        own: &'static str,
        /// The rank at another step.
        peer: Rank,
        /// Step of that rank.
        theirs: &'static str,
    },
    /// Bytes that are not the record of this step. Other ranks may have read valid records and gone
    /// on, so the error is not harmless.
    #[error(
        "the record that rank {peer} sent in {step} cannot be read: {error}; see that all ranks \
         run the same release"
    )]
    Malformed {
        /// The rank that sent the bytes.
        peer: Rank,
        /// Step of this rank.
        step: &'static str,
        /// The reason why the bytes cannot be read.
        error: MessageError,
    },
}

/// Error of shared memory. All ranks fail together, and the communicator is unharmed. A rank that
/// itself could not make or map memory returns its own error instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// A rank that made no memory.
    #[error("rank {peer} could not make {bytes} bytes of shared memory; its own error says why")]
    NotMade {
        /// The rank.
        peer: Rank,
        /// Bytes asked for on each rank.
        bytes: usize,
    },
    /// A rank that made no memory, or did not map the memory of its peers.
    #[error(
        "rank {peer} could not make {bytes} bytes of shared memory or map the memory of its peers; \
         its own error says why"
    )]
    NotMapped {
        /// The rank.
        peer: Rank,
        /// Bytes asked for on each rank.
        bytes: usize,
    },
    /// Ranks that ask for different sizes.
    #[error(
        "rank {rank} asks for {bytes} bytes on each rank, but rank {peer} for {theirs}; all ranks \
         must ask for the same size"
    )]
    Sizes {
        /// This rank.
        rank: Rank,
        /// Bytes that this rank asks for.
        bytes: usize,
        /// The rank that asks for another size.
        peer: Rank,
        /// Bytes that the peer asks for.
        theirs: usize,
    },
}
