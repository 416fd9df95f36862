//! Counters of messages by tag. The k-th message of a tag is for the k-th buffer with that tag;
//! both sides count for themselves.

/// Number of messages of each tag, modulo 2^32.
#[derive(Debug, Default)]
pub(crate) struct Tags(Vec<(i32, u32)>);

impl Tags {
    /// Returns the number of the next message with that tag.
    pub(crate) fn next(&mut self, tag: i32) -> u32 {
        match self.0.binary_search_by_key(&tag, |(tag, _)| *tag) {
            Ok(at) => {
                let next = self.0[at].1;
                self.0[at].1 = next.wrapping_add(1);
                next
            }
            Err(at) => {
                self.0.insert(at, (tag, 1));
                0
            }
        }
    }

    /// Returns whether [`Tags::next`] has returned this number for the tag.
    pub(crate) fn is_past(&self, tag: i32, ordinal: u32) -> bool {
        let found = self.0.binary_search_by_key(&tag, |(tag, _)| *tag);
        let count = found.map_or(0, |at| self.0[at].1);
        count.wrapping_sub(ordinal).cast_signed() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_has_its_own_counter() {
        let mut tags = Tags::default();
        assert_eq!([tags.next(5), tags.next(-5), tags.next(5)], [0, 0, 1]);
        assert!(tags.is_past(5, 1) && !tags.is_past(5, 2) && !tags.is_past(7, 0));
    }
}
