//! The message links of one rank.

mod pool;
mod preposting;
mod striping;
mod zero_copy;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use ccl_memory::Region;

use super::cts::{Placement, RECORD_BYTES, RECORDS};
use super::immediate::{Immediate, SLOTS_MAX};
use super::inbound::{Destination, Inbound};
use super::offer::{Offer, OfferError};
use super::outbound::{CreditOutcome, Outbound};
use super::registration_cache::RegistrationCache;
use super::rendezvous::{Directory, PeerOutcome, Rendezvous};
use super::seal::{SEAL_BYTES, SEALED_BYTES_MAX, is_sealed, seal};
use super::statistics::PeerStatistics;
use super::{AdmissionError, Config, Counters, HEADER_BYTES};
use crate::execution::Link;
use crate::time::Instant;
use crate::transport::{
    Connected, Device, EndpointId, Event, Lane, Listener, LocalSlice, MrKey, RemoteKey, RemoteMr,
    TransportError, WorkRequest,
};
use crate::types::Rank;
use pool::CreditPool;
use striping::StripingState;
use zero_copy::ZeroCopy;

pub(super) const LINE: usize = 64;
/// Offset of the header in a slot, chosen so that the payload begins at a cache line.
const HEADER: usize = LINE - HEADER_BYTES;
/// The longest sleep while connections are being made.
const RENDEZVOUS_PAUSE: Duration = Duration::from_micros(200);
/// Number that stands for a credit in the id of a request ([`request_id`]). The numbers just below
/// stand for CTS records, all others for staging slots.
const CREDIT_ID: u32 = u32::MAX;
/// Initial capacity of the queues, so that calls rarely allocate.
const AT_ONCE: usize = 64;

/// Memory for the slots of all channels of one peer, in one direction.
#[derive(Debug)]
struct Slots {
    region: Region,
    key: MrKey,
    per_channel: usize,
    stride: usize,
    /// Offset of the CTS records.
    records: usize,
}

impl Slots {
    /// Returns the offset of a record.
    fn record(&self, channel: usize, at: usize) -> usize {
        self.records + (channel * RECORDS + at) * RECORD_BYTES
    }

    fn offset(&self, channel: usize, slot: usize) -> usize {
        (channel * self.per_channel + slot) * self.stride
    }

    /// Returns the offset of a slot's header.
    fn header_offset(&self, channel: usize, slot: usize) -> usize {
        self.offset(channel, slot) + HEADER
    }

    /// Returns the first bytes of a slot's payload.
    fn slice(&self, channel: usize, slot: usize, bytes: usize) -> LocalSlice {
        LocalSlice { key: self.key, offset: self.offset(channel, slot) + LINE, bytes }
    }

    fn payload(&self, channel: usize, slot: usize) -> *mut u8 {
        self.region.start().wrapping_add(self.offset(channel, slot) + LINE)
    }

    /// Returns the header of a slot's message, as its sender wrote it. The message is in the
    /// receive buffer if there is one, else in the slot.
    fn header(&self, channel: usize, slot: usize, buffer: Option<&Region>) -> Header {
        let (from, offset) = match buffer {
            Some(buffer) => (buffer, 0),
            None => (&self.region, self.header_offset(channel, slot)),
        };
        let mut bytes = [0; HEADER_BYTES];
        if from.read(offset, &mut bytes).is_err() {
            return Header { bytes: usize::MAX, below: 0, tag: 0 };
        }
        let [a, b, c, d, e, f, g, h, tag @ ..] = bytes;
        Header {
            bytes: u32::from_le_bytes([a, b, c, d]) as usize,
            below: u32::from_le_bytes([e, f, g, h]),
            tag: u64::from_le_bytes(tag),
        }
    }
}

/// Header before a message's payload.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Bytes of the payload.
    bytes: usize,
    /// Credit that came with the message.
    below: u32,
    tag: u64,
}

#[derive(Debug)]
struct Peer {
    endpoint: EndpointId,
    /// Slots of this rank that the peer fills.
    inbound: Slots,
    /// Staging slots of this rank, from which it puts messages into the peer's slots.
    staging: Slots,
    /// The peer's inbound slots, once its offer has come.
    remote: Option<RemoteMr>,
    /// Offset of the CTS ring in the peer's inbound memory, if there is a ring.
    ring: Option<usize>,
    /// True if the peer asks for a seal (`seal.rs`) on each short message.
    seals: bool,
    /// Memory that the peer's CTS have named: the key in the CTS, and the imported memory.
    imports: Vec<(RemoteKey, RemoteMr)>,
    /// This rank's receiving end and sending end of each link, channel by channel.
    links: Vec<(Inbound, Outbound)>,
    /// Version of the striping that the lane uses towards the peer.
    striping: u64,
    statistics: PeerStatistics,
}

