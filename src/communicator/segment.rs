//! The memory that a rank shares with the peers on its host.
//!
//! ```text
//! 0     doorbell
//! 64    record of the current call
//! 128   links: for each peer on this host in order of rank (this rank left out), for each
//!       channel, slots
//! ```

use ccl_core::admission::{self, HEADER_BYTES};
use ccl_core::config::Config;
use ccl_core::topology::Hosts;
use ccl_core::types::Rank;
use ccl_memory::slots::Shape;
use ccl_memory::{Region, RegionError, doorbell};

use crate::recorder::CallRecord;

const HEAD: usize = doorbell::BYTES + CallRecord::SHARED_BYTES;
/// Slot length below which links get fewer slots rather than shorter ones.
const SLOT_BYTES_MIN: usize = 4 << 10;
/// Least number of slots that a link's equal share of the budget should hold, if links between
/// hosts share credits: two reserved slots, and two for the pool of shared credits. With a small
/// budget, slots are shortened until the share holds this many, but not below [`SLOT_BYTES_MIN`].
/// If the share does not hold this many slots of that length, the link gets fewer slots; if only
/// one slot is left, that slot can be shorter.
const SLOTS_SHARED: u32 = 4;
/// Largest number of slots of a link between hosts, as a multiple of its reserved slots. The limit
/// bounds the memory that slots take.
const SLOTS_PER_RESERVED: u32 = 4;
/// Least length of a slot in bytes, even if one such slot for each peer exceeds the budget.
const SLOT_BYTES_LEAST: usize = 1 << 10;

/// Layout of a rank's segment, equal on all ranks of a host. Slots are equal on all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Number of ranks of the communicator.
    pub(super) ranks: u32,
    /// Ranks on the host of the segment's owner, the owner among them, ascending.
    locals: Vec<Rank>,
    /// Bytes that may be in flight towards one rank in all: the configured budget.
    budget_bytes: usize,
    /// Bytes that may be in flight towards one rank over the network.
    network_budget_bytes: usize,
    zero_copy_bytes: usize,
    registered_bytes: usize,
    /// Channels per pair of ranks.
    pub(super) channels: u32,
    /// Number and length of the slots of each link on one host. Links between hosts have slots of
    /// the same length; [`Segment::message_config`] gives their number.
    pub(super) shape: Shape,
    /// Configured number of slots of a link; a link has fewer if the budget is too small for them.
    slots: u32,
}

impl Segment {
    /// Returns the layout on the host of `rank`. Slots have the configured size and number, or what
    /// the budget allows. The default budget suffices for 32,000 peers. If no two ranks share a
    /// host, slots are twice as large as configured, so that links need fewer messages: a message
    /// costs more between hosts than in shared memory. The larger size adds no cache misses: even
    /// with slots of the configured size, a zero-copy payload does not stay in a cache. Between
    /// hosts, a small budget first makes slots fewer and then shorter: a busy link with few slots
    /// uses the credits of idle links, too.
    pub(super) fn new(hosts: &Hosts, rank: Rank, config: &Config) -> Segment {
        let (ranks, locals) = (hosts.ranks(), hosts.members(hosts.seat(rank).0));
        let apart = ranks > 1 && hosts.count() == ranks;
        // A program can set zero; the environment cannot.
        let channels = config.channels.max(1);
        let links = ranks.saturating_sub(1).max(1) as usize * channels as usize;
        let link_bytes = config.budget_bytes.0 / links;
        let most = u32::try_from(link_bytes / SLOT_BYTES_MIN).unwrap_or(u32::MAX);
        let configured = config.slots.max(1);
        // The ranks of a host may share a network device and divide its budget. So a link's share
        // of the whole budget should hold as many slots as the largest host has ranks: the share
        // still holds one slot after the division.
        let fewest = match hosts.count() > 1 {
            true => configured.min(SLOTS_SHARED.max(hosts.largest())),
            false => configured,
        };
        let share = (link_bytes / fewest.min(most.max(1)) as usize).saturating_sub(HEADER_BYTES);
        let configured_bytes = config.slot_bytes.0.saturating_mul(if apart { 2 } else { 1 });
        let slot_bytes = configured_bytes.min(share).max(SLOT_BYTES_LEAST) / 64 * 64;
        let held = link_bytes / (HEADER_BYTES + slot_bytes);
        let slots = u32::try_from(held).unwrap_or(u32::MAX).clamp(1, configured);
        let (locals, shape) = (Vec::from_iter(locals), Shape { slots, slot_bytes });
        Segment {
            ranks,
            locals,
            budget_bytes: config.budget_bytes.0,
            network_budget_bytes: config.budget_bytes.0,
            zero_copy_bytes: config.zero_copy_bytes.0,
            registered_bytes: config.registered_bytes.0,
            channels,
            shape,
            slots: configured,
        }
    }

