//! A fixed number of adjacent words, range-checked once, for counters on hot paths.

use crate::region::{Region, RegionError};
use crate::sync::AtomicU64;

/// `N` atomic words of a region; `N` is a power of two.
#[derive(Clone, Debug)]
pub struct Words<const N: usize>(Region);

impl<const N: usize> Words<N> {
    /// Returns the `N` words that begin at byte `offset`.
    ///
    /// # Errors
    ///
    /// When the words exceed the region or are not aligned.
    pub fn new(of: &Region, offset: usize) -> Result<Words<N>, RegionError> {
        const { assert!(N.is_power_of_two()) };
        let part = of.part(offset, 8 * N)?;
        part.word64(0)?;
        Ok(Words(part))
    }

    /// Returns the word at `index` modulo `N`: no index is out of bounds.
    #[inline]
    #[must_use]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        // SAFETY: `new` has checked that there are `N` aligned words.
        unsafe { self.0.word64_unchecked(8 * (index & (N - 1))) }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn word_indices_wrap_and_the_range_is_checked_once() {
        let region = Region::private(64);
        let words = Words::<4>::new(&region, 32).unwrap();
        words.at(5).store(7, Ordering::Relaxed);
        assert_eq!(region.word64(40).unwrap().load(Ordering::Relaxed), 7);
        assert!(Words::<4>::new(&region, 40).is_err(), "words beyond the end must be refused");
        assert!(Words::<4>::new(&region, 4).is_err(), "unaligned words must be refused");
    }
}
