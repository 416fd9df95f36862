//! Sending side of a connection: messages in the order in which they were posted, one at a time.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use nccl_net_abi::{NcclResult, REQUESTS_MAX};

use crate::fault::Fault;
use crate::frame::{self, FRAME_BYTES, Frame};
use crate::limits::{CALL_BYTES_MAX, FEW, GROUP_MAX};
use crate::memory::{Registration, Span};
use crate::outcome::Outcome;
use crate::slots::{Slots, Ticket};

/// Largest number of sends: one for each buffer of all receives that the peer can post.
const SENDS_MAX: usize = REQUESTS_MAX * GROUP_MAX;

/// Request of a send.
#[derive(Debug)]
struct Send {
    bytes: usize,
    is_done: bool,
}

/// Location of a message's bytes.
#[derive(Debug)]
enum Source {
    Caller(Span),
    /// Copy of the message, made when the caller took its memory back.
    Own(Vec<u8>),
}

/// Message that is not completely written yet.
#[derive(Debug)]
struct Outgoing {
    ticket: Ticket,
    frame: Frame,
    source: Source,
    bytes: usize,
    /// Bytes written, including the frame's.
    written: usize,
}

impl Outgoing {
    fn wire_bytes(&self) -> usize {
        FRAME_BYTES + self.bytes - frame::inline(self.bytes)
    }

    fn unwritten(&self) -> &[u8] {
        if self.written < FRAME_BYTES {
            return &self.frame[self.written..];
        }
        let part = self.bytes - (self.wire_bytes() - self.written)..self.bytes;
        match &self.source {
            Source::Caller(span) => span.readable(part),
            Source::Own(copy) => &copy[part],
        }
    }

    /// Copies the message, so that the caller's memory is not used any more.
    fn detach(&mut self) {
        if let Source::Caller(span) = &self.source {
            self.source = Source::Own(span.readable(0..self.bytes).to_vec());
        }
    }
}

/// Sending communicator.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: TcpStream,
    requests: Slots<Send>,
    queue: VecDeque<Outgoing>,
    broken: Option<NcclResult>,
    fault: Option<Fault>,
}

impl Sender {
    /// Creates a communicator over a non-blocking socket on which the hello was sent.
    pub(crate) fn new(socket: TcpStream, fault: Option<Fault>) -> Sender {
        let room = if fault == Some(Fault::FewRequests) { FEW } else { SENDS_MAX };
        let requests = Slots::new(room);
        Sender { socket, requests, queue: VecDeque::new(), broken: None, fault }
    }

    /// Posts a message; returns `None` if there are too many requests.
    pub(crate) fn post(&mut self, span: Span, tag: i32) -> Outcome<Option<Ticket>> {
        self.broken.map_or(Ok(()), Err)?;
        let bytes = span.bytes();
        let Some(ticket) = self.requests.insert(Send { bytes, is_done: false }) else {
            self.progress_unasked();
            return Ok(None);
        };
        if bytes == 0 && self.fault == Some(Fault::ZeroHang) {
            return Ok(Some(ticket));
        }
        let frame = frame::encode(tag, bytes, span.readable(0..frame::inline(bytes)));
        let source = Source::Caller(span);
        self.queue.push_back(Outgoing { ticket, frame, source, bytes, written: 0 });
        self.progress_unasked();
        Ok(Some(ticket))
    }

    /// Returns the length of a message once it is completely written; `None` before.
    pub(crate) fn test(&mut self, ticket: Ticket) -> Outcome<Option<usize>> {
        if !self.is_done(ticket)? {
            self.progress();
        }
        if self.is_done(ticket)? {
            return Ok(self.requests.remove(ticket).map(|send| send.bytes));
        }
        self.broken.map_or(Ok(None), Err)
    }

    fn is_done(&mut self, ticket: Ticket) -> Outcome<bool> {
        let send = self.requests.find(ticket).ok_or(NcclResult::INVALID_ARGUMENT)?;
        Ok(send.is_done)
    }

    /// Makes progress outside of `test`.
    fn progress_unasked(&mut self) {
        if self.fault != Some(Fault::ProgressOnlyInTest) {
            self.progress();
        }
    }

    /// Writes what can be written without waiting; returns whether any bytes were written.
    pub(crate) fn progress(&mut self) -> bool {
        let mut moved = 0;
        while let Some(head) = self.queue.front_mut()
            && self.broken.is_none()
            && moved < CALL_BYTES_MAX
        {
            match (&self.socket).write(head.unwritten()) {
                Ok(written @ 1..) => {
                    head.written += written;
                    moved += written;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => self.broken = Some(NcclResult::REMOTE_ERROR),
            }
            if head.written == head.wire_bytes() {
                if let Some(send) = self.requests.find(head.ticket) {
                    send.is_done = true;
                }
                self.queue.pop_front();
            }
        }
        moved > 0
    }

    /// Returns whether messages wait to be written.
    pub(crate) fn is_busy(&self) -> bool {
        !self.queue.is_empty() && self.broken.is_none()
    }

    /// Checks whether the peer is still connected. The peer sends nothing, except one byte under
    /// [`Fault::BlockingConnect`]; that byte is read because closing a socket with unread bytes
    /// resets the connection.
    pub(crate) fn look_for_peer(&mut self) {
        match (&self.socket).read(&mut [0]) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => {
                self.broken.get_or_insert(NcclResult::REMOTE_ERROR);
            }
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Stops using the memory of this registration, or, if it is `None`, all memory of the caller.
    pub(crate) fn release(&mut self, registration: Option<&Arc<Registration>>) {
        for message in &mut self.queue {
            let Source::Caller(span) = &message.source else { continue };
            if registration.is_none_or(|gone| span.is_of(gone)) {
                message.detach();
            }
        }
    }
}
