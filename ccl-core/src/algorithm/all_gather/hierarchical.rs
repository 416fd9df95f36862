//! Hierarchical `all_gather`: each block crosses to each other host once and is forwarded there.
//!
//! ```text
//!   across   r ──► on each other host, the rank with r's local index (modulo that host's size)
//!   inside   the rank that got a block ──► all other ranks of its host
//! ```
//!
//! Steps: 2. Bytes from each host to each other host: the blocks of the sending host, the least
//! possible. All ranks of the host send in parallel.

use crate::algorithm::common::{Position, across, each, inside, runs};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllGather,
    family: Family::Hierarchical,
    name: "hierarchical",
    summary: "each block once to each other host, then to all its ranks; least bytes between hosts",
    schedule,
    order: Order::None,
    steps: |hosts| across(hosts) + inside(hosts),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let (position, rank) = (Position::of(params), params.rank);
    let Position { hosts, host, local, .. } = position;
    let neighbours = position.neighbours();
    let mut b = Builder::new(rank, params.ranks, 1);
    b.copy(output(rank), input(0));
    each(&mut b, &neighbours, |b, [peer, _]| b.send(peer, output(rank)));
    position.each_remote(&mut b, false, |b, remote| {
        let contact = Affine::constant(position.contact(remote.host, local));
        b.send(remote.shifted(contact), output(rank));
    });
    each(&mut b, &neighbours, |b, [peer, _]| b.recv(peer, output(peer)));
    position.each_remote(&mut b, true, |b, remote| {
        position.each_round(remote, |first, blocks| {
            let far = |local| hosts.rank(remote.host, first + local);
            if local < blocks {
                let block = remote.shifted(Affine::constant(far(local)));
                b.recv(block, output(block));
                each(b, &neighbours, |b, [peer, _]| b.send(peer, output(block)));
            }
            let passed_on = |local| [hosts.rank(host, local), far(local)];
            each(b, &runs(position.others(blocks).map(passed_on)), |b, [peer, block]| {
                b.recv(peer, output(remote.shifted(block)));
            });
        });
    });
    b.finish()
}