impl Peer {
    /// Voids all messages to and from the peer. Returns the bytes that were in flight, and the pool
    /// credits that the links had.
    fn void(&mut self) -> (usize, usize) {
        self.statistics.in_flight_bytes = 0;
        let links = self.links.iter_mut();
        links.fold((0, 0), |(bytes, credits), (inbound, outbound)| {
            (bytes + outbound.forget(), credits + inbound.forget())
        })
    }
}

/// Result of [`MessageLinks::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// Nothing new.
    Nothing,
    /// An event for [`MessageLinks::poll`].
    Event,
    /// A message, which can be received without a poll.
    Message,
}

/// All links of one rank over one lane. [`crate::admission`] describes the protocol.
#[derive(Debug)]
pub struct MessageLinks {
    lane: Box<dyn Lane>,
    device: Arc<dyn Device>,
    config: Config,
    /// Credits that are reserved for each link.
    reserved: u32,
    pool: CreditPool,
    /// True if receivers send CTS, because the device cannot redirect puts.
    uses_cts: bool,
    /// True if short messages are recognised in memory by their seals.
    seals: bool,
    /// True if the lane may leave messages in its receive buffers instead of copying them to their
    /// slots.
    uses_receive_buffers: bool,
    /// The last link on which [`MessageLinks::readable`] had to look for a seal.
    awaited: Option<Link>,
    /// Peers, indexed by rank.
    peers: Vec<Option<Peer>>,
    /// Slots of peers whose connections were closed after an error. They are freed with the links:
    /// a lane that still reads them may be unable to stop without ending all connections.
    given_up: Vec<Slots>,
    /// The rank that each endpoint leads to, indexed by the endpoint's number.
    ranks: Vec<Option<Rank>>,
    /// Connects peers on demand; none if the owner attaches them.
    rendezvous: Option<Box<Rendezvous>>,
    /// Requests that were published, but not yet taken by the lane.
    queue: Vec<WorkRequest>,
    /// Requests set aside during a flush because their endpoints take no more.
    held: Vec<WorkRequest>,
    striping: StripingState,
    /// State of zero-copy sends and receives.
    zero_copy: ZeroCopy,
    /// Memory that stays registered between calls.
    registrations: RegistrationCache,
    events: Vec<Event>,
    /// Lost peers in the order of their loss, each with the reason.
    lost: Vec<(Rank, String)>,
    counters: Counters,
    /// Time of the last poll or flush.
    now: Option<Instant>,
}

impl MessageLinks {
    /// Returns the links of a rank that will have `peers` peers, none of them connected yet, over a
    /// lane of `device`.
    ///
    /// # Errors
    ///
    /// When a size is out of range, or a slot exceeds the longest message of the device.
    pub fn new(
        device: Arc<dyn Device>,
        lane: Box<dyn Lane>,
        config: Config,
        peers: usize,
    ) -> Result<MessageLinks, AdmissionError> {
        let caps = device.caps();
        config.check(caps.message_bytes_max)?;
        // A lane that can redirect puts places messages directly without a CTS.
        let uses_cts = !caps.redirects;
        let pool = CreditPool::new(&config, peers);
        // A message recognised by its seal keeps its credit until its immediate comes. A shared
        // pool would lack that credit meanwhile.
        let seals = caps.written_early && uses_cts && !pool.is_shared();
        Ok(MessageLinks {
            lane,
            device,
            config,
            reserved: config.reserved_slots(peers),
            pool,
            uses_cts,
            seals,
            uses_receive_buffers: false,
            awaited: None,
            peers: Vec::new(),
            given_up: Vec::new(),
            ranks: Vec::new(),
            rendezvous: None,
            queue: Vec::with_capacity(AT_ONCE),
            held: Vec::with_capacity(AT_ONCE),
            striping: StripingState::default(),
            zero_copy: ZeroCopy::default(),
            registrations: RegistrationCache::new(config.registered_bytes_max),
            events: Vec::with_capacity(AT_ONCE),
            lost: Vec::new(),
            counters: Counters::default(),
            now: None,
        })
    }

    /// Connects peers on first use: dials the addresses of the `directory`, and accepts peers on
    /// `listener`.
    pub fn connect_on_demand(&mut self, listener: Box<dyn Listener>, directory: Directory) {
        self.rendezvous = Some(Box::new(Rendezvous::new(listener, directory)));
    }

