//! Algorithms: each is a pure function from the position of a rank to its schedule.
//!
//! There is one file per collective and family. To add an algorithm, write its function in
//! `algorithm/<collective>/<family>.rs`, describe it in an [`Algorithm`], and add that to the
//! collective's list. Everything else (verification, cost, lowering, execution) reads the schedule.
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
//! and `scatter_v` a non-root knows only its own block. The in-place forms
//! ([`crate::lower::Alias`]) run the same schedule; a copy of a part onto itself does nothing.

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

/// Position of a rank in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params<'a> {
    /// Rank for which the schedule is made, below `ranks`.
    pub rank: Rank,
    /// Number of ranks, at least 1.
    pub ranks: u32,
    /// The root, below `ranks`; unused if the collective has none.
    pub root: Rank,
    /// Placement of the ranks on hosts.
    pub hosts: &'a Hosts,
}

/// The shape of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Neighbours on a circle or a chain: most steps, nearly all messages between adjacent ranks.
    Ring,
    /// Binomial or binary trees: few steps; the inner nodes carry the load.
    Tree,
    /// Exchanges at distances that double or halve: few steps, all ranks busy.
    RecursiveDoubling,
    /// Every rank with every other rank: one step or two, most messages.
    Direct,
    /// Doubling distances in one direction around the circle: few steps for any number of ranks.
    Bruck,
    /// Phases inside each host, across hosts, and inside again: fewest bytes between hosts.
    Hierarchical,
}

/// Order in which contributions are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// No reduction.
    None,
    /// Rank order: each element is folded over the ranks 0, 1, …, n-1 in one accumulator and
    /// rounded once. An element's bits do not depend on the length of the buffer. The deterministic
    /// mode uses this order.
    Rank,
    /// Any order, with a rounding at every hop; the bits are still the same on every rank.
    Unspecified,
}

/// An algorithm for a collective.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    /// Collective that the algorithm performs.
    pub collective: Collective,
    /// Shape of the algorithm.
    pub family: Family,
    /// Name of the algorithm, unique in its collective.
    pub name: &'static str,
    /// Description of the algorithm in one line.
    pub summary: &'static str,
    /// Function that returns the schedule of one rank.
    pub schedule: fn(&Params<'_>) -> RankSchedule,
    /// Order in which contributions are combined.
    pub order: Order,
    /// Latency in messages: the longest chain of dependent messages, for ranks on these hosts.
    pub steps: fn(&Hosts) -> u32,
}

impl Algorithm {
    /// Returns this algorithm for another collective that its schedules perform too.
    const fn also_for(self, collective: Collective) -> Algorithm {
        Algorithm { collective, ..self }
    }
}

/// Returns every algorithm, one collective after the other. Grouped sends and receives have none:
/// see [`send_recv()`].
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

/// Returns the algorithms of a collective.
pub fn of(collective: Collective) -> impl Iterator<Item = &'static Algorithm> {
    all().filter(move |algorithm| algorithm.collective == collective)
}

/// Error for an algorithm name that the collective does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no algorithm \"{name}\" for {collective}; choose one of: {known}")]
pub struct UnknownAlgorithm {
    collective: Collective,
    name: String,
    known: String,
}

/// Returns the algorithm of that name.
///
/// # Errors
///
/// When the collective has no such algorithm. The error lists the collective's algorithms.
pub fn find(collective: Collective, name: &str) -> Result<&'static Algorithm, UnknownAlgorithm> {
    of(collective).find(|algorithm| algorithm.name == name).ok_or_else(|| UnknownAlgorithm {
        collective,
        name: name.to_owned(),
        known: of(collective).map(|algorithm| algorithm.name).collect::<Vec<_>>().join(" "),
    })
}
