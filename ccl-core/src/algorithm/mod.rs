//! The algorithms: each is one pure function from a rank's place to its schedule.
//!
//! One file per collective and family. To add one: write its function in
//! `algorithm/<collective>/<family>.rs`, say what it is in an [`Algorithm`], and add that to the
//! collective's list; everything else (verification, cost, lowering, execution) reads the schedule.
//!
//! # Conventions
//!
//! Parts are numbered `block × split + cut` ([`crate::schedule::Layout`]).
//!
//! | collective | input | output |
//! |---|---|---|
//! | all_reduce, reduce, broadcast | one block | one block |
//! | all_gather(_v), gather(_v) | one block, this rank's | a block per rank |
//! | reduce_scatter(_v), scatter(_v) | a block per rank | one block, this rank's |
//! | all_to_all(_v) | a block per rank | a block per rank |
//! | barrier | one element | one element |
//! | send_recv | a block per send | a block per receive |
//!
//! Non-roots have no output in `reduce` and `gather(_v)`, and no input in `broadcast` and
//! `scatter(_v)`. Lengths are taken only from buffers whose layout the rank knows: in `gather_v`
//! and `scatter_v` a non-root knows its own block alone. The in-place forms
//! ([`crate::lower::Alias`]) run the same schedule; a copy onto itself does nothing.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod common;
mod gather;
mod reduce;
mod reduce_scatter;
mod scatter;
mod send_recv;
#[cfg(test)]
mod tests;

use crate::schedule::RankSchedule;
use crate::topology::Hosts;
use crate::types::{Collective, Rank};

pub use send_recv::{SendRecvError, send_recv};

/// A rank's place in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params<'a> {
    /// Whose schedule, below `ranks`.
    pub rank: Rank,
    /// Ranks in all, at least 1.
    pub ranks: u32,
    /// The root, below `ranks`; unused where there is none.
    pub root: Rank,
    /// Who is where; of as many ranks.
    pub hosts: &'a Hosts,
}

/// The shape of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Neighbours on a circle or a chain: most steps, every byte on the shortest way.
    Ring,
    /// Binomial or binary trees: few steps, the load on inner nodes.
    Tree,
    /// Exchanges at distances that double or halve: few steps, all ranks busy.
    RecursiveDoubling,
    /// Everybody with everybody: one step or two, most messages.
    Direct,
    /// Doubling distances in one direction around the circle: few steps for any number of ranks.
    Bruck,
    /// Inside each host, then across hosts, then inside again: fewest bytes between hosts.
    Hierarchical,
}

/// In which order contributions are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Nothing is reduced.
    None,
    /// Every element is one fold over the ranks 0, 1, …, n-1 in one accumulator, rounded once:
    /// the same bits whatever the length, and what the deterministic mode uses.
    Rank,
    /// Any order, and a rounding at every hop; the same bits on every rank all the same.
    Unspecified,
}

/// An algorithm for a collective.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    /// What it does.
    pub collective: Collective,
    /// Its shape.
    pub family: Family,
    /// Its name, unique in its collective.
    pub name: &'static str,
    /// How it works, in a line.
    pub summary: &'static str,
    /// One rank's schedule.
    pub schedule: fn(&Params<'_>) -> RankSchedule,
    /// How contributions are combined.
    pub order: Order,
    /// How many messages wait for one another in a row at most, for ranks so placed: its latency.
    pub steps: fn(&Hosts) -> u32,
}

impl Algorithm {
    /// The same algorithm for a collective of which this one's is the even case.
    const fn also_for(self, collective: Collective) -> Algorithm {
        Algorithm { collective, ..self }
    }
}

/// Every algorithm, by collective. Grouped sends and receives have none: see [`send_recv()`].
pub fn all() -> impl Iterator<Item = &'static Algorithm> {
    const LISTS: [&[Algorithm]; 9] = [
        &all_reduce::ALGORITHMS,
        &all_gather::ALGORITHMS,
        &reduce_scatter::ALGORITHMS,
        &broadcast::ALGORITHMS,
        &reduce::ALGORITHMS,
        &gather::ALGORITHMS,
        &scatter::ALGORITHMS,
        &all_to_all::ALGORITHMS,
        &barrier::ALGORITHMS,
    ];
    LISTS.into_iter().flatten()
}

/// The algorithms of a collective.
pub fn of(collective: Collective) -> impl Iterator<Item = &'static Algorithm> {
    all().filter(move |algorithm| algorithm.collective == collective)
}

/// There is no such algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no algorithm \"{name}\" for {collective}; choose one of: {known}")]
pub struct UnknownAlgorithm {
    collective: Collective,
    name: String,
    known: String,
}

/// The algorithm of that name.
///
/// # Errors
///
/// If the collective has none of that name; the error lists those it has.
pub fn find(collective: Collective, name: &str) -> Result<&'static Algorithm, UnknownAlgorithm> {
    of(collective).find(|algorithm| algorithm.name == name).ok_or_else(|| UnknownAlgorithm {
        collective,
        name: name.to_owned(),
        known: of(collective).map(|algorithm| algorithm.name).collect::<Vec<_>>().join(" "),
    })
}
