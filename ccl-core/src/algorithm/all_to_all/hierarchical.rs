//! Hierarchical `all_to_all`: all blocks of a host for one rank of another host are gathered at one
//! rank and cross in one message.
//!
//! ```text
//!   inside   every rank ──► one rank of its host, the one with the local index of the block's
//!            destination (modulo the host's size)
//!   across   that rank ──► the destination: a block of each rank of the host, in one message
//!   inside   blocks for neighbours go straight
//! ```
//!
//! Between two hosts of s ranks there are s messages of s blocks instead of s² messages of one
//! block. Steps: 2. Bytes across: those of the blocks, the least possible. Every block that crosses
//! also moves inside its host, so the algorithm is for short blocks. Blocks wait in scratch until
//! all blocks of the message have arrived.

use crate::algorithm::common::{Position, Run, across, each, inside, runs};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, Parts, RankSchedule, Slice, input, output, scratch};
use crate::topology::Hosts;
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllToAll,
    family: Family::Hierarchical,
    name: "hierarchical",
    summary: "blocks gathered by destination inside each host; few long messages across",
    schedule,
    order: Order::None,
    steps: |hosts| across(hosts) + inside(hosts),
};

/// Scratch buffer for the blocks that are gathered for a message.
const GATHERED: u8 = 0;
/// Scratch buffer for the blocks of a message from a host whose rank numbers are unevenly spaced.
const ARRIVED: u8 = 1;

fn schedule(params: &Params<'_>) -> RankSchedule {
    let (position, rank) = (Position::of(params), params.rank);
    let Position { hosts, local, .. } = position;
    let neighbours = position.neighbours();
    let mut b = Builder::new(rank, params.ranks, 1);
    if hosts.count() > 1 {
        b.widest_message(hosts.largest());
    }
    gather_and_send(&mut b, &position, &neighbours);
    each(&mut b, &neighbours, |b, [peer, _]| b.send(peer, input(peer)));
    b.copy(output(rank), input(rank));
    each(&mut b, &neighbours, |b, [peer, _]| b.recv(peer, output(peer)));
    position.each_remote(&mut b, true, |b, remote| {
        let contact = remote.shifted(Affine::constant(position.contact(remote.host, local)));
        let sources = runs((0..).zip(hosts.members(remote.host)).map(|(at, rank)| [rank, at]));
        if let [evenly] = sources.as_slice() {
            let [first, _] = evenly.at(1);
            return b.recv(contact, output(spaced(remote.shifted(first), hosts, remote.host)));
        }
        b.recv(contact, waiting(ARRIVED, hosts.size(remote.host)));
        each(b, &sources, |b, [source, at]| {
            let block = output(remote.shifted(source));
            b.copy(block, scratch(ARRIVED, at, block));
        });
    });
    b.finish()
}

/// Collects this host's blocks for each remote rank whose [contact](Position::contact) is this
/// rank, and sends them.
fn gather_and_send(b: &mut Builder, position: &Position<'_>, neighbours: &[Run<2>]) {
    let Position { hosts, host, local, size, .. } = *position;
    position.each_remote(b, false, |b, remote| {
        position.each_round(remote, |first, blocks| {
            let far = |local| hosts.rank(remote.host, first + local);
            let gathered_at = |local| [hosts.rank(host, local), far(local)];
            each(b, &runs(position.others(blocks).map(gathered_at)), |b, [peer, block]| {
                b.send(peer, input(remote.shifted(block)));
            });
            let block = remote.shifted(Affine::constant(far(local)));
            if size == 1 {
                b.send(block, input(block));
            } else if local < blocks {
                b.copy(scratch(GATHERED, local, input(block)), input(block));
                each(b, neighbours, |b, [peer, at]| {
                    b.recv(peer, scratch(GATHERED, at, input(block)));
                });
                b.send(block, waiting(GATHERED, size));
            }
        });
    });
}

/// Returns the slice of a scratch buffer that has all `blocks` blocks of a message. All blocks have
/// the same length, so the slice is as long as the same number of blocks of the input.
fn waiting(name: u8, blocks: u32) -> Slice {
    let all = Parts::range(Affine::constant(0), blocks, 0);
    scratch(name, all, input(all))
}

/// Returns the blocks of a host whose rank numbers are evenly spaced.
fn spaced(first: Affine, hosts: &Hosts, host: u32) -> Parts {
    let apart = if hosts.size(host) > 1 { hosts.rank(host, 1) - hosts.rank(host, 0) } else { 1 };
    Parts::runs(first, 1, apart, hosts.size(host))
}
