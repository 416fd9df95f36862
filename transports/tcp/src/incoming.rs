//! Receiving half of a stripe: headers go through a buffer, payload straight to its destination.

use std::io::IoSliceMut;

use ccl_memory::{Region, RegionError};
use ccl_socket::{Connection, Got};

use crate::error::{ProtocolError, StripeEnd};
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::inbox::{Inbox, Target, Unfinished};
use crate::memory::writable;

const BUFFER_BYTES: usize = 32 << 10;
/// Limit on bytes that are read into the buffer past the end of a long frame. The next frame is
/// probably long too, and its bytes should bypass the buffer.
const BEHIND_BYTES: usize = 2 << 10;
/// Number of payload bytes from which on a frame counts as long.
pub(crate) const LONG_BYTES: usize = 16 << 10;
/// Limit on the bytes that a frame still lacks after a read that has emptied the socket: up to this
/// limit, the stripe reads again at once.
const SOON_BYTES: usize = 128 << 10;
/// Largest number of reads in one call of [`Incoming::read`].
const READS_PER_TURN: usize = 64;

/// A put or a note that has arrived in full, or information that a header carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Put { immediate: u32, bytes: usize },
    Note(Vec<u8>),
    Acknowledged(u32),
    Farewell,
    Resume(u32),
}

/// A frame that has arrived in part.
#[derive(Debug)]
struct Partial {
    header: Header,
    /// Destination of the bytes; none if that memory was withdrawn.
    into: Option<Target>,
    done: usize,
}

impl Partial {
    fn left(&self) -> usize {
        self.header.bytes as usize - self.done
    }

    /// Returns the arrival to report, now that the frame is whole.
    fn arrival(&self) -> Result<Option<Arrival>, RegionError> {
        let bytes = self.header.bytes as usize;
        match (&self.into, self.header.kind) {
            (Some(target), Kind::Note) => {
                let mut note = vec![0; bytes];
                target.region().read(0, &mut note)?;
                Ok(Some(Arrival::Note(note)))
            }
            _ => Ok(self.header.immediate.map(|immediate| Arrival::Put { immediate, bytes })),
        }
    }
}

/// The receiving half of a stripe.
#[derive(Debug)]
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    /// Index of the first unparsed byte in the buffer.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    /// True if the latest put whose header was parsed has at least [`LONG_BYTES`] payload bytes.
    long: bool,
    /// Number of puts and notes received in full, modulo 2^32.
    received: u32,
    /// Number of payload bytes of the puts and notes received in full.
    received_bytes: u64,
}

impl Incoming {
    pub(crate) fn new() -> Incoming {
        let buffer = vec![0; BUFFER_BYTES];
        let (partial, long, received, received_bytes) = (None, false, 0, 0);
        Incoming { buffer, start: 0, end: 0, partial, long, received, received_bytes }
    }

    /// Returns the number of puts and notes received in full, modulo 2^32.
    pub(crate) fn received(&self) -> u32 {
        self.received
    }

