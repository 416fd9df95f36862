//! Offer of a receiver: the description of its slots for a sender. The caller of
//! [`MessageLinks::attach`](super::MessageLinks::attach) delivers the offer; links that connect on
//! demand send it as a note.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::encoding::{MessageError, decode, decode_first, encode};
use crate::transport::RemoteKey;

const VERSION: u32 = 10;

/// Reason why the slots that a peer offers cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OfferError {
    /// The message is not an offer.
    #[error(transparent)]
    Unreadable(#[from] MessageError),
    /// Version of the peer's link protocol, which differs from this rank's version.
    #[error(
        "that rank speaks version {0} of the link protocol, but this rank speaks version \
         {VERSION}; run the same release on all ranks"
    )]
    Version(u32),
    /// Channels or slots that do not match.
    #[error(
        "that rank has {channels} channels with {slots} slots of {slot_bytes} bytes, but this rank \
         has {own_channels} channels and slots of {own_slot_bytes} bytes; configure all ranks alike"
    )]
    Unlike {
        /// Number of the peer's channels.
        channels: u32,
        /// Number of the peer's slots in each channel.
        slots: u32,
        /// Bytes of each of the peer's slots.
        slot_bytes: u64,
        /// Number of this rank's channels.
        own_channels: u32,
        /// Bytes of each of this rank's slots.
        own_slot_bytes: usize,
    },
    /// No connection to the peer.
    #[error("there is no connection to that rank")]
    NoConnection,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) channels: u32,
    pub(super) slots: u32,
    /// Number of credits that each link has from the start.
    pub(super) reserved: u32,
    /// Number of CTS records of each link, or 0. The records follow all slots in memory.
    pub(super) records: u32,
    pub(super) slot_bytes: u64,
    /// True if the sender is to put a seal before short messages ([`super::seal`]).
    pub(super) seals: bool,
    pub(super) key: RemoteKey,
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(&(VERSION, self))
    }

    /// Returns the offer in these bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Offer, OfferError> {
        match decode_first(bytes)? {
            (VERSION, offer) => Ok(decode(offer)?),
            (version, _) => Err(OfferError::Version(version)),
        }
    }
}

/// Checks that an offer that decodes from these bytes survives encoding and decoding.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed(data: &[u8]) {
    if let Ok(offer) = Offer::decode(data) {
        assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
    }
}