    /// Takes over the connection to a peer. Returns the offer for the peer's
    /// [`MessageLinks::import`]; the caller delivers the offer to the peer, by any means.
    ///
    /// # Errors
    ///
    /// When there is no memory for the slots, or the lane does not take the connection.
    pub fn attach(&mut self, peer: Rank, connected: Connected) -> Result<Vec<u8>, AdmissionError> {
        let inbound = self.slots(self.config.slots)?;
        let (staging, endpoint, key) = match self.attach_with(&inbound, connected) {
            Ok(made) => made,
            Err(error) => {
                self.give_back(&inbound);
                return Err(error);
            }
        };
        let slots = self.config.slots;
        let link = || (Inbound::new(slots, self.reserved), Outbound::new(slots));
        let links = (0..self.config.channels).map(|_| link()).collect();
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        self.peers[index] = Some(Peer {
            endpoint,
            inbound,
            staging,
            remote: None,
            ring: None,
            seals: false,
            imports: Vec::new(),
            links,
            striping: 0,
            statistics: PeerStatistics::default(),
        });
        let number = endpoint.0 as usize;
        if self.ranks.len() <= number {
            self.ranks.resize(number + 1, None);
        }
        self.ranks[number] = Some(peer);
        tracing::debug!(peer, "a peer is connected");
        let offer = Offer {
            channels: self.config.channels,
            slots,
            reserved: self.reserved,
            records: if self.uses_cts { RECORDS as u32 } else { 0 },
            slot_bytes: self.config.slot_bytes as u64,
            seals: self.seals,
            key,
        };
        Ok(offer.encode())
    }

    /// Makes a peer's staging slots, endpoint and shared key. Leaves nothing behind if it fails.
    fn attach_with(
        &mut self,
        inbound: &Slots,
        connected: Connected,
    ) -> Result<(Slots, EndpointId, RemoteKey), AdmissionError> {
        let staging = self.slots(self.config.slots)?;
        let attached = self.lane.attach(connected).and_then(|endpoint| {
            let shared = self.lane.share(endpoint, inbound.key);
            let key = shared.inspect_err(|_| self.lane.abort(endpoint))?;
            Ok((endpoint, key))
        });
        let (endpoint, key) = attached.inspect_err(|_| self.give_back(&staging))?;
        // Records and messages with seals are read from the memory that their puts name.
        let slots = LocalSlice { key: inbound.key, offset: 0, bytes: inbound.records };
        self.uses_receive_buffers |= !self.seals && self.lane.use_receive_buffers(slots);
        Ok((staging, endpoint, key))
    }

    /// Deregisters the memory of slots.
    fn give_back(&self, slots: &Slots) {
        // If the key is unknown, its registration has ended already.
        let _ = self.device.deregister(slots.key);
    }

    fn slots(&mut self, slots: u32) -> Result<Slots, AdmissionError> {
        let stride = LINE + self.config.slot_bytes.next_multiple_of(LINE);
        let count = self.config.channels as usize * slots as usize;
        let bytes = stride.checked_mul(count).ok_or_else(|| {
            AdmissionError::Config(format!("{count} slots of {stride} bytes; use fewer slots"))
        })?;
        let rings = self.config.channels as usize * RECORDS * RECORD_BYTES;
        let all = bytes + if self.uses_cts { rings } else { 0 };
        let (region, key) = loop {
            match self.device.allocate(all) {
                Ok(made) => break made,
                // Cached registrations may have used up a limit.
                Err(error) => self.registrations.evict_one().ok_or(error)?,
            }
        };
        let region = region.part(0, all)?;
        Ok(Slots { region, key, per_channel: slots as usize, stride, records: bytes })
    }

    /// Takes the offer that the peer's [`MessageLinks::attach`] returned; from now on messages can
    /// be sent.
    ///
    /// # Errors
    ///
    /// When the offer cannot be decoded, the peer is not attached, its channels, slots or slot size
    /// do not suit this rank, or the lane cannot import its memory.
    pub fn import(&mut self, rank: Rank, offer: &[u8]) -> Result<(), AdmissionError> {
        let refuse = |problem| AdmissionError::Offer { rank, problem };
        let offer = Offer::decode(offer).map_err(refuse)?;
        if offer.channels != self.config.channels
            || offer.slot_bytes != self.config.slot_bytes as u64
            || !(1..=SLOTS_MAX).contains(&offer.slots)
            || !(1..=offer.slots).contains(&offer.reserved)
        {
            return Err(refuse(OfferError::Unlike {
                channels: offer.channels,
                slots: offer.slots,
                slot_bytes: offer.slot_bytes,
                own_channels: self.config.channels,
                own_slot_bytes: self.config.slot_bytes,
            }));
        }
        let Some(Some(peer)) = self.peers.get_mut(rank as usize) else {
            return Err(refuse(OfferError::NoConnection));
        };
        peer.remote = Some(self.lane.import(peer.endpoint, &offer.key)?);
        let slots = self.config.channels as usize * offer.slots as usize;
        let has_ring = self.uses_cts && offer.records as usize == RECORDS;
        peer.seals = offer.seals;
        peer.ring = has_ring.then_some(slots * peer.staging.stride);
        peer.links.iter_mut().for_each(|(_, outbound)| outbound.open(offer.slots, offer.reserved));
        // Announces credits that were renewed before the peer's memory was known.
        for channel in 0..self.config.channels {
            let link = Link { peer: rank, channel };
            self.credit(link, Inbound::renewed);
        }
        Ok(())
    }

