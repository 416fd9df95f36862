//! CTS (clear to send): a receiver names the memory of a message before the message is sent.
//!
//! A CTS is a record of a message's number, length and tag and of the memory for it. The receiver
//! writes the record into the sender's *CTS ring*. The write has no immediate: it consumes no
//! receive request and does not notify the sender. The sender therefore checks the ring before each
//! message that is long enough for zero copy. A message that has a CTS is placed in the named
//! memory, without a header, and its immediate says so. A message that is sent before its CTS
//! arrives, or has another length or tag, goes to its slot. No send waits for a CTS. A CTS is not a
//! credit: the message still needs a credit, and still takes its slot.
//!
//! A CTS is valid only for the message with its number. The device may be writing a record while
//! the CPU reads it, so each record has a checksum over its words; a torn record counts as absent.

use std::ops::Range;

use crate::transport::CTS_BYTES_MAX;

/// Number of records per link: the most messages that can have a CTS at once.
pub(super) const RECORDS: usize = 8;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = CTS_BYTES_MAX;
/// Bytes before the key: number, offset, length, sum, tag, length of the key.
const FIXED_BYTES: usize = 33;
const KEY_LENGTH: usize = FIXED_BYTES - 1;
const SUM: Range<usize> = 20..24;

/// A decoded CTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record<'k> {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) tag: u64,
    pub(super) key: &'k [u8],
}

impl<'k> Record<'k> {
    /// Returns the bytes of the record, and how many of them are used. None if the key is too long.
    pub(super) fn encode(&self) -> Option<([u8; RECORD_BYTES], usize)> {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.tag.to_le_bytes());
        let key = self.key;
        bytes[KEY_LENGTH] = u8::try_from(key.len()).ok()?;
        bytes.get_mut(FIXED_BYTES..FIXED_BYTES + key.len())?.copy_from_slice(key);
        let used = (FIXED_BYTES + key.len()).next_multiple_of(8);
        let sum = sum(bytes.get(..used)?);
        bytes[SUM].copy_from_slice(&sum.to_le_bytes());
        Some((bytes, used))
    }

    /// Decodes a record. None if the bytes are not a complete record.
    pub(super) fn decode(bytes: &'k [u8; RECORD_BYTES]) -> Option<Record<'k>> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (told, rest) = rest.split_first_chunk()?;
        let (tag, rest) = rest.split_first_chunk()?;
        let (key_bytes, rest) = rest.split_first()?;
        let key = rest.get(..usize::from(*key_bytes))?;
        let used = bytes.get(..(FIXED_BYTES + key.len()).next_multiple_of(8))?;
        (u32::from_le_bytes(*told) == sum(used)).then(|| Record {
            number: u64::from_le_bytes(*number),
            offset: u64::from_le_bytes(*offset),
            bytes: u32::from_le_bytes(*length),
            tag: u64::from_le_bytes(*tag),
            key,
        })
    }
}

/// Returns the checksum of a record's words, without the checksum field. Different bytes almost
/// always have different checksums. The checksum is never zero, so an unwritten ring, which is all
/// zeros, has no record.
fn sum(record: &[u8]) -> u32 {
    let (words, _) = record.as_chunks();
    let sum = words.iter().enumerate().fold(1u64, |sum, (at, word)| {
        let word = u64::from_le_bytes(*word);
        // Leaves out the checksum field, which is the upper half of its word.
        let word = if at == SUM.start / 8 { word & u64::from(u32::MAX) } else { word };
        (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (sum >> 32) as u32 | 1
}

/// Checks that bytes decode only if their sum is right, and that a decoded record encodes to
/// the same bytes again.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed(data: &[u8]) {
    let Some((record, _)) = data.split_first_chunk::<RECORD_BYTES>() else { return };
    let mut record = *record;
    let end = FIXED_BYTES + usize::from(record[KEY_LENGTH]).min(RECORD_BYTES - FIXED_BYTES);
    record[end..].fill(0);
    let used = end.next_multiple_of(8);
    let sealed = sum(&record[..used]);
    record[SUM].copy_from_slice(&sealed.to_le_bytes());
    if let Some(read) = Record::decode(&record) {
        assert_eq!(read.encode(), Some((record, used)));
    }
    record[SUM].copy_from_slice(&sealed.wrapping_add(2).to_le_bytes());
    assert_eq!(Record::decode(&record), None);
}

/// Memory for a message that is placed directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Address for the payload.
    pub address: usize,
    /// Bytes of the payload.
    pub bytes: usize,
    /// Tag of the message: a message with another tag goes to its slot.
    pub tag: u64,
}

/// Preposted receives of one link.
#[derive(Debug, Default)]
pub(super) struct Preposts {
    /// Number below which messages are preposted.
    preposted: u64,
    /// Placements, with the numbers of their messages.
    placement: [Option<(u64, Placement)>; RECORDS],
    /// True for each record whose put is in flight.
    busy: [bool; RECORDS],
}

pub(super) const fn index(number: u64) -> usize {
    (number % RECORDS as u64) as usize
}

impl Preposts {
    /// Returns the placement recorded for a message, if any.
    pub(super) fn placement(&self, number: u64) -> Option<Placement> {
        self.placement[index(number)]
            .filter(|(own, _)| *own == number)
            .map(|(_, placement)| placement)
    }

    /// Returns the number below which messages are preposted.
    pub(super) fn preposted(&self) -> u64 {
        self.preposted
    }

    /// Sets the number below which messages are preposted.
    pub(super) fn prepost_to(&mut self, end: u64) {
        self.preposted = end;
    }

    /// Returns whether the record at this message's index has a put in flight.
    pub(super) fn is_busy(&self, number: u64) -> bool {
        self.busy[index(number)]
    }

    /// Stores the placement of this message, whose record is now in flight.
    pub(super) fn record(&mut self, number: u64, placement: Placement) {
        self.busy[index(number)] = true;
        self.placement[index(number)] = Some((number, placement));
    }

    /// Forgets that receives are preposted, because the peer is gone.
    pub(super) fn forget_preposted(&mut self) {
        self.preposted = 0;
    }

    /// Forgets the placement of a message that has been taken.
    pub(super) fn taken(&mut self, number: u64) {
        self.placement[index(number)].take_if(|(own, _)| *own <= number);
    }

    /// Frees a record whose put is done.
    pub(super) fn done(&mut self, at: usize) {
        self.busy.get_mut(at).into_iter().for_each(|busy| *busy = false);
    }

    /// Returns whether no placement is outstanding.
    pub(super) fn is_empty(&self) -> bool {
        self.placement.iter().all(Option::is_none)
    }
}
