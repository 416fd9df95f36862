//! The receiving side of a connection: messages as they come, each to the first receive that was
//! posted for its tag.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nccl_net_abi::{NcclResult, REQUESTS_MAX};

use crate::fault::Fault;
use crate::frame::{self, FRAME_BYTES, Frame};
use crate::memory::{Registration, Span};
use crate::plugin::{CALL_BYTES_MAX, FEW, GROUP_MAX, Outcome};
use crate::slots::{Slots, Ticket};

/// Bytes that nobody wants are read in pieces of so many.
const WASTE_BYTES: usize = 64 << 10;

/// [`Fault::Corrupt`] leaves shorter messages alone.
const CORRUPT_BYTES_MIN: usize = 64 << 10;

/// Bytes received by each part of a request.
pub(crate) type Sizes = [usize; GROUP_MAX];

/// A request: some buffers that are received into.
#[derive(Debug)]
struct Group {
    parts: usize,
    missing: usize,
    sizes: Sizes,
    /// Its memory was deregistered before it was done.
    is_cancelled: bool,
}

/// One buffer of a request.
#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    part: usize,
    tag: i32,
    /// None once the caller wants its memory back.
    span: Option<Span>,
}

impl Entry {
    fn room(&self) -> usize {
        self.span.as_ref().map_or(0, Span::bytes)
    }
}

/// Where a message goes.
#[derive(Debug)]
enum Target {
    Entry(Entry),
    /// Nobody has asked for it yet.
    Aside(Vec<u8>),
}

impl Target {
    fn room(&self) -> usize {
        match self {
            Target::Entry(entry) => entry.room(),
            Target::Aside(copy) => copy.len(),
        }
    }

    /// Room for the bytes from `at` on; none for what is cut off.
    fn rest(&mut self, at: usize, end: usize) -> &mut [u8] {
        let part = at..end.min(self.room());
        match self {
            Target::Entry(entry) => {
                entry.span.as_mut().map_or(&mut [][..], |span| span.writable(part))
            }
            Target::Aside(copy) => copy.get_mut(part).unwrap_or(&mut []),
        }
    }
}

/// A message that is being read.
#[derive(Debug)]
struct Incoming {
    tag: i32,
    bytes: usize,
    /// Bytes read of it.
    at: usize,
    target: Target,
}

/// What comes next on the wire.
#[derive(Debug)]
enum Reading {
    /// A frame, of which so many bytes have been read.
    Frame(usize),
    /// The rest of a message.
    Message(Incoming),
}

/// A receiving communicator.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: TcpStream,
    requests: Slots<Group>,
    /// Buffers that no message has been found for, in the order in which they were posted.
    posted: VecDeque<Entry>,
    /// Whole messages that nobody has asked for yet.
    aside: VecDeque<(i32, Vec<u8>)>,
    frame: Frame,
    reading: Reading,
    broken: Option<NcclResult>,
    fault: Option<Fault>,
}

impl Receiver {
    /// Over a socket that does not block, on which the hello was read.
    pub(crate) fn new(socket: TcpStream, fault: Option<Fault>) -> Receiver {
        let room = if fault == Some(Fault::FewRequests) { FEW } else { REQUESTS_MAX };
        Receiver {
            socket,
            requests: Slots::new(room),
            posted: VecDeque::new(),
            aside: VecDeque::new(),
            frame: [0; FRAME_BYTES],
            reading: Reading::Frame(0),
            broken: None,
            fault,
        }
    }

