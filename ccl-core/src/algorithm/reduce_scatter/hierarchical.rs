//! Hierarchical `reduce_scatter`: for each block of another host, a host folds the contributions of
//! its own ranks, and sends one sum to the block's rank.
//!
//! ```text
//!   inside   every rank ──► one rank of its host, the one with the local index of the block's rank
//!            (modulo the host's size), which folds
//!   across   that rank ──► the block's rank, which folds the sums of all other hosts with the
//!            contributions of its own host's ranks
//! ```
//!
//! Steps: 2. Bytes from each host to each other host: the blocks of the receiving host, the least
//! possible. All ranks of the receiving host receive in parallel.

use crate::algorithm::common::{Names, Position, across, each, inside, runs};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, RankSchedule, Terms, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::ReduceScatter,
    family: Family::Hierarchical,
    name: "hierarchical",
    summary: "each block folded inside each host, then sent once; least bytes between hosts",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| across(hosts) + inside(hosts),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let (position, rank) = (Position::of(params), params.rank);
    let Position { hosts, host, local, .. } = position;
    let (neighbours, mut names) = (position.neighbours(), Names::new());
    let mut b = Builder::new(rank, params.ranks, 1);
    position.each_remote(&mut b, false, |b, remote| {
        position.each_round(remote, |first, blocks| {
            let far = |local| hosts.rank(remote.host, first + local);
            let folded_at = |local| [hosts.rank(host, local), far(local)];
            each(b, &runs(position.others(blocks).map(folded_at)), |b, [peer, block]| {
                b.send(peer, input(remote.shifted(block)));
            });
            if local < blocks {
                let block = remote.shifted(Affine::constant(far(local)));
                let mut terms: Vec<Terms> = vec![input(block).into()];
                names.receive(b, &neighbours, input(block), &mut terms);
                let sum = names.sum(input(block));
                b.reduce(sum, &terms);
                b.send(block, sum);
            }
        });
    });
    each(&mut b, &neighbours, |b, [peer, _]| b.send(peer, input(peer)));
    let mut terms: Vec<Terms> = vec![input(rank).into()];
    names.receive(&mut b, &neighbours, input(rank), &mut terms);
    let others = (1..hosts.count()).map(|far| (host + far) % hosts.count());
    let contacts = runs(others.map(|host| [position.contact(host, local)]));
    names.receive(&mut b, &contacts, input(rank), &mut terms);
    b.reduce_last(output(0), &terms);
    b.finish()
}
