//! Recursive doubling `all_gather`: ranks at distances 1, 2, 4, … exchange all blocks they have.
//!
//! ```text
//!   0 ◄─► 1   one block           rank 0 has 0 1
//!   0 ◄─► 2   two blocks          rank 0 has 0 1 2 3
//!   0 ◄─► 4   four blocks         rank 0 has them all
//! ```
//!
//! If the number n of ranks is not a power of two, let c be the largest power of two below n. The
//! ranks below c are core ranks; the others are extra ranks. The partner of extra rank c+j is core
//! rank j. Each extra rank first gives its block to its partner, and at the end gets all other
//! blocks from its partner. Before each round, a core rank has two runs of blocks: the blocks of
//! some core ranks a to b, and the blocks of their extra ranks, c+a to at most c+b. One message
//! carries both runs. Steps: log2 n (log2 c and two more with extra ranks). Bytes sent per rank:
//! n-1 blocks without extra ranks. With extra ranks, an extra rank sends one block, its partner
//! about 2n blocks, and any other rank about n blocks.
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
//! operations in MPICH", 2005.

use crate::algorithm::common::{Role, after, core, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, Parts, RankSchedule, input, output};
use crate::types::{Collective, Rank};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllGather,
    family: Family::RecursiveDoubling,
    name: "recursive_doubling",
    summary: "exchange all blocks received so far at doubling distances; few steps, best for \
              powers of two",
    schedule,
    order: Order::None,
    steps: |hosts| {
        rounds(core(hosts.ranks())) + if hosts.ranks() == core(hosts.ranks()) { 0 } else { 2 }
    },
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    b.widest_message(if ranks == core(ranks) { ranks / 2 } else { ranks - 1 });
    b.copy(output(rank), input(0));
    match Role::of(rank, ranks) {
        Role::Extra { partner } => {
            b.send(partner, output(rank));
            b.recv(partner, output(all_but(rank, ranks)));
        }
        Role::Core { extra } => {
            if let Some(extra) = extra {
                b.recv(extra, output(extra));
            }
            for round in 0..rounds(core(ranks)) {
                let partner = rank ^ (1 << round);
                b.send(partner, output(known(rank, round, ranks)));
                b.recv(partner, output(known(partner, round, ranks)));
            }
            if let Some(extra) = extra {
                b.send(extra, output(all_but(extra, ranks)));
            }
        }
    }
    b.finish()
}

/// Returns the blocks that core rank `rank` has before this round: the blocks of the 2^round core
/// ranks whose numbers differ from `rank` at most in the lowest `round` bits, and the blocks of the
/// extra ranks of these core ranks.
fn known(rank: Rank, round: u32, ranks: u32) -> Parts {
    let (core, run) = (core(ranks), 1 << round);
    let first = rank / run * run;
    let extras = (ranks - core).saturating_sub(first).min(run);
    Parts::runs(Affine::constant(first), run, core, run + extras)
}

fn all_but(rank: Rank, ranks: u32) -> Parts {
    Parts::range(Affine::constant(after(rank, 1, ranks)), ranks - 1, ranks)
}
