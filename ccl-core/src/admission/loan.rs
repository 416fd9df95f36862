//! Long payloads without a copy: sent from the caller's memory, and received into it.
//!
//! A link need not copy them into its staging slots, nor out of its inbound ones:
//!
//! * **Lent**: the put of a message reads its payload from the caller's memory. Its staging slot
//!   stays reserved. Whoever is about to change that memory, or to give it back, *recalls* it.
//!   Where a lane moves bytes late ([`Caps::redirects`](crate::transport::Caps::redirects)), the
//!   payloads that the peer has not acknowledged are copied to their staging slots after all;
//!   where hardware reads them, it is waited for, which is a matter of a round trip.
//! * **Landed**: who waits for a link's next message says where its payload is wanted, and it
//!   comes there instead of into its slot, where a lane moves bytes late. This is a transfer grant
//!   that need not travel: the slot's own grant stands, and the receiver resolves it anew.
//!
//! The memory is that of one call at a time: [`MessageLinks::open`] names it,
//! [`MessageLinks::close`] ends every use of it before it is given back.

use std::sync::Arc;
use std::time::Duration;

use ccl_memory::Region;

use super::inbound::Landing;
use super::kept::{Keeper, Kept};
use super::links::{MessageLinks, Peer, request_id};
use crate::execution::Link;
use crate::time::Instant;
use crate::transport::{Device, LocalSlice, MrKey, RemoteKey, TransportError, WorkRequest};
use crate::types::Rank;

/// How long the end of a call waits for acknowledgements.
const SETTLE: Duration = Duration::from_micros(60);

/// A buffer of the call's.
#[derive(Debug)]
struct Buffer {
    region: Region,
    /// What holds it, if that is kept registered.
    kept: Option<Arc<Kept>>,
    /// The first address of what is registered.
    registered_from: usize,
    /// Registered when first needed.
    key: Option<MrKey>,
    /// It cannot be registered.
    unfit: bool,
    /// How peers know it.
    shared: Vec<(Rank, RemoteKey)>,
}

impl Buffer {
    fn holds(&self, address: usize, bytes: usize) -> bool {
        let offset = address.checked_sub(self.region.start().addr());
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        end.is_some_and(|end| end <= self.region.bytes())
    }

    /// Registers it, with what holds it or for this call.
    fn register(&mut self, device: &Arc<dyn Device>, keeper: &mut Keeper) {
        if let Some(kept) = &self.kept {
            self.key = keeper.register(kept, device);
            self.registered_from = kept.address();
        }
        if self.key.is_none() {
            let pays = self.kept.take().is_none()
                || self.region.bytes() >= device.caps().register_bytes_min;
            self.registered_from = self.region.start().addr();
            self.key = pays.then(|| device.register(&self.region).ok()).flatten();
        }
        // Memory that cannot be registered is copied.
        self.unfit = self.key.is_none();
    }
}

/// A payload that is read from the caller's memory.
#[derive(Clone, Copy, Debug)]
struct Lent {
    link: Link,
    staging: u32,
    address: usize,
    bytes: usize,
}

/// A payload that is on its way into the caller's memory.
#[derive(Clone, Copy, Debug)]
struct Landed {
    link: Link,
    /// Where it would be otherwise.
    slot: LocalSlice,
}

/// What of the caller's memory is in use.
#[derive(Debug, Default)]
pub(super) struct Loans {
    buffers: Vec<Buffer>,
    /// Whether what has come was looked at since the call began.
    pub(super) polled: bool,
    lent: Vec<Lent>,
    landings: Vec<Landed>,
    /// Until when the call's end waits.
    settle_by: Option<Instant>,
    /// Payloads of links' next messages.
    next: Vec<(Link, usize, LocalSlice)>,
}

impl Loans {
    /// The payload of the next message, if it was lent.
    pub(super) fn take_next(&mut self, link: Link, bytes: usize) -> Option<(usize, LocalSlice)> {
        let found = self.next.iter().position(|(of, ..)| *of == link)?;
        let (_, address, slice) = self.next.swap_remove(found);
        (slice.bytes == bytes).then_some((address, slice))
    }

    pub(super) fn lend(&mut self, link: Link, staging: u32, address: usize, bytes: usize) {
        self.lent.push(Lent { link, staging, address, bytes });
    }

    /// A staging slot is free again.
    pub(super) fn done(&mut self, link: Link, staging: u32) {
        let found = self.lent.iter().position(|lent| (lent.link, lent.staging) == (link, staging));
        if let Some(found) = found {
            self.lent.swap_remove(found);
        }
    }

    /// The landing of the link's next message is over.
    fn take_landed(&mut self, link: Link) -> Option<Landed> {
        let found = self.landings.iter().position(|landing| landing.link == link)?;
        Some(self.landings.swap_remove(found))
    }

