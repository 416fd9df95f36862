//! Lists of ranks, in words.

use ccl_core::types::Rank;
use std::fmt;

/// Returns a text such as "rank 3", "ranks 3, 5" or "ranks 0, 1, ... (40 in all)".
pub(super) fn in_words(ranks: &[Rank], count: u32) -> impl fmt::Display {
    Ranks { ranks, count }
}

struct Ranks<'a> {
    ranks: &'a [Rank],
    count: u32,
}

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.count == 1 { "rank" } else { "ranks" })?;
        for (index, rank) in self.ranks.iter().enumerate() {
            write!(f, "{} {rank}", if index == 0 { "" } else { "," })?;
        }
        if self.count as usize > self.ranks.len() {
            write!(f, ", ... ({} in all)", self.count)?;
        }
        Ok(())
    }
}
