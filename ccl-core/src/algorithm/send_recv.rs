//! Schedule of grouped sends and receives between pairs; there is no algorithm to choose.
//!
//! ```text
//!   sends [1, 2, 1]      input part 0 ──► 1,  part 1 ──► 2,  part 2 ──► 1
//!   recvs [2, 1]         output part 0 ◄── 2,  part 1 ◄── 1
//! ```
//!
//! Messages between two ranks are matched in order. Each link is independent of all others, so no
//! order of calls in a group can block. Bytes on the wire: those of the messages.

use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Rank;

/// Error for a group of sends and receives that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendRecvError {
    /// Unequal numbers of sends to and receives from the rank itself.
    #[error(
        "rank {rank} sends to itself {sends} times but receives from itself {recvs} times in one \
         group; give each such send its receive in the same group"
    )]
    Unmatched {
        /// The rank.
        rank: Rank,
        /// Number of sends to itself.
        sends: usize,
        /// Number of receives from itself.
        recvs: usize,
    },
    /// A peer that is not in the communicator.
    #[error("rank {rank} names the peer {peer}, but the ranks are 0 to {}", .ranks - 1)]
    NoSuchPeer {
        /// The rank.
        rank: Rank,
        /// The peer it names.
        peer: Rank,
        /// Number of ranks.
        ranks: u32,
    },
}

/// Returns the schedule of one group: the i-th send reads part i of the input, and the j-th receive
/// writes part j of the output.
///
/// # Errors
///
/// When a peer is out of range, or when sends to and receives from the rank itself do not pair up.
pub fn send_recv(
    rank: Rank,
    ranks: u32,
    sends: &[Rank],
    recvs: &[Rank],
) -> Result<RankSchedule, SendRecvError> {
    if let Some(&peer) = sends.iter().chain(recvs).find(|peer| **peer >= ranks) {
        return Err(SendRecvError::NoSuchPeer { rank, peer, ranks });
    }
    let to_self: Vec<u32> = own(sends, rank).collect();
    let from_self: Vec<u32> = own(recvs, rank).collect();
    let (own_sends, own_recvs) = (to_self.len(), from_self.len());
    if own_sends != own_recvs {
        return Err(SendRecvError::Unmatched { rank, sends: own_sends, recvs: own_recvs });
    }
    let mut b = Builder::new(rank, ranks, 1);
    b.whole_messages();
    for (part, peer) in (0..).zip(sends).filter(|(_, peer)| **peer != rank) {
        b.send(*peer, input(part));
    }
    for (from, to) in to_self.into_iter().zip(from_self) {
        b.copy(output(to), input(from));
    }
    for (part, peer) in (0..).zip(recvs).filter(|(_, peer)| **peer != rank) {
        b.recv(*peer, output(part));
    }
    Ok(b.finish())
}

fn own(peers: &[Rank], rank: Rank) -> impl Iterator<Item = u32> {
    (0..).zip(peers).filter(move |(_, peer)| **peer == rank).map(|(part, _)| part)
}