    /// Nothing is under way to or from a peer any more.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.lent.retain(|lent| lent.link.peer != rank);
    }

    /// Whether a call has memory that may be used so, and what had come before it is known.
    pub(super) fn is_current(&self) -> bool {
        self.polled && !self.buffers.is_empty()
    }

    /// How a peer knows the buffer with this key.
    pub(super) fn shared(&self, rank: Rank, key: MrKey) -> Option<RemoteKey> {
        let buffer = self.buffers.iter().find(|buffer| buffer.key == Some(key))?;
        buffer.shared.iter().find(|(peer, _)| *peer == rank).map(|(_, shared)| shared.clone())
    }

    pub(super) fn share(&mut self, rank: Rank, key: MrKey, shared: RemoteKey) {
        let buffer = self.buffers.iter_mut().find(|buffer| buffer.key == Some(key));
        buffer.into_iter().for_each(|buffer| buffer.shared.push((rank, shared.clone())));
    }

    pub(super) fn is_lent(&self, address: usize, bytes: usize) -> bool {
        self.lent.iter().any(|lent| lent.overlaps(address, bytes))
    }
}

impl Lent {
    fn overlaps(&self, address: usize, bytes: usize) -> bool {
        self.address < address.saturating_add(bytes)
            && address < self.address.saturating_add(self.bytes)
    }
}

impl MessageLinks {
    /// Smaller buffers have no message to lend, and small calls have no time to lose.
    #[must_use]
    pub fn lend_bytes_min(&self) -> usize {
        self.config.lend_bytes_min
    }

    /// Names the memory of the call that begins.
    pub fn open(&mut self, memory: impl Iterator<Item = Region>) {
        let MessageLinks { config, device, loans, keeper, .. } = self;
        let least = config.lend_bytes_min.max(device.caps().register_bytes_min);
        loans.polled = false;
        let mut memory = memory.filter(|region| region.bytes() >= config.lend_bytes_min).peekable();
        if memory.peek().is_none() {
            return;
        }
        keeper.begin();
        for memory in memory {
            let kept = keeper.find(&memory);
            if kept.is_some() || memory.bytes() >= least {
                let registered_from = memory.start().addr();
                let (region, key, unfit, shared) = (memory, None, false, Vec::new());
                loans.buffers.push(Buffer { region, kept, registered_from, key, unfit, shared });
            }
        }
    }

    /// Has calls whose buffers lie in this memory use its registration, which outlives them.
    pub fn keep(&mut self, kept: Arc<Kept>) {
        self.keeper.keep(kept);
    }

    /// Offers the payload of the link's next message, which is writable, at this address of the
    /// call's memory. Returns whether it is sent from there: it is not to be written then before
    /// it is recalled.
    pub fn lend(&mut self, link: Link, address: usize, bytes: usize) -> bool {
        let slice = self.slice(address, bytes);
        self.loans.next.extend(slice.map(|slice| (link, address, slice)));
        slice.is_some()
    }

    /// Whether anything is lent.
    #[must_use]
    pub fn lends(&self) -> bool {
        !self.loans.lent.is_empty()
    }

    /// Returns the links whose messages hardware still reads from the call's memory: the call
    /// cannot write that memory, nor end, before the peers acknowledge. Empty where a lane moves
    /// bytes late, because memory can be recalled there.
    pub fn unacknowledged(&self) -> impl Iterator<Item = Link> {
        let late = self.device.caps().redirects;
        self.loans.lent.iter().filter(move |_| !late).map(|lent| lent.link)
    }

    /// Whether the call may end as far as what is lent goes: it is acknowledged, or, where it can
    /// be copied after all, that was waited for as long as its copies would take.
    pub fn is_settled(&mut self, now: Instant) -> bool {
        if self.loans.buffers.is_empty() {
            return true;
        }
        if !self.device.caps().redirects {
            // It needs none of the peer's time to be done.
            return self.loans.lent.is_empty();
        }
        let by = *self.loans.settle_by.get_or_insert_with(|| {
            // The peers wait likewise.
            self.lane.conclude(now);
            now + SETTLE
        });
        self.loans.lent.is_empty() || now >= by
    }

    /// This memory is about to be written: whether nothing reads it any more. Where a lane moves
    /// bytes late, always; else when what was lent of it is done, which the peer cannot hold up.
    pub fn recall(&mut self, address: usize, bytes: usize) -> bool {
        if !self.device.caps().redirects {
            return !self.loans.is_lent(address, bytes);
        }
        while let Some(at) = self.loans.lent.iter().position(|lent| lent.overlaps(address, bytes)) {
            let lent = self.loans.lent.swap_remove(at);
            if let Err(error) = self.relocate(lent) {
                self.give_up(lent.link.peer, &error);
            }
        }
        true
    }

