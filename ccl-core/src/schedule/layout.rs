//! Layout of the blocks of a buffer: the one module that turns counts into addresses.

use std::ops::Range;

/// First element and number of elements of each block of a user's buffer.
///
/// A collective divides a buffer into *blocks* (one per rank for `all_gather`, a single one for
/// `all_reduce`). An algorithm may cut every block further into `split` parts. Schedules number the
/// parts: part `s` of block `b` is number `b × split + s`.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    blocks: Blocks,
    split: u32,
    grain: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Blocks {
    Even { count: usize },
    Vector { starts: Vec<usize>, counts: Vec<usize> },
}

/// `clone_from` reuses memory, so that binding a call does not allocate if only the counts differ
/// from those of the previous call.
impl Clone for Layout {
    fn clone(&self) -> Layout {
        Layout { blocks: self.blocks.clone(), split: self.split, grain: self.grain }
    }

    fn clone_from(&mut self, from: &Layout) {
        match &from.blocks {
            Blocks::Even { count } => self.set_even(*count, from.split, from.grain),
            Blocks::Vector { starts, counts } => {
                self.set_vector(counts, starts, from.split, from.grain);
            }
        }
    }
}

impl Layout {
    /// Returns the layout of blocks of `count` elements each, one after the other. Each block is
    /// cut into `split` parts whose length is a multiple of `grain` elements; the last parts take
    /// the rest, or nothing.
    #[must_use]
    pub fn even(count: usize, split: u32, grain: usize) -> Layout {
        Layout { blocks: Blocks::Even { count }, split: split.max(1), grain: grain.max(1) }
    }

    /// Returns the layout of blocks of `counts[b]` elements that begin at element `starts[b]`.
    #[must_use]
    pub fn vector(counts: &[usize], starts: &[usize], split: u32, grain: usize) -> Layout {
        let blocks = Blocks::Vector { starts: starts.to_vec(), counts: counts.to_vec() };
        Layout { blocks, split: split.max(1), grain: grain.max(1) }
    }

    /// Sets this to the result of [`Layout::even`]. Does not allocate.
    pub fn set_even(&mut self, count: usize, split: u32, grain: usize) {
        (self.split, self.grain) = (split.max(1), grain.max(1));
        self.blocks = Blocks::Even { count };
    }

    /// Sets this to the result of [`Layout::vector`]. Allocates only if this layout held fewer
    /// blocks, or was even ([`Layout::even`]). Returns whether the layout changed.
    pub fn set_vector(
        &mut self,
        counts: &[usize],
        starts: &[usize],
        split: u32,
        grain: usize,
    ) -> bool {
        let before = (self.split, self.grain);
        (self.split, self.grain) = (split.max(1), grain.max(1));
        match &mut self.blocks {
            Blocks::Vector { starts: own_starts, counts: own_counts } => {
                // The numbers are few, and usually equal to those of the previous call. A loop
                // takes less time here than `==`, which calls `memcmp`.
                let is_same = |a: &[usize], b: &[usize]| {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
                };
                if is_same(starts, own_starts) && is_same(counts, own_counts) {
                    return before != (self.split, self.grain);
                }
                own_starts.clear();
                own_starts.extend_from_slice(starts);
                own_counts.clear();
                own_counts.extend_from_slice(counts);
            }
            Blocks::Even { .. } => {
                self.blocks = Blocks::Vector { starts: starts.to_vec(), counts: counts.to_vec() };
            }
        }
        true
    }

    /// Returns the first element and the number of elements of part `part`; a part of a missing
    /// block is empty.
    #[must_use]
    #[inline]
    pub fn part(&self, part: u32) -> (usize, usize) {
        let (block, cut) = match self.split {
            1 => (part, 0),
            split => (part / split, part % split),
        };
        let (start, count) = self.block(block);
        if self.split == 1 {
            return (start, count);
        }
        let whole = self.part_length(count);
        let before = (whole * cut as usize).min(count);
        (start + before, whole.min(count - before))
    }

