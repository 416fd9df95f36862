//! The sending side.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ccl_core::queue_pairs::{Policy, Striping};
use ccl_core::time::Instant;
use ccl_core::transport::{Connected, Event, LocalSlice, RemoteMr, TransportError, WorkRequest};
use ccl_memory::Region;

use super::connection::{Connection, ConnectionSettings, OwnedMemory};
use super::tags::Tags;
use super::wire::{
    GROUP_MAX, GROUPS, HEADER_BYTES, Header, Immediate, Note, RECORD_BYTES, Receive, Record,
    SLOTS_MAX, THROUGH_SLOTS,
};
use super::{Communicator, Help, Settings, Wait};
use crate::context::Context;
use crate::error::NetError;
use crate::memory::Mr;
use crate::table::RequestId;

/// Largest number of requests of one communicator: NCCL's limit times [`GROUP_MAX`].
const REQUESTS: usize = 256;
/// Largest number of the peer's registrations that CTS may name at a time.
const MEMORIES_MAX: usize = 1 << 16;
/// Pause between two polls of [`Sender::release`].
const PAUSE: Duration = Duration::from_micros(20);
/// First identifier of puts into the peer's slots. A lower identifier is the index of the request
/// whose message is put directly into the peer's buffer.
const CHUNK_ID: u64 = REQUESTS as u64;

/// A buffer of the peer that a CTS has announced.
#[derive(Clone, Copy, Debug)]
struct Cts {
    receive: Receive,
    group: u32,
    index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Vacant,
    /// The message is not completely posted.
    Waiting,
    /// A put reads the message from the caller's memory.
    Sending,
    /// Number of unfinished puts; the peer is told when all are done.
    Parts(usize),
    /// The caller's memory is no longer needed.
    Done,
}

impl Stage {
    /// Returns whether puts read the caller's memory.
    fn is_reading(self) -> bool {
        matches!(self, Stage::Sending | Stage::Parts(_))
    }
}

#[derive(Debug)]
struct Request {
    id: RequestId,
    stage: Stage,
    mr: Option<Arc<Mr>>,
    offset: usize,
    bytes: usize,
    tag: i32,
    ordinal: u32,
    cts: Option<Cts>,
    /// Bytes sent so far through slots; `None` until the first chunk is posted. For a message that
    /// is put directly in several parts: `None` until all parts are done, then the message's
    /// length.
    sent: Option<usize>,
    wait: Wait,
}

/// The peer's slots.
#[derive(Clone, Debug)]
struct Slots {
    mr: RemoteMr,
    /// Mapping of the slots, if this process can write to them directly.
    mapped: Option<Region>,
    count: usize,
    bytes: usize,
    stride: usize,
    /// Set of slots that may be filled.
    free: u32,
    /// Slot at which the next search for a free slot begins. It advances only if the receiver's
    /// device redirects (`Caps::redirects`). Such a receiver expects the slots to be filled in
    /// turn: it expects a certain message in each slot, and redirects that message to its buffer.
    turn: u32,
}

impl Slots {
    /// Returns the first usable slot from `turn` on, wrapping around.
    fn next(&self, usable: u32) -> usize {
        let behind = usable >> self.turn << self.turn;
        (if behind == 0 { usable } else { behind }).trailing_zeros() as usize
    }
}

/// A sending communicator.
#[derive(Debug)]
pub(crate) struct Sender {
    connection: Connection,
    settings: Settings,
    /// Context of the communicator.
    context: Arc<Context>,
    /// Queue-pair policy, if there is one.
    policy: Option<Arc<Policy>>,
    /// Striping that the lane was last told to use.
    striping: Option<Striping>,
    /// Ring that the peer writes its CTS to.
    ring: OwnedMemory,
    /// Memory that chunks are sent from, slot by slot.
    staging: OwnedMemory,
    /// Set of slots, as bits, for which the put of a chunk is not done yet. Unless the slots are
    /// mapped, the put reads the same slot of `staging`.
    busy: u32,
    /// Index of the request that is being sent zero-copy to each slot; none for a slot without such
    /// a send.
    zero_copy: [Option<u8>; SLOTS_MAX],
    slots: Option<Slots>,
    /// True once the peer has said that it is ready.
    is_peer_ready: bool,
    /// Number of chunks that were sent so far, modulo 2^32.
    chunks: u32,
    /// Memory that the peer has shared; each key is the number that the peer gave the memory.
    memory: BTreeMap<u32, RemoteMr>,
    tags: Tags,
    pending_cts: Vec<Cts>,
    requests: Vec<Request>,
    vacant: Vec<u8>,
    /// Requests with something left to post, in order.
    waiting: VecDeque<u8>,
    help: Help,
    /// True if a request came while a helper thread polled, and has been left to that thread.
    has_new: bool,
}