    /// Returns the rank that an endpoint leads to.
    fn rank(&self, EndpointId(number): EndpointId) -> Option<Rank> {
        self.ranks.get(number as usize).copied().flatten()
    }

    fn link(&mut self, link: Link) -> Option<(&mut Peer, usize)> {
        let peer = self.peers.get_mut(link.peer as usize)?.as_mut()?;
        let channel = link.channel as usize;
        (channel < peer.links.len()).then_some((peer, channel))
    }

    /// Requests a connection to a peer. Returns false: the peer's links are not ready.
    #[cold]
    fn request(&mut self, rank: Rank) -> bool {
        let never = self.is_connected(rank) || self.lost(rank).is_some();
        if let (Some(rendezvous), false) = (&mut self.rendezvous, never) {
            rendezvous.request(rank);
        }
        false
    }

    /// Returns whether the link's next message has arrived. The first call for a peer requests its
    /// connection.
    pub fn readable(&mut self, link: Link) -> bool {
        let seals = self.seals;
        let Some((peer, channel)) = self.link(link) else { return self.request(link.peer) };
        if peer.links[channel].0.ready() {
            return true;
        }
        if !seals {
            return false;
        }
        self.awaited = Some(link);
        self.take_sealed(link)
    }

    /// Takes the link's next message if its seal shows that the message is in its slot, although
    /// its immediate has not come yet. Returns whether the message was taken.
    fn take_sealed(&mut self, link: Link) -> bool {
        let (slot_bytes, now) = (self.config.slot_bytes, self.now);
        let Some((peer, channel)) = self.link(link) else { return false };
        let (inbound, outbound) = &mut peer.links[channel];
        let (slot, slots) = (inbound.slot(), &peer.inbound);
        if !inbound.may_take_early()
            || !is_sealed(&slots.region, slots.header_offset(channel, slot), inbound.next())
        {
            return false;
        }
        // The fence keeps the processor from reading the payload before the seal.
        fence(Ordering::Acquire);
        let Header { bytes, below, .. } = slots.header(channel, slot, None);
        if bytes > slot_bytes || !outbound.piggybacked_credit(below) {
            return false;
        }
        inbound.arrive_early();
        peer.statistics.received += 1;
        peer.statistics.granted(outbound.waited_since(), now);
        true
    }

    /// Returns whether the link's next message has a credit and a staging slot. The first call for
    /// a peer requests its connection.
    pub fn writable(&mut self, link: Link) -> bool {
        let now = self.now;
        let Some((peer, channel)) = self.link(link) else { return self.request(link.peer) };
        peer.links[channel].1.ready(now, &mut peer.statistics.stalls)
    }

    /// Returns the length and the tag of the next message, which must have arrived.
    pub fn head(&mut self, link: Link) -> (usize, u64) {
        self.link(link).map_or((usize::MAX, 0), |(peer, channel)| {
            if let Some(Placement { bytes, tag, .. }) = peer.links[channel].0.placed() {
                return (bytes, tag);
            }
            let inbound = &peer.links[channel].0;
            let Header { bytes, tag, .. } =
                peer.inbound.header(channel, inbound.slot(), inbound.buffer());
            (bytes, tag)
        })
    }

    /// Returns the address of the next message's payload, which has at most `slot_bytes` bytes. The
    /// message must have arrived. Its payload is in its slot, in a receive buffer of the
    /// lane, or in the memory where it was placed directly ([`MessageLinks::prepost`],
    /// [`MessageLinks::receive_into`]). Null if there is no such link.
    pub fn received(&mut self, link: Link) -> *const u8 {
        let Some((peer, channel)) = self.link(link) else { return std::ptr::null() };
        let inbound = &peer.links[channel].0;
        if let Some(buffer) = inbound.buffer() {
            return buffer.start().wrapping_add(HEADER_BYTES).cast_const();
        }
        match inbound.destination() {
            Destination::At(address) => std::ptr::with_exposed_provenance(address),
            _ => peer.inbound.payload(channel, inbound.slot()).cast_const(),
        }
    }

    /// Returns the staging address for the next message's payload, which has at most `slot_bytes`
    /// bytes. The message must be writable. Null if there is no such link.
    pub fn to_send(&mut self, link: Link) -> *mut u8 {
        self.link(link).map_or(std::ptr::null_mut(), |(peer, channel)| {
            peer.staging.payload(channel, peer.links[channel].1.staging())
        })
    }

