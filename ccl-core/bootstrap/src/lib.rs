//! Bootstrap and control plane: processes prove that they know a secret and become ranks of one
//! communicator. The crate has the frames, the messages, the keyed challenge, and the state
//! machines of joining ([`RootJoin`], [`MemberJoin`]) and of the time after joining ([`Control`]).
//!
//! Nothing here opens a socket, reads a clock or draws a random number: the driver (the code that
//! owns the sockets) hands in bytes, times and nonces, and takes out the bytes to send. Ranks meet
//! at rank 0. After joining, all ranks are equal; the module `overlay` describes the connections
//! between them.
//!
//! Order of the messages on a connection, with the connector on the left:
//!
//! ```text
//! Open {protocol, nonce}  ->
//!                         <-  Challenge {nonce}
//! Proof {mac}             ->
//!                         <-  RootProof {mac}
//! Hello {rank, ...}       ->
//!                         <-  Waiting {missing}  now and then
//!                         <-  Referral | Refused
//! ```
//!
//! The connector speaks first, so a port scanner that stays silent learns nothing. The connector
//! also proves first, so a stranger gets no proof against which to test guesses of the secret, and
//! the accepting side computes only one small HMAC for the stranger.
//!
//! Two ranks that connect after joining use the same challenge, with a secret of their
//! communicator. Instead of `Hello`, the connector sends either `Fetch` or `Link`. The answer to
//! `Fetch` is the list of members (`Members`); the answer to `Link` is `Welcome`. Every rank but 0
//! fetches the list of members from a rank that has it already, so the list passes down a tree.
//!
//! The challenge keeps strangers out but does not encrypt: an attacker who can alter packets
//! between the hosts can alter the messages after the challenge.

#![forbid(unsafe_code)]

mod agreement;
mod breach;
mod caller;
mod completed;
mod control;
mod exchange;
mod facts;
mod failure;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod handshake;
mod identity;
mod join_member;
mod join_root;
mod link;
mod message;
mod notes;
mod overlay;
mod ranks;
#[cfg(test)]
mod tests;
mod verdict;

pub use caller::MemberJoinError;
pub use ccl_core::encoding::MessageError;
pub use completed::Completed;
pub use control::{Control, ControlError, ControlTiming, NoVerdict};
pub use failure::{Failure, FailureReason};
pub use frame::{Decoder, Frame, FrameError};
pub use gate::{ConnectionId, Strays};
pub use handshake::Nonce;
pub use identity::{Endpoint, IdentityError, Secret, UniqueId};
pub use join_member::{MemberJoin, Reply};
pub use join_root::{JoinLimits, RootAction, RootJoin};
pub use message::{
    Contact, Hello, JoinFailure, MISSING_NAMED_MAX, Member, Message, Referral, Roster,
};
pub use notes::{AWAITED_MAX, Activity, Awaited, Note, Noted, Observed, Stuck, find_stuck};
pub use verdict::{Answer, Ask, Question, Verdict, Vote};

/// Largest length, in bytes, of the text that explains a failure.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Version of this crate's messages; a peer of another version is refused, and learns both
/// versions.
pub const PROTOCOL_VERSION: u16 = 6;

/// Largest number of bytes of a frame before its sender has proved that it knows the secret.
pub const STRANGER_FRAME_BYTES_MAX: usize = 512;

/// Largest number of bytes of any frame.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Largest number of bytes that one rank can contribute to one exchange.
pub const BLOB_BYTES_MAX: usize = FRAME_BYTES_MAX - 64;

/// Largest number of ranks of a communicator; a larger number counts as mistyped.
pub const RANKS_MAX: u32 = 1 << 20;
