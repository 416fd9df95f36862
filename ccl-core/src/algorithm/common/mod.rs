//! Code that algorithms share: arithmetic on ranks, trees, and common phases.

mod hosts;
mod phases;
mod ranks;
mod trees;

pub(super) use hosts::{Names, Position, Run, across, each, host_rounds, host_tree, inside, runs};
pub(super) use phases::{
    Ring, fold_in, fold_in_rank_order, for_each_peer, for_each_peer_backwards, gather_around,
    reduce_around, reduce_up,
};
pub(super) use ranks::{Role, after, before, congruent, core, counting_down, counting_up, rounds};
pub(super) use trees::{Binomial, Child, Tree, double_tree, rooted_double_tree};