    /// Queues the next message, which must be writable. The next [`MessageLinks::flush`] sends it.
    pub fn publish(&mut self, link: Link, bytes: usize, tag: u64) {
        let slot_bytes = self.config.slot_bytes;
        let bytes = bytes.min(slot_bytes);
        let sent_from = self.zero_copy.take_next(link, bytes);
        let granted = self.granted(link, bytes, tag);
        self.apply_striping(link.peer);
        let Some((peer, channel)) = self.link(link) else { return };
        let Some(remote) = peer.remote else { return };
        let (inbound, outbound) = &mut peer.links[channel];
        let (staging, slot) = (outbound.staging(), outbound.slot());
        let slice = sent_from.map(|(_, slice)| slice);
        let number = outbound.next();
        let (local, tail, to, immediate, total) = if let Some(target) = granted {
            let local = slice.unwrap_or_else(|| peer.staging.slice(channel, staging, bytes));
            (local, None, target, Immediate::placed(link.channel, number), bytes)
        } else {
            let offset = peer.staging.header_offset(channel, staging);
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
            header[4..8].copy_from_slice(&(inbound.renew() as u32).to_le_bytes());
            header[8..].copy_from_slice(&tag.to_le_bytes());
            if peer.staging.region.write(offset, &header).is_err() {
                return;
            }
            let region = &peer.staging.region;
            let sealed = peer.seals
                && slice.is_none()
                && bytes <= sealed_bytes_max(slot_bytes)
                && seal(region, offset, bytes, number).is_some_and(|seal| {
                    region.write(offset - SEAL_BYTES, &seal.to_le_bytes()).is_ok()
                });
            let before = if sealed { SEAL_BYTES } else { 0 };
            let total = before + HEADER_BYTES + bytes;
            let here = if slice.is_some() { HEADER_BYTES } else { total };
            let local = LocalSlice { key: peer.staging.key, offset: offset - before, bytes: here };
            let target = channel * outbound.slots() as usize + slot;
            let to = (remote, target * peer.staging.stride + HEADER - before);
            (local, slice, to, Immediate::message(link.channel, number), total)
        };
        let (remote, remote_offset) = to;
        let request = WorkRequest::Put {
            endpoint: peer.endpoint,
            local,
            tail,
            is_control: false,
            remote,
            remote_offset,
            immediate: Some(immediate.encode()),
            id: request_id(link, staging as u32),
        };
        outbound.sent(total);
        peer.statistics.sent(total);
        peer.statistics.zero_copy_sent += u64::from(sent_from.is_some());
        self.queue.push(request);
        if let Some((address, _)) = sent_from {
            self.zero_copy.add_send(link, staging as u32, address, bytes);
        }
        let counters = &mut self.counters;
        counters.in_flight_bytes += total as u64;
        counters.in_flight_bytes_max = counters.in_flight_bytes_max.max(counters.in_flight_bytes);
    }

    /// Sets the current call's striping for the lane's puts to a peer.
    fn apply_striping(&mut self, rank: Rank) {
        let version = self.striping.version();
        let Some(Some(peer)) = self.peers.get_mut(rank as usize) else { return };
        if std::mem::replace(&mut peer.striping, version) != version
            && let Some(striping) = self.striping.to(rank)
        {
            self.lane.set_striping(peer.endpoint, &striping);
        }
    }

    /// Frees the slot of the link's next message. The next [`MessageLinks::flush`] sends the
    /// renewed credit, if one is due.
    pub fn release(&mut self, link: Link) {
        self.finish_receive(link);
        if self.seals
            && let Some((peer, channel)) = self.link(link)
        {
            // Clears the old seal. Zero stands for no seal, so until the slot's next message comes,
            // no checksum is computed.
            let header = peer.inbound.header_offset(channel, peer.links[channel].0.slot());
            let _ = peer.inbound.region.write(header - SEAL_BYTES, &[0; SEAL_BYTES]);
        }
        self.free_slots(link, Inbound::release);
    }

    /// Frees slots of a link with `free`, puts the pool credits of these slots back into the pool,
    /// and queues the credit that `free` returns, if one is due.
    fn free_slots(&mut self, link: Link, free: impl FnOnce(&mut Inbound) -> Option<u64>) {
        let Some((peer, channel)) = self.link(link) else { return };
        let inbound = &mut peer.links[channel].0;
        let pooled = inbound.pooled();
        let due = free(inbound);
        let given_back = pooled - inbound.pooled();
        self.pool.take_back(given_back);
        if due.is_some() {
            self.credit(link, |_| due);
        }
    }

    /// Makes put `id` read its tail ([`WorkRequest::Put`]) from `to`, if the put is still queued.
    fn requeue(&mut self, id: u64, to: LocalSlice) {
        for WorkRequest::Put { tail, id: own, .. } in &mut self.queue {
            if *own == id {
                *tail = tail.map(|_| to);
            }
        }
    }

    /// Queues the credit that `due` returns, if any.
    fn credit(&mut self, link: Link, due: impl FnOnce(&mut Inbound) -> Option<u64>) {
        let Some((peer, channel)) = self.link(link) else { return };
        let Some(below) = due(&mut peer.links[channel].0) else { return };
        let Some(remote) = peer.remote else { return };
        let request = WorkRequest::Put {
            endpoint: peer.endpoint,
            local: LocalSlice { key: peer.staging.key, offset: 0, bytes: 0 },
            tail: None,
            is_control: true,
            remote,
            remote_offset: 0,
            immediate: Some(Immediate::credit(link.channel, below).encode()),
            id: request_id(link, CREDIT_ID),
        };
        self.queue.push(request);
    }

