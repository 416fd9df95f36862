//! Arithmetic on ranks: neighbours on a circle, powers of two, residue classes.

use crate::schedule::{Affine, Parts};
use crate::types::Rank;

/// Returns the rank that is `distance` ranks after `rank` on the circle of `ranks` ranks.
pub(in crate::algorithm) fn after(rank: Rank, distance: u32, ranks: u32) -> Rank {
    Affine::constant(rank).plus(i64::from(distance)).modulo(ranks).eval(&[0; 3])
}

/// Returns the rank that is `distance` ranks before `rank` on the circle of `ranks` ranks.
pub(in crate::algorithm) fn before(rank: Rank, distance: u32, ranks: u32) -> Rank {
    Affine::constant(rank).plus(-i64::from(distance)).modulo(ranks).eval(&[0; 3])
}

/// Returns an expression of the counter of `dimension`. The expression has the values `start`,
/// `start + 1`, … on the circle of `ranks`.
pub(in crate::algorithm) fn counting_up(start: Rank, dimension: usize, ranks: u32) -> Affine {
    Affine::constant(start).step(dimension, 1).modulo(ranks)
}

/// Returns an expression of the counter of `dimension`. The expression has the values `start`,
/// `start - 1`, … on the circle of `ranks`.
pub(in crate::algorithm) fn counting_down(start: Rank, dimension: usize, ranks: u32) -> Affine {
    Affine::constant(start).step(dimension, -1).modulo(ranks)
}

/// Returns ⌈log2 ranks⌉: the number of doublings that reach all ranks.
pub(in crate::algorithm) fn rounds(ranks: u32) -> u32 {
    ranks.max(1).next_power_of_two().trailing_zeros()
}

/// Returns the largest power of two among `1..=ranks`. Algorithms that pair ranks by the bits of
/// their numbers run among the ranks below that power of two, the *core*; see [`Role`].
pub(in crate::algorithm) fn core(ranks: u32) -> u32 {
    1 << ranks.max(1).ilog2()
}

/// Role of a rank in an algorithm that needs a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithm) enum Role {
    /// A rank that takes part, for itself and for its extra rank, if it has one.
    Core {
        /// The extra rank that this rank represents, if any.
        extra: Option<Rank>,
    },
    /// A rank that hands its input to a core rank and gets the result from that rank.
    Extra {
        /// The core rank.
        partner: Rank,
    },
}

impl Role {
    /// Returns the role of `rank`. Rank `core + j` is the extra of rank j.
    pub(in crate::algorithm) fn of(rank: Rank, ranks: u32) -> Role {
        let core = core(ranks);
        if rank >= core {
            Role::Extra { partner: rank - core }
        } else {
            Role::Core { extra: (rank + core < ranks).then_some(rank + core) }
        }
    }
}

/// Returns the numbers below `parts` that are congruent to `rank` modulo `distance`.
///
/// Algorithms halve a set of parts by residues. A class modulo m consists of two classes modulo 2m:
/// a rank keeps one, and its partner at distance m takes the other. Since m starts at 1, the first
/// and largest messages go to the nearest ranks. A number of parts that is not a power of two needs
/// no special case.
pub(in crate::algorithm) fn congruent(rank: Rank, distance: u32, parts: u32) -> Parts {
    let first = rank % distance;
    Parts::runs(Affine::constant(first), 1, distance, (parts - first).div_ceil(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_numbers_wrap_around() {
        assert_eq!((after(3, 2, 5), after(4, 1, 5), after(0, 7, 5)), (0, 0, 2));
        assert_eq!((before(0, 1, 5), before(3, 3, 5), before(0, 2, 1)), (4, 0, 0));
    }

    #[test]
    fn powers_of_two_determine_rounds_core_and_roles() {
        let seen: Vec<(u32, u32)> = (1..=9).map(|n| (rounds(n), core(n))).collect();
        let expected = [(0, 1), (1, 2), (2, 2), (2, 4), (3, 4), (3, 4), (3, 4), (3, 8), (4, 8)];
        assert_eq!(seen, expected);
        assert_eq!(Role::of(1, 6), Role::Core { extra: Some(5) });
        assert_eq!(Role::of(2, 6), Role::Core { extra: None });
        assert_eq!(Role::of(5, 6), Role::Extra { partner: 1 });
    }

    #[test]
    fn residue_classes_together_contain_each_part_once() {
        for parts in 4..20 {
            let mut seen: Vec<u32> = (0..4)
                .flat_map(|rank| {
                    let class = congruent(rank, 4, parts);
                    (0..class.total).map(move |index| class.part(index, &[0; 3]))
                })
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..parts).collect::<Vec<_>>());
        }
    }
}