impl Communicator for Sender {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn has_work(&self) -> bool {
        self.vacant.len() < REQUESTS || !self.connection.is_drained()
    }

    fn pump(&mut self, now: Instant) -> Result<(), NetError> {
        self.connection.flush(now)?;
        let events = self.connection.poll(now)?;
        for event in &events {
            self.take(event);
        }
        let any = !events.is_empty() | std::mem::take(&mut self.has_new);
        self.connection.give_back(events);
        if any {
            self.advance();
            self.connection.flush(now)?;
        }
        Ok(())
    }

    fn help_state(&mut self) -> &mut Help {
        &mut self.help
    }
}

impl Sender {
    /// Creates a sender over a connection. It can send once [`Sender::is_ready`] is true.
    pub(crate) fn new(
        connection_settings: &ConnectionSettings,
        connected: Connected,
        settings: Settings,
        (context, policy): (Arc<Context>, Option<Arc<Policy>>),
        now: Instant,
    ) -> Result<Sender, NetError> {
        let mut connection = Connection::new(connection_settings, connected, now)?;
        let settings = settings.on(&connection);
        let ring = OwnedMemory::new(&connection_settings.device, GROUPS * RECORD_BYTES)?;
        // Mapped slots are written directly, without staging.
        let staged = if connection_settings.device.caps().mapped { 1 } else { settings.slots() };
        let staging = OwnedMemory::new(&connection_settings.device, staged * settings.stride())?;
        let key = connection.share(ring.key)?;
        connection.note(&Note::Ring(key))?;
        let request = |slot: usize| Request {
            id: RequestId { slot: slot as u8, turn: 0 },
            stage: Stage::Vacant,
            mr: None,
            offset: 0,
            bytes: 0,
            tag: 0,
            ordinal: 0,
            cts: None,
            sent: None,
            wait: Wait::new(now),
        };
        Ok(Sender {
            connection,
            settings,
            context,
            policy,
            striping: None,
            ring,
            staging,
            busy: 0,
            zero_copy: [None; SLOTS_MAX],
            slots: None,
            is_peer_ready: false,
            chunks: 0,
            memory: BTreeMap::new(),
            tags: Tags::default(),
            pending_cts: Vec::with_capacity(GROUPS * GROUP_MAX),
            requests: (0..REQUESTS).map(request).collect(),
            vacant: (0..REQUESTS).rev().map(|slot| slot as u8).collect(),
            waiting: VecDeque::with_capacity(REQUESTS),
            help: Help::new(),
            has_new: false,
        })
    }