    /// Gives out free pool credits, and posts the queued messages, credits and CTS. Requests that
    /// the lane does not take yet stay queued for the next call. Returns whether everything was
    /// taken.
    ///
    /// # Errors
    ///
    /// When the lane refuses a request.
    pub fn flush(&mut self, now: Instant) -> Result<bool, AdmissionError> {
        self.now = Some(now);
        self.share_credits();
        loop {
            let flushed = self.post(now);
            // A put fails if a peer's CTS named memory that does not exist. In that case, only the
            // connection to this peer ends.
            let granted = |&WorkRequest::Put { endpoint, remote, .. }: &WorkRequest| {
                let rank = self.rank(endpoint)?;
                let peer = self.peers.get(rank as usize)?.as_ref()?;
                (peer.remote != Some(remote)).then_some(rank)
            };
            let Err(error) = flushed else { return Ok(self.queue.is_empty()) };
            match self.queue.first().and_then(granted) {
                Some(rank) => self.give_up(rank, &error),
                None => return Err(error.into()),
            }
        }
    }

    /// Posts as many requests as the lane takes.
    fn post(&mut self, now: Instant) -> Result<(), TransportError> {
        let MessageLinks { lane, queue, held, .. } = self;
        let mut flushed = Ok(());
        while !queue.is_empty() && flushed.is_ok() {
            let taken = lane.post(now, queue);
            queue.drain(..taken.as_ref().map_or(0, |&taken| taken.min(queue.len())));
            flushed = taken.map(|_| ());
            // A blocked peer must not hold up other peers, and blocked data must not hold up
            // credits and CTS to the same peer.
            if let (Ok(()), Some(&WorkRequest::Put { endpoint: full, is_control: kind, .. })) =
                (&flushed, queue.first())
            {
                queue.retain(|request @ WorkRequest::Put { endpoint, is_control, .. }| {
                    let keep = *endpoint != full || *is_control != kind;
                    held.extend((!keep).then_some(*request));
                    keep
                });
            }
        }
        queue.append(held);
        flushed
    }

    /// Handles new events and connections. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// When the lane itself fails. [`MessageLinks::lost`] reports lost peers.
    pub fn poll(&mut self, now: Instant) -> Result<bool, AdmissionError> {
        self.now = Some(now);
        let connected = self.make_connections(now)?;
        let mut events = std::mem::take(&mut self.events);
        let polled = self.lane.poll(now, &mut events);
        let moved = connected || !events.is_empty();
        events.drain(..).for_each(|event| self.handle(event));
        self.events = events;
        self.zero_copy.polled = true;
        polled?;
        Ok(moved)
    }

    /// Looks for something new: for the message that was awaited last, and for events. Returns none
    /// if only a poll can tell.
    pub fn peek(&mut self) -> Option<Peek> {
        if self.is_connecting() {
            return None;
        }
        if let Some(link) = self.awaited
            && self.take_sealed(link)
        {
            return Some(Peek::Message);
        }
        self.lane.peek().map(|has_event| if has_event { Peek::Event } else { Peek::Nothing })
    }

    /// Makes progress with requested connections. Returns whether anything has changed.
    fn make_connections(&mut self, now: Instant) -> Result<bool, AdmissionError> {
        let rendezvous = self.rendezvous.as_mut().filter(|rendezvous| !rendezvous.is_idle());
        let Some(rendezvous) = rendezvous else { return Ok(false) };
        let mut outcomes = Vec::new();
        rendezvous.poll(&*self.device, now, &mut outcomes)?;
        let moved = !outcomes.is_empty();
        for outcome in outcomes {
            match outcome {
                PeerOutcome::Connected(rank, connected)
                    if !self.is_connected(rank) && self.lost(rank).is_none() =>
                {
                    let offer = self.attach(rank, connected)?;
                    if let Some(Some(peer)) = self.peers.get(rank as usize) {
                        self.lane.note(peer.endpoint, &offer)?;
                    }
                }
                PeerOutcome::Connected(..) => {}
                PeerOutcome::Failed(_, error) if error.is_own_shortage() => {
                    return Err(error.into());
                }
                PeerOutcome::Failed(rank, error) => self.lost.push((rank, error.to_string())),
            }
        }
        Ok(moved)
    }

    /// Returns the reason why a peer is lost, if the peer is lost. A lost peer sends nothing more,
    /// and nothing can be sent to it.
    #[must_use]
    pub fn lost(&self, rank: Rank) -> Option<&str> {
        self.lost.iter().find(|(peer, _)| *peer == rank).map(|(_, reason)| reason.as_str())
    }