    /// Returns the number of payload bytes of all puts and notes received in full.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Returns the put that has arrived in part, if any.
    pub(crate) fn unfinished(&mut self) -> Option<Unfinished<'_>> {
        let Partial { header, into, done } = self.partial.as_mut()?;
        (header.kind == Kind::Put).then_some(Unfinished { header, target: into, done: *done })
    }

    /// Discards a partial frame: on a new connection the peer sends unfinished frames again.
    pub(crate) fn restart(&mut self) {
        (self.start, self.end, self.partial) = (0, 0, None);
    }

    /// Reads available bytes; `inbox` is the memory that the peer may write to. Returns whether the
    /// caller should read again at once. Returns false after a long put, so that the receiver can
    /// redirect the next put before that put's bytes are read.
    pub(crate) fn read(
        &mut self,
        connection: &mut Connection,
        inbox: &mut Inbox,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<bool, StripeEnd> {
        for _ in 0..READS_PER_TURN {
            let (got, asked) = self.fill(connection);
            let count = match got {
                Got::Bytes(count) => count,
                Got::Nothing => return Ok(false),
                Got::End(end) => return Err(StripeEnd::Broken(end)),
            };
            let long = self.parse(inbox, arrivals)?;
            if long || (count < asked && !self.is_soon_whole()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether the rest of a frame probably arrives soon. If the frame lacks more than
    /// [`SOON_BYTES`], the stripe lets bytes gather in the socket before it reads again: the kernel
    /// adds no bytes to a socket during a read.
    fn is_soon_whole(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| partial.left() <= SOON_BYTES)
    }

    /// Reads once. Returns the outcome, and the number of bytes that there was room for. A read of
    /// fewer bytes has emptied the socket.
    fn fill(&mut self, connection: &mut Connection) -> (Got, usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.buffer.len() - self.end;
        let most = if self.long { room.min(BEHIND_BYTES) } else { room };
        let behind = &mut self.buffer[self.end..self.end + most];
        let Some(partial) = &mut self.partial else {
            let asked = behind.len();
            let got = connection.read(&mut [IoSliceMut::new(behind)]);
            self.end += if let Got::Bytes(count) = got { count } else { 0 };
            return (got, asked);
        };
        let left = partial.left();
        let (got, asked) = match &partial.into {
            Some(target) => {
                let (first, offset, here) = target.locate(partial.done, left);
                let direct = writable(first, offset, here);
                let got = if here < left {
                    let (second, offset, there) = target.locate(partial.done + here, left - here);
                    let more = writable(second, offset, there);
                    connection.read(&mut [direct, more, IoSliceMut::new(behind)])
                } else {
                    connection.read(&mut [direct, IoSliceMut::new(behind)])
                };
                (got, left + most)
            }
            // The memory was withdrawn: these bytes are discarded.
            None => {
                let most = left.min(behind.len());
                (connection.read(&mut [IoSliceMut::new(&mut behind[..most])]), most)
            }
        };
        if let Got::Bytes(count) = got {
            let own = count.min(left);
            partial.done += own;
            self.end += count - own;
        }
        (got, asked)
    }

    /// Parses the buffered bytes. Returns whether a long put has now arrived in full.
    fn parse(
        &mut self,
        inbox: &mut Inbox,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<bool, ProtocolError> {
        let mut long = false;
        loop {
            if let Some(partial) = &mut self.partial {
                let here = partial.left().min(self.end - self.start);
                if let Some(target) = &partial.into {
                    let bytes = &self.buffer[self.start..self.start + here];
                    target.write(partial.done, bytes)?;
                }
                partial.done += here;
                self.start += here;
                if partial.left() > 0 {
                    return Ok(long);
                }
                self.received = self.received.wrapping_add(1);
                if let Some(partial) = self.partial.take() {
                    self.received_bytes += u64::from(partial.header.bytes);
                    if partial.header.kind == Kind::Put {
                        inbox.arrived(&partial.header);
                        long |= partial.header.bytes as usize >= LONG_BYTES;
                    }
                    arrivals.extend(partial.arrival()?);
                }
            }
            let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>()
            else {
                return Ok(long);
            };
            let header = Header::decode(bytes).ok_or(ProtocolError::NoFrame)?;
            self.start += HEADER_BYTES;
            self.begin(header, inbox, arrivals)?;
        }
    }

    fn begin(
        &mut self,
        header: Header,
        inbox: &Inbox,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), ProtocolError> {
        if header.kind == Kind::Resume {
            arrivals.push(Arrival::Resume(header.acknowledged));
            return Ok(());
        }
        arrivals.push(Arrival::Acknowledged(header.acknowledged));
        match header.kind {
            Kind::Farewell => arrivals.push(Arrival::Farewell),
            Kind::Put => {
                let into = inbox.target(&header)?;
                self.long = header.bytes as usize >= LONG_BYTES;
                self.partial = Some(Partial { header, into, done: 0 });
            }
            Kind::Note => {
                let into = Some(Target::new(Region::private(header.bytes as usize)));
                self.partial = Some(Partial { header, into, done: 0 });
            }
            Kind::Acknowledge | Kind::Resume => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::fd::OwnedFd;

    use ccl_core::transport::MrKey;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    const BYTES: usize = 4096;

    /// A connection, and memory that the other end may write to.
    struct End {
        theirs: OwnedFd,
        connection: Connection,
        inbox: Inbox,
        memory: Region,
        incoming: Incoming,
    }

    impl End {
        fn new() -> End {
            let (theirs, connection) = connection();
            let (mut inbox, memory) = (Inbox::default(), Region::private(BYTES));
            assert_eq!(inbox.share(MrKey(0), memory.clone()), 0);
            End { theirs, connection, inbox, memory, incoming: Incoming::new() }
        }

        /// Sends these bytes in one write. Returns the arrivals.
        fn take(&mut self, bytes: &[u8]) -> Vec<Arrival> {
            let sent = ccl_socket::socket::write(&self.theirs, &[IoSlice::new(bytes)]);
            assert!(matches!(sent, Got::Bytes(count) if count == bytes.len()));
            let mut arrivals = Vec::new();
            while self.incoming.read(&mut self.connection, &mut self.inbox, &mut arrivals).unwrap()
            {
            }
            arrivals.retain(|arrival| !matches!(arrival, Arrival::Acknowledged(_)));
            arrivals
        }

        fn memory(&self) -> Vec<u8> {
            let mut bytes = vec![0; BYTES];
            self.memory.read(0, &mut bytes).unwrap();
            bytes
        }
    }

    fn connection() -> (OwnedFd, Connection) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (theirs, ours) = pair.unwrap();
        (theirs, Connection::plain(ours))
    }

    /// Returns a put and a note of these bytes: the frame of each, and its arrival.
    fn frames(text: &[u8]) -> [(Vec<u8>, Arrival); 2] {
        let bytes = text.len() as u32;
        let note = Header { bytes, ..Header::bare(Kind::Note, 0) };
        let put = Header { kind: Kind::Put, immediate: Some(5), ..note };
        let frame = |header: Header| [&header.encode()[..], text].concat();
        let arrived = Arrival::Put { immediate: 5, bytes: text.len() };
        [(frame(put), arrived), (frame(note), Arrival::Note(text.to_vec()))]
    }

    #[test]
    fn a_frame_is_reported_only_after_its_last_byte() {
        let text: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
        for (frame, arrival) in frames(&text) {
            for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, frame.len() - 1] {
                let mut end = End::new();
                assert_eq!(end.take(&frame[..cut]), [], "{cut} bytes of {}", frame.len());
                assert_eq!((end.incoming.received(), end.incoming.received_bytes()), (0, 0));
                assert_eq!(end.take(&frame[cut..]), std::slice::from_ref(&arrival), "cut at {cut}");
                let whole = (end.incoming.received(), end.incoming.received_bytes());
                assert_eq!(whole, (1, BYTES as u64));
                let is_put = matches!(arrival, Arrival::Put { .. });
                assert!(!is_put || end.memory() == text, "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_frame_that_a_break_has_cut_is_received_anew_as_a_whole() {
        let (old, new) = (vec![1; BYTES], vec![2; BYTES]);
        for at in [0, 1] {
            let (cut, (whole, arrival)) = (frames(&old)[at].0.clone(), frames(&new)[at].clone());
            for count in [1, HEADER_BYTES, HEADER_BYTES + BYTES / 2, cut.len() - 1] {
                let mut end = End::new();
                assert_eq!(end.take(&cut[..count]), []);
                (end.theirs, end.connection) = connection();
                end.incoming.restart();
                assert_eq!(end.take(&whole), std::slice::from_ref(&arrival), "after {count} bytes");
                assert_eq!(end.incoming.received(), 1);
                assert!(at == 1 || end.memory() == new, "after {count} bytes");
            }
        }
    }
}
