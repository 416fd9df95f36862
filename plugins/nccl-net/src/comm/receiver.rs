//! The receiving side.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Connected, Event, LocalSlice, RemoteMr, WorkRequest};

use super::buffer::Buffer;
use super::connection::{Connection, ConnectionSettings, OwnedMemory};
use super::expected::Expected;
use super::tags::Tags;
use super::wire::{
    GROUP_MAX, GROUPS, HEADER_BYTES, Header, Immediate, Note, RECORD_BYTES, Receive, Record,
    THROUGH_SLOTS,
};
use super::{Communicator, Help, Settings, Wait};
use crate::error::NetError;
use crate::memory::Mr;
use crate::table::{Id, RequestId};

/// Identifier of all puts except those of CTS records. The put of a record is identified by the
/// record's index in the peer's ring of records.
const OTHER_ID: u64 = GROUPS as u64;

/// Least number of registrations that the peer knows before [`Receiver::forget_gone`] withdraws
/// deregistered ones.
const KNOWN: usize = 64;
/// Time without events after which withheld CTS are sent. The CTS of a group of short buffers is
/// withheld, because short messages arrive in slots without it. But a message can be longer than
/// the receive buffer posted for it, and the sender of a long message waits for the CTS.
const CTS_AFTER: Duration = Duration::from_millis(1);
/// Time after which withheld CTS are sent even while messages arrive.
const CTS_AT_LAST: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
struct Entry {
    buffer: Buffer,
    ordinal: u32,
    /// Bytes received so far.
    got: usize,
    is_done: bool,
    /// True if [`Receiver::expected`] has a guess of the slot in which the message will arrive.
    is_expected: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Vacant,
    /// Number of buffers that are waited for.
    Waiting(usize),
}

#[derive(Debug)]
struct Group {
    id: RequestId,
    stage: Stage,
    number: u32,
    count: usize,
    entries: [Entry; GROUP_MAX],
    wait: Wait,
}

/// Memory that the peer knows by a number.
#[derive(Clone, Debug)]
struct Known {
    mr: Id,
    number: u32,
    memory: Weak<Mr>,
}

/// Bytes of the message for each buffer of a group.
pub(crate) type Sizes = [usize; GROUP_MAX];

/// A receiving communicator.
#[derive(Debug)]
pub(crate) struct Receiver {
    connection: Connection,
    settings: Settings,
    /// Slots, filled by the peer.
    slots: OwnedMemory,
    /// Memory from which CTS records are sent: one record for each entry of the peer's ring.
    records: OwnedMemory,
    /// Peer's ring of CTS records, once this side knows its key.
    ring: Option<RemoteMr>,
    /// True once the peer has said that it is ready.
    is_peer_ready: bool,
    /// Groups; the index of a group is its number modulo [`GROUPS`].
    groups: Vec<Group>,
    /// Group of the buffer that finished last, and the time when it finished. This time counts as
    /// progress of this group and of later groups.
    finished: (u32, Instant),
    next: u32,
    /// Sets of groups, as bits: `waiting` lack messages, `withheld` have a CTS that has not been
    /// sent, and `telling` have a record in flight.
    waiting: u64,
    withheld: u64,
    telling: u64,
    /// Time since which some CTS has been withheld and no event has occurred.
    withheld_since: Instant,
    /// Time since which some CTS has been withheld, regardless of events.
    first_withheld: Instant,
    /// Sets of slots, as bits: `held` have chunks without a known buffer, `freed` are free but not
    /// yet announced to the peer.
    held: u32,
    freed: u32,
    /// Number of times that the peer was told of free slots, modulo 2^32.
    freed_turn: u32,
    /// Guesses of the slots in which the messages for buffers without a sent CTS will arrive.
    expected: Expected,
    /// Set of groups, as bits, that have a withheld CTS and a buffer for which no slot is guessed.
    unexpected: u64,
    /// Slot in which a message has arrived contrary to the guesses, if any; new guesses begin after
    /// this slot.
    astray: Option<usize>,
    /// True after a message with a CTS has arrived in a slot that was guessed for another message.
    /// No slot is guessed then: while messages with a CTS take up slots, too, the slots of the
    /// others cannot be predicted. False again when all groups whose CTS was sent have all their
    /// messages.
    is_mixed: bool,
    /// True if messages were placed directly since the lane's last `flush_acknowledgements`.
    was_placed: bool,
    /// True after [`Receiver::close`]: messages without a CTS are discarded.
    is_closed: bool,
    tags: Tags,
    known: Vec<Known>,
    numbers: u32,
    help: Help,
}

