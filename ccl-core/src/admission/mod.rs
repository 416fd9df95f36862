//! Admission: credits and CTS over lanes that only put. This is the protocol of *message* links.
//!
//! A link (peer, channel) is a FIFO in each direction. The receiver owns its slots, in memory that
//! it shares with the link's sender alone. The sender fills a staging slot and puts header and
//! payload together into slot m mod n, where m is the message's number and n the number of slots.
//!
//! * **The receiver admits every message.** A *credit* admits one message to its slot. Credits
//!   travel as a count: messages whose numbers are below the count may be sent. Credits are given
//!   when the link is made and renewed as slots are freed. Message headers carry the count for the
//!   other direction; without messages, the count travels alone once half of the reserved slots are
//!   free.
//! * **The immediate identifies the message** by channel and number; the slot follows from the
//!   number. The immediate of a message that was not granted, or has arrived already, is refused
//!   and counted.
//! * **Puts may arrive in any order.** Messages that overtake others wait in their slots, or in
//!   receive buffers of the lane. Credits without a message travel in the immediate of an empty
//!   put; a count that is not above the highest one so far is ignored.
//! * **A short message can be received before its immediate**, over a device that writes memory
//!   some time before it reports the immediate. A checksum in the slot shows that the message is
//!   complete (`seal`). The slot is granted again once the immediate has come.
//! * **A CTS (clear to send) names memory for a large message**. The sender writes the payload to
//!   that memory ([`Placement`]), so the receiver copies nothing.
//! * **The budget is kept for any number of senders**, as long as it holds [`Config::slots_min`]
//!   slots of each link. Where it is too small for all slots of every link, each link keeps a few
//!   credits, at least `slots_min`. The rest of the budget is a pool that goes round-robin to the
//!   links whose receives are preposted, so idle links leave their share to the others.
//!
//! Sending and receiving never wait or read a clock: [`MessageLinks::poll`] handles the events, and
//! [`MessageLinks::flush`] posts the queued requests in one batch.

mod cts;
mod ends;
mod immediate;
mod inbound;
mod links;
mod offer;
mod outbound;
mod registration_cache;
mod rendezvous;
mod seal;
mod statistics;
#[cfg(test)]
mod tests;

use ccl_memory::RegionError;

use crate::transport::TransportError;
use crate::types::Rank;

pub use cts::Placement;
#[cfg(any(test, fuzzing))]
pub(crate) use cts::fuzzed as fuzzed_record;
pub use ends::{Receiver, Sender};
pub use immediate::{CHANNELS_MAX, Immediate, SLOTS_MAX};
pub use links::{MessageLinks, Peek};
pub use offer::OfferError;
#[cfg(any(test, fuzzing))]
pub(crate) use offer::fuzzed as fuzzed_offer;
pub use registration_cache::CachedMemory;
pub use rendezvous::Directory;
pub use statistics::{PeerStatistics, WaitHistogram};

/// Bytes of the header that precedes each payload.
pub const HEADER_BYTES: usize = 16;

/// The sizes of a rank's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Links to each peer, at most [`CHANNELS_MAX`].
    pub channels: u32,
    /// Slots of a link, at least 1 and at most [`SLOTS_MAX`].
    pub slots: u32,
    /// The longest payload of a message; the same on all ranks.
    pub slot_bytes: usize,
    /// Slots that each link has even if the budget holds fewer; 0 counts as 1. With two, a message
    /// can be forwarded directly from slot to slot ([`crate::lower::lower_for_slots`]).
    pub slots_min: u32,
    /// Bytes that all peers together may have under way towards this rank.
    pub budget_bytes: usize,
    /// Payloads of at least this many bytes are sent from the caller's memory and received into it,
    /// where possible.
    pub zero_copy_bytes_min: usize,
    /// The most bytes that stay registered between calls ([`MessageLinks::cache`]).
    pub registered_bytes_max: usize,
}

impl Config {
    /// Returns the slots of each link if the links of `peers` peers share the budget equally.
    #[must_use]
    pub fn equal_slots(&self, peers: usize) -> u32 {
        let links = peers.max(1) * self.channels.max(1) as usize;
        let share = self.budget_bytes / links / (HEADER_BYTES + self.slot_bytes);
        u32::try_from(share).unwrap_or(u32::MAX).max(self.slots_min).clamp(1, self.slots.max(1))
    }

    /// Returns the bytes of all slots, headers included, if each link to each of `peers` peers has
    /// [`Config::equal_slots`] slots.
    #[must_use]
    pub fn equal_bytes(&self, peers: usize) -> usize {
        let links = peers * self.channels.max(1) as usize;
        links * self.equal_slots(peers) as usize * (HEADER_BYTES + self.slot_bytes)
    }

