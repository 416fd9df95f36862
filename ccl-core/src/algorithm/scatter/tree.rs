//! Binomial tree `scatter`: each rank receives the blocks of its subtree, whose ranks have
//! consecutive numbers, in one message, and forwards to each child the blocks of the child's
//! subtree.
//!
//! ```text
//!   0 ──4567──► 4 ──67──► 6 ──7──► 7        ranks are numbered from the root
//!               4 ──5───► 5
//! ```
//!
//! Steps: ⌈log2 n⌉. Bytes sent per rank: as many blocks as its subtree has other ranks. Inner ranks
//! keep chunks in scratch until they forward them; the root sends from the input.

use crate::algorithm::common::{Binomial, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, Parts, RankSchedule, input, output, scratch};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Scatter,
    family: Family::Tree,
    name: "tree",
    summary: "down a binomial tree, each subtree in one message; fewest messages at the root",
    schedule,
    order: Order::None,
    steps: |hosts| rounds(hosts.ranks()),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, root, .. } = *params;
    let Binomial { position, size, parent, children } =
        Binomial::of(params.rank, params.ranks, params.root);
    let mut b = Builder::new(rank, ranks, 1);
    b.widest_message(Binomial::widest(ranks));
    let held = |first: u32, blocks: u32| {
        let equal = output(Parts::again(Affine::constant(0), blocks));
        scratch(0, Parts::range(Affine::constant(first - position), blocks, 0), equal)
    };
    match parent {
        None => {
            for child in children {
                let blocks = Parts::range(Affine::constant(child.rank), child.size, ranks);
                b.send(child.rank, input(blocks));
            }
            b.copy(output(0), input(root));
        }
        Some(parent) if children.is_empty() => b.recv(parent, output(0)),
        Some(parent) => {
            b.recv(parent, held(position, size));
            for child in children {
                b.send(child.rank, held(child.position, child.size));
            }
            b.copy(output(0), held(position, 1));
        }
    }
    b.finish()
}