impl Communicator for Receiver {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn has_work(&self) -> bool {
        self.waiting != 0 || !self.connection.is_drained()
    }

    fn pump(&mut self, now: Instant) -> Result<(), NetError> {
        self.connection.flush(now)?;
        let events = self.connection.poll(now)?;
        let mut result = Ok(());
        for event in &events {
            if result.is_ok() {
                result = self.take(event);
            }
        }
        if !events.is_empty() {
            self.withheld_since = now;
            result = result.and_then(|()| self.settle());
        } else if self.has_freed(4) {
            // The connection is idle.
            self.send_credits();
        }
        self.connection.give_back(events);
        let is_late = now.since(self.withheld_since) >= CTS_AFTER
            || now.since(self.first_withheld) >= CTS_AT_LAST;
        if self.withheld != 0 && is_late {
            result = result.and_then(|()| self.send_withheld_cts());
        }
        if let Err(error) = result {
            self.connection.abort(&error.text);
        }
        self.connection.flush(now)?;
        Ok(())
    }

    fn help_state(&mut self) -> &mut Help {
        &mut self.help
    }
}

impl Receiver {
    /// Creates a receiver over a connection. It can receive once [`Receiver::is_ready`] is true.
    pub(crate) fn new(
        connection_settings: &ConnectionSettings,
        connected: Connected,
        settings: Settings,
        now: Instant,
    ) -> Result<Receiver, NetError> {
        let mut connection = Connection::new(connection_settings, connected, now)?;
        let settings = settings.on(&connection);
        let slots =
            OwnedMemory::new(&connection_settings.device, settings.slots() * settings.stride())?;
        let records = OwnedMemory::new(&connection_settings.device, GROUPS * RECORD_BYTES)?;
        let key = connection.share(slots.key)?;
        connection.note(&Note::Slots(settings.slots() as u32, settings.slot_bytes as u64, key))?;
        let group = |at: usize| Group {
            id: RequestId { slot: at as u8, turn: 0 },
            stage: Stage::Vacant,
            number: 0,
            count: 0,
            entries: Default::default(),
            wait: Wait::new(now),
        };
        Ok(Receiver {
            expected: Expected::new(&connection, slots.key, settings),
            unexpected: 0,
            astray: None,
            is_mixed: false,
            connection,
            settings,
            slots,
            records,
            ring: None,
            is_peer_ready: false,
            groups: (0..GROUPS).map(group).collect(),
            finished: (0, now),
            next: 0,
            waiting: 0,
            withheld: 0,
            telling: 0,
            withheld_since: now,
            first_withheld: now,
            held: 0,
            freed: 0,
            freed_turn: 0,
            was_placed: false,
            is_closed: false,
            tags: Tags::default(),
            known: Vec::new(),
            numbers: 0,
            help: Help::new(),
        })
    }

