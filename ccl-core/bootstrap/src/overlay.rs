//! Overlay: the connections between ranks after joining, and the routes by which each rank's part
//! of an exchange reaches all ranks. Rank `r` has neighbours at the distances 1, 2, 4, ... in both
//! directions of the ring of all ranks, so a message reaches every rank in at most as many steps as
//! the number of ranks has bits.

use ccl_core::types::Rank;

/// Returns the distances: powers of two below the number of ranks.
pub(super) fn distances(ranks: u32) -> impl Iterator<Item = u32> + Clone {
    (0..32).map(|bit| 1u32 << bit).take_while(move |distance| *distance < ranks)
}

/// Returns `rank + by` on the ring.
pub(super) fn after(rank: Rank, by: u32, ranks: u32) -> Rank {
    // Ranks are below `RANKS_MAX`, so the sum does not overflow.
    (rank + by % ranks) % ranks
}

/// Returns `rank - by` on the ring.
pub(super) fn before(rank: Rank, by: u32, ranks: u32) -> Rank {
    after(rank, ranks - by % ranks, ranks)
}

/// Returns all initial neighbours of a rank, in ascending order.
pub(super) fn neighbours(rank: Rank, ranks: u32) -> Vec<Rank> {
    let both = |by| [after(rank, by, ranks), before(rank, by, ranks)];
    let mut all: Vec<_> = distances(ranks).flat_map(both).filter(|peer| *peer != rank).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the ranks that this rank must connect to: for each distance, the first available rank
/// (one for which `can_be_had` returns true) at that distance or further. The first of these is
/// this rank's successor among the available ranks, so that all available ranks form one ring.
pub(super) fn targets(rank: Rank, ranks: u32, can_be_had: impl Fn(Rank) -> bool) -> Vec<Rank> {
    let mut found: Vec<Rank> = Vec::new();
    for distance in distances(ranks) {
        let candidates = (distance..ranks).map(|by| after(rank, by, ranks));
        let target = candidates.into_iter().find(|peer| can_be_had(*peer));
        found.extend(target.filter(|target| !found.contains(target)));
    }
    found
}

/// Returns the ranks to which `rank` passes the part of `origin`, so that every rank gets the part
/// exactly once. On the ring, rank `origin - o` passes the part to the ranks `origin - o - d`, for
/// all distances `d` that are greater than `o` and for which `o + d` is less than the number of
/// ranks.
pub(super) fn next_hops(rank: Rank, ranks: u32, origin: Rank) -> impl Iterator<Item = Rank> {
    let ahead = before(origin, rank, ranks);
    distances(ranks)
        .filter(move |by| *by > ahead && ahead + by < ranks)
        .map(move |by| before(rank, by, ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_reaches_everybody_once_over_links_that_exist() {
        for ranks in [1, 2, 3, 4, 7, 8, 17, 64, 100, 1024] {
            for origin in [0, ranks / 2, ranks - 1] {
                let mut got = vec![0; ranks as usize];
                let mut open = vec![origin];
                while let Some(rank) = open.pop() {
                    got[rank as usize] += 1;
                    for successor in next_hops(rank, ranks, origin) {
                        assert!(neighbours(rank, ranks).contains(&successor));
                        open.push(successor);
                    }
                }
                assert!(
                    got.iter().all(|count| *count == 1),
                    "one of {ranks} ranks did not get rank {origin}'s part exactly once: {got:?}"
                );
            }
        }
    }

    #[test]
    fn neighbours_are_mutual_and_few() {
        for ranks in [1, 2, 3, 5, 16, 17, 64, 1024] {
            for rank in 0..ranks {
                let all = neighbours(rank, ranks);
                assert!(all.len() <= 2 * distances(ranks).count());
                assert!(all.iter().all(|peer| neighbours(*peer, ranks).contains(&rank)));
            }
        }
    }

    #[test]
    fn the_remaining_ranks_form_one_ring() {
        let left = [1u32, 2, 9, 11, 12];
        for (index, rank) in left.iter().enumerate() {
            let targets = targets(*rank, 16, |peer| left.contains(&peer));
            assert_eq!(targets[0], left[(index + 1) % left.len()]);
            assert!(!targets.contains(rank));
        }
        assert!(targets(3, 16, |_| false).is_empty());
    }
}
