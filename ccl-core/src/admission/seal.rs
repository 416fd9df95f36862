//! Seals: checksums by which a receiver recognises short messages in memory, before their
//! immediates arrive.
//!
//! A device writes a message to memory some time before it reports the immediate, and a look at
//! memory takes less time than a poll for completions. So the sender of a short message puts a
//! *seal* before the header: a checksum over the message's number, header and payload. A receiver
//! that waits for a message looks at the seal in the message's slot. A right seal shows that all
//! bytes are there, in whatever order the device has written them. (For the same reason, NCCL's LL
//! protocol has a flag in each word.)
//!
//! The immediate still follows, and the slot is granted again only after the immediate has come.
//! So at most one immediate per slot is still to come. The receiver knows which immediates these
//! are, and never takes the immediate of one message for that of another.

use ccl_memory::Region;

use super::HEADER_BYTES;

/// Bytes of a seal, which precedes the header.
pub(super) const SEAL_BYTES: usize = 8;
/// Longest payload of a sealed message. A longer message would gain little from a seal: the
/// completion is a small part of its time.
pub(super) const SEALED_BYTES_MAX: usize = 64;

/// Returns the seal of message `number`, whose header is at offset `header` of the region, with
/// `bytes` bytes of payload behind it. Returns none if the message exceeds the region.
pub(super) fn seal(region: &Region, header: usize, bytes: usize, number: u64) -> Option<u64> {
    let end = HEADER_BYTES + bytes;
    let mut sum = mix(number);
    for at in (0..end).step_by(8) {
        let word = u64::from_le_bytes(region.read_words(header + at).ok()?);
        // The last word may have bytes of an older message behind the payload.
        let word = if end - at < 8 { word & ((1 << (8 * (end - at))) - 1) } else { word };
        sum = mix(sum ^ word);
    }
    // Zero stands for no seal.
    Some(sum | 1)
}

/// Mixes 64 bits by MurmurHash3's finalizer, <https://github.com/aappleby/smhasher>: a change of
/// one bit changes each bit of the result in about half of all cases. A weaker function does not
/// suffice. While a device writes a message, the slot still holds bytes of the previous message in
/// this slot, and these bytes may differ from the new bytes only in a few sign bits.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ bits >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}

/// Returns whether the slot whose header is at offset `header` holds message `number`, sealed and
/// complete.
#[inline]
pub(super) fn is_sealed(region: &Region, header: usize, number: u64) -> bool {
    let word = |offset| region.read_words(offset).map_or(0, u64::from_le_bytes);
    let found = word(header - SEAL_BYTES);
    if found == 0 {
        return false;
    }
    let bytes = word(header) as u32 as usize;
    bytes <= SEALED_BYTES_MAX && seal(region, header, bytes, number) == Some(found)
}
