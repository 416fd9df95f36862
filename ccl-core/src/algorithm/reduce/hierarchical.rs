//! Hierarchical `reduce`: sums flow up the trees of the hierarchical `broadcast`.
//!
//! ```text
//!   inside   each host ──► its rank with the root's local index (modulo the host's size)
//!   across   that rank ──► the root, forwarded by such ranks of other hosts
//! ```
//!
//! Each host sends its sum once. Steps: ⌈log2 s⌉ inside the largest host, which has s ranks, and
//! ⌈log2 H⌉ among H hosts.

use crate::algorithm::common::{Tree, host_rounds, host_tree, reduce_up};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Reduce,
    family: Family::Hierarchical,
    name: "hierarchical",
    summary: "up a tree inside each host, then up a tree over hosts; leaves each host once",
    schedule,
    order: Order::Unspecified,
    steps: host_rounds,
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Tree { parent, children } = host_tree(params);
    let mut b = Builder::new(params.rank, params.ranks, 1);
    reduce_up(&mut b, 0, children, parent, input(0), output(0));
    b.finish()
}
