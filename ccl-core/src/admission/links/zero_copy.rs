//! Zero copy: payloads that are sent from the caller's memory and received into it.
//!
//! * **Zero-copy send**: the put of a message reads the payload from the caller's memory. The
//!   message's staging slot stays reserved. Before the caller's memory is written or given back,
//!   it is *reclaimed*. A lane *moves bytes late* if a put under way can still get another source
//!   or target ([`Caps::redirects`](crate::transport::Caps::redirects)). With such a lane,
//!   reclaiming copies the unacknowledged payloads to their staging slots. Where hardware reads
//!   payloads, reclaiming waits for the acknowledgement, a round trip.
//! * **Direct placement**: the receiver names memory for the payload of a link's next message. A
//!   lane that moves bytes late writes the payload to this memory instead of the slot. No CTS is
//!   sent: the sender addresses the slot as usual, and the receiver's lane redirects the payload.
//!
//! Only one call at a time uses zero copy: [`MessageLinks::open`] declares the call's memory, and
//! [`MessageLinks::close`] ends every use of that memory before it is given back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ccl_memory::Region;

use super::super::inbound::Destination;
use super::super::registration_cache::{CachedMemory, RegistrationCache};
use super::{MessageLinks, Peer, request_id};
use crate::execution::Link;
use crate::time::Instant;
use crate::transport::{Device, LocalSlice, MrKey, RemoteKey, TransportError, WorkRequest};
use crate::types::Rank;

/// Longest time that a call waits for acknowledgements before the call ends, over a lane that moves
/// bytes late. After this time, [`MessageLinks::close`] copies the unacknowledged payloads. These
/// copies take about as long as the wait.
const SETTLE: Duration = Duration::from_micros(60);

/// A buffer of the call.
#[derive(Debug)]
struct Buffer {
    region: Region,
    /// Cached memory that the buffer lies in, if any.
    cached: Option<Arc<CachedMemory>>,
    /// First address of the registered memory.
    registered_from: usize,
    /// Key of the registration, which is made when first needed.
    key: Option<MrKey>,
    /// True if the buffer cannot be registered.
    unfit: bool,
    /// Keys that were shared with peers.
    shared: Vec<(Rank, RemoteKey)>,
}

impl Buffer {
    fn holds(&self, address: usize, bytes: usize) -> bool {
        let offset = address.checked_sub(self.region.start().addr());
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        end.is_some_and(|end| end <= self.region.bytes())
    }

    /// Registers the buffer for this call, or uses the registration of the memory that holds the
    /// buffer.
    fn register(&mut self, device: &Arc<dyn Device>, registrations: &mut RegistrationCache) {
        if let Some(cached) = &self.cached {
            self.key = registrations.register(cached, device);
            self.registered_from = cached.address();
        }
        if self.key.is_none() {
            let pays = self.cached.take().is_none()
                || self.region.bytes() >= device.caps().register_bytes_min;
            self.registered_from = self.region.start().addr();
            self.key = pays.then(|| device.register(&self.region).ok()).flatten();
        }
        // Memory that cannot be registered is copied.
        self.unfit = self.key.is_none();
    }
}

/// A zero-copy send in flight.
#[derive(Clone, Copy, Debug)]
struct DirectSend {
    link: Link,
    staging: u32,
    address: usize,
    bytes: usize,
}

/// A receive whose payload is placed in the caller's memory.
#[derive(Clone, Copy, Debug)]
struct DirectReceive {
    link: Link,
    /// Slot from which the payload is redirected.
    slot: LocalSlice,
}

/// State of zero-copy sends and receives.
#[derive(Debug, Default)]
pub(super) struct ZeroCopy {
    buffers: Vec<Buffer>,
    /// True if the lane has been polled since the call began.
    pub(super) polled: bool,
    sends: Vec<DirectSend>,
    receives: Vec<DirectReceive>,
    /// Time until which the call waits for acknowledgements.
    settle_by: Option<Instant>,
    /// Payloads offered for the next message of a link: link, address, registered memory.
    next: Vec<(Link, usize, LocalSlice)>,
}

impl ZeroCopy {
    /// Takes the payload of the link's next message, if it is a zero-copy send.
    pub(super) fn take_next(&mut self, link: Link, bytes: usize) -> Option<(usize, LocalSlice)> {
        let found = self.next.iter().position(|(of, ..)| *of == link)?;
        let (_, address, slice) = self.next.swap_remove(found);
        (slice.bytes == bytes).then_some((address, slice))
    }

    pub(super) fn add_send(&mut self, link: Link, staging: u32, address: usize, bytes: usize) {
        self.sends.push(DirectSend { link, staging, address, bytes });
    }