    /// Returns a range of part numbers that contains `part`; all these parts have the same length.
    #[must_use]
    pub(crate) fn alike(&self, part: u32) -> Range<u32> {
        let Blocks::Even { count } = self.blocks else { return part..part.saturating_add(1) };
        let whole = self.part_length(count);
        if self.split == 1 || whole == 0 {
            return 0..u32::MAX;
        }
        let first = part - part % self.split;
        // The first parts are whole, at most one is shorter, and the rest are empty.
        let end = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).min(self.split);
        let (full, some) = (end(count / whole), end(count.div_ceil(whole)));
        let cuts = match part % self.split {
            cut if cut < full => 0..full,
            cut if cut < some => full..some,
            _ => some..self.split,
        };
        first.saturating_add(cuts.start)..first.saturating_add(cuts.end)
    }

    /// Returns the number of elements of the longest part, which determines the number of chunks.
    /// If blocks are cut, the result is rounded up to a multiple of the grain, even if no part is
    /// that long.
    #[must_use]
    pub fn longest_part(&self) -> usize {
        match &self.blocks {
            Blocks::Even { count } => self.part_length(*count),
            Blocks::Vector { counts, .. } => {
                counts.iter().map(|&count| self.part_length(count)).max().unwrap_or(0)
            }
        }
    }

    /// Returns the elements of part `part` that belong to chunk `chunk`, if each chunk takes
    /// `chunk_elements` from every part.
    #[must_use]
    #[inline]
    pub fn chunk(&self, part: u32, chunk: usize, chunk_elements: usize) -> Range<usize> {
        let (start, count) = self.part(part);
        let before = chunk.saturating_mul(chunk_elements).min(count);
        let length = chunk_elements.min(count - before);
        start + before..start + before + length
    }

    /// Returns the elements of a whole block; a missing block is empty.
    #[must_use]
    pub fn block_elements(&self, block: u32) -> Range<usize> {
        let (start, count) = self.block(block);
        start..start + count
    }

    /// Returns the number of elements from the beginning of the buffer to the furthest end of the
    /// first `blocks` blocks.
    #[must_use]
    pub fn span(&self, blocks: u32) -> usize {
        (0..blocks).map(|block| self.block_elements(block).end).max().unwrap_or(0)
    }

    fn part_length(&self, count: usize) -> usize {
        if self.split == 1 {
            return count;
        }
        let whole = count.div_ceil(self.split as usize);
        whole.div_ceil(self.grain) * self.grain
    }

    #[inline]
    fn block(&self, block: u32) -> (usize, usize) {
        match &self.blocks {
            Blocks::Even { count } => (block as usize * count, *count),
            Blocks::Vector { starts, counts } => {
                let index = block as usize;
                let count = counts.get(index).copied().unwrap_or(0);
                (starts.get(index).copied().unwrap_or(0), count)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_each_block_once() {
        for split in [1, 2, 3, 7, 17] {
            for count in [0, 1, 5, 16, 17, 100, 257] {
                let layout = Layout::even(count, split, 4);
                let mut next = 0;
                for part in 0..3 * split {
                    let (start, length) = layout.part(part);
                    assert_eq!(start, next, "count {count} split {split} part {part}");
                    assert!(length <= layout.longest_part());
                    next = start + length;
                }
                assert_eq!(next, 3 * count);
            }
        }
    }

    #[test]
    fn a_layout_can_be_overwritten_with_any_other() {
        let vector = Layout::vector(&[10, 0, 3], &[100, 0, 7], 2, 4);
        let all = [Layout::even(9, 3, 2), vector.clone(), Layout::vector(&[1], &[2], 1, 1), vector];
        let mut reused = Layout::even(0, 1, 1);
        for layout in all {
            reused.clone_from(&layout);
            assert_eq!(reused, layout);
        }
    }

    #[test]
    fn chunks_cover_each_part_once() {
        let layout = Layout::vector(&[10, 0, 3], &[100, 0, 7], 1, 1);
        assert_eq!(layout.chunk(0, 0, 4), 100..104);
        assert_eq!(layout.chunk(0, 2, 4), 108..110);
        assert!(layout.chunk(0, 3, 4).is_empty());
        assert!(layout.chunk(1, 0, 4).is_empty());
        assert_eq!(layout.chunk(2, 0, 4), 7..10);
        assert!(layout.chunk(9, 0, 4).is_empty());
    }
}
