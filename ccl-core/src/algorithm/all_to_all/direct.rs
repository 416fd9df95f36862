//! Direct `all_to_all`: every rank sends each block straight to the block's destination. The block
//! for the next rank is sent first.
//!
//! ```text
//!   r ──► r+1   r ──► r+2   …   r ──► r-1        while   r-1 ──► r   r-2 ──► r   …
//! ```
//!
//! Steps: 1 (n-1 messages in a row). Bytes sent per rank: n-1 blocks, the least possible. Sends and
//! receives overlap.

use crate::algorithm::common::{for_each_peer, for_each_peer_backwards};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllToAll,
    family: Family::Direct,
    name: "direct",
    summary: "each block straight to its destination; each rank sends to its successor first, so \
              no rank is overloaded; one step",
    schedule,
    order: Order::None,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    for_each_peer(&mut b, params, |b, peer| b.send(peer, input(peer)));
    b.copy(output(rank), input(rank));
    for_each_peer_backwards(&mut b, params, |b, peer| b.recv(peer, output(peer)));
    b.finish()
}
