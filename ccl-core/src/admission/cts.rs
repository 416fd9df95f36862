//! CTS (clear to send): a receiver names the memory of a message before the message is sent.
//!
//! The CTS is a record of the message's number and tag and of the memory. The receiver writes it
//! into the sender's *CTS ring*. Nothing announces it, so it costs the sender no receive request:
//! before it sends a message, the sender looks into the ring. A message that has a CTS by then is
//! placed in that memory, without a header, and its immediate says so. A message that was sent
//! before its CTS came, or differs from what the CTS describes, goes to its slot. Nobody waits for
//! a CTS, and a CTS admits nothing beyond the credits: the message takes its slot's turn.
//!
//! A CTS holds for one message, by its number. The device may be writing a record while it is read,
//! so each record has a checksum over its words; a torn record counts as absent.

use std::ops::Range;

use super::links::{MessageLinks, record_id};
use crate::execution::Link;
use crate::transport::{
    CTS_BYTES_MAX, LocalSlice, MrKey, RemoteKey, RemoteMr, TransportError, WorkRequest,
};
use crate::types::Rank;

/// Records of each link: messages that can have a CTS at the same time.
pub(super) const RECORDS: usize = 8;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = CTS_BYTES_MAX;
/// Bytes before the key: number, offset, length, sum, tag, length of the key.
const FIXED_BYTES: usize = 33;
const KEY_LENGTH: usize = FIXED_BYTES - 1;
const SUM: Range<usize> = 20..24;
/// Imported keys that are cached for each peer.
const IMPORTS_MAX: usize = 8;

/// A CTS as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record<'k> {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) tag: u64,
    pub(super) key: &'k [u8],
}

impl<'k> Record<'k> {
    /// Returns the bytes of the record, and how many of them matter. None if the key is too long.
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

