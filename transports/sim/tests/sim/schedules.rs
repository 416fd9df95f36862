//! Schedules to run: the shapes of traffic that differ.

use ccl_core::schedule::{Builder, RankSchedule, Terms, input, output, scratch};

/// Makes the schedule of one rank.
pub(crate) type Make = fn(u32, u32) -> RankSchedule;

/// Every schedule, with its name.
pub(crate) const ALL: [(&str, Make); 4] =
    [("ring", ring), ("direct", direct), ("chain", chain), ("incast", incast)];

/// Slots per link that all of them can do with: where ranks reduce messages right into the next
/// ones, in a circle, one slot would be held on both sides of each of them.
pub(crate) const SLOTS_MIN: u32 = 2;

/// Reduce-scatter around the ring, then all-gather around it.
pub(crate) fn ring(rank: u32, ranks: u32) -> RankSchedule {
    let mut b = Builder::new(rank, ranks, ranks);
    let (next, prev) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    if ranks == 1 {
        b.reduce_last(output(0), &[input(0).into()]);
        return b.finish();
    }
    b.send(next, input(rank));
    for step in 0..ranks - 1 {
        let part = (rank + ranks - step - 1) % ranks;
        let (theirs, sum) = (scratch(0, step, input(part)), scratch(1, step, input(part)));
        b.recv(prev, theirs);
        let terms: [Terms; 2] = [theirs.into(), input(part).into()];
        if step + 2 < ranks {
            b.reduce(sum, &terms);
            b.send(next, sum);
        } else {
            b.reduce_last(output(part), &terms);
            b.send(next, output(part));
        }
    }
    for step in 0..ranks - 1 {
        let part = (rank + ranks - step) % ranks;
        b.recv(prev, output(part));
        if step + 2 < ranks {
            b.send(next, output(part));
        }
    }
    b.finish()
}

/// Everybody sends everybody its part, reduces its own, and sends everybody the result.
pub(crate) fn direct(rank: u32, ranks: u32) -> RankSchedule {
    let mut b = Builder::new(rank, ranks, ranks);
    let others = || (1..ranks).map(move |step| (rank + step) % ranks);
    others().for_each(|peer| b.send(peer, input(peer)));
    others().for_each(|peer| b.recv(peer, scratch(0, peer, input(rank))));
    let term = |peer: u32| {
        if peer == rank { input(rank).into() } else { scratch(0, peer, input(rank)).into() }
    };
    let terms: Vec<Terms> = (0..ranks).map(term).collect();
    b.reduce_last(output(rank), &terms);
    others().for_each(|peer| b.send(peer, output(rank)));
    others().for_each(|peer| b.recv(peer, output(peer)));
    b.finish()
}

/// A chain of partial sums to the last rank, and the result all the way back.
pub(crate) fn chain(rank: u32, ranks: u32) -> RankSchedule {
    let mut b = Builder::new(rank, ranks, 1);
    let last = rank + 1 == ranks;
    let (theirs, sum) = (scratch(0, 0, input(0)), scratch(1, 0, input(0)));
    let mut terms: Vec<Terms> = Vec::new();
    if rank > 0 {
        b.recv(rank - 1, theirs);
        terms.push(theirs.into());
    }
    terms.push(input(0).into());
    if last {
        b.reduce_last(output(0), &terms);
    } else {
        b.reduce(sum, &terms);
        b.send(rank + 1, sum);
        b.recv(rank + 1, output(0));
    }
    if rank > 0 {
        b.send(rank - 1, output(0));
    }
    b.finish()
}

/// Everybody sends the first rank everything, which it reduces.
pub(crate) fn incast(rank: u32, ranks: u32) -> RankSchedule {
    let mut b = Builder::new(rank, ranks, 1);
    if rank > 0 {
        b.send(0, input(0));
        return b.finish();
    }
    let mut terms: Vec<Terms> = vec![input(0).into()];
    for peer in 1..ranks {
        let theirs = scratch(0, peer, input(0));
        b.recv(peer, theirs);
        terms.push(theirs.into());
    }
    b.reduce_last(output(0), &terms);
    b.finish()
}