    /// Returns whether messages can be received.
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.is_some() && self.is_peer_ready
    }

    /// Ends all receives whose CTS has not been sent. Messages without a receive are discarded from
    /// now on, so that sends which need no CTS succeed: the sender may close later than this side.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        let withheld = std::mem::take(&mut self.withheld);
        self.waiting &= !withheld;
        self.unexpected = 0;
        for (at, group) in self.groups.iter_mut().enumerate() {
            if withheld >> at & 1 == 1 {
                group.stage = Stage::Vacant;
            }
            group.entries.iter_mut().for_each(|entry| entry.is_expected = false);
        }
        // If the connection fails here, no further message arrives that would have to be discarded.
        let cleared = self.expected.clear(&mut self.connection, None).and_then(|_| self.settle());
        if let Err(error) = cleared {
            self.connection.abort(&error.text);
        }
    }

    /// Receives into 1 to [`GROUP_MAX`] buffers. Returns none while the next entry of the peer's
    /// ring is in use: by a request that `test` has not reported as done, or by a record that is
    /// still being sent.
    pub(crate) fn irecv(
        &mut self,
        now: Instant,
        buffers: &[Buffer],
    ) -> Result<Option<RequestId>, NetError> {
        let lost = self.connection.check();
        let at = self.next as usize % GROUPS;
        let bit = 1 << at;
        if lost.is_err() {
            self.telling = 0;
        } else if self.telling & bit != 0 {
            self.pump(now)?;
        }
        if self.groups[at].stage != Stage::Vacant || self.telling & bit != 0 {
            return Ok(None);
        }
        let group = &mut self.groups[at];
        group.number = self.next;
        group.count = buffers.len();
        group.stage = Stage::Waiting(buffers.len());
        group.wait = Wait::new(now);
        for (entry, buffer) in group.entries.iter_mut().zip(buffers) {
            let ordinal = self.tags.next(buffer.tag);
            *entry = Entry { buffer: buffer.clone(), ordinal, ..Entry::default() };
        }
        let id = group.id;
        self.next = self.next.wrapping_add(1);
        self.waiting |= bit;
        if self.withheld == 0 {
            (self.withheld_since, self.first_withheld) = (now, now);
        }
        self.withheld |= bit;
        self.unexpected |= bit;
        self.take_held()?;
        // Messages that arrived before the peer was lost may complete the receive.
        if let (Err(error), Stage::Waiting(1..)) = (lost, self.groups[at].stage) {
            self.groups[at].stage = Stage::Vacant;
            self.waiting &= !bit;
            self.withheld &= !bit;
            return Err(error);
        }
        // Short messages need no CTS; if held messages block them, `settle` sends the CTS.
        let Settings { slot_bytes, short_bytes, .. } = self.settings;
        let short_bytes = if self.expected.guesses() { slot_bytes } else { short_bytes };
        if self.withheld & bit != 0 && buffers.iter().any(|buffer| buffer.bytes > short_bytes) {
            self.send_cts(at)?;
        }
        self.settle()?;
        self.connection.flush(now)?;
        Ok(Some(id))
    }

    /// Tests a request. Returns the number of its buffers and the bytes for each, once it is done.
    pub(crate) fn test(
        &mut self,
        now: Instant,
        id: RequestId,
    ) -> Result<Option<(usize, Sizes)>, NetError> {
        let at = usize::from(id.slot);
        let known =
            self.groups.get(at).is_some_and(|group| group.id == id && group.stage != Stage::Vacant);
        if !known {
            let text = "the request is already done, or irecv never returned it";
            return Err(NetError::argument(text));
        }
        if self.groups[at].stage != Stage::Waiting(0) && !self.help.is_given(now) {
            self.pump(now)?;
        }
        let Receiver { groups, connection, settings, .. } = self;
        let group = &mut groups[at];
        if group.stage == Stage::Waiting(0) {
            let mut sizes = [0; GROUP_MAX];
            for (size, entry) in sizes.iter_mut().zip(&mut group.entries[..group.count]) {
                *size = entry.got;
                entry.buffer.mr = None;
            }
            group.stage = Stage::Vacant;
            group.id = id.next();
            // Without the flush, the acknowledgement of the messages would leave only with a later
            // put or poll of this side.
            if self.waiting == 0 && std::mem::take(&mut self.was_placed) {
                connection.flush_acknowledgements(now);
            }
            return Ok(Some((group.count, sizes)));
        }
        let (older, when) = self.finished;
        if group.number.wrapping_sub(older) < u32::MAX / 2 {
            group.wait.moves(when);
        }
        let Group { entries, count, wait, .. } = group;
        wait.judge(connection, settings, now, || {
            let open = || entries[..*count].iter().filter(|entry| !entry.is_done);
            let bytes: usize = open().map(|entry| entry.buffer.bytes).sum();
            let tags: Vec<i32> = open().map(|entry| entry.buffer.tag).collect();
            format!("a receive of up to {bytes} bytes with tags {tags:?} from")
        })?;
        Ok(None)
    }

    fn take(&mut self, event: &Event) -> Result<(), NetError> {
        match event {
            Event::Done { id } => self.telling &= !1u64.checked_shl(*id as u32).unwrap_or(0),
            Event::Arrived { immediate, bytes, .. } => match Immediate::decode(*immediate) {
                Some(Immediate::Chunk { slot, .. }) if slot < self.settings.slots() => {
                    self.chunk(slot, *bytes)?
                }
                Some(Immediate::Direct(group, index)) => self.placed(group, index, *bytes)?,
                _ => return Err(nonsense()),
            },
            Event::Note { bytes, .. } => match Note::decode(bytes) {
                Some(Note::Ring(key)) => {
                    self.ring = Some(self.connection.import(&key)?);
                    self.connection.note(&Note::Ready)?;
                }
                Some(Note::Ready) => self.is_peer_ready = true,
                Some(Note::Peer(name)) => self.connection.peer = name,
                _ => return Err(nonsense()),
            },
            Event::Lost { reason, .. } => self.connection.lose(reason.clone()),
        }
        Ok(())
    }

    /// Takes a message that was put directly into its buffer.
    fn placed(&mut self, number: u32, index: usize, bytes: usize) -> Result<(), NetError> {
        let at = number as usize % GROUPS;
        let group = &self.groups[at];
        let same = (group.number ^ number) & (super::wire::NUMBER_MASK >> 3) == 0;
        let entry = group.entries[..group.count].get(index);
        let fits = entry.is_some_and(|entry| !entry.is_done && bytes <= entry.buffer.bytes);
        let is_told = self.withheld >> at & 1 == 0;
        if !same || !fits || !is_told || !matches!(group.stage, Stage::Waiting(1..)) {
            return Err(nonsense());
        }
        self.groups[at].entries[index].got = bytes;
        self.was_placed = true;
        self.finish(at, index);
        Ok(())
    }

    /// Takes a chunk that has arrived in a put of `put_bytes` bytes. If the lane has redirected the
    /// chunk to the right buffer, the chunk is already there. All other chunks are held until all
    /// events have been taken.
    fn chunk(&mut self, slot: usize, put_bytes: usize) -> Result<(), NetError> {
        let header = self.header(slot)?;
        let bytes = header.bytes as usize;
        let is_whole = header.at == 0 && header.bytes == header.total;
        let guess = match self.expected.take(slot) {
            Ok(guess) => guess,
            Err(is_next) => {
                self.held |= 1 << slot;
                self.astray = if is_next { self.astray } else { Some(slot) };
                return Ok(());
            }
        };
        let (at, index) = guess.at;
        let entry = &mut self.groups[at].entries[index];
        entry.is_expected = false;
        let is_right =
            is_whole && (entry.buffer.tag, entry.ordinal) == (header.tag, header.ordinal);
        if put_bytes != HEADER_BYTES + bytes {
            return Err(nonsense());
        }
        self.expected.end(&mut self.connection, slot, &guess)?;
        let meant = if is_right { None } else { self.find(header.tag, header.ordinal) };
        if meant.is_some_and(|(at, _)| self.withheld >> at & 1 == 0) {
            // The message has a CTS but came in a slot. More such messages may come, so guessing
            // pauses.
            self.is_mixed = true;
        } else if is_right || guess.took(bytes) {
            self.expected.learn(is_right);
        }
        let entry = &mut self.groups[at].entries[index];
        if is_right && guess.took(bytes) {
            entry.got = bytes;
            // Fails if the memory was withdrawn.
            let mr = entry.buffer.mr.as_ref();
            mr.map_or(Ok(()), |(_, mr)| mr.with(|_| Ok(())))?;
            self.finish(at, index);
            self.free(slot);
            return Ok(());
        }
        let offset = slot * self.settings.stride() + HEADER_BYTES;
        guess.put_back(&self.slots.region, offset, bytes)?;
        self.held |= 1 << slot;
        if !is_right {
            self.unexpected |= self.withheld & 1 << at;
            self.astray = Some(slot);
        }
        Ok(())
    }

    /// Delivers held chunks, and decides what to expect next. Called when all events have been
    /// taken.
    fn settle(&mut self) -> Result<(), NetError> {
        self.take_held()?;
        if self.is_closed {
            self.freed |= std::mem::take(&mut self.held);
            self.send_credits();
            return Ok(());
        }
        if let Some(slot) = self.astray.take() {
            self.expect_nothing(Some(slot))?;
        }
        if self.held != 0 && self.withheld != 0 {
            // Held messages occupy slots. So the sender may have no slot for its other messages,
            // and then needs a CTS to send them.
            self.send_withheld_cts()?;
        }
        self.expect();
        Ok(())
    }

    /// Guesses slots for the buffers without a CTS, in posting order.
    fn expect(&mut self) {
        self.is_mixed &= self.waiting & !self.withheld != 0;
        if self.is_mixed {
            return;
        }
        let first = self.next % GROUPS as u32;
        let mut unexpected = self.unexpected.rotate_right(first);
        while unexpected != 0 {
            let at = (unexpected.trailing_zeros() + first) as usize % GROUPS;
            unexpected &= unexpected - 1;
            let Receiver { groups, connection, expected, held, .. } = self;
            let Group { entries, count, .. } = &mut groups[at];
            for (index, entry) in entries[..*count].iter_mut().enumerate() {
                if entry.is_done || entry.is_expected {
                    continue;
                }
                if !expected.expect(connection, *held, (at, index), &entry.buffer) {
                    return;
                }
                entry.is_expected = true;
            }
            self.unexpected &= !(1 << at);
        }
    }

    /// Drops all guesses. New guesses begin after slot `last` or, if `last` is none, at the slot of
    /// the oldest dropped guess.
    fn expect_nothing(&mut self, last: Option<usize>) -> Result<(), NetError> {
        self.unexpected = self.withheld;
        if self.expected.clear(&mut self.connection, last)? {
            let groups = self.groups.iter_mut();
            groups.flat_map(|group| &mut group.entries).for_each(|entry| entry.is_expected = false);
        }
        Ok(())
    }

    /// Delivers the held chunks whose buffers are known now.
    fn take_held(&mut self) -> Result<(), NetError> {
        let mut held = self.held;
        while held != 0 {
            let slot = held.trailing_zeros() as usize;
            held &= held - 1;
            if self.deliver(slot)? {
                self.held &= !(1 << slot);
                self.free(slot);
            }
        }
        Ok(())
    }

    fn header(&self, slot: usize) -> Result<Header, NetError> {
        let mut header = [0; HEADER_BYTES];
        let offset = slot * self.settings.stride();
        let Ok(()) = self.slots.region.read(offset, &mut header) else { return Err(nonsense()) };
        let header = Header::decode(&header);
        let fits = header.bytes <= self.settings.slot_bytes as u64;
        fits.then_some(header).ok_or_else(nonsense)
    }

    /// Copies a chunk to its buffer. Returns false if the buffer is not known yet.
    fn deliver(&mut self, slot: usize) -> Result<bool, NetError> {
        let header = self.header(slot)?;
        let Some((at, index)) = self.find(header.tag, header.ordinal) else { return Ok(false) };
        let entry = &mut self.groups[at].entries[index];
        if std::mem::take(&mut entry.is_expected) {
            // Another message will arrive in the guessed slot. It must not be redirected to this
            // buffer, where it would overwrite the message that is delivered now.
            self.expected.forget(&mut self.connection, (at, index))?;
            self.astray.get_or_insert(slot);
            self.unexpected |= self.withheld & 1 << at;
        }
        // Longer messages are truncated.
        let room = entry.buffer.bytes as u64;
        let bytes = header.bytes.min(room.saturating_sub(header.at)) as usize;
        if let (Some((_, mr)), 1..) = (&entry.buffer.mr, bytes) {
            let to = entry.buffer.offset + header.at as usize;
            let region = &self.slots.region;
            let offset = slot * self.settings.stride() + HEADER_BYTES;
            mr.with(|memory| memory.copy_from(to, region, offset, bytes))?;
        }
        entry.got += header.bytes as usize;
        self.groups[at].wait.moves(self.connection.pumped);
        let entry = &mut self.groups[at].entries[index];
        // If several puts have written a message directly to its buffer, an empty chunk at the end
        // announces the message.
        if entry.got as u64 >= header.total || header.at >= header.total {
            entry.got = header.total.min(room) as usize;
            self.finish(at, index);
        }
        Ok(true)
    }

    /// Returns the buffer for a message, as group and index.
    fn find(&self, tag: i32, ordinal: u32) -> Option<(usize, usize)> {
        let mut waiting = self.waiting;
        // The oldest group first: it mostly matches.
        let first = self.next % GROUPS as u32;
        waiting = waiting.rotate_right(first);
        while waiting != 0 {
            let at = (waiting.trailing_zeros() + first) as usize % GROUPS;
            waiting &= waiting - 1;
            let group = &self.groups[at];
            let found = group.entries[..group.count].iter().position(|entry| {
                !entry.is_done && (entry.buffer.tag, entry.ordinal) == (tag, ordinal)
            });
            if let Some(index) = found {
                return Some((at, index));
            }
        }
        None
    }

    /// Marks a buffer as complete.
    fn finish(&mut self, at: usize, index: usize) {
        let group = &mut self.groups[at];
        group.entries[index].is_done = true;
        // The bytes of the message, not of the buffer: most buffers of NCCL exceed their messages.
        self.help.ask(&self.settings, self.connection.pumped, group.entries[index].got);
        self.finished = (group.number, self.connection.pumped);
        if let Stage::Waiting(left) = &mut group.stage {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.waiting &= !(1 << at);
                self.withheld &= !(1 << at);
                self.unexpected &= !(1 << at);
            }
        }
    }

    /// Marks a slot as free. The peer is told as soon as half of all slots are free but not
    /// announced. It is told at a quarter already while messages are held or slots are not guessed:
    /// the peer may then send a message with a CTS, which takes up a slot, too. The peer reserves
    /// at least a quarter of all slots for such messages, and counts unannounced slots as occupied.
    /// So a reserved slot stays free while fewer slots than a quarter are unannounced.
    fn free(&mut self, slot: usize) {
        self.freed |= 1 << slot;
        let part = if self.expected.guesses() && self.held == 0 { 2 } else { 4 };
        if self.has_freed(part) {
            self.send_credits();
        }
    }

    /// Returns whether at least 1/`part` of all slots are free but not announced to the peer.
    fn has_freed(&self, part: usize) -> bool {
        self.freed.count_ones() as usize * part >= self.settings.slots()
    }

    fn send_credits(&mut self) {
        let Some(remote) = self.ring else { return };
        while self.freed != 0 {
            let (immediate, left) = Immediate::freed(self.freed, self.freed_turn);
            self.freed = left;
            self.freed_turn = self.freed_turn.wrapping_add(1);
            self.connection.post(WorkRequest::Put {
                endpoint: self.connection.endpoint,
                local: LocalSlice { key: self.records.key, offset: 0, bytes: 0 },
                tail: None,
                is_control: true,
                remote,
                remote_offset: 0,
                immediate: Some(immediate.encode()),
                id: OTHER_ID,
            });
        }
    }

    /// Sends all withheld CTS.
    fn send_withheld_cts(&mut self) -> Result<(), NetError> {
        self.expect_nothing(None)?;
        let first = self.next % GROUPS as u32;
        let mut withheld = self.withheld.rotate_right(first);
        while withheld != 0 {
            let at = (withheld.trailing_zeros() + first) as usize % GROUPS;
            withheld &= withheld - 1;
            self.send_cts(at)?;
        }
        Ok(())
    }

    /// Sends the CTS of a group.
    fn send_cts(&mut self, at: usize) -> Result<(), NetError> {
        let Some(remote) = self.ring else { return Ok(()) };
        let mut receives = [Receive::default(); GROUP_MAX];
        let count = self.groups[at].count;
        for (index, receive) in receives.iter_mut().enumerate().take(count) {
            let buffer = &self.groups[at].entries[index].buffer;
            let (tag, offset, bytes) = (buffer.tag, buffer.offset as u64, buffer.bytes as u64);
            let mr = buffer.mr.as_ref().map(|(id, mr)| (*id, Arc::clone(mr)));
            let memory = mr.map_or(THROUGH_SLOTS, |(id, mr)| self.number(id, &mr));
            let ordinal = self.groups[at].entries[index].ordinal;
            *receive = Receive { tag, ordinal, memory, offset, bytes };
        }
        let (record, used) =
            Record { group: self.groups[at].number & super::wire::NUMBER_MASK, count, receives }
                .encode();
        let offset = at * RECORD_BYTES;
        if self.records.region.write(offset, &record[..used]).is_err() {
            return Err(nonsense());
        }
        self.withheld &= !(1 << at);
        self.unexpected &= !(1 << at);
        self.telling |= 1 << at;
        self.connection.post(WorkRequest::Put {
            endpoint: self.connection.endpoint,
            local: LocalSlice { key: self.records.key, offset, bytes: used },
            tail: None,
            is_control: true,
            remote,
            remote_offset: offset,
            immediate: Some(Immediate::Cts(self.groups[at].number).encode()),
            id: at as u64,
        });
        self.send_credits();
        Ok(())
    }

    /// Returns the number by which the peer knows memory; [`THROUGH_SLOTS`] if the peer cannot
    /// reach it.
    fn number(&mut self, id: Id, mr: &Arc<Mr>) -> u32 {
        if let Some(known) = self.known.iter().find(|known| known.mr == id) {
            return known.number;
        }
        if !self.connection.reaches_caller_memory() {
            return THROUGH_SLOTS;
        }
        let number = self.numbers;
        let told = self
            .connection
            .share(mr.key)
            .and_then(|key| self.connection.note(&Note::Memory(number, key)));
        let number = if told.is_ok() { number } else { THROUGH_SLOTS };
        self.numbers += u32::from(told.is_ok());
        if self.known.len() >= KNOWN {
            self.forget_gone();
        }
        self.known.push(Known { mr: id, number, memory: Arc::downgrade(mr) });
        number
    }

    /// Withdraws deregistered memory. `deregMr` withdraws memory only from the communicator that
    /// NCCL passes to it, but other communicators, such as this one, may have used the same memory.
    fn forget_gone(&mut self) {
        let gone = |known: &Known| known.memory.strong_count() == 0;
        while let Some(known) = self.known.iter().find(|known| gone(known)) {
            self.withdraw(known.mr);
        }
    }

    /// Withdraws memory: no CTS names it any more.
    pub(crate) fn withdraw(&mut self, id: Id) {
        let Some(at) = self.known.iter().position(|known| known.mr == id) else { return };
        let known = self.known.swap_remove(at);
        if known.number != THROUGH_SLOTS && self.connection.lost.is_none() {
            // If the note cannot be sent, the peer is gone and needs no note.
            let _ = self.connection.note(&Note::Withdrawn(known.number));
        }
    }
}

fn nonsense() -> NetError {
    NetError::remote("the peer sent a message that a sender must not send")
}