    /// Returns whether messages can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        self.slots.is_some() && self.is_peer_ready
    }

    /// Returns whether puts still read the caller's memory.
    pub(crate) fn is_reading(&self) -> bool {
        self.connection.lost.is_none()
            && self.requests.iter().any(|request| request.stage.is_reading())
    }

    /// Returns whether all messages have reached the peer; true also if the peer is gone.
    pub(crate) fn is_drained(&self) -> bool {
        self.connection.lost.is_some()
            || (!self.is_reading()
                && self.waiting.is_empty()
                && self.busy == 0
                && self.connection.is_acknowledged())
    }

    /// Waits until puts no longer read `mr`, or any memory of the caller if `mr` is none. At
    /// `until`, or if polling fails, cuts the connection, which ends all reads.
    pub(crate) fn release(&mut self, mr: Option<&Arc<Mr>>, until: Instant) {
        let reads = |sender: &Sender| {
            let meant = |request: &Request| match (mr, &request.mr) {
                (Some(mr), Some(own)) => Arc::ptr_eq(mr, own),
                (None, _) => true,
                (Some(_), None) => false,
            };
            let mut requests = sender.requests.iter();
            sender.connection.lost.is_none()
                && requests.any(|request| request.stage.is_reading() && meant(request))
        };
        while reads(self) && ccl_clock::now() < until && self.pump(ccl_clock::now()).is_ok() {
            std::thread::sleep(PAUSE);
        }
        if reads(self) {
            self.connection.abort("memory was deregistered while it was being sent");
        }
    }

    /// Posts the messages that were left to a helper.
    pub(crate) fn post_new(&mut self) {
        if std::mem::take(&mut self.has_new) {
            self.advance();
        }
    }

    /// Closes the communicator for the caller. Messages that are not completely posted are dropped,
    /// and the caller's memory is not read after this call.
    pub(crate) fn close(&mut self, until: Instant) {
        self.post_new();
        self.release(None, until);
        let requests = &self.requests;
        // A message whose parts have all arrived is still announced to the peer.
        self.waiting.retain(|slot| {
            let request = &requests[usize::from(*slot)];
            request.bytes > 0 && request.sent == Some(request.bytes)
        });
    }

    /// Sends a message. Returns none if there are too many requests already.
    pub(crate) fn isend(
        &mut self,
        now: Instant,
        mr: Option<Arc<Mr>>,
        offset: usize,
        bytes: usize,
        tag: i32,
    ) -> Result<Option<RequestId>, NetError> {
        // If the peer is lost, the request fails, not this call: NCCL may still post a send to a
        // peer that has closed in good order after its last receive.
        let Some(slot) = self.vacant.pop() else { return Ok(None) };
        let ordinal = self.tags.next(tag);
        let found = self
            .pending_cts
            .iter()
            .position(|cts| (cts.receive.tag, cts.receive.ordinal) == (tag, ordinal));
        let request = &mut self.requests[usize::from(slot)];
        let id = request.id;
        *request = Request {
            id,
            stage: Stage::Waiting,
            mr,
            offset,
            bytes,
            tag,
            ordinal,
            cts: found.map(|at| self.pending_cts.swap_remove(at)),
            sent: None,
            wait: Wait::new(now),
        };
        self.waiting.push_back(slot);
        self.adapt(bytes);
        self.help.ask(&self.settings, now, bytes);
        if self.help.is_given(now) {
            self.has_new = true;
            return Ok(Some(id));
        }
        self.advance();
        self.connection.flush(now)?;
        Ok(Some(id))
    }

    /// Sets the lane's striping to the policy's choice for a message of `bytes` bytes.
    fn adapt(&mut self, bytes: usize) {
        let Some(policy) = &self.policy else { return };
        let striping = self.context.striping(policy, bytes);
        if self.striping != Some(striping) {
            self.connection.set_striping(&striping);
            self.striping = Some(striping);
        }
    }

    /// Tests a request. Returns its bytes, once it is done.
    pub(crate) fn test(&mut self, now: Instant, id: RequestId) -> Result<Option<usize>, NetError> {
        self.known(id)?;
        let is_done = self.requests[usize::from(id.slot)].stage == Stage::Done;
        if !is_done && !self.help.is_given(now) {
            self.pump(now)?;
        }
        let Sender { requests, connection, settings, .. } = self;
        let request = &mut requests[usize::from(id.slot)];
        if request.stage == Stage::Done {
            request.stage = Stage::Vacant;
            request.mr = None;
            request.id = id.next();
            self.vacant.push(id.slot);
            return Ok(Some(request.bytes));
        }
        let Request { bytes, tag, stage, cts, .. } = *request;
        if stage.is_reading() {
            // Only the lane knows the progress of a put, so any event of the connection counts.
            request.wait.moves(connection.moved);
        }
        request.wait.judge(connection, settings, now, || {
            let why = match (stage, cts) {
                (Stage::Waiting, None) => " (the peer has posted no receive)",
                (Stage::Waiting, _) => " (the peer has posted a receive)",
                _ => " (not acknowledged yet)",
            };
            format!("a send of {bytes} bytes with tag {tag}{why} to")
        })?;
        Ok(None)
    }

    fn known(&self, id: RequestId) -> Result<(), NetError> {
        let request = &self.requests[usize::from(id.slot)];
        if request.id == id && request.stage != Stage::Vacant {
            return Ok(());
        }
        Err(NetError::argument("the request is already done, or isend never returned it"))
    }

    fn take(&mut self, event: &Event) {
        let understood = match event {
            Event::Done { id } => {
                self.done(*id);
                Ok(())
            }
            Event::Arrived { immediate, .. } => match Immediate::decode(*immediate) {
                Some(Immediate::Cts(group)) => {
                    self.cts_came(group);
                    Ok(())
                }
                Some(Immediate::Credits { first, count, .. }) => {
                    self.freed(((1 << count) - 1) << first)
                }
                _ => Err(()),
            },
            Event::Note { bytes, .. } => self.noted(bytes),
            Event::Lost { reason, .. } => {
                self.connection.lose(reason.clone());
                Ok(())
            }
        };
        if understood.is_err() {
            self.connection.abort("the peer sent a message that a receiver must not send");
        }
    }

    /// Takes the completion of a put.
    fn done(&mut self, id: u64) {
        if let Some(slot) = id.checked_sub(CHUNK_ID) {
            let slot = slot as usize % SLOTS_MAX;
            self.busy &= !(1 << slot);
            if let Some(request) = self.zero_copy[slot].take() {
                self.requests[usize::from(request)].stage = Stage::Done;
            }
            return;
        }
        let request = &mut self.requests[id as usize];
        match &mut request.stage {
            Stage::Sending => request.stage = Stage::Done,
            Stage::Parts(left) if *left > 1 => *left -= 1,
            Stage::Parts(_) => {
                // All parts have arrived: a chunk without bytes announces the message to the peer.
                request.stage = Stage::Waiting;
                request.sent = Some(request.bytes);
                // No put reads the message's memory again.
                request.mr = None;
                self.waiting.push_back(id as u8);
            }
            Stage::Vacant | Stage::Waiting | Stage::Done => {}
        }
    }

    /// Takes the CTS of a group.
    fn cts_came(&mut self, group: u32) {
        let at = group as usize % GROUPS * RECORD_BYTES;
        // The peer may be overwriting the record, but only after all messages of `group` have
        // arrived: nobody then needs the record.
        let read = self.ring.region.read_words::<RECORD_BYTES>(at);
        let record = read.ok().and_then(|record| Record::decode(&record));
        let Some(record) = record.filter(|record| record.group == group) else { return };
        for (index, receive) in record.receives[..record.count].iter().enumerate() {
            let cts = Cts { receive: *receive, group, index };
            if !self.tags.is_past(receive.tag, receive.ordinal) {
                if self.pending_cts.len() < GROUPS * GROUP_MAX {
                    self.pending_cts.push(cts);
                }
                continue;
            }
            // The message still waits, or was sent early through a slot and needs no CTS.
            let name = (receive.tag, receive.ordinal);
            let waiting = self.waiting.iter().map(|slot| usize::from(*slot));
            let waiting = { waiting }.find(|slot| {
                let request = &self.requests[*slot];
                (request.tag, request.ordinal) == name && request.sent.is_none()
            });
            if let Some(slot) = waiting {
                self.requests[slot].cts = Some(cts);
                self.requests[slot].wait.moves(self.connection.pumped);
            }
        }
    }

    fn freed(&mut self, freed: u32) -> Result<(), ()> {
        let slots = self.slots.as_mut().ok_or(())?;
        if freed >> slots.count != 0 || freed & slots.free != 0 {
            return Err(());
        }
        slots.free |= freed;
        Ok(())
    }

    fn noted(&mut self, bytes: &[u8]) -> Result<(), ()> {
        match Note::decode(bytes).ok_or(())? {
            Note::Slots(count, slot_bytes, key) => {
                let count = count as usize;
                let bytes = usize::try_from(slot_bytes).map_err(|_| ())?;
                let own = self.settings;
                // The staging memory has the same layout as the slots.
                if !(2..=own.slots()).contains(&count) || bytes != own.slot_bytes {
                    self.connection.abort(&format!(
                        "it has {count} slots of {bytes} bytes, but this side has {} slots of {} \
                         bytes; set FERROCCL_NET_SLOTS and FERROCCL_NET_SLOT_BYTES to the same \
                         values on all hosts",
                        own.slots(),
                        own.slot_bytes
                    ));
                    return Ok(());
                }
                let mr = self.connection.import(&key).map_err(|_| ())?;
                let mapped = self.connection.map(&key).map_err(|_| ())?;
                let (stride, free) = (own.stride(), (1 << count) - 1);
                self.slots = Some(Slots { mr, mapped, count, bytes, stride, free, turn: 0 });
                self.connection.note(&Note::Ready).map_err(|_| ())?;
            }
            Note::Memory(number, key) => {
                if self.memory.len() >= MEMORIES_MAX {
                    return Err(());
                }
                let mr = self.connection.import(&key).map_err(|_| ())?;
                self.memory.insert(number, mr);
            }
            Note::Withdrawn(number) => {
                if let Some(mr) = self.memory.remove(&number) {
                    self.connection.forget(mr);
                }
            }
            Note::Peer(name) => self.connection.peer = name,
            Note::Ready => self.is_peer_ready = true,
            Note::Ring(_) => return Err(()),
        }
        Ok(())
    }

    /// Posts as much of the waiting messages as slots and CTS allow.
    fn advance(&mut self) {
        if self.connection.lost.is_some() {
            // The waiting messages are never sent, and their endpoint may be gone.
            return;
        }
        let mut at = 0;
        while let Some(slot) = self.waiting.get(at).copied() {
            match self.send(slot) {
                Ok(true) => {
                    self.waiting.remove(at);
                }
                Ok(false) => at += 1,
                Err(error) => self.connection.abort(&error.text),
            }
            if self.connection.lost.is_some() {
                return;
            }
        }
    }

    /// Posts as much of a message as possible. Returns whether all of it is posted.
    fn send(&mut self, slot: u8) -> Result<bool, NetError> {
        let Some(slots) = &self.slots else { return Ok(false) };
        let request = &mut self.requests[usize::from(slot)];
        if let Some(cts) = request.cts {
            request.bytes = request.bytes.min(cts.receive.bytes as usize);
        }
        let usable = slots.free & !self.busy;
        let is_short = request.bytes <= self.settings.short_bytes;
        // Some slots are reserved for messages that have a CTS. A receiver whose device redirects
        // sends fewer CTS: as long as messages arrive in the slots that it expects, it sends none
        // for a group whose buffers all fit into slots. So fewer slots are reserved.
        let part = if self.connection.redirects() { 4 } else { 2 };
        let reserved = slots.count.div_ceil(part);
        let may_be_early = request.bytes <= slots.bytes
            && usable.count_ones() as usize > reserved
            && (is_short || request.cts.is_none());
        match request.cts {
            _ if request.sent.is_some() || may_be_early => self.send_chunks(slot),
            Some(cts) if cts.receive.memory != THROUGH_SLOTS => self.send_whole(slot, cts),
            Some(_) => self.send_chunks(slot),
            None => Ok(false),
        }
    }

    /// Puts a message directly into the peer's buffer. Returns false if the peer's note about the
    /// buffer's memory has not arrived yet.
    fn send_whole(&mut self, slot: u8, cts: Cts) -> Result<bool, NetError> {
        let Some(remote) = self.memory.get(&cts.receive.memory).copied() else { return Ok(false) };
        let request = &mut self.requests[usize::from(slot)];
        let (key, offset) = match &request.mr {
            Some(mr) => {
                // Fails if the memory is withdrawn.
                mr.with(|_| Ok(()))?;
                (mr.key, request.offset)
            }
            None => (self.staging.key, 0),
        };
        let (bytes, most) = (request.bytes, self.connection.device.caps().message_bytes_max);
        let endpoint = self.connection.endpoint;
        let put = |local, at: usize, immediate| WorkRequest::Put {
            endpoint,
            local,
            tail: None,
            is_control: false,
            remote,
            remote_offset: cts.receive.offset as usize + at,
            immediate,
            id: slot.into(),
        };
        if bytes > most {
            // The receiver knows nothing of parts: it is told when all have arrived.
            let count = bytes.div_ceil(most);
            request.stage = Stage::Parts(count);
            // Equal parts leave no short part at the end: a lane may report a short put as done
            // before the put has arrived.
            let part_bytes = bytes.div_ceil(count);
            for at in (0..bytes).step_by(part_bytes) {
                let bytes = part_bytes.min(bytes - at);
                let local = LocalSlice { key, offset: offset + at, bytes };
                let part = put(local, at, None);
                self.connection.post(part);
            }
            return Ok(true);
        }
        request.stage = Stage::Sending;
        let immediate = Immediate::Direct(cts.group, cts.index).encode();
        let whole = put(LocalSlice { key, offset, bytes }, 0, Some(immediate));
        self.connection.post(whole);
        Ok(true)
    }

    /// Puts a message into free slots. Returns whether all of it is posted.
    fn send_chunks(&mut self, slot: u8) -> Result<bool, NetError> {
        loop {
            let Some(slots) = &mut self.slots else { return Ok(false) };
            let usable = slots.free & !self.busy;
            if usable == 0 {
                return Ok(false);
            }
            let to = slots.next(usable);
            let request = &mut self.requests[usize::from(slot)];
            let at = request.sent.unwrap_or(0);
            let bytes = (request.bytes - at).min(slots.bytes);
            let (offset, remote) = (to * slots.stride, slots.mr);
            let header = Header {
                tag: request.tag,
                ordinal: request.ordinal,
                at: at as u64,
                bytes: bytes as u64,
                total: request.bytes as u64,
            };
            let region = slots.mapped.as_ref().unwrap_or(&self.staging.region);
            region.write(offset, &header.encode()).map_err(TransportError::from)?;
            // Long messages in one chunk are not copied.
            let is_zero_copy = bytes == request.bytes && bytes > self.settings.short_bytes;
            let mut tail = None;
            if let Some(mr) = &request.mr {
                let from = request.offset + at;
                if is_zero_copy {
                    mr.with(|_| Ok(()))?;
                    tail = Some(LocalSlice { key: mr.key, offset: from, bytes });
                } else {
                    mr.with(|memory| region.copy_from(offset + HEADER_BYTES, memory, from, bytes))?;
                }
            }
            let staged = if tail.is_some() { 0 } else { bytes };
            // Bytes written through the mapping are in the slot: the put only announces them.
            let (here, put_bytes) = match slots.mapped {
                Some(_) => (0, 0),
                None => (offset, HEADER_BYTES + staged),
            };
            slots.free &= !(1 << to);
            self.chunks = self.chunks.wrapping_add(1);
            if self.connection.redirects() {
                slots.turn = (to as u32 + 1) % slots.count as u32;
            }
            self.busy |= 1 << to;
            request.sent = Some(at + bytes);
            request.wait.moves(self.connection.pumped);
            let key = self.staging.key;
            self.connection.post(WorkRequest::Put {
                endpoint: self.connection.endpoint,
                local: LocalSlice { key, offset: here, bytes: put_bytes },
                tail,
                is_control: false,
                remote,
                remote_offset: offset,
                immediate: Some(Immediate::Chunk { slot: to, turn: self.chunks }.encode()),
                id: CHUNK_ID + to as u64,
            });
            if tail.is_some() {
                request.stage = Stage::Sending;
                self.zero_copy[to] = Some(slot);
                return Ok(true);
            }
            if at + bytes == request.bytes {
                request.stage = Stage::Done;
                return Ok(true);
            }
        }
    }
}
