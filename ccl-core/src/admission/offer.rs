//! What a receiver tells a sender of its slots: bytes that travel by whatever way the caller likes.

use crate::transport::RemoteKey;

const VERSION: u32 = 8;
const FIXED_BYTES: usize = 28;

#[derive(Clone, Debug, PartialEq, Eq)]
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
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.key.0.len());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.channels.to_le_bytes());
        bytes.extend_from_slice(&self.slots.to_le_bytes());
        bytes.extend_from_slice(&self.records.to_le_bytes());
        bytes.extend_from_slice(&self.slot_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.reserved.to_le_bytes());
        bytes.extend_from_slice(&self.key.0);
        bytes
    }

    /// The offer in these bytes, or what is wrong with them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Offer, String> {
        let Some((fixed, key)) = bytes.split_at_checked(FIXED_BYTES) else {
            return Err(format!("{} bytes are too few for an offer", bytes.len()));
        };
        let word = |at: usize| {
            fixed[at..at + 4].iter().rev().fold(0u32, |word, &byte| word << 8 | u32::from(byte))
        };
        if word(0) != VERSION {
            return Err(format!(
                "it speaks version {} of the link protocol, this rank {VERSION}; run the same \
                 release on all ranks",
                word(0)
            ));
        }
        Ok(Offer {
            channels: word(4),
            slots: word(8),
            records: word(12),
            slot_bytes: u64::from(word(16)) | u64::from(word(20)) << 32,
            reserved: word(24),
            key: RemoteKey(key.to_vec()),
        })
    }
}

/// Any bytes: what is read is written to the same bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed(data: &[u8]) {
    if let Ok(offer) = Offer::decode(data) {
        assert_eq!(offer.encode(), data);
    }
}
