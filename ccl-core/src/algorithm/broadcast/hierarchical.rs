//! Hierarchical `broadcast`: down a binomial tree over hosts, and down one inside each host.
//!
//! ```text
//!   across   root ──► one rank of each other host: the one with the root's local index (modulo
//!            that host's size). Such ranks forward the buffer to further hosts.
//!   inside   that rank ──► the other ranks of its host
//! ```
//!
//! The buffer enters each host once. Steps: ⌈log2 H⌉ among H hosts and ⌈log2 s⌉ inside the largest
//! host, which has s ranks.

use crate::algorithm::common::{Tree, host_rounds, host_tree};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Broadcast,
    family: Family::Hierarchical,
    name: "hierarchical",
    summary: "down a tree over hosts, then down a tree inside each; enters each host once",
    schedule,
    order: Order::None,
    steps: host_rounds,
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Tree { parent, children } = host_tree(params);
    let mut b = Builder::new(params.rank, params.ranks, 1);
    match parent {
        None => b.copy(output(0), input(0)),
        Some(parent) => b.recv(parent, output(0)),
    }
    children.iter().for_each(|child| b.send(*child, output(0)));
    b.finish()
}