    /// Reads a record. None if the bytes are no record, or not all of one record.
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

/// Returns the sum over a record's words without the sum itself. Almost any other bytes have
/// another sum. The sum is never zero, so that an unwritten ring, which is all zeros, has no
/// record.
fn sum(record: &[u8]) -> u32 {
    let (words, _) = record.as_chunks();
    let sum = words.iter().enumerate().fold(1u64, |sum, (at, word)| {
        let word = u64::from_le_bytes(*word);
        // The sum's own place, which is the upper half of a word.
        let word = if at == SUM.start / 8 { word & u64::from(u32::MAX) } else { word };
        (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (sum >> 32) as u32 | 1
}

/// Tests any bytes: only a sealed record is read, and what is read is written to the same bytes, as
/// far as they mean something.
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
    /// Address that the payload is to come to.
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
    /// True for each record that is on its way.
    busy: [bool; RECORDS],
}

const fn index(number: u64) -> usize {
    (number % RECORDS as u64) as usize
}

impl Preposts {
    /// Returns the placement of a message that says that it was placed.
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
    #[cfg(test)]
    pub(super) fn prepost_to(&mut self, end: u64) {
        self.preposted = end;
    }

    /// Forgets that receives are preposted, because nothing more comes.
    pub(super) fn forget_preposted(&mut self) {
        self.preposted = 0;
    }

    /// Forgets the placement of a message that has been taken.
    pub(super) fn taken(&mut self, number: u64) {
        self.placement[index(number)].take_if(|(own, _)| *own <= number);
    }

    /// Frees a record that has reached the sender.
    pub(super) fn done(&mut self, at: usize) {
        self.busy.get_mut(at).into_iter().for_each(|busy| *busy = false);
    }

    /// Returns whether no message may be placed directly any more.
    pub(super) fn is_empty(&self) -> bool {
        self.placement.iter().all(Option::is_none)
    }
}

fn goes_to(WorkRequest::Put { remote, .. }: &WorkRequest, mr: RemoteMr) -> bool {
    *remote == mr
}

impl MessageLinks {
    /// Returns whether receives are to be preposted: for CTS into the call's memory, or
    /// for credits of the pool.
    #[must_use]
    pub fn preposts(&self) -> bool {
        self.pool.is_shared() || self.transfers && self.zero_copy.is_current()
    }

    /// Returns whether one more receive of the link may be preposted.
    pub fn may_prepost(&mut self, link: Link) -> bool {
        let (transfers, shared) = (self.transfers, self.pool.is_shared());
        self.link(link).is_some_and(|(peer, channel)| {
            let (inbound, _) = &peer.links[channel];
            let slots = inbound.slots() as usize;
            let window = match (transfers && peer.ring.is_some(), shared) {
                (true, _) => RECORDS.min(slots),
                (false, true) => slots,
                (false, false) => 0,
            };
            let preposted = inbound.preposts.preposted.max(inbound.next());
            preposted < inbound.next() + window as u64
        })
    }

    /// Preposts the receive of the link's next message that is not preposted yet, with memory of
    /// the call that nobody touches before, or none. The payload comes there or into its slot:
    /// [`MessageLinks::received`] tells. Call this only when the link [may
    /// prepost](MessageLinks::may_prepost).
    pub fn prepost(&mut self, link: Link, placement: Option<Placement>) {
        let shared = self.pool.is_shared();
        let Some((peer, channel)) = self.link(link) else { return };
        let has_ring = peer.ring.is_some();
        let (inbound, _) = &mut peer.links[channel];
        let next = inbound.next();
        let preposts = &mut inbound.preposts;
        let number = preposts.preposted.max(next);
        preposts.preposted = number + 1;
        let at = index(number);
        let takes_record = has_ring && !preposts.busy[at] && !inbound.has_arrived(number);
        if shared && inbound.asks_for(number) {
            self.pool.ask(link);
        }
        if !takes_record {
            return;
        }
        let Some(placement) = placement.filter(|placement| placement.bytes > 0) else { return };
        // A zero-copy send still reads that memory.
        if self.zero_copy.is_being_sent(placement.address, placement.bytes) {
            return;
        }
        let Some(into) = self.slice(placement.address, placement.bytes) else { return };
        match self.send_record(link, number, placement.tag, into) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.give_up(link.peer, &error),
        }
        let Some((peer, channel)) = self.link(link) else { return };
        let preposts = &mut peer.links[channel].0.preposts;
        preposts.busy[at] = true;
        preposts.placement[at] = Some((number, placement));
    }

    /// Queues a record for this memory. Returns false if the key is too long for a record, or the
    /// peer has no ring.
    fn send_record(
        &mut self,
        link: Link,
        number: u64,
        tag: u64,
        into: LocalSlice,
    ) -> Result<bool, TransportError> {
        let LocalSlice { key, offset, bytes } = into;
        let RemoteKey(key) = self.shared(link.peer, key)?;
        let (offset, bytes) = (offset as u64, bytes as u32);
        let record = Record { number, offset, bytes, tag, key: &key };
        let Some((record, used)) = record.encode() else { return Ok(false) };
        let Some((peer, channel)) = self.link(link) else { return Ok(false) };
        let (Some(ring), Some(remote)) = (peer.ring, peer.remote) else { return Ok(false) };
        let at = index(number);
        let offset = peer.staging.record(channel, at);
        let written = peer.staging.region.write(offset, &record);
        written.map_err(|error| TransportError::Usage(error.to_string()))?;
        let request = WorkRequest::Put {
            endpoint: peer.endpoint,
            local: LocalSlice { key: peer.staging.key, offset, bytes: used },
            tail: None,
            is_control: true,
            remote,
            remote_offset: ring + (channel * RECORDS + at) * RECORD_BYTES,
            immediate: None,
            id: record_id(link, at),
        };
        self.queue.push(request);
        self.counters.transfers += 1;
        Ok(true)
    }

    /// Returns the key by which a peer knows memory of the call.
    fn shared(&mut self, rank: Rank, key: MrKey) -> Result<RemoteKey, TransportError> {
        if let Some(known) = self.zero_copy.shared(rank, key) {
            return Ok(known);
        }
        let peer = self.peers.get(rank as usize).and_then(Option::as_ref);
        let Some(endpoint) = peer.map(|peer| peer.endpoint) else {
            return Err(TransportError::Usage(format!("rank {rank} is not connected")));
        };
        let shared = self.lane.share(endpoint, key)?;
        self.zero_copy.share(rank, key, shared.clone());
        Ok(shared)
    }

    /// Returns the memory of the CTS for the link's next message, if one has come and describes a
    /// message of this length and tag.
    pub(super) fn granted(
        &mut self,
        link: Link,
        bytes: usize,
        tag: u64,
    ) -> Option<(RemoteMr, usize)> {
        if !self.transfers {
            return None;
        }
        let (peer, channel) = self.link(link)?;
        let number = peer.links[channel].1.next();
        let offset = peer.inbound.record(channel, index(number));
        // Mostly there is none, which is soon seen.
        if u64::from_le_bytes(peer.inbound.region.read_words(offset).ok()?) != number {
            return None;
        }
        // The device may be writing it.
        let record = peer.inbound.region.read_words(offset).ok()?;
        let record = Record::decode(&record).filter(|record| record.number == number)?;
        // Another message than was described: its receiver sees that in its slot.
        if (record.bytes as usize, record.tag) != (bytes, tag) {
            return None;
        }
        let offset = usize::try_from(record.offset).ok();
        let mr = offset.and_then(|_| self.imported(link.peer, record.key));
        self.counters.refused += u64::from(mr.is_none());
        mr.zip(offset)
    }

    /// Returns the peer's memory with this key, which is imported if it is new.
    fn imported(&mut self, rank: Rank, key: &[u8]) -> Option<RemoteMr> {
        let MessageLinks { peers, lane, queue, .. } = self;
        let peer = peers.get_mut(rank as usize)?.as_mut()?;
        if let Some((_, mr)) = peer.imports.iter().find(|(known, _)| known.0 == key) {
            return Some(*mr);
        }
        if peer.imports.len() >= IMPORTS_MAX {
            let queued = |mr| queue.iter().any(|request| goes_to(request, mr));
            let idle = peer.imports.iter().position(|(_, mr)| !queued(*mr));
            if let Some(idle) = idle {
                let (_, mr) = peer.imports.remove(idle);
                lane.forget(peer.endpoint, mr);
            }
        }
        // The peer's slots are no place that it could grant again.
        let key = RemoteKey(key.to_vec());
        let mr = lane.import(peer.endpoint, &key).ok().filter(|mr| Some(*mr) != peer.remote)?;
        // The same memory may have come under another key before.
        match peer.imports.iter_mut().find(|(_, known)| *known == mr) {
            Some((known, _)) => *known = key,
            None => peer.imports.push((key, mr)),
        }
        Some(mr)
    }
}