    /// Limits each rank's budget for the network to `share` times the configured budget, or to the
    /// configured budget if `share` is above 1 (every rank then has several network devices).
    pub(super) fn on_network(mut self, share: f64) -> Segment {
        self.network_budget_bytes = (self.budget_bytes as f64 * share.clamp(0.0, 1.0)) as usize;
        self
    }

    /// Returns a note if both conditions hold: several ranks divide the budget of one network
    /// device, and links between hosts share credits.
    pub(super) fn budget_note(&self) -> Option<String> {
        let fewer = self.fewer_slots();
        let shares_device = self.network_budget_bytes < self.budget_bytes;
        (shares_device && !fewer.is_empty()).then(|| {
            format!(
                "ranks that share a network device share its FERROCCL_BUDGET_BYTES={}: {fewer}",
                self.budget_bytes
            )
        })
    }

    /// Returns a note on the slots of each link if the budget does not hold the configured number;
    /// empty otherwise.
    pub(super) fn fewer_slots(&self) -> String {
        let (config, peers) = (self.message_config(), self.ranks.saturating_sub(1) as usize);
        let reserved = config.reserved_slots(peers);
        if self.locals.len() == self.ranks as usize {
            return match self.shape.slots < self.slots {
                true => {
                    format!("slots of each link: {} instead of {}", self.shape.slots, self.slots)
                }
                false => String::new(),
            };
        }
        match reserved < self.slots {
            true => format!(
                "slots of each link between hosts: {reserved}, and up to {} while other links are \
                 idle",
                config.slots
            ),
            false => String::new(),
        }
    }

    /// Returns the least number of slots that any link of any rank has.
    pub(super) fn slots_least(&self) -> u32 {
        match self.locals.len() < self.ranks as usize {
            true => {
                let reserved =
                    self.message_config().reserved_slots(self.ranks.saturating_sub(1) as usize);
                reserved.min(self.shape.slots)
            }
            false => self.shape.slots,
        }
    }

    /// Returns the segment of a communicator whose ranks share one host.
    pub(super) fn of_one_host(ranks: u32, config: &Config) -> Segment {
        Segment::new(&Hosts::one(ranks), 0, config)
    }

    /// Returns the configuration of the message links (links between hosts). Their slots are as
    /// long as the segment's.
    pub(super) fn message_config(&self) -> admission::Config {
        let mut config = admission::Config {
            channels: self.channels,
            slots: self.slots,
            slot_bytes: self.shape.slot_bytes,
            slots_min: 1,
            budget_bytes: self.network_budget_bytes,
            zero_copy_bytes_min: self.zero_copy_bytes,
            registered_bytes_max: self.registered_bytes,
        };
        let reserved = config.reserved_slots(self.ranks.saturating_sub(1) as usize);
        config.slots = config.slots.min(reserved.saturating_mul(SLOTS_PER_RESERVED));
        config
    }

    fn peers(&self) -> usize {
        self.locals.len().saturating_sub(1)
    }

    /// Returns the bytes of one rank's segment; `usize::MAX` if the settings come to more.
    pub(super) fn bytes(&self) -> usize {
        let links = self.peers() as u128 * u128::from(self.channels);
        let slot_bytes = self.shape.slot_bytes as u128 + 64;
        let link_bytes = 64 + u128::from(self.shape.slots) * slot_bytes;
        usize::try_from(HEAD as u128 + links * link_bytes).unwrap_or(usize::MAX)
    }

    /// Returns the formula behind [`Segment::bytes`], with its numbers.
    pub(super) fn formula(&self) -> String {
        format!(
            "{HEAD} + {} peers × {} channels × (64 + {} slots × (64 + {})) = {} bytes",
            self.peers(),
            self.channels,
            self.shape.slots,
            self.shape.slot_bytes,
            self.bytes()
        )
    }

    /// Returns the bytes of the slots and CTS records towards and from all peers on other hosts,
    /// and the formula for the slots.
    pub(super) fn network(&self) -> (usize, String) {
        let remote = self.ranks as usize - self.locals.len().max(1);
        let config = self.message_config();
        let (bytes, slots) = (config.peer_bytes(), config.slots);
        let formula = format!(
            "{remote} peers × {} channels × ({slots} + {slots} slots) × (64 + {}) + CTS records = \
             {} bytes, once all are connected",
            self.channels,
            config.slot_bytes,
            bytes.saturating_mul(remote)
        );
        (bytes.saturating_mul(remote), formula)
    }

