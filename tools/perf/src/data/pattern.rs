//! Fast generation and comparison of elements. The data repeat after a prime number of elements, so
//! one table per stream (the input of a rank or of a pair of ranks, or the reduction) is enough to
//! fill and to compare buffers of any length with `memcpy` and `memcmp`. A misplaced block is
//! detected unless its displacement is a multiple of the period. A displacement by k chunks (or
//! blocks) of c elements is k × c elements. The period is prime, so it divides k × c only if it
//! divides k or c.

use super::check::accepts;
use super::format::push_element;
use super::generate::{Expected, Recipe};

/// Returns the number of elements after which the data repeat. The period is shorter if there are
/// more than 64 ranks: each rank computes a table of the reduction, and the time for each element
/// of this table grows with the number of ranks.
#[must_use]
pub fn period(ranks: u32) -> usize {
    if ranks <= 64 { 65_521 } else { 4_093 }
}

/// First elements of a stream, at most one period of them.
#[derive(Clone, Debug)]
pub struct Table {
    recipe: Recipe,
    bytes: Vec<u8>,
    true_values: Vec<f64>,
}

impl Table {
    /// Returns the input of `stream`, for elements before `end`.
    #[must_use]
    pub fn of_input(recipe: Recipe, stream: u64, end: usize) -> Table {
        let mut table = Table::empty(recipe);
        for index in 0..end.min(period(recipe.ranks)) {
            push_element(&mut table.bytes, recipe.data_type, recipe.input(stream, index as u64));
        }
        table
    }

    /// Returns the reduction over all ranks, for elements before `end`.
    #[must_use]
    pub fn of_reduction(recipe: Recipe, end: usize) -> Table {
        let mut table = Table::empty(recipe);
        for index in 0..end.min(period(recipe.ranks)) {
            let Expected { bits, true_value } = recipe.reduced(index as u64);
            push_element(&mut table.bytes, recipe.data_type, bits);
            table.true_values.push(true_value);
        }
        table
    }

    fn empty(recipe: Recipe) -> Table {
        Table { recipe, bytes: Vec::new(), true_values: Vec::new() }
    }

    /// Fills `target` with the stream from element `first` on.
    pub fn fill(&self, target: &mut [u8], first: usize) {
        let mut rest = target;
        for range in self.runs(first, rest.len()) {
            let (head, tail) = rest.split_at_mut(range.len());
            head.copy_from_slice(&self.bytes[range]);
            rest = tail;
        }
    }

    /// Returns the number of wrong elements in `actual`, which is compared with the stream from
    /// element `first` on.
    #[must_use]
    pub fn wrong(&self, actual: &[u8], first: usize) -> u64 {
        let mut rest = actual;
        let mut wrong = 0;
        for range in self.runs(first, actual.len()) {
            let (head, tail) = rest.split_at(range.len());
            if *head != self.bytes[range.clone()] {
                wrong += self.wrong_in_run(head, range);
            }
            rest = tail;
        }
        wrong
    }

    fn wrong_in_run(&self, actual: &[u8], range: std::ops::Range<usize>) -> u64 {
        let size = self.recipe.data_type.bytes();
        let pairs = actual.chunks_exact(size).zip(self.bytes[range.clone()].chunks_exact(size));
        let wrong = pairs.enumerate().filter(|(offset, (actual, expected))| {
            let true_value = self.true_values.get(range.start / size + offset);
            actual != expected && !accepts(self.recipe, actual, expected, true_value.copied())
        });
        wrong.count() as u64
    }

    /// Returns the byte ranges of the table that make up `bytes` bytes from element `first` on.
    fn runs(&self, first: usize, bytes: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let length = self.bytes.len();
        let mut start = first % period(self.recipe.ranks) * self.recipe.data_type.bytes();
        let mut left = if length == 0 { 0 } else { bytes };
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let run = start..length.min(start + left);
            left -= run.len();
            start = 0;
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::types::DataType;

    use super::*;

    #[test]
    fn tables_repeat_after_the_period_and_count_each_wrong_element_once() {
        let recipe = Recipe { data_type: DataType::Uint32, op: None, ranks: 2, repetition: 1 };
        let period = period(2);
        let count = 2 * period + 10;
        let table = Table::of_input(recipe, 1, 5 + count);
        let mut buffer = vec![0; 4 * count];
        table.fill(&mut buffer, 5);
        for index in [0, period - 6, period - 5, 2 * period] {
            let expected = recipe.input(1, ((index + 5) % period) as u64) as u32;
            assert_eq!(buffer[4 * index..4 * index + 4], expected.to_ne_bytes());
        }
        assert_eq!(table.wrong(&buffer, 5), 0);
        buffer[0] ^= 1;
        buffer[4 * period] ^= 1;
        buffer[4 * period + 1] ^= 1;
        assert_eq!(table.wrong(&buffer, 5), 2);
        assert!(table.wrong(&buffer, 6) > count as u64 / 2);
    }

    #[test]
    fn an_empty_table_suits_an_empty_buffer() {
        let recipe = Recipe { data_type: DataType::Uint8, op: None, ranks: 1, repetition: 0 };
        let table = Table::of_input(recipe, 0, 0);
        table.fill(&mut [], 0);
        assert_eq!(table.wrong(&[], 7), 0);
    }
}