    /// Returns the slots reserved for each link when there are `peers` peers: all slots if the
    /// budget holds them, else half of an equal share. The result is at least `slots_min`, and at
    /// least two if the share has two: a link then forwards one message while the next arrives.
    #[must_use]
    pub fn reserved_slots(&self, peers: usize) -> u32 {
        let share = self.equal_slots(peers);
        if share >= self.slots {
            return share;
        }
        (share / 2).max(share.min(2)).max(self.slots_min).max(1)
    }

    /// Returns the slots of the budget that are left for the pool when there are `peers` peers; 0
    /// if every link has all its slots reserved.
    #[must_use]
    pub fn pool_slots(&self, peers: usize) -> usize {
        let (links, reserved) =
            (peers.max(1) * self.channels.max(1) as usize, self.reserved_slots(peers) as usize);
        if reserved >= self.slots as usize {
            return 0;
        }
        let all = self.budget_bytes / (HEADER_BYTES + self.slot_bytes);
        all.saturating_sub(links * reserved)
    }

    /// Returns the most bytes, headers included, that `peers` peers together can have under way
    /// towards this rank. The result is within the budget if the budget holds
    /// [`Config::slots_min`] slots of each link.
    #[must_use]
    pub fn in_flight_bytes_max(&self, peers: usize) -> usize {
        if peers == 0 {
            return 0;
        }
        let links = peers * self.channels.max(1) as usize;
        let slots = links * self.reserved_slots(peers) as usize + self.pool_slots(peers);
        slots * (HEADER_BYTES + self.slot_bytes)
    }

    /// Returns the bytes of a rank's memory for each connected peer: the slots that the peer fills,
    /// the staging slots and the CTS records.
    #[must_use]
    pub fn peer_bytes(&self) -> usize {
        let slots = (self.slots as usize).saturating_mul(2);
        let stride = links::LINE.saturating_add(self.slot_bytes.next_multiple_of(links::LINE));
        let records = 2 * cts::RECORDS * cts::RECORD_BYTES;
        let link_bytes = slots.saturating_mul(stride).saturating_add(records);
        link_bytes.saturating_mul(self.channels as usize)
    }

    fn check(&self, message_bytes_max: usize) -> Result<(), AdmissionError> {
        let problem = if self.channels == 0 || self.channels > CHANNELS_MAX {
            format!("{} channels; use 1 to {CHANNELS_MAX}", self.channels)
        } else if self.slots == 0 || self.slots > SLOTS_MAX {
            format!("{} slots; use 1 to {SLOTS_MAX}", self.slots)
        } else if self.slot_bytes.saturating_add(HEADER_BYTES) > message_bytes_max {
            format!(
                "slots of {} bytes and headers of {HEADER_BYTES}: the transport moves at most \
                 {message_bytes_max} bytes at once; use smaller slots",
                self.slot_bytes
            )
        } else {
            return Ok(());
        };
        Err(AdmissionError::Config(problem))
    }
}

/// Counters of all links. `stalls`, `sent`, `received`, `zero_copy_sent` and `zero_copy_received`
/// are the sums of [`PeerStatistics`] over the peers that are still connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes, with headers, of messages that were published and are not yet done.
    pub in_flight_bytes: u64,
    /// Highest value that `in_flight_bytes` ever had.
    pub in_flight_bytes_max: u64,
    /// Number of times that a link became unable to send, for lack of a credit or of a staging
    /// slot.
    pub stalls: u64,
    /// Messages that this rank published ([`MessageLinks::publish`]).
    pub sent: u64,
    /// Messages that arrived.
    pub received: u64,
    /// Number of immediates that are invalid or not granted, of messages of a wrong length, and of
    /// CTS whose memory cannot be imported.
    pub refused: u64,
    /// Credits that were overtaken by newer ones.
    pub late_credits: u64,
    /// Zero-copy sends.
    pub zero_copy_sent: u64,
    /// Zero-copy sends whose payload was copied after all, because the caller needed its memory.
    pub zero_copy_reclaimed: u64,
    /// Messages that were placed directly.
    pub zero_copy_received: u64,
    /// CTS that this rank sent.
    pub cts_sent: u64,
    /// Credits given from the pool.
    pub pool_credits: u64,
}

/// Error of message links.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// A peer died or closed its connection.
    #[error("rank {rank} is gone: {reason}; look at that rank's own messages")]
    Lost {
        /// Rank of the peer.
        rank: Rank,
        /// Reason for the loss.
        reason: String,
    },
    /// The peer's slots cannot be used.
    #[error("the slots that rank {rank} offers cannot be used: {problem}")]
    Offer {
        /// Rank of the peer.
        rank: Rank,
        /// Problem with the offer, and what to do.
        problem: OfferError,
    },
    /// The sizes are out of range.
    #[error("message links cannot be made with {0}")]
    Config(String),
    /// The lane or the device failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A range of bytes exceeds a memory region or is not aligned.
    #[error(transparent)]
    Memory(#[from] RegionError),
}
