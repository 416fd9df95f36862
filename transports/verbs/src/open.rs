//! Puts of a link that were posted to its device and are not done.

/// A put that was posted and is not done.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: u64,
    /// Number of parts that are not done.
    missing: usize,
    /// True for data, false for credits and CTS.
    is_data: bool,
}

/// Puts that were posted and are not done, by index. An index is free again when all parts of its
/// put are done.
#[derive(Debug, Default)]
pub(crate) struct OpenPuts {
    entries: Vec<Open>,
    free: Vec<usize>,
    data: usize,
}

impl OpenPuts {
    /// Adds a put of `parts` parts, and returns its index.
    pub(crate) fn add(&mut self, id: u64, parts: usize, is_data: bool) -> usize {
        let open = Open { id, missing: parts, is_data };
        self.data += usize::from(is_data);
        let index = self.free.pop().unwrap_or(self.entries.len());
        match self.entries.get_mut(index) {
            Some(entry) => *entry = open,
            None => self.entries.push(open),
        }
        index
    }

    /// Counts a part as done. Appends the put's id to `done` if that was the put's last part.
    pub(crate) fn part_done(&mut self, index: usize, done: &mut Vec<u64>) {
        let Some(open) = self.entries.get_mut(index) else { return };
        open.missing -= 1;
        if open.missing == 0 {
            done.push(open.id);
            self.data -= usize::from(open.is_data);
            self.free.push(index);
        }
    }

    /// Returns the number of these puts that carry data.
    pub(crate) fn data(&self) -> usize {
        self.data
    }

    /// Forgets all puts.
    pub(crate) fn clear(&mut self) {
        *self = OpenPuts::default();
    }
}
