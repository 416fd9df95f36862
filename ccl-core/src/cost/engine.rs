//! Engine of virtual time: runs workers of all ranks in a [`World`] that models their links.
//!
//! The engine executes the real programs ([`Execution`]); only the ports are simulated. The effects
//! of a schedule (pipelining of chunks, slots that run out, ranks that wait for each other)
//! therefore need no model of their own. The [`World`] defines how links behave.

use crate::execution::{Execution, Link, Ports, Progress};
use crate::types::Rank;

/// Executor of one rank: the real execution, or an equivalent that needs less memory.
pub trait Worker {
    /// Advances the rank as far as is possible now.
    fn advance<P: Ports>(&mut self, ports: &mut P) -> Progress;

    /// Notes that the link is ready: a message has arrived on it if `receives`, otherwise a message
    /// can be sent on it. Workers can use this to check fewer links in [`Worker::advance`].
    fn link_ready(&mut self, _link: Link, _receives: bool) {}
}

impl Worker for Execution {
    fn advance<P: Ports>(&mut self, ports: &mut P) -> Progress {
        Execution::advance(self, ports)
    }
}

/// Links of all ranks, and the time.
pub trait World {
    /// Error that the world can fail with.
    type Error;

    /// View of the world from one rank.
    type Ports<'w>: Ports
    where
        Self: 'w;

    /// Lets time pass until a rank that is not done may be able to advance. Returns that rank, or
    /// none if no event is left.
    ///
    /// # Errors
    ///
    /// When the world cannot go on.
    fn next(&mut self) -> Result<Option<Rank>, Self::Error>;

    /// Notifies a rank's worker of the events on its links since the rank last looked.
    fn notify<M: Worker>(&mut self, _rank: Rank, _worker: &mut M) {}

    /// Returns the ports of a rank, at the present time.
    fn ports(&mut self, rank: Rank) -> Self::Ports<'_>;

    /// Records that a rank has advanced. Returns whether the rank may continue at once; if not,
    /// [`World::next`] returns the rank again once it may continue.
    fn moved(&mut self, rank: Rank) -> bool;

    /// Records that a rank is done.
    fn done(&mut self, rank: Rank);
}

/// Runs all ranks until they are done or no event is left. Returns the ranks that are not done, in
/// order.
///
/// # Errors
///
/// When the world cannot go on.
pub fn run<W: World, M: Worker>(world: &mut W, workers: &mut [M]) -> Result<Vec<Rank>, W::Error> {
    let mut open = vec![true; workers.len()];
    while let Some(rank) = world.next()? {
        let index = rank as usize;
        let Some(worker) = workers.get_mut(index).filter(|_| open[index]) else { continue };
        world.notify(rank, worker);
        loop {
            let progress = worker.advance(&mut world.ports(rank));
            match progress {
                Progress::Done => {
                    open[index] = false;
                    world.done(rank);
                    break;
                }
                Progress::Moved if world.moved(rank) => {}
                Progress::Moved | Progress::Blocked => break,
            }
        }
    }
    Ok((0..).zip(&open).filter(|(_, open)| **open).map(|(rank, _)| rank).collect())
}