    /// Checks that no peer is lost.
    ///
    /// # Errors
    ///
    /// Returns the first peer that was lost.
    pub fn check_all(&self) -> Result<(), AdmissionError> {
        match self.lost.first() {
            None => Ok(()),
            Some((rank, reason)) => {
                Err(AdmissionError::Lost { rank: *rank, reason: reason.clone() })
            }
        }
    }

    /// Returns whether all queued requests have left this process. The owner of the links may then
    /// stop polling without holding up a peer.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.lane.is_drained()
    }

    /// Sleeps until something may have happened, at most for `longest`.
    pub fn sleep(&mut self, longest: Duration) {
        // Pending connections do not wake the lane.
        let longest = if self.is_connecting() { longest.min(RENDEZVOUS_PAUSE) } else { longest };
        self.lane.sleep(longest);
    }

    fn is_connecting(&self) -> bool {
        self.rendezvous.as_ref().is_some_and(|rendezvous| !rendezvous.is_idle())
    }

    /// Returns whether polling these links makes system calls.
    #[must_use]
    pub fn polls_by_system_call(&self) -> bool {
        self.device.caps().polls_by_system_call
    }

    /// Returns whether a peer is connected.
    #[must_use]
    pub fn is_connected(&self, rank: Rank) -> bool {
        self.peers.get(rank as usize).is_some_and(Option::is_some)
    }

    /// Returns whether these links lead to a peer, connected or not.
    #[must_use]
    pub fn reaches(&self, rank: Rank) -> bool {
        let known = self.rendezvous.as_ref().and_then(|rendezvous| rendezvous.address(rank));
        known.is_some() || self.is_connected(rank)
    }

    /// Returns whether messages of a peer that has left may still arrive.
    #[must_use]
    pub fn may_still_receive(&self, rank: Rank) -> bool {
        let dialling =
            self.rendezvous.as_ref().is_some_and(|rendezvous| rendezvous.is_dialling(rank));
        self.lost(rank).is_none() && (dialling || self.is_connected(rank))
    }

    /// Returns the time when these links must be polled even if nothing seems to happen.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_connecting() { Some(Instant::ZERO) } else { self.lane.poll_timeout() }
    }

    /// Returns the counters of all links.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.peer_statistics().fold(self.counters, |all, (_, statistics)| Counters {
            stalls: all.stalls + statistics.stalls,
            sent: all.sent + statistics.sent,
            received: all.received + statistics.received,
            zero_copy_sent: all.zero_copy_sent + statistics.zero_copy_sent,
            zero_copy_received: all.zero_copy_received + statistics.zero_copy_received,
            ..all
        })
    }

    /// Returns the statistics of each connected peer, by rank.
    pub fn peer_statistics(&self) -> impl Iterator<Item = (Rank, &PeerStatistics)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(rank, peer)| Some((rank as Rank, &peer.as_ref()?.statistics)))
    }

    /// Returns whether every published message is done, so that closing connections loses nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.counters.in_flight_bytes == 0
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Done { id } => self.done(id),
            Event::Arrived { endpoint, immediate, bytes } => {
                if !self.arrived(endpoint, immediate, bytes) {
                    self.counters.refused += 1;
                }
            }
            Event::Note { endpoint, bytes } => self.take_note(endpoint, &bytes),
            Event::Lost { endpoint, reason } => self.lose(endpoint, reason),
        }
    }

    /// Imports the offer in a peer's note; peers send each other no other notes.
    fn take_note(&mut self, endpoint: EndpointId, offer: &[u8]) {
        let Some(rank) = self.rank(endpoint) else { return };
        if let Err(error) = self.import(rank, offer) {
            self.lost.push((rank, error.to_string()));
        }
    }

    fn done(&mut self, id: u64) {
        let link = Link { peer: (id >> 40) as u32, channel: (id >> 32) as u32 & 0xff };
        let staging = id as u32;
        if let Some(at) = CREDIT_ID.checked_sub(staging).filter(|at| *at as usize <= RECORDS) {
            if let (Some((peer, channel)), Some(at)) = (self.link(link), at.checked_sub(1)) {
                peer.links[channel].0.preposts.done(at as usize);
            }
            return;
        }
        self.zero_copy.done(link, staging);
        let freed = self.link(link).map_or(0, |(peer, channel)| {
            let freed = peer.links[channel].1.done(staging as usize);
            peer.statistics.done(freed);
            freed
        });
        self.counters.in_flight_bytes -= freed as u64;
    }

    /// Handles an immediate. Returns false if it is refused.
    fn arrived(&mut self, endpoint: EndpointId, immediate: u32, bytes: usize) -> bool {
        let buffer = match self.uses_receive_buffers {
            true => self.lane.receive_buffer(endpoint, immediate),
            false => None,
        };
        let Some(peer) = self.rank(endpoint) else { return false };
        match Immediate::decode(immediate) {
            None => false,
            Some(Immediate::Message { channel, number }) => {
                self.message_arrived(Link { peer, channel }, number, (bytes, buffer))
            }
            Some(Immediate::Placed { channel, number }) => {
                self.message_placed(Link { peer, channel }, number, bytes)
            }
            Some(Immediate::Credit { channel, below }) => {
                let now = self.now;
                let Some((peer, channel)) = self.link(Link { peer, channel }) else {
                    return false;
                };
                let outbound = &mut peer.links[channel].1;
                let verdict = outbound.credit(below);
                peer.statistics.granted(outbound.waited_since(), now);
                self.counters.late_credits += u64::from(verdict == CreditOutcome::Late);
                verdict != CreditOutcome::Forged
            }
        }
    }

    /// Handles a message of so many bytes (header, payload and perhaps a seal). The message is in
    /// the receive buffer if there is one, else in its slot. Returns false if the message is
    /// refused.
    fn message_arrived(
        &mut self,
        link: Link,
        number: u32,
        (bytes, buffer): (usize, Option<Region>),
    ) -> bool {
        let (slot_bytes, now) = (self.config.slot_bytes, self.now);
        let seals = self.seals;
        let Some((peer, channel)) = self.link(link) else { return false };
        if peer.links[channel].0.take_late(number) {
            self.free_slots(link, Inbound::settle);
            return true;
        }
        let Some(slot) = peer.links[channel].0.expect(number) else { return false };
        let Header { bytes: payload_bytes, below, .. } =
            peer.inbound.header(channel, slot, buffer.as_ref());
        if payload_bytes > slot_bytes {
            return false;
        }
        let bytes = buffer.as_ref().map_or(bytes, Region::bytes);
        let may_be_sealed = seals && payload_bytes <= sealed_bytes_max(slot_bytes);
        match bytes.checked_sub(HEADER_BYTES + payload_bytes) {
            Some(0) => {}
            Some(SEAL_BYTES) if may_be_sealed => {}
            _ => return false,
        }
        let (inbound, outbound) = &mut peer.links[channel];
        if !outbound.piggybacked_credit(below) {
            return false;
        }
        inbound.arrive(slot, None);
        inbound.keep_buffer(slot, buffer);
        peer.statistics.received += 1;
        peer.statistics.granted(outbound.waited_since(), now);
        true
    }

    /// Handles a message that was placed where its CTS says. Returns false if it is refused.
    fn message_placed(&mut self, link: Link, number: u32, bytes: usize) -> bool {
        let Some((peer, channel)) = self.link(link) else { return false };
        let inbound = &mut peer.links[channel].0;
        let Some(slot) = inbound.expect(number) else { return false };
        let Some(placement) =
            inbound.placement(number).filter(|placement| placement.bytes == bytes)
        else {
            return false;
        };
        inbound.arrive(slot, Some(placement));
        peer.statistics.received += 1;
        true
    }

    fn lose(&mut self, endpoint: EndpointId, reason: String) {
        let Some(rank) = self.rank(endpoint) else { return };
        tracing::debug!(rank, reason, "a peer is lost");
        self.zero_copy.forget(rank);
        if let Some(Some(peer)) = self.peers.get_mut(rank as usize) {
            let (bytes, credits) = peer.void();
            self.counters.in_flight_bytes -= bytes as u64;
            self.pool.take_back(credits);
        }
        self.lost.push((rank, reason));
    }
}

