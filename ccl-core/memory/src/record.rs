//! Record of a few numbers that one process publishes to all others. A reader gets all of them or
//! none: a sequence lock whose writer never waits.
//!
//! The first word is the record's number; it is 0 while the other words change (but see
//! [`publish_at`]). No number may be used twice. A reader that finds the same number (not 0) before
//! and after it reads the other words has therefore read the words of that record.

use crate::region::{Region, RegionError};
use crate::sync::{Ordering, fence, order};
use crate::words::Words;

/// Returns the size in bytes of a record that has `words` words besides its number.
#[must_use]
pub const fn bytes(words: usize) -> usize {
    8 * (1 + words)
}

/// Publishes `words` as record `number`, which is neither 0 nor the number of an earlier record.
/// Only one process may publish to a region.
///
/// # Errors
///
/// When the region is smaller than [`bytes`], or not aligned.
#[inline]
pub fn publish<const N: usize>(
    to: &Region,
    number: u64,
    words: [u64; N],
) -> Result<(), RegionError> {
    to.word64(0)?.store(0, Ordering::Relaxed);
    // Release: a reader that sees any word stored below does not find the old number afterwards.
    fence(order::hide());
    for (at, word) in (8..).step_by(8).zip(words) {
        to.word64(at)?.store(word, Ordering::Relaxed);
    }
    // Release: the words are visible before their number.
    to.word64(0)?.store(number, order::show());
    Ok(())
}

/// Publishes a record as [`publish`] does, in the ring entry that begins at word `first`. The
/// index of a word past the ring's end wraps around. Unlike the record of [`publish`], the entry
/// keeps its old number while its words change. So a reader must copy all entries, and after that
/// read the numbers of all entries a second time. The largest number of the second reading belongs
/// to the newest entry. The reader discards each copy whose number has changed. The reader also
/// discards its copy of the entry that follows the newest entry in the ring, because that copy may
/// mix the words of two records.
#[inline]
pub fn publish_at<const N: usize, const W: usize>(
    to: &Words<W>,
    first: usize,
    number: u64,
    words: [u64; N],
) {
    // Release: a reader that sees one of the new words also sees the numbers of all entries that
    // were published before.
    fence(order::hide());
    for (index, word) in words.into_iter().enumerate() {
        to.at(first + 1 + index).store(word, Ordering::Relaxed);
    }
    // Release: the words are visible before their number.
    to.at(first).store(number, order::show());
}

/// Returns the current record with its number; none before the first record, or during a change.
#[inline]
#[must_use]
pub fn read<const N: usize>(from: &Region) -> Option<(u64, [u64; N])> {
    let number = from.word64(0).ok()?.load(order::find());
    let mut words = [0; N];
    for (at, word) in (8..).step_by(8).zip(&mut words) {
        *word = from.word64(at).ok()?.load(Ordering::Relaxed);
    }
    // Acquire: if the number is unchanged, the words did not change while they were read.
    fence(order::confirm());
    let again = from.word64(0).ok()?.load(Ordering::Relaxed);
    (number != 0 && again == number).then_some((number, words))
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_is_read_with_its_number() {
        let region = Region::private(bytes(2));
        assert_eq!(read::<2>(&region), None);
        publish(&region, 5, [1, 2]).unwrap();
        publish(&region, 6, [3, u64::MAX]).unwrap();
        assert_eq!(read(&region), Some((6, [3, u64::MAX])));
    }

    #[test]
    fn an_entry_of_a_ring_is_read_as_a_record() {
        let region = Region::private(64);
        let ring = Words::<8>::new(&region, 0).unwrap();
        publish_at(&ring, 4, 9, [1, 2]);
        publish_at(&ring, 8 + 4, 10, [3, 4]);
        assert_eq!(read(&region.part(32, 32).unwrap()), Some((10, [3, 4])));
        assert_eq!(read::<2>(&region), None);
    }

    #[test]
    fn a_region_that_is_too_small_is_an_error() {
        let region = Region::private(bytes(1));
        assert!(publish(&region, 1, [1, 2]).is_err());
        assert_eq!(read::<2>(&region), None);
    }

    #[test]
    fn a_reader_never_sees_a_mixture_of_two_records() {
        let region = Region::private(bytes(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..20_000 {
                    publish(&region, number, [number; 2]).unwrap();
                }
            });
            let mut last = 0;
            while last < 19_999 {
                if let Some((number, words)) = read(&region) {
                    assert_eq!(words, [number; 2]);
                    assert!(number >= last);
                    last = number;
                }
            }
        });
    }
}