    /// Returns the part of segment `of` that holds the record of the owner's current call.
    pub(super) fn record(&self, of: &Region) -> Result<Region, RegionError> {
        of.part(doorbell::BYTES, CallRecord::SHARED_BYTES)
    }

    /// Returns the slots in `owner`'s segment into which `sender` writes; none if one of the two
    /// ranks is on another host, or if both are the same rank.
    pub(super) fn link(
        &self,
        segment: &Region,
        owner: Rank,
        sender: Rank,
        channel: u32,
    ) -> Option<Result<Region, RegionError>> {
        let owner = self.locals.binary_search(&owner).ok()?;
        let sender = self.locals.binary_search(&sender).ok()?;
        if owner == sender {
            return None;
        }
        let peer = if sender < owner { sender } else { sender - 1 };
        let index = peer * self.channels as usize + channel as usize;
        let bytes = self.shape.link_bytes();
        Some(segment.part(HEAD + index * bytes, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::config::Bytes;

    #[test]
    fn links_lie_side_by_side_without_gap_or_overlap() {
        let config = Config::default();
        let segment = Segment::of_one_host(5, &config);
        let region = Region::private(segment.bytes());
        let mut starts: Vec<usize> = [0, 1, 3, 4]
            .iter()
            .map(|&sender| segment.link(&region, 2, sender, 0).unwrap().unwrap().start() as usize)
            .collect();
        starts.sort_unstable();
        for pair in starts.windows(2) {
            assert_eq!(pair[1] - pair[0], segment.shape.link_bytes());
        }
    }

    /// Checks that slots are equal on all hosts: a sender fills the slots that the receiver has
    /// made.
    #[test]
    fn slots_are_equal_on_hosts_with_different_numbers_of_ranks() {
        let mut config = Config::default();
        for (seats, budget_bytes) in
            [([0, 0, 0, 1], 256 << 10), ([0, 0, 0, 1], 1 << 20), ([0, 1, 1, 1], 512 << 10)]
        {
            config.budget_bytes = Bytes(budget_bytes);
            let hosts = Hosts::of(&seats);
            let slots = |rank| {
                let segment = Segment::new(&hosts, rank, &config);
                (segment.channels, segment.shape)
            };
            let first = slots(0);
            let configured_bytes = config.slot_bytes.0;
            assert!(
                first.1.slot_bytes < configured_bytes,
                "the budget does not shorten the slots: {first:?}"
            );
            for rank in 1..hosts.ranks() {
                assert_eq!(slots(rank), first, "rank {rank} on {seats:?}, {budget_bytes} bytes");
            }
        }
    }

    #[test]
    fn any_number_of_ranks_stays_within_the_budget() {
        for (ranks, budget_bytes) in [
            (64, 8 << 20),
            (1025, 32 << 20),
            (3000, 32 << 20),
            (9000, 32 << 20),
            (24_576, 32 << 20),
        ] {
            let mut config = Config::default();
            config.budget_bytes = Bytes(budget_bytes);
            let seats = Vec::from_iter(0..ranks);
            let segment = Segment::new(&Hosts::of(&seats), 0, &config);
            let in_flight = segment.message_config().in_flight_bytes_max(ranks as usize - 1);
            assert!(in_flight <= budget_bytes, "{ranks} ranks: {in_flight} bytes in flight");
            assert!(in_flight * 2 > budget_bytes, "{ranks} ranks: only {in_flight} in flight");
        }
        let usual = Segment::of_one_host(8, &Config::default());
        assert_eq!(usual.shape.slots, Config::default().slots);
        assert_eq!(usual.slots_least(), Config::default().slots);
    }

    #[test]
    fn ranks_that_share_a_device_share_its_budget() {
        let config = Config::default();
        // 8 ranks on each of 64 hosts.
        let hosts = Hosts::of(&Vec::from_iter((0..512).map(|rank| rank / 8)));
        let whole = Segment::new(&hosts, 9, &config);
        for (share, slots) in [(4.0, (8, 8)), (1.0, (8, 8)), (0.5, (2, 8)), (0.125, (1, 4))] {
            let segment = whole.clone().on_network(share);
            assert_eq!(segment.shape, whole.shape, "slots in shared memory differ");
            assert_eq!((segment.slots_least(), segment.message_config().slots), slots, "{share}");
            assert_eq!(segment.budget_note().is_some(), share < 1.0, "{share}");
            let in_flight = segment.message_config().in_flight_bytes_max(511);
            let budget = config.budget_bytes.0 as f64 * share.min(1.0);
            assert!(in_flight as f64 <= budget, "{share}: {in_flight} bytes in flight");
        }
    }
}
