//! Transfer grants: where messages are wanted, told before they are sent.
//!
//! Where a lane can put a message's payload to another place than its header
//! ([`Caps::scatters`](crate::transport::Caps::scatters)), a receiver that knows early where a
//! message is wanted tells its sender so: a record of the message's number and of the memory,
//! written into the sender's *grant ring* and announced by an immediate. A message that has such a
//! grant by the time it is sent goes there, past every slot; one that was sent before it came goes
//! to its slot, and its header says which. Nobody waits for a transfer grant, and it allows
//! nothing that the standing grant does not: the header takes the message's slot, and counts.
//!
//! A grant is good for one message, by its number: when that has been sent, a late record for it
//! is dropped.

use super::links::{MessageLinks, record_id};
use super::name::{Name, ahead, behind};
use crate::execution::Link;
use crate::transport::{
    GRANT_BYTES_MAX, LocalSlice, MrKey, RemoteKey, RemoteMr, TransportError, WorkRequest,
};
use crate::types::Rank;

/// Records of each link, and so the messages that are granted so ahead of time.
pub(super) const RECORDS: usize = 8;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = GRANT_BYTES_MAX;
const FIXED_BYTES: usize = 21;
/// Imported keys that are kept for each peer.
const IMPORTS_MAX: usize = 8;

/// A transfer grant as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) key: RemoteKey,
}

impl Record {
    /// None if the key is too long for it.
    pub(super) fn encode(&self) -> Option<[u8; RECORD_BYTES]> {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        let key = &self.key.0;
        bytes[20] = u8::try_from(key.len()).ok()?;
        bytes.get_mut(FIXED_BYTES..FIXED_BYTES + key.len())?.copy_from_slice(key);
        Some(bytes)
    }

    pub(super) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (key_bytes, rest) = rest.split_first()?;
        let key = rest.get(..usize::from(*key_bytes))?;
        Some(Record {
            number: u64::from_le_bytes(*number),
            offset: u64::from_le_bytes(*offset),
            bytes: u32::from_le_bytes(*length),
            key: RemoteKey(key.to_vec()),
        })
    }
}

/// Any bytes: what is read is written to the same bytes, as far as they mean something.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed(data: &[u8]) {
    if let Some((record, _)) = data.split_first_chunk::<RECORD_BYTES>()
        && let Some(read) = Record::decode(record)
    {
        let end = FIXED_BYTES + read.key.0.len();
        assert_eq!(read.encode().map(|written| written[..end] == record[..end]), Some(true));
    }
}

/// A message that is wanted somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    number: u64,
    address: usize,
    bytes: usize,
}

/// The receiving end of one link.
#[derive(Debug, Default)]
pub(super) struct Landings {
    /// Messages below this number are foreseen.
    foreseen: u64,
    wanted: [Option<Wanted>; RECORDS],
    /// Records that are on their way.
    busy: [bool; RECORDS],
}

const fn index(number: u64) -> usize {
    (number % RECORDS as u64) as usize
}

impl Landings {
    /// Where a message is wanted that says that it went there.
    pub(super) fn wanted(&self, number: u64, bytes: usize) -> Option<usize> {
        let wanted = self.wanted[index(number)]?;
        ((wanted.number, wanted.bytes) == (number, bytes)).then_some(wanted.address)
    }

    /// A message has been taken.
    pub(super) fn taken(&mut self, number: u64) {
        self.wanted[index(number)].take_if(|wanted| wanted.number <= number);
    }

    /// A record has reached the sender.
    pub(super) fn done(&mut self, at: usize) {
        self.busy.get_mut(at).into_iter().for_each(|busy| *busy = false);
    }

    /// Whether nothing may still be written past the slots.
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.iter().all(Option::is_none)
    }
}

/// Where a message is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    number: u64,
    bytes: usize,
    mr: RemoteMr,
    offset: usize,
}

/// The sending end of one link.
#[derive(Debug, Default)]
pub(super) struct Places([Option<Place>; RECORDS]);

impl Places {
    /// Where the payload of the message that is sent now goes instead of into its slot.
    pub(super) fn take(&mut self, number: u64, bytes: usize) -> Option<(RemoteMr, usize)> {
        let place = self.0[index(number)].take_if(|place| place.number <= number)?;
        let is_meant = (place.number, place.bytes) == (number, bytes);
        is_meant.then_some((place.mr, place.offset))
    }

    fn name(&self, mr: RemoteMr) -> bool {
        self.0.iter().flatten().any(|place| place.mr == mr)
    }
}

fn goes_to(request: &WorkRequest, mr: RemoteMr) -> bool {
    let WorkRequest::Put { tail, .. } = request;
    tail.and_then(|tail| tail.elsewhere).is_some_and(|(to, _)| to == mr)
}

impl MessageLinks {
    /// Whether messages of the call's memory may be asked for ahead of time.
    #[must_use]
    pub fn foresees(&self) -> bool {
        self.transfers && self.loans.is_current()
    }

    /// Whether the message after those of the link that are foreseen already may be, too.
    pub fn may_foresee(&mut self, link: Link) -> bool {
        let transfers = self.transfers;
        self.link(link).is_some_and(|(peer, channel)| {
            let (inbound, _) = &peer.links[channel];
            let window = RECORDS.min(inbound.slots() as usize) as u64;
            let foreseen = inbound.landings.foreseen.max(inbound.next());
            transfers && peer.ring.is_some() && foreseen < inbound.next() + window
        })
    }

