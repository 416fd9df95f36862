//! The engine of virtual time: ranks at work in a world that says when what they send arrives.
//!
//! What runs is what runs in earnest ([`Execution`]); only its ports are others. So whatever a
//! schedule does (pipelining of chunks, slots that run out, ranks that wait for each other) costs
//! what it costs, and nothing is known twice. How links behave is the parameter: a [`World`].

use crate::execution::{Execution, Link, Ports, Progress};
use crate::types::Rank;

/// A rank at work: the real execution, or one that does the same in less memory.
pub trait Worker {
    /// Does what can be done now.
    fn advance<P: Ports>(&mut self, ports: &mut P) -> Progress;

    /// A message of the link has arrived, or (`receives` is false) one may be sent on it. A worker
    /// that need not look at all its links at every [`Worker::advance`] notes it.
    fn hear(&mut self, _link: Link, _receives: bool) {}
}

impl Worker for Execution {
    fn advance<P: Ports>(&mut self, ports: &mut P) -> Progress {
        Execution::advance(self, ports)
    }
}

/// The links of all ranks, and the time.
pub trait World {
    /// What can go wrong in it.
    type Error;

    /// The world as one rank sees it.
    type Ports<'w>: Ports
    where
        Self: 'w;

    /// Lets time pass until a rank that is not done may be able to do something. Returns that rank;
    /// none if nothing happens any more.
    ///
    /// # Errors
    ///
    /// When the world cannot go on.
    fn next(&mut self) -> Result<Option<Rank>, Self::Error>;

    /// Tells a rank's worker what has happened to its links since it last looked.
    fn tell<M: Worker>(&mut self, _rank: Rank, _worker: &mut M) {}

    /// Returns the ports of a rank, at the present time.
    fn ports(&mut self, rank: Rank) -> Self::Ports<'_>;

    /// A rank has done something. Returns whether it may do more at once; if not,
    /// [`World::next`] names it again when it may.
    fn moved(&mut self, rank: Rank) -> bool;

    /// A rank is done.
    fn done(&mut self, rank: Rank);
}

/// Runs all ranks until they are done, or nothing happens any more. Returns those that are not
/// done, in order.
///
/// # Errors
///
/// When the world cannot go on.
pub fn run<W: World, M: Worker>(world: &mut W, workers: &mut [M]) -> Result<Vec<Rank>, W::Error> {
    let mut open = vec![true; workers.len()];
    while let Some(rank) = world.next()? {
        let index = rank as usize;
        let Some(worker) = workers.get_mut(index).filter(|_| open[index]) else { continue };
        world.tell(rank, worker);
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
