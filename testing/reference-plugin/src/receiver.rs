//! Receiving side of a connection: each arriving message goes to the first receive that was posted
//! for its tag.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nccl_net_abi::{NcclResult, REQUESTS_MAX};

use crate::fault::Fault;
use crate::frame::{self, FRAME_BYTES, Frame};
use crate::limits::{CALL_BYTES_MAX, FEW, GROUP_MAX};
use crate::memory::{Registration, Span};
use crate::outcome::Outcome;
use crate::slots::{Slots, Ticket};

/// Largest number of bytes that one read discards.
const WASTE_BYTES: usize = 64 << 10;

/// Length of the shortest message that [`Fault::Corrupt`] changes.
const CORRUPT_BYTES_MIN: usize = 64 << 10;

/// Bytes received by each part of a request.
pub(crate) type Sizes = [usize; GROUP_MAX];

/// Request: one or more buffers to receive into.
#[derive(Debug)]
struct Group {
    parts: usize,
    missing: usize,
    sizes: Sizes,
    /// True if memory of the request was deregistered before the request was done.
    is_cancelled: bool,
}

/// One buffer of a request.
#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    part: usize,
    tag: i32,
    /// Memory of the buffer; `None` once it is deregistered.
    span: Option<Span>,
}

impl Entry {
    fn room(&self) -> usize {
        self.span.as_ref().map_or(0, Span::bytes)
    }
}

/// Destination of a message.
#[derive(Debug)]
enum Target {
    Entry(Entry),
    /// Copy of a message that no receive has been posted for yet.
    Unexpected(Vec<u8>),
}

impl Target {
    fn room(&self) -> usize {
        match self {
            Target::Entry(entry) => entry.room(),
            Target::Unexpected(copy) => copy.len(),
        }
    }

    /// Returns the memory for bytes `at..end` of a message. Bytes beyond the target's room are left
    /// out: they are truncated.
    fn rest(&mut self, at: usize, end: usize) -> &mut [u8] {
        let part = at..end.min(self.room());
        match self {
            Target::Entry(entry) => {
                entry.span.as_mut().map_or(&mut [][..], |span| span.writable(part))
            }
            Target::Unexpected(copy) => copy.get_mut(part).unwrap_or(&mut []),
        }
    }
}

/// Message that is being read.
#[derive(Debug)]
struct Incoming {
    tag: i32,
    bytes: usize,
    /// Bytes of the message that have been read.
    at: usize,
    target: Target,
}

/// Next item on the wire.
#[derive(Debug)]
enum Reading {
    /// Frame, with the number of its bytes that have been read.
    Frame(usize),
    /// Remaining bytes of a message.
    Message(Incoming),
}

/// Receiving communicator.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: TcpStream,
    requests: Slots<Group>,
    /// Buffers without a message so far, in the order in which they were posted.
    posted: VecDeque<Entry>,
    /// Complete messages that no receive has been posted for yet.
    unexpected: VecDeque<(i32, Vec<u8>)>,
    frame: Frame,
    reading: Reading,
    broken: Option<NcclResult>,
    fault: Option<Fault>,
}

impl Receiver {
    /// Creates a communicator over a non-blocking socket whose hello has been read.
    pub(crate) fn new(socket: TcpStream, fault: Option<Fault>) -> Receiver {
        let room = if fault == Some(Fault::FewRequests) { FEW } else { REQUESTS_MAX };
        Receiver {
            socket,
            requests: Slots::new(room),
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
            frame: [0; FRAME_BYTES],
            reading: Reading::Frame(0),
            broken: None,
            fault,
        }
    }

    /// Posts a group of buffers with their tags; returns `None` if there are too many requests.
    pub(crate) fn post(&mut self, pieces: Vec<(Span, i32)>) -> Outcome<Option<Ticket>> {
        self.broken.filter(|_| self.unexpected.is_empty()).map_or(Ok(()), Err)?;
        let parts = pieces.len();
        let group = Group { parts, missing: parts, sizes: [0; GROUP_MAX], is_cancelled: false };
        let Some(ticket) = self.requests.insert(group) else {
            self.progress_unasked();
            return Ok(None);
        };
        for (part, (span, tag)) in pieces.into_iter().enumerate() {
            let entry = Entry { ticket, part, tag, span: Some(span) };
            match self.unexpected.iter().position(|(other, _)| *other == tag) {
                Some(at) => {
                    let message = self.unexpected.remove(at).map(|(_, bytes)| bytes);
                    self.deliver(entry, &message.unwrap_or_default());
                }
                None => self.posted.push_back(entry),
            }
        }
        self.progress_unasked();
        Ok(Some(ticket))
    }

