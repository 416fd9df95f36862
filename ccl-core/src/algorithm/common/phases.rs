//! Phases that several algorithms consist of.

use super::{after, before, counting_down, counting_up};
use crate::algorithm::Params;
use crate::schedule::{Affine, Builder, Parts, Slice, TERM, Terms, input, output, scratch};
use crate::types::Rank;

/// Position of a rank on a ring: the rank's neighbours, and the part that it owns.
#[derive(Clone, Copy, Debug)]
pub(in crate::algorithm) struct Ring {
    /// Part that ends at this rank in a reduction, and starts at this rank in a gather.
    pub(in crate::algorithm) own: u32,
    /// Number of ranks, which is also the number of parts.
    pub(in crate::algorithm) ranks: u32,
    /// Rank to send to.
    pub(in crate::algorithm) next: Rank,
    /// Rank to receive from.
    pub(in crate::algorithm) prev: Rank,
}

impl Ring {
    /// Returns the ring in rank order; part r belongs to rank r.
    pub(in crate::algorithm) fn of(params: &Params<'_>) -> Ring {
        let Params { rank, ranks, .. } = *params;
        let (next, prev) = (after(rank, 1, ranks), before(rank, 1, ranks));
        Ring { own: rank, ranks, next, prev }
    }
}

/// Reduces each part around the ring: part c of the input starts at the rank after c, collects the
/// contribution of each rank on its way, and ends complete in `target` of rank c.
///
/// ```text
///   part 2 of 4:   3 ──► 0 ──► 1 ──► 2
/// ```
pub(in crate::algorithm) fn reduce_around(b: &mut Builder, ring: Ring, target: Slice) {
    let Ring { own, ranks, next, prev } = ring;
    if ranks == 1 {
        return b.reduce_last(target, &[input(own).into()]);
    }
    b.send(next, input(before(own, 1, ranks)));
    b.repeat(ranks - 2, |b, i| {
        let mine = input(counting_down(before(own, 2, ranks), i, ranks));
        let (arrived, sum) = (scratch(0, 0, mine), scratch(1, 0, mine));
        b.recv(prev, arrived);
        b.reduce(sum, &[arrived.into(), mine.into()]);
        b.send(next, sum);
    });
    let arrived = scratch(2, 0, input(own));
    b.recv(prev, arrived);
    b.reduce_last(target, &[arrived.into(), input(own).into()]);
}

/// Gathers around the ring: part c of the output goes once around, and every rank keeps a copy. The
/// part starts at its owner, whose output must already contain it.
pub(in crate::algorithm) fn gather_around(b: &mut Builder, ring: Ring) {
    let Ring { own, ranks, next, prev } = ring;
    if ranks == 1 {
        return;
    }
    b.send(next, output(own));
    b.repeat(ranks - 2, |b, i| {
        let part = output(counting_down(before(own, 1, ranks), i, ranks));
        b.recv(prev, part);
        b.send(next, part);
    });
    b.recv(prev, output(after(own, 1, ranks)));
}

/// Appends a loop over all other ranks, upwards from the rank after this one and wrapping at
/// `ranks`. `body` writes the loop's ops.
pub(in crate::algorithm) fn for_each_peer(
    b: &mut Builder,
    params: &Params<'_>,
    body: impl FnOnce(&mut Builder, Affine),
) {
    let Params { rank, ranks, .. } = *params;
    b.repeat(ranks - 1, |b, i| body(b, counting_up(after(rank, 1, ranks), i, ranks)));
}

/// Appends a loop over all other ranks, downwards from the rank before this one and wrapping at 0.
/// If every rank sends in the order of [`for_each_peer`] and receives in the order of this
/// function, the ranks never all wait for the same rank.
pub(in crate::algorithm) fn for_each_peer_backwards(
    b: &mut Builder,
    params: &Params<'_>,
    body: impl FnOnce(&mut Builder, Affine),
) {
    let Params { rank, ranks, .. } = *params;
    b.repeat(ranks - 1, |b, i| body(b, counting_down(before(rank, 1, ranks), i, ranks)));
}

/// Receives the contributions of all other ranks and folds them with `own` into `target`, in rank
/// order. One fold combines all contributions of an element and rounds once. So the element's bits
/// are the same, however the buffer is divided into chunks.
pub(in crate::algorithm) fn fold_in_rank_order(
    b: &mut Builder,
    params: &Params<'_>,
    target: Slice,
    own: Slice,
) {
    let Params { rank, ranks, .. } = *params;
    let (below, above) = (rank, ranks - 1 - rank);
    let number = |dimension| Affine::constant(0).step(dimension, 1);
    b.repeat(below, |b, i| b.recv(number(i), scratch(0, number(i), own)));
    b.repeat(above, |b, i| {
        b.recv(number(i).plus(i64::from(rank) + 1), scratch(1, number(i), own));
    });
    let from_below = scratch(0, number(TERM), own).repeat(below);
    let from_above = scratch(1, number(TERM), own).repeat(above);
    b.reduce_last(target, &[from_below, own.into(), from_above]);
}

/// Receives `peer`'s share and folds it with `mine` into `target`, the lower rank's share first, so
/// that both sides get the same bits. `id` names scratch that no other op uses.
pub(in crate::algorithm) fn fold_in(
    b: &mut Builder,
    peer: Rank,
    id: u8,
    target: Slice,
    mine: Slice,
    last: bool,
) {
    let theirs = scratch(id, Parts::range(Affine::constant(0), mine.parts.total, 0), mine);
    b.recv(peer, theirs);
    let terms: [Terms; 2] =
        if b.rank() < peer { [mine.into(), theirs.into()] } else { [theirs.into(), mine.into()] };
    if last { b.reduce_last(target, &terms) } else { b.reduce(target, &terms) }
}

/// Folds `mine` and the children's shares, and sends the sum to the parent; the root stores the sum
/// in `result`. The sum has the scratch id `id`, and the children's shares have the ids from
/// `id + 1` on. Lowering replaces the scratch of the shares by the slots in which they arrive.
pub(in crate::algorithm) fn reduce_up(
    b: &mut Builder,
    id: u8,
    children: impl IntoIterator<Item = Rank>,
    parent: Option<Rank>,
    mine: Slice,
    result: Slice,
) {
    let mut terms = vec![Terms::from(mine)];
    for (child, id) in children.into_iter().zip(id + 1..) {
        let theirs = scratch(id, 0, mine);
        b.recv(child, theirs);
        terms.push(theirs.into());
    }
    match parent {
        None => b.reduce_last(result, &terms),
        Some(parent) => {
            let sum = scratch(id, 0, mine);
            b.reduce(sum, &terms);
            b.send(parent, sum);
        }
    }
}
