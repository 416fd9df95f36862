//! Offer of a receiver: the description of its slots for a sender, which travels by whatever way
//! the caller likes.

use serde::{Deserialize, Serialize};

use crate::encoding::{MessageError, decode, decode_first, encode};
use crate::transport::RemoteKey;

const VERSION: u32 = 9;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) channels: u32,
    pub(super) slots: u32,
    /// Slots that are granted from the start.
    pub(super) reserved: u32,
    /// CTS records that each link has, behind all slots; 0 for none.
    pub(super) records: u32,
    pub(super) slot_bytes: u64,
    pub(super) key: RemoteKey,
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(&(VERSION, self))
    }

    /// Returns the offer in these bytes, or what is wrong with them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Offer, String> {
        let wrong = |error: MessageError| error.to_string();
        match decode_first(bytes).map_err(wrong)? {
            (VERSION, offer) => decode(offer).map_err(wrong),
            (version, _) => Err(format!(
                "it speaks version {version} of the link protocol, this rank {VERSION}; run the \
                 same release on all ranks",
            )),
        }
    }
}

/// Tests any bytes: an offer that can be read survives being written and read again.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed(data: &[u8]) {
    if let Ok(offer) = Offer::decode(data) {
        assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
    }
}