    /// Returns the number of a request's parts and the bytes that each received; `None` if the
    /// request is not done.
    pub(crate) fn test(&mut self, ticket: Ticket) -> Outcome<Option<(usize, Sizes)>> {
        if !self.is_done(ticket)? {
            self.progress();
        }
        if self.is_done(ticket)? {
            return Ok(self.requests.remove(ticket).map(|group| (group.parts, group.sizes)));
        }
        self.broken.map_or(Ok(None), Err)
    }

    fn is_done(&mut self, ticket: Ticket) -> Outcome<bool> {
        let group = self.requests.find(ticket).ok_or(NcclResult::INVALID_ARGUMENT)?;
        if group.is_cancelled { Err(NcclResult::INVALID_USAGE) } else { Ok(group.missing == 0) }
    }

    /// Makes progress outside of `test`.
    fn progress_unasked(&mut self) {
        if self.fault != Some(Fault::ProgressOnlyInTest) {
            self.progress();
        }
    }

    /// Reads what can be read without waiting; returns whether any bytes were read.
    pub(crate) fn progress(&mut self) -> bool {
        let mut moved = 0;
        while self.broken.is_none() && moved < CALL_BYTES_MAX {
            match self.step() {
                Ok(Some(bytes)) => moved += bytes,
                Ok(None) => break,
                Err(result) => self.broken = Some(result),
            }
        }
        moved > 0
    }

    /// Does one step, with at most one read; returns the bytes read, or `None` if there is nothing
    /// to do.
    fn step(&mut self) -> Outcome<Option<usize>> {
        match &mut self.reading {
            // No receive is posted: the data can stay in the socket.
            Reading::Frame(_) if self.posted.is_empty() => Ok(None),
            Reading::Frame(FRAME_BYTES) => self.begin().map(|()| Some(0)),
            Reading::Frame(got) => {
                let bytes = read(&self.socket, &mut self.frame[*got..])?;
                *got += bytes.unwrap_or(0);
                Ok(bytes)
            }
            Reading::Message(message) if message.at == message.bytes => {
                self.finish();
                Ok(Some(0))
            }
            Reading::Message(message) => {
                let into = message.target.rest(message.at, message.bytes);
                let bytes = if into.is_empty() {
                    let mut waste = [0; WASTE_BYTES];
                    let most = (message.bytes - message.at).min(WASTE_BYTES);
                    read(&self.socket, &mut waste[..most])?
                } else {
                    read(&self.socket, into)?
                };
                message.at += bytes.unwrap_or(0);
                Ok(bytes)
            }
        }
    }

    /// Finds the destination of a message whose frame was read.
    fn begin(&mut self) -> Outcome<()> {
        let (tag, bytes, inline) = frame::decode(&self.frame).ok_or(NcclResult::REMOTE_ERROR)?;
        let mut target = match self.find_posted(tag) {
            Some(at) => self.posted.remove(at).map(Target::Entry),
            None => unexpected(bytes).map(Target::Unexpected),
        }
        .ok_or(NcclResult::SYSTEM_ERROR)?;
        if bytes > target.room() && self.fault == Some(Fault::NoTruncation) {
            return Err(NcclResult::INVALID_USAGE);
        }
        let into = target.rest(0, inline.len());
        into.copy_from_slice(&inline[..into.len()]);
        self.reading = Reading::Message(Incoming { tag, bytes, at: inline.len(), target });
        Ok(())
    }

    /// Returns the index of the first posted buffer that can take a message of that tag.
    fn find_posted(&self, tag: i32) -> Option<usize> {
        let takes_any = self.fault == Some(Fault::TagOrder);
        self.posted.iter().position(|entry| takes_any || entry.tag == tag)
    }