    /// Asks for the payload of the link's next message, which has not arrived, at this address of
    /// the call's memory, which nobody reads. It may come there or into its slot:
    /// [`MessageLinks::received`] says.
    pub fn land(&mut self, link: Link, address: usize, bytes: usize) {
        if !self.device.caps().redirects {
            return;
        }
        let undecided = self.link(link).is_some_and(|(peer, channel)| {
            let inbound = &peer.links[channel].0;
            !inbound.ready() && inbound.landing() == Landing::Undecided
        });
        if !undecided || self.loans.is_lent(address, bytes) {
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
        let lands = redirected.unwrap_or(false);
        self.loans.landings.extend(lands.then_some(Landed { link, slot }));
        if let Some((peer, channel)) = self.link(link) {
            let landing = if lands { Landing::At(address) } else { Landing::Slot };
            peer.links[channel].0.decide(landing);
        }
    }

    /// The link's next message is taken. If it has landed, nothing more does: not what a peer puts
    /// there that has sent it from elsewhere, either.
    pub(super) fn landed(&mut self, link: Link) {
        let Some((peer, channel)) = self.link(link) else { return };
        let landed = matches!(peer.links[channel].0.landing(), Landing::At(_));
        peer.account.landed += u64::from(landed);
        let Some(Landed { slot, .. }) = self.loans.take_landed(link) else { return };
        self.restore(link, slot);
    }

    fn restore(&mut self, link: Link, slot: LocalSlice) {
        let Some((peer, _)) = self.link(link) else { return };
        let endpoint = peer.endpoint;
        if let Err(error) = self.lane.redirect(endpoint, slot, None) {
            self.give_up(link.peer, &error);
        }
    }

    /// Forgets everything without a word and without touching the call's memory: this process is
    /// the child of a fork, and all of it is its parent's.
    pub fn abandon(&mut self) {
        self.loans = Loans::default();
        self.keeper.abandon();
        self.queue.clear();
        std::mem::forget(std::mem::take(&mut self.peers));
    }

    /// Ends every use of the call's memory.
    pub fn close(&mut self) {
        if self.loans.buffers.is_empty() {
            return;
        }
        self.loans.next.clear();
        self.loans.settle_by = None;
        self.recall(0, usize::MAX);
        self.fence();
        while let Some(Landed { link, slot }) = self.loans.landings.pop() {
            if let Some((peer, channel)) = self.link(link) {
                peer.links[channel].0.decide(Landing::Slot);
            }
            self.restore(link, slot);
        }
        for buffer in self.loans.buffers.drain(..).filter(|buffer| buffer.kept.is_none()) {
            // A key that is unknown by now guards nothing any more.
            let _ = buffer.key.map(|key| self.device.deregister(key));
        }
    }

    /// What a failed call has lent to hardware, or granted, ends with the connection that it goes
    /// over.
    fn fence(&mut self) {
        while let Some(rank) = self.exposed() {
            let peer = format!("rank {rank}");
            let reason = "a call that failed took back its memory".to_owned();
            self.give_up(rank, &TransportError::Lost { peer, reason });
            self.loans.forget(rank);
        }
    }

    /// A peer that may read or write the call's memory.
    fn exposed(&self) -> Option<Rank> {
        let lent = self.loans.lent.first().map(|lent| lent.link.peer);
        lent.or_else(|| {
            let granted = |peer: &Peer| peer.links.iter().any(|(i, _)| !i.landings.is_empty());
            let peer = self.peers.iter().position(|peer| peer.as_ref().is_some_and(granted));
            peer.map(|rank| rank as Rank)
        })
    }

    /// Registered bytes of the call's memory, if they are many enough.
    pub(super) fn slice(&mut self, address: usize, bytes: usize) -> Option<LocalSlice> {
        if bytes < self.config.lend_bytes_min {
            return None;
        }
        let MessageLinks { loans, device, keeper, .. } = self;
        let buffer = loans.buffers.iter_mut().find(|buffer| buffer.holds(address, bytes))?;
        if buffer.key.is_none() && !buffer.unfit {
            buffer.register(device, keeper);
        }
        Some(LocalSlice { key: buffer.key?, offset: address - buffer.registered_from, bytes })
    }

    /// Copies a lent payload to its staging slot, which its put then reads.
    fn relocate(&mut self, lent: Lent) -> Result<(), TransportError> {
        let Lent { link, staging, address, bytes } = lent;
        let from = self.loans.buffers.iter().find_map(|buffer| {
            let offset = address.checked_sub(buffer.region.start().addr())?;
            buffer.region.part(offset, bytes).ok()
        });
        let (Some(from), Some((peer, channel))) = (from, self.link(link)) else { return Ok(()) };
        let (endpoint, to) = (peer.endpoint, peer.staging.slice(channel, staging as usize, bytes));
        let copied = peer.staging.region.copy_from(to.offset, &from, 0, bytes);
        copied.map_err(|error| TransportError::Usage(error.to_string()))?;
        self.counters.recalled += 1;
        let id = request_id(link, staging);
        self.requeue(id, to);
        self.lane.relocate(endpoint, id, to)
    }

    /// What cannot be undone with a peer ends with its connection.
    pub(super) fn give_up(&mut self, rank: Rank, error: &TransportError) {
        let peer = self.peers.get_mut(rank as usize).and_then(Option::take);
        let Some(mut peer) = peer else { return };
        self.lane.detach(peer.endpoint);
        self.queue.retain(|WorkRequest::Put { endpoint, .. }| *endpoint != peer.endpoint);
        let (bytes, credits) = peer.void();
        self.counters.in_flight_bytes -= bytes as u64;
        self.pool.take_back(credits);
        self.loans.forget(rank);
        self.lost.push((rank, error.to_string()));
        self.dispose(&peer);
    }
}
