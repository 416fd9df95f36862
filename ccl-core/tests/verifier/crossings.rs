//! Messages between hosts, counted from the schedules: hierarchical algorithms send no more
//! elements between hosts than necessary (`all_reduce`: at most 10 % more).

use std::collections::BTreeMap;

use ccl_core::algorithm::{Params, find};
use ccl_core::schedule::shape::{Blocks, Seat, Sizes};
use ccl_core::schedule::{Buffer, Layout, Op};
use ccl_core::topology::Hosts;
use ccl_core::types::Collective;
use ccl_core::verify::placements;

/// A message between hosts.
struct Crossing {
    /// Sending host.
    from: u32,
    /// Receiving host.
    to: u32,
    /// Parts that the message carries, by their numbers in the layout.
    parts: Vec<u32>,
    elements: usize,
}

type Found = Result<Vec<Crossing>, Box<dyn std::error::Error>>;

/// Returns all messages between hosts, for `count` elements per block.
fn crossings(collective: Collective, name: &str, hosts: &Hosts, count: usize) -> Found {
    let mut found = Vec::new();
    let algorithm = find(collective, name)?;
    let counts = vec![count; hosts.ranks() as usize];
    let starts: Vec<usize> = (0..counts.len()).map(|block| block * count).collect();
    let uneven = matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV);
    let sizes = match uneven {
        true => Sizes::PerRank(Blocks { counts: &counts, starts: &starts }),
        false => Sizes::Even(count),
    };
    for rank in 0..hosts.ranks() {
        let params = Params { rank, ranks: hosts.ranks(), root: 0, hosts };
        let schedule = (algorithm.schedule)(&params);
        let seat = Seat { collective, rank, ranks: hosts.ranks(), root: 0 };
        let (input, output): (Layout, Layout) = seat.layouts(sizes, schedule.split, 16)?;
        schedule.for_each(&mut |op, at| {
            let Op::Send { peer, source } = op else { return };
            let (from, to) = (hosts.seat(rank).0, hosts.seat(peer.eval(at)).0);
            if from == to {
                return;
            }
            let extent = source.extent;
            let layout = if extent.buffer == Buffer::Input { &input } else { &output };
            let parts: Vec<u32> =
                (0..extent.parts.total).map(|index| extent.parts.part(index, at)).collect();
            let elements = parts.iter().map(|part| layout.part(*part).1).sum();
            found.push(Crossing { from, to, parts, elements });
        });
    }
    Ok(found)
}

/// Returns the number of elements for each pair of sending and receiving host.
fn traffic(crossings: &[Crossing]) -> BTreeMap<(u32, u32), usize> {
    let mut traffic = BTreeMap::new();
    for crossing in crossings {
        *traffic.entry((crossing.from, crossing.to)).or_default() += crossing.elements;
    }
    traffic
}

/// Returns three arrangements of eight ranks on two hosts: four consecutive ranks on each host,
/// four ranks on each host in round-robin order, and three ranks on one host and five on the other.
fn two_hosts() -> [Hosts; 3] {
    let ids = [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1, 1, 1]];
    ids.map(|ids| Hosts::of(&ids))
}

#[test]
fn all_reduce_sends_the_buffer_once_each_way_between_two_hosts() {
    for (hosts, count) in two_hosts().iter().flat_map(|hosts| [(hosts, 1 << 20), (hosts, 99_991)]) {
        let once =
            traffic(&crossings(Collective::AllReduce, "hierarchical", hosts, count).unwrap());
        assert_eq!(once.len(), 2, "{hosts:?}");
        for elements in once.values() {
            let is_once = *elements >= count && *elements * 10 <= count * 11;
            assert!(is_once, "{elements} elements cross; expected {count}, or at most 10 % more");
        }
    }
    // The check can fail: the flat algorithm sends more.
    let [ordered, ..] = two_hosts();
    let flat =
        traffic(&crossings(Collective::AllReduce, "direct_two_phase", &ordered, 1 << 20).unwrap());
    assert!(flat.values().all(|elements| *elements > 3 << 20), "{flat:?}");
}

/// Counts the crossings for each pair of a block and a host; `host` chooses a crossing's host.
fn times(crossings: &[Crossing], host: fn(&Crossing) -> u32) -> BTreeMap<(u32, u32), u32> {
    let mut times = BTreeMap::new();
    for crossing in crossings {
        for block in &crossing.parts {
            *times.entry((*block, host(crossing))).or_default() += 1;
        }
    }
    times
}

/// Returns a count of 1 for each pair of a block and a host other than the block's own.
fn once_per_remote_host(hosts: &Hosts) -> BTreeMap<(u32, u32), u32> {
    let remote = |block: u32| (0..hosts.count()).filter(move |host| hosts.seat(block).0 != *host);
    (0..hosts.ranks()).flat_map(|block| remote(block).map(move |host| ((block, host), 1))).collect()
}

#[test]
fn blocks_cross_once_per_remote_host() {
    use Collective as C;
    for hosts in (1..=17).flat_map(placements) {
        let once = once_per_remote_host(&hosts);
        for collective in [C::AllGather, C::AllGatherV] {
            let found = crossings(collective, "hierarchical", &hosts, 7).unwrap();
            assert_eq!(times(&found, |crossing| crossing.to), once, "{collective} {hosts:?}");
        }
        for collective in [C::ReduceScatter, C::ReduceScatterV] {
            let found = crossings(collective, "hierarchical", &hosts, 7).unwrap();
            assert_eq!(times(&found, |crossing| crossing.from), once, "{collective} {hosts:?}");
            let home = |crossing: &Crossing| {
                crossing.parts.iter().all(|block| hosts.seat(*block).0 == crossing.to)
            };
            assert!(found.iter().all(home), "{collective} {hosts:?}");
        }
    }
}

#[test]
fn broadcast_and_reduce_cross_once_per_remote_host() {
    for hosts in (1..=17).flat_map(placements) {
        let elsewhere: Vec<u32> = (1..hosts.count()).collect();
        let ends = |collective, end: fn(&Crossing) -> u32| {
            let mut ends: Vec<u32> =
                crossings(collective, "hierarchical", &hosts, 7).unwrap().iter().map(end).collect();
            ends.sort_unstable();
            ends
        };
        // Rank 0, the root, is on host 0.
        assert_eq!(ends(Collective::Broadcast, |crossing| crossing.to), elsewhere, "{hosts:?}");
        assert_eq!(ends(Collective::Reduce, |crossing| crossing.from), elsewhere, "{hosts:?}");
    }
}

#[test]
fn all_to_all_sends_one_message_to_each_rank_from_each_other_host() {
    for hosts in (1..=17).flat_map(placements) {
        let found = crossings(Collective::AllToAll, "hierarchical", &hosts, 7).unwrap();
        let messages = (hosts.count() - 1) * hosts.ranks();
        assert_eq!(found.len() as u32, messages, "{hosts:?}");
        for ((from, to), elements) in traffic(&found) {
            let blocks = hosts.size(from) * hosts.size(to);
            assert_eq!(elements as u32, 7 * blocks, "{hosts:?}");
        }
    }
}
