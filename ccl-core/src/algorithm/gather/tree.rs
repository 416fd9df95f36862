//! Binomial tree `gather`: each rank collects the blocks of its subtree, whose ranks have
//! consecutive numbers, and forwards these blocks in one message.
//!
//! ```text
//!   7 ──7──► 6 ──67──► 4 ──4567──► 0        ranks are numbered from the root
//!            5 ──5───► 4
//! ```
//!
//! Steps: ⌈log2 n⌉. Bytes sent per rank: as many blocks as its subtree has ranks. Inner ranks keep
//! chunks in scratch until they forward them; the root receives straight into the output.

use crate::algorithm::common::{Binomial, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, Parts, RankSchedule, input, output, scratch};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Gather,
    family: Family::Tree,
    name: "tree",
    summary: "up a binomial tree, each subtree in one message; fewest messages at the root",
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
        let equal = input(Parts::again(Affine::constant(0), blocks));
        scratch(0, Parts::range(Affine::constant(first - position), blocks, 0), equal)
    };
    match parent {
        None => {
            b.copy(output(root), input(0));
            for child in children {
                let blocks = Parts::range(Affine::constant(child.rank), child.size, ranks);
                b.recv(child.rank, output(blocks));
            }
        }
        Some(parent) if children.is_empty() => b.send(parent, input(0)),
        Some(parent) => {
            b.copy(held(position, 1), input(0));
            for child in children {
                b.recv(child.rank, held(child.position, child.size));
            }
            b.send(parent, held(position, size));
        }
    }
    b.finish()
}