    /// The next message of the link that is not foreseen yet is wanted at this address of the
    /// call's memory, which nobody touches before; or it is not wanted anywhere. It may come there
    /// or into its slot: [`MessageLinks::received`] says. To be asked when it
    /// [may be](MessageLinks::may_foresee).
    pub fn foresee(&mut self, link: Link, wanted: Option<(usize, usize)>) {
        let Some((peer, channel)) = self.link(link) else { return };
        let (inbound, _) = &mut peer.links[channel];
        let next = inbound.next();
        let landings = &mut inbound.landings;
        let number = landings.foreseen.max(next);
        landings.foreseen = number + 1;
        let at = index(number);
        if landings.busy[at] || inbound.has_arrived(number) {
            return;
        }
        let Some((address, bytes)) = wanted.filter(|(_, bytes)| *bytes > 0) else { return };
        // Somebody reads it still.
        if self.loans.is_lent(address, bytes) {
            return;
        }
        let Some(into) = self.slice(address, bytes) else { return };
        match self.send_record(link, number, into) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.give_up(link.peer, &error),
        }
        let Some((peer, channel)) = self.link(link) else { return };
        let landings = &mut peer.links[channel].0.landings;
        landings.busy[at] = true;
        landings.wanted[at] = Some(Wanted { number, address, bytes });
    }

    /// Returns whether there is a record for such memory.
    fn send_record(
        &mut self,
        link: Link,
        number: u64,
        into: LocalSlice,
    ) -> Result<bool, TransportError> {
        let LocalSlice { key, offset, bytes } = into;
        let key = self.shared(link.peer, key)?;
        let record = Record { number, offset: offset as u64, bytes: bytes as u32, key };
        let (Some(record), Some((peer, channel))) = (record.encode(), self.link(link)) else {
            return Ok(false);
        };
        let (Some(ring), Some(remote)) = (peer.ring, peer.remote) else { return Ok(false) };
        let at = index(number);
        let offset = peer.staging.record(channel, at);
        let written = peer.staging.region.write(offset, &record);
        written.map_err(|error| TransportError::Usage(error.to_string()))?;
        let request = WorkRequest::Put {
            endpoint: peer.endpoint,
            local: LocalSlice { key: peer.staging.key, offset, bytes: RECORD_BYTES },
            tail: None,
            grant: true,
            remote,
            remote_offset: ring + (channel * RECORDS + at) * RECORD_BYTES,
            immediate: Some(Name::transfer(link.channel, number).encode()),
            id: record_id(link, at),
        };
        self.queue.push(request);
        self.counters.transfers += 1;
        Ok(true)
    }

    /// How the peer knows memory of the call's.
    fn shared(&mut self, rank: Rank, key: MrKey) -> Result<RemoteKey, TransportError> {
        if let Some(known) = self.loans.shared(rank, key) {
            return Ok(known);
        }
        let peer = self.peers.get(rank as usize).and_then(Option::as_ref);
        let Some(endpoint) = peer.map(|peer| peer.endpoint) else {
            return Err(TransportError::Usage(format!("rank {rank} is not connected")));
        };
        let shared = self.lane.share(endpoint, key)?;
        self.loans.share(rank, key, shared.clone());
        Ok(shared)
    }

    /// A record is in the ring. Returns whether it is one that its peer may write.
    pub(super) fn transfer_granted(&mut self, link: Link, named: u32) -> bool {
        let slot_bytes = self.config.slot_bytes;
        let Some((peer, channel)) = self.link(link) else { return false };
        let next = peer.links[channel].1.next();
        let distance = ahead(next, named);
        if distance > 0 && behind(distance) {
            // It was sent before.
            return true;
        }
        let number = next + distance;
        let mut record = [0; RECORD_BYTES];
        let offset = peer.inbound.record(channel, index(number));
        let record = match peer.inbound.region.read(offset, &mut record) {
            Ok(()) => Record::decode(&record),
            Err(_) => None,
        };
        let Some(record) = record.filter(|record| record.number == number) else { return false };
        let (bytes, offset) = (record.bytes as usize, usize::try_from(record.offset));
        let possible = bytes <= slot_bytes && distance < RECORDS as u64;
        let (Ok(offset), true) = (offset, possible) else { return false };
        let Some(mr) = self.imported(link.peer, record.key) else { return false };
        let Some((peer, channel)) = self.link(link) else { return false };
        peer.links[channel].1.places.0[index(number)] = Some(Place { number, bytes, mr, offset });
        true
    }

    /// Memory of the peer's, which is imported if it is new.
    fn imported(&mut self, rank: Rank, key: RemoteKey) -> Option<RemoteMr> {
        let MessageLinks { peers, lane, queue, .. } = self;
        let peer = peers.get_mut(rank as usize)?.as_mut()?;
        if let Some((_, mr)) = peer.imports.iter().find(|(known, _)| *known == key) {
            return Some(*mr);
        }
        if peer.imports.len() >= IMPORTS_MAX {
            let links = &peer.links;
            let granted = |mr| links.iter().any(|(_, outbound)| outbound.places.name(mr));
            let queued = |mr| queue.iter().any(|request| goes_to(request, mr));
            let idle = peer.imports.iter().position(|(_, mr)| !granted(*mr) && !queued(*mr));
            if let Some(idle) = idle {
                let (_, mr) = peer.imports.remove(idle);
                lane.forget(peer.endpoint, mr);
            }
        }
        // The peer's slots are no place that it could grant again.
        let mr = lane.import(peer.endpoint, &key).ok().filter(|mr| Some(*mr) != peer.remote)?;
        peer.imports.push((key, mr));
        Some(mr)
    }
}
