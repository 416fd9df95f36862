//! The side connection: a TCP connection beside the data path of hardware that cannot connect by
//! itself. It carries connection parameters and notes between the two sides. A broken side
//! connection can be replaced. If it ends for good, the peer is gone.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ccl_core::transport::{NOTE_BYTES_MAX, TransportError};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::{Connection, ConnectionEnd, DESCRIPTORS, Got, SideEnd, os};

const HEAD_BYTES: usize = 3;
/// Number of bytes read at once.
const READ_BYTES: usize = 4096;
/// Largest number of reads per call, so that the call returns even if the peer sends without pause.
const READS_MAX: usize = 16;
/// Number of unacknowledged messages at which the receiver acknowledges them.
const TELL_EVERY: u32 = 16;
/// Kinds of control messages: `HEARD` has the count of received messages; `RESUME` has that count
/// too, and is the first message on a new connection; `FAREWELL` ends the connection.
const HEARD: u8 = 5;
const RESUME: u8 = 6;
const FAREWELL: u8 = 7;

/// Message of one side to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideMessage {
    /// Parameters by which the peer connects, such as queue pairs, in the transport's own format.
    Offer(Vec<u8>),
    /// This side has connected with the peer's offer.
    Ready,
    /// Note of the lane's user ([`ccl_core::transport::Lane::note`]).
    Note(Vec<u8>),
    /// Reason why the data path beside this connection has ended.
    Failed(String),
    /// This side leaves, after it has sent this number of immediates on the data path.
    Leaving(u64),
    /// Answer to [`SideMessage::Leaving`]: all immediates that the leaving side sent have arrived.
    Received,
    /// Numbers of immediates so far on the data path.
    Counts {
        /// Number of immediates that this side has sent.
        sent: u64,
        /// Number of immediates that have arrived at this side.
        arrived: u64,
    },
}

impl SideMessage {
    fn kind(&self) -> u8 {
        match self {
            SideMessage::Offer(_) => 1,
            SideMessage::Ready => 2,
            SideMessage::Note(_) => 3,
            SideMessage::Failed(_) => 4,
            SideMessage::Leaving(_) => 8,
            SideMessage::Received => 9,
            SideMessage::Counts { .. } => 10,
        }
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            SideMessage::Offer(bytes) | SideMessage::Note(bytes) => Cow::Borrowed(bytes),
            SideMessage::Ready | SideMessage::Received => Cow::Borrowed(&[]),
            SideMessage::Failed(reason) => Cow::Borrowed(reason.as_bytes()),
            SideMessage::Leaving(count) => Cow::Owned(count.to_le_bytes().to_vec()),
            SideMessage::Counts { sent, arrived } => {
                Cow::Owned([sent.to_le_bytes(), arrived.to_le_bytes()].concat())
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let bytes = self.bytes();
        let length = (bytes.len() as u16).to_le_bytes();
        [&[self.kind()][..], &length, &bytes].concat()
    }

    fn new(kind: u8, bytes: &[u8]) -> Option<SideMessage> {
        match kind {
            1 => Some(SideMessage::Offer(bytes.to_vec())),
            2 if bytes.is_empty() => Some(SideMessage::Ready),
            3 => Some(SideMessage::Note(bytes.to_vec())),
            // A peer's text is printed: control characters could steer a terminal.
            4 => Some(SideMessage::Failed(
                String::from_utf8_lossy(bytes).replace(char::is_control, " ").trim().to_owned(),
            )),
            8 => bytes.try_into().ok().map(u64::from_le_bytes).map(SideMessage::Leaving),
            9 if bytes.is_empty() => Some(SideMessage::Received),
            10 => {
                let (sent, arrived) = bytes.split_at_checked(size_of::<u64>())?;
                let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
                Some(SideMessage::Counts { sent: number(sent)?, arrived: number(arrived)? })
            }
            _ => None,
        }
    }
}

/// One end of a side connection. It keeps unacknowledged messages, so that a new connection can
/// replace a broken one.
#[derive(Debug)]
pub struct SideConnection {
    /// The connection; none while it is broken.
    connection: Option<Connection>,
    /// The epoll instance that watches the connection.
    epoll: Option<Arc<OwnedFd>>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Encoded messages, from the first one that the peer has not acknowledged.
    unacknowledged: VecDeque<Vec<u8>>,
    /// Number of messages that the peer has acknowledged, modulo 2^32.
    acknowledged: u32,
    /// Number of messages received, modulo 2^32.
    received: u32,
    /// Value of `received` that this side has last reported to the peer.
    received_acked: u32,
    /// True on a connection that replaced another, until the peer reports how many messages it has
    /// received.
    resumes: bool,
}

impl SideConnection {
    /// Creates this side's end over a connection whose two sides have proved the secret.
    #[must_use]
    pub fn new(connection: Connection) -> SideConnection {
        SideConnection {
            connection: Some(connection),
            epoll: None,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            unacknowledged: VecDeque::new(),
            acknowledged: 0,
            received: 0,
            received_acked: 0,
            resumes: false,
        }
    }