/// Returns the length of the longest payload that is sealed. With its seal, such a message takes no
/// more room than the longest message without a seal.
fn sealed_bytes_max(slot_bytes: usize) -> usize {
    SEALED_BYTES_MAX.min(slot_bytes.saturating_sub(SEAL_BYTES))
}

/// Returns the id of a request: its link, and the staging slot that it reads (or a number that
/// stands for something else, see [`CREDIT_ID`]).
fn request_id(link: Link, staging: u32) -> u64 {
    u64::from(link.peer) << 40 | u64::from(link.channel) << 32 | u64::from(staging)
}

/// Returns the id of the request that carries a record.
fn record_id(link: Link, at: usize) -> u64 {
    request_id(link, CREDIT_ID - 1 - at as u32)
}

impl Drop for MessageLinks {
    /// Closes all connections before it frees any slots. No peer may write to freed slots; and to
    /// free the memory of an unfinished put to a lost peer, a lane may have to end all connections.
    fn drop(&mut self) {
        self.close();
        // All connections shut down together, so that a peer that does not read delays no other.
        self.lane.poll_shutdown(None);
        let peers = std::mem::take(&mut self.peers);
        peers.iter().flatten().for_each(|peer| self.lane.detach(peer.endpoint));
        let slots = peers.iter().flatten().flat_map(|peer| [&peer.inbound, &peer.staging]);
        slots.chain(&self.given_up).for_each(|slots| self.give_back(slots));
    }
}