    /// Posts a group of buffers with their tags; `None` if there are too many.
    pub(crate) fn post(&mut self, pieces: Vec<(Span, i32)>) -> Outcome<Option<Ticket>> {
        self.broken.filter(|_| self.aside.is_empty()).map_or(Ok(()), Err)?;
        let parts = pieces.len();
        let group = Group { parts, missing: parts, sizes: [0; GROUP_MAX], is_cancelled: false };
        let Some(ticket) = self.requests.insert(group) else {
            self.progress_unasked();
            return Ok(None);
        };
        for (part, (span, tag)) in pieces.into_iter().enumerate() {
            let entry = Entry { ticket, part, tag, span: Some(span) };
            match self.aside.iter().position(|(other, _)| *other == tag) {
                Some(at) => {
                    let message = self.aside.remove(at).map(|(_, bytes)| bytes);
                    self.deliver(entry, &message.unwrap_or_default());
                }
                None => self.posted.push_back(entry),
            }
        }
        self.progress_unasked();
        Ok(Some(ticket))
    }

    /// How many parts a request had and what each of them received; `None` if it is not done.
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

    /// Progress without a `test`.
    fn progress_unasked(&mut self) {
        if self.fault != Some(Fault::ProgressOnlyInTest) {
            self.progress();
        }
    }

    /// Reads what can be read without waiting; whether that was anything.
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

    /// One read, or what can be done without; the bytes read, `None` if there is nothing to do.
    fn step(&mut self) -> Outcome<Option<usize>> {
        match &mut self.reading {
            // Nobody asks: it can as well stay where it is.
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

    /// A frame was read, and somebody waits: finds out where its message goes.
    fn begin(&mut self) -> Outcome<()> {
        let (tag, bytes, inline) = frame::decode(&self.frame).ok_or(NcclResult::REMOTE_ERROR)?;
        let mut target = match self.wanted(tag) {
            Some(at) => self.posted.remove(at).map(Target::Entry),
            None => aside(bytes).map(Target::Aside),
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

    /// The receive that a message of that tag is for.
    fn wanted(&self, tag: i32) -> Option<usize> {
        let takes_any = self.fault == Some(Fault::TagOrder);
        self.posted.iter().position(|entry| takes_any || entry.tag == tag)
    }

    /// A message was read.
    fn finish(&mut self) {
        let reading = std::mem::replace(&mut self.reading, Reading::Frame(0));
        let Reading::Message(message) = reading else { return };
        match message.target {
            Target::Entry(entry) => self.complete(entry, message.bytes),
            // Somebody may have asked meanwhile.
            Target::Aside(copy) => match self.wanted(message.tag) {
                Some(at) => {
                    if let Some(entry) = self.posted.remove(at) {
                        self.deliver(entry, &copy);
                    }
                }
                None => self.aside.push_back((message.tag, copy)),
            },
        }
    }

    /// Hands over a message that was put aside.
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

    /// A request for nothing, which nothing completes.
    pub(crate) fn never_done(&mut self) -> Option<Ticket> {
        let (sizes, is_cancelled) = ([0; GROUP_MAX], false);
        self.requests.insert(Group { parts: 1, missing: 1, sizes, is_cancelled })
    }

    /// Ends whatever request has the place that this one had.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        if let Some(successor) = self.requests.successor(ticket) {
            self.requests.remove(successor);
        }
    }

    /// Whether somebody waits.
    pub(crate) fn is_busy(&self) -> bool {
        let reads = matches!(self.reading, Reading::Message(_));
        (reads || !self.posted.is_empty()) && self.broken.is_none()
    }

    /// Leaves memory alone that is deregistered; what should have gone there is cancelled.
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

    /// Reads on and forgets it; the peer must not be told of a reset while it sends. Whether that
    /// is to be gone on with.
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

/// Flips a bit of every fourth message that is long, among those of the process.
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

/// The bytes read; `None` if there are none yet.
fn read(mut socket: &TcpStream, into: &mut [u8]) -> Outcome<Option<usize>> {
    match socket.read(into) {
        // No message ends like that: the peer has closed, or is gone.
        Ok(0) => Err(NcclResult::REMOTE_ERROR),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
        Err(_) => Err(NcclResult::REMOTE_ERROR),
    }
}

/// Room for a message that nobody has asked for yet; `None` if there is none.
fn aside(bytes: usize) -> Option<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).ok()?;
    room.resize(bytes, 0);
    Some(room)
}