    /// Returns the socket, unless the connection is broken.
    pub fn socket(&self) -> Option<&OwnedFd> {
        self.connection.as_ref().map(Connection::socket)
    }

    /// Makes an epoll instance report `number` when bytes have arrived. A connection that replaces
    /// this one must be watched anew.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn watch(&mut self, epoll: &Arc<OwnedFd>, number: u64) -> Result<(), TransportError> {
        self.unwatch();
        let Some(socket) = self.socket() else { return Ok(()) };
        epoll::add(epoll, socket, EventData::new_u64(number), EventFlags::IN)
            .map_err(|error| os("epoll_ctl", error, DESCRIPTORS))?;
        self.epoll = Some(Arc::clone(epoll));
        Ok(())
    }

    /// Removes the connection from the epoll instance that watches it. Closing the socket does not
    /// remove the connection if a forked child also has the socket: the epoll instance would then
    /// report the ended connection for ever.
    pub fn unwatch(&mut self) {
        let epoll = self.epoll.take();
        if let Some((epoll, socket)) = epoll.zip(self.socket()) {
            let _ = epoll::delete(epoll, socket);
        }
    }

    /// Returns whether the connection replaced another, and the peer has yet to report how many
    /// messages it has received.
    pub(crate) fn resumes(&self) -> bool {
        self.resumes
    }

    /// Sends a message as soon as the socket takes it.
    pub fn send(&mut self, word: &SideMessage) {
        let bytes = word.encode();
        // While the connection is broken or resumes, the message waits. After the peer has reported
        // how many messages it has received, all messages that it lacks are sent, in order.
        if self.connection.is_some() && !self.resumes {
            self.outgoing.extend_from_slice(&bytes);
        }
        self.unacknowledged.push_back(bytes);
        // An error is ignored: the next read reports that the connection has ended.
        let _ = self.flush();
    }

    fn control(&mut self, kind: u8, number: &[u8]) {
        self.outgoing.push(kind);
        self.outgoing.extend_from_slice(&(number.len() as u16).to_le_bytes());
        self.outgoing.extend_from_slice(number);
        let _ = self.flush();
    }

    /// Returns whether the socket has taken everything; while the connection is broken, whether the
    /// peer has acknowledged everything.
    pub fn is_flushed(&self) -> bool {
        match &self.connection {
            Some(connection) => {
                self.outgoing.is_empty() && connection.is_flushed() && !self.resumes
            }
            None => self.unacknowledged.is_empty(),
        }
    }

