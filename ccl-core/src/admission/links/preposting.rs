//! Preposted receives: the receiver sends their CTS, and the sender looks the CTS up.

use super::super::cts::{Placement, RECORD_BYTES, RECORDS, Record, index};
use super::{MessageLinks, record_id};
use crate::execution::Link;
use crate::transport::{LocalSlice, MrKey, RemoteKey, RemoteMr, TransportError, WorkRequest};
use crate::types::Rank;

/// Number of keys that stay imported for each peer. More are imported only while queued puts use
/// all of these keys.
const IMPORTS_MAX: usize = 8;

fn goes_to(WorkRequest::Put { remote, .. }: &WorkRequest, mr: RemoteMr) -> bool {
    *remote == mr
}

impl MessageLinks {
    /// Returns whether receives are to be preposted: to send CTS for the call's memory, or to get
    /// credits of the pool.
    #[must_use]
    pub fn preposts(&self) -> bool {
        self.pool.is_shared() || self.uses_cts && self.zero_copy.is_current()
    }

    /// Returns whether one more receive of the link may be preposted.
    pub fn may_prepost(&mut self, link: Link) -> bool {
        let (uses_cts, shared) = (self.uses_cts, self.pool.is_shared());
        self.link(link).is_some_and(|(peer, channel)| {
            let (inbound, _) = &peer.links[channel];
            let slots = inbound.slots() as usize;
            let window = match (uses_cts && peer.ring.is_some(), shared) {
                (true, _) => RECORDS.min(slots),
                (false, true) => slots,
                (false, false) => 0,
            };
            let preposted = inbound.preposts.preposted().max(inbound.next());
            preposted < inbound.next() + window as u64
        })
    }

    /// Preposts the link's next receive that is not preposted yet. The placement, if any, must name
    /// memory of the call that nothing else uses before that receive. [`MessageLinks::received`]
    /// later returns the payload's address, in this memory or in the message's slot. Call this only
    /// when the link [may prepost](MessageLinks::may_prepost).
    pub fn prepost(&mut self, link: Link, placement: Option<Placement>) {
        let shared = self.pool.is_shared();
        let Some((peer, channel)) = self.link(link) else { return };
        let has_ring = peer.ring.is_some();
        let (inbound, _) = &mut peer.links[channel];
        let next = inbound.next();
        let preposts = &mut inbound.preposts;
        let number = preposts.preposted().max(next);
        preposts.prepost_to(number + 1);
        let takes_record = has_ring && !preposts.is_busy(number) && !inbound.has_arrived(number);
        if shared && inbound.asks_for(number) {
            self.pool.ask(link);
        }
        if !takes_record {
            return;
        }
        let Some(placement) = placement.filter(|placement| placement.bytes > 0) else { return };
        // Memory that a zero-copy send still reads gets no CTS.
        if self.zero_copy.is_being_sent(placement.address, placement.bytes) {
            return;
        }
        let Some(into) = self.slice(placement.address, placement.bytes) else { return };
        match self.send_record(link, number, placement.tag, into) {
            Ok(true) => {}
            Ok(false) => return,
            // The message goes to its slot.
            Err(error) if error.is_shortage() => return,
            Err(error) => return self.give_up(link.peer, &error),
        }
        let Some((peer, channel)) = self.link(link) else { return };
        peer.links[channel].0.preposts.record(number, placement);
    }

    /// Queues the put of a CTS record for this memory. Returns false if the key is too long for a
    /// record, or the peer has no ring.
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
        peer.staging.region.write(offset, &record)?;
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
        self.counters.cts_sent += 1;
        Ok(true)
    }

    /// Returns the key by which a peer writes to memory of the call; shares the memory with the
    /// peer on first use.
    fn shared(&mut self, rank: Rank, key: MrKey) -> Result<RemoteKey, TransportError> {
        if let Some(known) = self.zero_copy.shared(rank, key) {
            return Ok(known);
        }
        let peer = self.peers.get(rank as usize).and_then(Option::as_ref);
        let Some(endpoint) = peer.map(|peer| peer.endpoint) else {
            return Err(TransportError::Internal {
                what: "memory shared with an unconnected rank",
            });
        };
        let shared = self.lane.share(endpoint, key)?;
        self.zero_copy.share(rank, key, shared.clone());
        Ok(shared)
    }

    /// Returns the memory that the CTS for the link's next message names, if this CTS has come and
    /// describes a message of this length and tag.
    pub(super) fn granted(
        &mut self,
        link: Link,
        bytes: usize,
        tag: u64,
    ) -> Option<(RemoteMr, usize)> {
        // Only messages that are long enough for zero copy have a CTS.
        if !self.uses_cts || bytes < self.config.zero_copy_bytes_min {
            return None;
        }
        let (peer, channel) = self.link(link)?;
        let number = peer.links[channel].1.next();
        let offset = peer.inbound.record(channel, index(number));
        // Usually the ring has no record of this number.
        if u64::from_le_bytes(peer.inbound.region.read_words(offset).ok()?) != number {
            return None;
        }
        // The device may be writing the record: check all of it.
        let record = peer.inbound.region.read_words(offset).ok()?;
        let record = Record::decode(&record).filter(|record| record.number == number)?;
        // The CTS describes another message: this one goes to its slot.
        if (record.bytes as usize, record.tag) != (bytes, tag) {
            return None;
        }
        let offset = usize::try_from(record.offset).ok();
        let mr = offset.and_then(|_| self.imported(link.peer, record.key));
        self.counters.refused += u64::from(mr.is_none());
        mr.zip(offset)
    }

    /// Returns the peer's memory with this key; imports the memory if the key is new.
    fn imported(&mut self, rank: Rank, key: &[u8]) -> Option<RemoteMr> {
        let MessageLinks { peers, lane, queue, .. } = self;
        let peer = peers.get_mut(rank as usize)?.as_mut()?;
        if let Some((_, mr)) = peer.imports.iter().find(|(known, _)| known.0 == key) {
            return Some(*mr);
        }
        let queued = |mr| queue.iter().any(|request| goes_to(request, mr));
        while peer.imports.len() >= IMPORTS_MAX
            && let Some(idle) = peer.imports.iter().position(|(_, mr)| !queued(*mr))
        {
            let (_, mr) = peer.imports.remove(idle);
            lane.forget(peer.endpoint, mr);
        }
        // A CTS must not name the peer's slots.
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