    /// Removes the zero-copy send of a staging slot.
    pub(super) fn done(&mut self, link: Link, staging: u32) {
        let found = self.sends.iter().position(|send| (send.link, send.staging) == (link, staging));
        if let Some(found) = found {
            self.sends.swap_remove(found);
        }
    }

    /// Takes the direct receive of the link's next message, if there is one.
    fn take_receive(&mut self, link: Link) -> Option<DirectReceive> {
        let found = self.receives.iter().position(|receive| receive.link == link)?;
        Some(self.receives.swap_remove(found))
    }

    /// Forgets the sends to a peer.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.sends.retain(|send| send.link.peer != rank);
    }

    /// Returns whether a call has opened memory and the lane has been polled since then.
    pub(super) fn is_current(&self) -> bool {
        self.polled && !self.buffers.is_empty()
    }

    /// Returns the remote key under which a peer knows the buffer with this local key; none if the
    /// buffer is not shared with the peer.
    pub(super) fn shared(&self, rank: Rank, key: MrKey) -> Option<RemoteKey> {
        let buffer = self.buffers.iter().find(|buffer| buffer.key == Some(key))?;
        buffer.shared.iter().find(|(peer, _)| *peer == rank).map(|(_, shared)| shared.clone())
    }

    pub(super) fn share(&mut self, rank: Rank, key: MrKey, shared: RemoteKey) {
        let buffer = self.buffers.iter_mut().find(|buffer| buffer.key == Some(key));
        buffer.into_iter().for_each(|buffer| buffer.shared.push((rank, shared.clone())));
    }

    pub(super) fn is_being_sent(&self, address: usize, bytes: usize) -> bool {
        self.sends.iter().any(|send| send.overlaps(address, bytes))
    }
}

impl DirectSend {
    fn overlaps(&self, address: usize, bytes: usize) -> bool {
        self.address < address.saturating_add(bytes)
            && address < self.address.saturating_add(self.bytes)
    }
}

impl MessageLinks {
    /// Returns the size in bytes from which a buffer is used for zero copy.
    #[must_use]
    pub fn zero_copy_bytes_min(&self) -> usize {
        self.config.zero_copy_bytes_min
    }

    /// Declares the memory of the call that begins.
    pub fn open(&mut self, memory: impl Iterator<Item = Region>) {
        let MessageLinks { config, device, zero_copy, registrations, .. } = self;
        let least = config.zero_copy_bytes_min.max(device.caps().register_bytes_min);
        zero_copy.polled = false;
        let mut memory =
            memory.filter(|region| region.bytes() >= config.zero_copy_bytes_min).peekable();
        if memory.peek().is_none() {
            return;
        }
        registrations.begin();
        for memory in memory {
            let cached = registrations.find(&memory);
            if cached.is_some() || memory.bytes() >= least {
                let registered_from = memory.start().addr();
                let (region, key, unfit, shared) = (memory, None, false, Vec::new());
                zero_copy.buffers.push(Buffer {
                    region,
                    cached,
                    registered_from,
                    key,
                    unfit,
                    shared,
                });
            }
        }
    }

    /// Adds memory to the registration cache: calls whose buffers lie in it use its registration.
    pub fn cache(&mut self, cached: Arc<CachedMemory>) {
        self.registrations.add(cached);
    }

    /// Returns whether the call has memory for zero copy, and a payload of `bytes` bytes is long
    /// enough for a zero-copy send.
    #[inline]
    #[must_use]
    pub fn may_send_from(&self, bytes: usize) -> bool {
        bytes >= self.config.zero_copy_bytes_min && !self.zero_copy.buffers.is_empty()
    }

    /// Offers memory of the call as the payload of the link's next message. Call this only when the
    /// link is [writable](MessageLinks::writable). Returns whether the payload is sent from the
    /// offered memory; if so, reclaim that memory before writing to it.
    pub fn send_from(&mut self, link: Link, address: usize, bytes: usize) -> bool {
        let slice = self.slice(address, bytes);
        self.zero_copy.next.extend(slice.map(|slice| (link, address, slice)));
        slice.is_some()
    }

    /// Returns whether zero-copy sends are in flight.
    #[must_use]
    pub fn has_zero_copy_sends(&self) -> bool {
        !self.zero_copy.sends.is_empty()
    }

    /// Returns the links of the messages that hardware still reads from the call's memory: the call
    /// cannot write that memory, nor end, before the peers acknowledge these messages. Empty if the
    /// lane moves bytes late, because memory can then be reclaimed at once.
    pub fn unacknowledged(&self) -> impl Iterator<Item = Link> {
        let late = self.device.caps().redirects;
        self.zero_copy.sends.iter().filter(move |_| !late).map(|send| send.link)
    }