    /// Completes a message that was read.
    fn finish(&mut self) {
        let reading = std::mem::replace(&mut self.reading, Reading::Frame(0));
        let Reading::Message(message) = reading else { return };
        match message.target {
            Target::Entry(entry) => self.complete(entry, message.bytes),
            // A receive may have been posted meanwhile.
            Target::Unexpected(copy) => match self.find_posted(message.tag) {
                Some(at) => {
                    if let Some(entry) = self.posted.remove(at) {
                        self.deliver(entry, &copy);
                    }
                }
                None => self.unexpected.push_back((message.tag, copy)),
            },
        }
    }

    /// Copies an unexpected message into the buffer of its receive.
    fn deliver(&mut self, mut entry: Entry, message: &[u8]) {
        let bytes = message.len().min(entry.room());
        if let Some(span) = &mut entry.span {
            span.writable(0..bytes).copy_from_slice(&message[..bytes]);
        }
        self.complete(entry, message.len());
    }

    fn complete(&mut self, mut entry: Entry, bytes: usize) {
        let bytes = bytes.min(entry.room());
        match self.fault {
            Some(Fault::Corrupt) => corrupt(&mut entry, bytes),
            Some(Fault::WrongSize) => return self.count(&entry, bytes + 1),
            Some(Fault::DoubleCompletion) => {
                if let Some(next) = self.posted.pop_front() {
                    self.count(&next, bytes);
                }
            }
            _ => {}
        }
        self.count(&entry, bytes);
    }

    fn count(&mut self, entry: &Entry, bytes: usize) {
        if let Some(group) = self.requests.find(entry.ticket) {
            group.sizes[entry.part] = bytes;
            group.missing -= 1;
        }
    }

    /// Creates an empty request that never completes.
    pub(crate) fn never_done(&mut self) -> Option<Ticket> {
        let (sizes, is_cancelled) = ([0; GROUP_MAX], false);
        self.requests.insert(Group { parts: 1, missing: 1, sizes, is_cancelled })
    }

    /// Removes a wrong request, for [`Fault::ConsumedFrees`]: the ticket's own request is done, and
    /// the request that now has the ticket's slot is removed.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        if let Some(successor) = self.requests.successor(ticket) {
            self.requests.remove(successor);
        }
    }

    /// Returns whether a receive or a partly read message waits for data.
    pub(crate) fn is_busy(&self) -> bool {
        let reads = matches!(self.reading, Reading::Message(_));
        (reads || !self.posted.is_empty()) && self.broken.is_none()
    }

    /// Stops using deregistered memory and cancels the requests that receive into it.
    pub(crate) fn release(&mut self, registration: &Arc<Registration>) {
        let current = match &mut self.reading {
            Reading::Message(Incoming { target: Target::Entry(entry), .. }) => Some(entry),
            _ => None,
        };
        for entry in self.posted.iter_mut().chain(current) {
            if entry.span.as_ref().is_some_and(|span| span.is_of(registration)) {
                entry.span = None;
                if let Some(group) = self.requests.find(entry.ticket) {
                    group.is_cancelled = true;
                }
            }
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Reads and discards data, so that the peer sees no reset while it sends. Returns whether the
    /// caller is to call again.
    pub(crate) fn drain(&mut self) -> bool {
        let mut waste = [0; WASTE_BYTES];
        let mut moved = 0;
        while moved < CALL_BYTES_MAX {
            match read(&self.socket, &mut waste) {
                Ok(Some(bytes)) => moved += bytes,
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

/// Flips one bit in every fourth long message of the process.
fn corrupt(entry: &mut Entry, bytes: usize) {
    static LONG: AtomicUsize = AtomicUsize::new(0);
    let is_long = bytes >= CORRUPT_BYTES_MIN;
    if is_long
        && LONG.fetch_add(1, Ordering::Relaxed) % 4 == 1
        && let Some(span) = &mut entry.span
    {
        span.writable(bytes / 2..bytes / 2 + 1).iter_mut().for_each(|byte| *byte ^= 1);
    }
}

/// Returns the number of bytes read; `None` if no data is available.
fn read(mut socket: &TcpStream, into: &mut [u8]) -> Outcome<Option<usize>> {
    match socket.read(into) {
        // The peer has closed the connection or is gone: no more messages can come.
        Ok(0) => Err(NcclResult::REMOTE_ERROR),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
        Err(_) => Err(NcclResult::REMOTE_ERROR),
    }
}

/// Returns room for a message without a receive; `None` if memory is short.
fn unexpected(bytes: usize) -> Option<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).ok()?;
    room.resize(bytes, 0);
    Some(room)
}
