//! Scatter and all-gather `broadcast`: the root's buffer is divided into a part for each rank,
//! scattered down a binomial tree, and gathered around a ring.
//!
//! ```text
//!   root ──► 4:  parts 4 5 6 7,   4 ──► 6:  parts 6 7,   …   then each part once around
//! ```
//!
//! Steps: ⌈log2 n⌉ + n-1. Bytes sent per rank: at most twice the buffer; all ranks send equally
//! much in the second phase. Source: M. Barnett and others, "Building a high-performance collective
//! communication library", 1994 (van de Geijn's algorithm).

use crate::algorithm::common::{Binomial, Ring, gather_around, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, Parts, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Broadcast,
    family: Family::Ring,
    name: "scatter_all_gather",
    summary: "a part to each rank down a tree, then each part around a ring; for long messages",
    schedule,
    order: Order::None,
    steps: |hosts| rounds(hosts.ranks()) + hosts.ranks() - 1,
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let Binomial { position, size, parent, children } =
        Binomial::of(params.rank, params.ranks, params.root);
    let range = |first: u32, parts: u32| Parts::range(Affine::constant(first), parts, 0);
    let mut b = Builder::new(rank, ranks, ranks);
    b.widest_message(Binomial::widest(ranks));
    match parent {
        None => b.copy(output(range(0, ranks)), input(range(0, ranks))),
        Some(parent) => b.recv(parent, output(range(position, size))),
    }
    for child in children {
        b.send(child.rank, output(range(child.position, child.size)));
    }
    gather_around(&mut b, Ring { own: position, ..Ring::of(params) });
    b.finish()
}
