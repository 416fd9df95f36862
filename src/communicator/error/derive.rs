//! Errors in making communicators from another communicator.

use ccl_core::types::Rank;

/// Error in making a communicator from another communicator.
///
/// Every variant but [`DeriveError::Exhausted`] is [harmless](super::Error::is_harmless): the rank
/// refuses the call before it sends anything, or the ranks of the new communicator learn of the
/// problem in an exchange and do not begin to connect. The existing communicator is unchanged.
/// If a rank of the new communicator cannot connect, the call returns another error; `shrink` and
/// `grow` return it within [`Error::Unmade`](super::Error::Unmade).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeriveError {
    /// This rank cannot listen for the others.
    #[error(
        "this rank cannot open a socket at which the other ranks would meet: {error}; check the \
         limit of open files and the free ports"
    )]
    NoListener {
        /// The system's error.
        error: std::io::Error,
    },
    /// The rank at which the others would meet cannot listen.
    #[error("{during}: rank {leader} cannot listen; see its own error")]
    LeaderCannotListen {
        /// The call: `split` or `invite`.
        during: &'static str,
        /// The rank that cannot listen.
        leader: Rank,
    },
    /// A rank that got no communicator from a split in which all ranks have the same color.
    #[error("split: a rank got no communicator; this is a defect of ferroccl, please report it")]
    NoPart,
    /// A second `shrink` of a communicator.
    #[error("shrink: this communicator was shrunk before; use the one that shrink() returned")]
    AlreadyShrunk,
    /// A `shrink` of a communicator that has not failed.
    #[error(
        "shrink: no rank has failed as far as this rank knows; to go on with some of the ranks, \
         call split() on all ranks"
    )]
    NothingFailed,
    /// A `shrink` whose every attempt lost another rank; there is one attempt per rank. This rank's
    /// communicator had failed before and stays failed.
    #[error("shrink: every attempt lost another rank; start the job again")]
    Exhausted,
    /// An invitation for zero newcomers.
    #[error("invite: there must be at least one newcomer")]
    NoNewcomers,
    /// Ranks that invite different numbers of newcomers.
    #[error(
        "invite: rank {peer} invites another number of newcomers than this rank: {theirs}, not \
         {own}; all ranks must invite the same number"
    )]
    Newcomers {
        /// Newcomers that this rank asks for.
        own: u32,
        /// The rank that asks for another number.
        peer: Rank,
        /// Newcomers that the peer asks for.
        theirs: u32,
    },
    /// An invitation of another communicator, such as the communicator that grew into this one.
    #[error("grow: another communicator made this invitation; call grow() on that communicator")]
    ForeignInvitation,
}