    /// Returns whether the call may end: all its zero-copy sends are acknowledged, or the call has
    /// waited long enough. Only a lane that moves bytes late allows the second case:
    /// [`MessageLinks::close`] then copies the unacknowledged payloads to their staging slots.
    pub fn is_settled(&mut self, now: Instant) -> bool {
        if self.zero_copy.buffers.is_empty() {
            return true;
        }
        if !self.device.caps().redirects {
            // Hardware acknowledges without the peer's process.
            return self.zero_copy.sends.is_empty();
        }
        let by = *self.zero_copy.settle_by.get_or_insert_with(|| {
            // The peers may be waiting for this rank's acknowledgements.
            self.lane.flush_acknowledgements(now);
            now + SETTLE
        });
        self.zero_copy.sends.is_empty() || now >= by
    }

    /// Returns whether requests wait for the next [`MessageLinks::flush`].
    #[must_use]
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether a call that is done may end at once: [`MessageLinks::flush`] would do
    /// nothing, everything has left this process, and the call has no memory for zero copy.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.queue.is_empty()
            && self.pool.is_idle()
            && self.zero_copy.buffers.is_empty()
            && self.lane.is_drained()
    }

    /// Reclaims memory before it is written. Returns true if no send reads the memory any more. The
    /// result is always true where a lane moves bytes late. Where hardware reads payloads, it is
    /// true once all sends from the memory are acknowledged; the peer's process cannot delay that.
    pub fn reclaim(&mut self, address: usize, bytes: usize) -> bool {
        if !self.device.caps().redirects {
            return !self.zero_copy.is_being_sent(address, bytes);
        }
        while let Some(at) =
            self.zero_copy.sends.iter().position(|send| send.overlaps(address, bytes))
        {
            let send = self.zero_copy.sends.swap_remove(at);
            if let Err(error) = self.relocate(send) {
                self.give_up(send.link.peer, &error);
            }
        }
        true
    }

    /// Offers memory of the call for the payload of the link's next message. Nothing else may read
    /// that memory until the message is received. Has no effect if the message has arrived.
    /// [`MessageLinks::received`] later returns the payload's address, in this memory or elsewhere.
    pub fn receive_into(&mut self, link: Link, address: usize, bytes: usize) {
        if !self.device.caps().redirects {
            return;
        }
        if bytes < self.config.zero_copy_bytes_min {
            return;
        }
        let undecided = self.link(link).is_some_and(|(peer, channel)| {
            let inbound = &peer.links[channel].0;
            !inbound.ready() && inbound.destination() == Destination::Undecided
        });
        if !undecided || self.zero_copy.is_being_sent(address, bytes) {
            return;
        }
        let Some(into) = self.slice(address, bytes) else { return };
        let Some((peer, channel)) = self.link(link) else { return };
        let endpoint = peer.endpoint;
        let slot = peer.inbound.slice(channel, peer.links[channel].0.slot(), bytes);
        let redirected = self.lane.redirect(endpoint, slot, Some(into));
        if let Err(error) = &redirected {
            self.give_up(link.peer, error);
        }
        let is_placed = redirected.unwrap_or(false);
        self.zero_copy.receives.extend(is_placed.then_some(DirectReceive { link, slot }));
        if let Some((peer, channel)) = self.link(link) {
            let destination = if is_placed { Destination::At(address) } else { Destination::Slot };
            peer.links[channel].0.decide(destination);
        }
    }

    /// Ends the direct placement of the link's next message, which is about to be released. Counts
    /// the message if it was placed directly.
    pub(super) fn finish_receive(&mut self, link: Link) {
        let Some((peer, channel)) = self.link(link) else { return };
        let was_placed = matches!(peer.links[channel].0.destination(), Destination::At(_));
        peer.statistics.zero_copy_received += u64::from(was_placed);
        let Some(DirectReceive { slot, .. }) = self.zero_copy.take_receive(link) else { return };
        self.restore(link, slot);
    }

    fn restore(&mut self, link: Link, slot: LocalSlice) {
        let Some((peer, _)) = self.link(link) else { return };
        let endpoint = peer.endpoint;
        if let Err(error) = self.lane.redirect(endpoint, slot, None) {
            self.give_up(link.peer, &error);
        }
    }

    /// Forgets everything without telling the peers and without touching the call's memory: in the
    /// child of a fork, everything belongs to the parent.
    pub fn abandon(&mut self) {
        self.zero_copy = ZeroCopy::default();
        self.registrations.abandon();
        self.queue.clear();
        std::mem::forget((std::mem::take(&mut self.peers), std::mem::take(&mut self.given_up)));
    }

    /// Ends every use of the call's memory.
    pub fn close(&mut self) {
        if self.zero_copy.buffers.is_empty() {
            return;
        }
        self.zero_copy.next.clear();
        self.zero_copy.settle_by = None;
        self.reclaim(0, usize::MAX);
        self.fence();
        while let Some(DirectReceive { link, slot }) = self.zero_copy.receives.pop() {
            if let Some((peer, channel)) = self.link(link) {
                peer.links[channel].0.decide(Destination::Slot);
            }
            self.restore(link, slot);
        }
        for buffer in self.zero_copy.buffers.drain(..).filter(|buffer| buffer.cached.is_none()) {
            // If the key is unknown, its registration has ended already.
            let _ = buffer.key.map(|key| self.device.deregister(key));
        }
        self.registrations.end();
    }

    /// Closes the connections over which hardware may still read or write the call's memory: a
    /// failed call leaves such connections.
    fn fence(&mut self) {
        let exposed = self.exposed();
        // All shutdowns begin together and share one deadline.
        for rank in &exposed {
            if let Some(Some(peer)) = self.peers.get(*rank as usize) {
                self.lane.poll_shutdown(Some(peer.endpoint));
            }
        }
        for rank in exposed {
            let peer = format!("rank {rank}");
            let reason = "a failed call closed the connection to protect its buffers".to_owned();
            self.give_up(rank, &TransportError::Lost { peer, reason });
            self.zero_copy.forget(rank);
        }
    }

    /// Returns the peers over whose connections hardware can still access the call's memory.
    fn exposed(&self) -> BTreeSet<Rank> {
        let sent_to = self.zero_copy.sends.iter().map(|send| send.link.peer);
        let has_cts = |peer: &Peer| peer.links.iter().any(|(i, _)| !i.preposts.is_empty());
        let peers = (0..).zip(&self.peers);
        let told = peers.filter(|(_, peer)| peer.as_ref().is_some_and(has_cts));
        sent_to.chain(told.map(|(rank, _)| rank)).collect()
    }

    /// Returns a registered range of the call's memory; none if the range is too short for zero
    /// copy, is not in the call's memory or cannot be registered.
    pub(super) fn slice(&mut self, address: usize, bytes: usize) -> Option<LocalSlice> {
        if bytes < self.config.zero_copy_bytes_min {
            return None;
        }
        let MessageLinks { zero_copy, device, registrations, .. } = self;
        let buffer = zero_copy.buffers.iter_mut().find(|buffer| buffer.holds(address, bytes))?;
        if buffer.key.is_none() && !buffer.unfit {
            buffer.register(device, registrations);
        }
        Some(LocalSlice { key: buffer.key?, offset: address - buffer.registered_from, bytes })
    }

    /// Copies the payload of a zero-copy send to its staging slot; the put then reads the slot.
    fn relocate(&mut self, send: DirectSend) -> Result<(), TransportError> {
        let DirectSend { link, staging, address, bytes } = send;
        let from = self.zero_copy.buffers.iter().find_map(|buffer| {
            let offset = address.checked_sub(buffer.region.start().addr())?;
            buffer.region.part(offset, bytes).ok()
        });
        let (Some(from), Some((peer, channel))) = (from, self.link(link)) else { return Ok(()) };
        let (endpoint, to) = (peer.endpoint, peer.staging.slice(channel, staging as usize, bytes));
        peer.staging.region.copy_from(to.offset, &from, 0, bytes)?;
        self.counters.zero_copy_reclaimed += 1;
        let id = request_id(link, staging);
        self.requeue(id, to);
        self.lane.relocate(endpoint, id, to)
    }

    /// Closes the connection to a peer after an error.
    pub(super) fn give_up(&mut self, rank: Rank, error: &TransportError) {
        let peer = self.peers.get_mut(rank as usize).and_then(Option::take);
        let Some(mut peer) = peer else { return };
        self.lane.detach(peer.endpoint);
        self.queue.retain(|WorkRequest::Put { endpoint, .. }| *endpoint != peer.endpoint);
        let (bytes, credits) = peer.void();
        self.counters.in_flight_bytes -= bytes as u64;
        self.pool.take_back(credits);
        self.zero_copy.forget(rank);
        self.lost.push((rank, error.to_string()));
        self.given_up.extend([peer.inbound, peer.staging]);
    }
}