    fn flush(&mut self) -> Result<(), ConnectionEnd> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        while !self.outgoing.is_empty() {
            match connection.write(&[IoSlice::new(&self.outgoing)]) {
                Got::Bytes(count) => drop(self.outgoing.drain(..count)),
                Got::Nothing => break,
                Got::End(end) => return Err(end),
            }
        }
        connection.flush()
    }

    /// Appends the messages that have arrived from the peer.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub fn receive(&mut self, words: &mut Vec<SideMessage>) -> Result<(), SideEnd> {
        let flushed = self.flush();
        for _ in 0..READS_MAX {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            let have = self.incoming.len();
            self.incoming.resize(have + READ_BYTES, 0);
            let got = connection.read(&mut [IoSliceMut::new(&mut self.incoming[have..])]);
            let count = if let Got::Bytes(count) = got { count } else { 0 };
            self.incoming.truncate(have + count);
            match got {
                Got::Bytes(_) => self.decode(words)?,
                Got::Nothing => break,
                Got::End(end) => return Err(SideEnd::Broken(end)),
            }
        }
        if self.received.wrapping_sub(self.received_acked) >= TELL_EVERY {
            self.received_acked = self.received;
            self.control(HEARD, &self.received.to_le_bytes());
        }
        flushed.map_err(SideEnd::Broken)
    }

    /// Drops a broken connection: no message is sent or received until another replaces it.
    pub fn mark_broken(&mut self) {
        self.unwatch();
        if let Some(connection) = self.connection.take() {
            // Ends the connection even if a forked child still has the socket.
            let _ = rustix::net::shutdown(connection.socket(), rustix::net::Shutdown::Both);
        }
        self.outgoing.clear();
        self.incoming.clear();
    }

    /// Replaces the connection, and reports to the peer how many messages have arrived.
    pub fn replace_connection(&mut self, connection: Connection) {
        self.mark_broken();
        (self.connection, self.resumes) = (Some(connection), true);
        self.received_acked = self.received;
        self.control(RESUME, &self.received.to_le_bytes());
    }

    /// Ends the connection for both sides, even if a forked child still has the socket.
    pub fn close(&mut self) {
        self.control(FAREWELL, &[]);
        // Unread bytes would reset the connection, and a reset drops bytes that the peer has not
        // read.
        let _ = self.receive(&mut Vec::new());
        if let Some(connection) = &self.connection {
            let _ = rustix::net::shutdown(connection.socket(), rustix::net::Shutdown::Both);
        }
    }

    /// Drops the kept messages that the peer has received; `received` is the peer's count.
    fn trim(&mut self, received: u32) -> Result<(), SideEnd> {
        let count = received.wrapping_sub(self.acknowledged) as usize;
        if count > self.unacknowledged.len() {
            return Err(SideEnd::Nonsense);
        }
        self.unacknowledged.drain(..count);
        self.acknowledged = received;
        Ok(())
    }

    fn decode(&mut self, words: &mut Vec<SideMessage>) -> Result<(), SideEnd> {
        while let Some(&[kind, low, high]) = self.incoming.first_chunk::<HEAD_BYTES>() {
            let bytes = usize::from(u16::from_le_bytes([low, high]));
            if bytes > NOTE_BYTES_MAX {
                return Err(SideEnd::TooLong);
            }
            let Some(text) = self.incoming.get(HEAD_BYTES..HEAD_BYTES + bytes) else { break };
            let number = text.try_into().ok().map(u32::from_le_bytes);
            match (kind, number) {
                (HEARD, Some(number)) => self.trim(number)?,
                (RESUME, Some(number)) if self.resumes => {
                    self.trim(number)?;
                    self.resumes = false;
                    self.unacknowledged
                        .iter()
                        .for_each(|word| self.outgoing.extend_from_slice(word));
                    // An error is ignored: the next read reports that the connection has ended.
                    let _ = self.flush();
                }
                (FAREWELL, _) => return Err(SideEnd::Farewell),
                (HEARD | RESUME, _) => return Err(SideEnd::Nonsense),
                _ => {
                    words.push(SideMessage::new(kind, text).ok_or(SideEnd::Nonsense)?);
                    self.received = self.received.wrapping_add(1);
                }
            }
            self.incoming.drain(..HEAD_BYTES + bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::event::Timespec;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn connections() -> (Connection, Connection) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (one, other) = pair.unwrap();
        (Connection::plain(one), Connection::plain(other))
    }

    fn sides() -> (SideConnection, SideConnection) {
        let (one, other) = connections();
        (SideConnection::new(one), SideConnection::new(other))
    }

    /// Messages around a break arrive once, whichever of them the first connection has lost.
    #[test]
    fn messages_around_a_break_arrive_once_and_in_order() {
        let note = |at: u32| SideMessage::Note(at.to_le_bytes().to_vec());
        for (heard_before, said_before) in [(0, 0), (0, 40), (7, 40), (40, 40), (100, 100)] {
            let (mut one, mut other) = sides();
            let mut received = Vec::new();
            for at in 0..said_before {
                one.send(&note(at));
                if at < heard_before {
                    other.receive(&mut received).unwrap();
                    one.receive(&mut Vec::new()).unwrap();
                }
            }
            let at_most = 2 * TELL_EVERY as usize;
            assert!(
                heard_before != 100 || one.unacknowledged.len() < at_most,
                "{} unacknowledged messages are kept",
                one.unacknowledged.len()
            );
            one.mark_broken();
            one.send(&note(said_before));
            assert!(!one.is_flushed());
            let (here, there) = connections();
            one.replace_connection(here);
            one.send(&note(said_before + 1));
            other.replace_connection(there);
            for _ in 0..4 {
                other.receive(&mut received).unwrap();
                one.receive(&mut Vec::new()).unwrap();
            }
            assert_eq!(
                received,
                Vec::from_iter((0..said_before + 2).map(note)),
                "wrong messages; {heard_before} of {said_before} had arrived before the break"
            );
            assert!(one.is_flushed());
            other.close();
            let end = one.receive(&mut Vec::new());
            assert_eq!(end, Err(SideEnd::Farewell));
        }
    }

    /// A connection that broke is not reported, even if another descriptor of its socket remains,
    /// as in a forked child.
    #[test]
    fn a_connection_that_broke_is_not_watched() {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let numbers = || {
            let mut space = [MaybeUninit::uninit(); 4];
            let (ready, _) = epoll::wait(&*epoll, &mut space, Some(&Timespec::default())).unwrap();
            ready.iter().map(|event| event.data.u64()).collect::<Vec<_>>()
        };
        let (mut one, mut other) = sides();
        one.watch(&epoll, 7).unwrap();
        let _child = one.socket().unwrap().try_clone().unwrap();
        other.send(&SideMessage::Ready);
        assert_eq!(numbers(), [7]);
        one.mark_broken();
        assert_eq!(numbers(), []);
        let (here, there) = connections();
        one.replace_connection(here);
        other.replace_connection(there);
        one.watch(&epoll, 8).unwrap();
        assert_eq!(numbers(), [8]);
    }

    #[test]
    fn messages_arrive_in_order_and_before_the_end() {
        let (mut one, mut other) = sides();
        let long = SideMessage::Note(vec![7; NOTE_BYTES_MAX]);
        let said = [
            SideMessage::Offer(vec![1, 2]),
            SideMessage::Ready,
            long,
            SideMessage::Note(Vec::new()),
            SideMessage::Failed("x".into()),
            SideMessage::Leaving(u64::MAX - 1),
            SideMessage::Received,
            SideMessage::Counts { sent: 9, arrived: u64::MAX - 2 },
        ];
        said.iter().for_each(|word| one.send(word));
        let mut received = Vec::new();
        while received.len() < said.len() {
            one.receive(&mut Vec::new()).unwrap();
            other.receive(&mut received).unwrap();
        }
        assert_eq!(received, said);
        assert!(one.is_flushed());
        one.send(&SideMessage::Ready);
        drop(one);
        assert!(other.receive(&mut received).is_err());
        assert_eq!(received.last(), Some(&SideMessage::Ready));
    }

    #[test]
    fn a_malformed_message_ends_the_connection() {
        let long_ago = [HEARD, 4, 0, 9, 0, 0, 0];
        let unasked = [RESUME, 4, 0, 0, 0, 0, 0];
        let all = [
            &[10, 0, 0][..],
            &[8, 1, 0, 5],
            &[9, 1, 0, 5],
            &[2, 1, 0, 5],
            &[3, 0xff, 0xff],
            &long_ago,
            &unasked,
        ];
        for nonsense in all {
            let (mut one, mut other) = sides();
            one.outgoing.extend_from_slice(nonsense);
            one.flush().unwrap();
            let end = other.receive(&mut Vec::new());
            assert!(
                matches!(end, Err(SideEnd::Nonsense | SideEnd::TooLong)),
                "{nonsense:?}: {end:?}"
            );
        }
    }
}
