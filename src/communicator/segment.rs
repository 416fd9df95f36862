//! The memory that a rank shares with the peers on its host.
//!
//! ```text
//! 0     doorbell
//! 64    record of the current call
//! 128   links: for each peer in order of rank (this rank left out), for each channel, slots
//! ```

use ccl_core::config::Config;
use ccl_core::types::Rank;
use ccl_memory::slots::Shape;
use ccl_memory::{Region, RegionError, doorbell};

use super::record;

const HEAD: usize = doorbell::BYTES + record::BYTES;
const SLOT_BYTES_MIN: usize = 4 << 10;

/// How a rank's segment is divided; equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Ranks of the communicator.
    pub(super) ranks: u32,
    /// Channels per pair.
    pub(super) channels: u32,
    /// Slots of each link.
    pub(super) shape: Shape,
}

impl Segment {
    /// The division for a communicator: slots as large as configured, or as the budget allows.
    pub(super) fn new(ranks: u32, config: &Config) -> Segment {
        // A program may have written a zero, which the environment cannot.
        let (channels, slots) = (config.channels.max(1), config.slots.max(1));
        let links = u64::from(ranks.saturating_sub(1).max(1)) * u64::from(channels);
        let share = config.budget_bytes.0 as u64 / links / u64::from(slots);
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        let slot_bytes = config.slot_bytes.0.min(share).max(SLOT_BYTES_MIN) / 64 * 64;
        Segment { ranks, channels, shape: Shape { slots, slot_bytes } }
    }

    /// Bytes of one rank's segment; the most there are if the settings come to more.
    pub(super) fn bytes(&self) -> usize {
        let links = u128::from(self.ranks.saturating_sub(1)) * u128::from(self.channels);
        let slot_bytes = self.shape.slot_bytes as u128 + 64;
        let link_bytes = 64 + u128::from(self.shape.slots) * slot_bytes;
        usize::try_from(HEAD as u128 + links * link_bytes).unwrap_or(usize::MAX)
    }

    /// The formula behind [`Segment::bytes`], with its numbers.
    pub(super) fn formula(&self) -> String {
        format!(
            "{HEAD} + {} peers × {} channels × (64 + {} slots × (64 + {})) = {} bytes",
            self.ranks.saturating_sub(1),
            self.channels,
            self.shape.slots,
            self.shape.slot_bytes,
            self.bytes()
        )
    }

    /// The owner's record of its current call.
    pub(super) fn record(&self, of: &Region) -> Result<Region, RegionError> {
        of.part(doorbell::BYTES, record::BYTES)
    }

    /// The slots in `owner`'s segment into which `sender` writes.
    pub(super) fn link(
        &self,
        segment: &Region,
        owner: Rank,
        sender: Rank,
        channel: u32,
    ) -> Result<Region, RegionError> {
        let peer = if sender < owner { sender } else { sender.saturating_sub(1) };
        let index = (peer * self.channels + channel) as usize;
        let bytes = self.shape.link_bytes();
        segment.part(HEAD + index * bytes, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::config::Bytes;

    #[test]
    fn links_do_not_overlap_and_fill_the_segment() {
        let config = Config::default();
        let segment = Segment::new(5, &config);
        let region = Region::private(segment.bytes());
        let mut starts: Vec<usize> = [0, 1, 3, 4]
            .iter()
            .map(|&sender| segment.link(&region, 2, sender, 0).unwrap().start() as usize)
            .collect();
        starts.sort_unstable();
        for pair in starts.windows(2) {
            assert_eq!(pair[1] - pair[0], segment.shape.link_bytes());
        }
    }

    #[test]
    fn many_ranks_stay_within_the_budget() {
        let mut config = Config::default();
        config.budget_bytes = Bytes(8 << 20);
        let segment = Segment::new(64, &config);
        let in_flight = 63 * segment.shape.slots as usize * segment.shape.slot_bytes;
        assert!(in_flight <= 8 << 20, "{in_flight}");
    }
}
