//! Sending half of a stripe (one of the TCP connections over which a link's bytes are striped):
//! puts, kept until the peer has acknowledged them.

use std::collections::VecDeque;
use std::io::IoSlice;

use ccl_core::transport::TransportError;
use ccl_memory::Region;
use ccl_socket::{Connection, ConnectionEnd, Got};

use crate::error::ProtocolError;
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::memory::readable;

/// Largest number of frames in one system call.
const FRAMES_PER_WRITE: usize = 32;

/// A put or a note, and its frame's header.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) header: Header,
    pub(crate) source: Region,
    /// Second part of the payload, sent after `source`.
    pub(crate) tail: Option<Region>,
    /// Identifier for the completion; none for a note. With [`Outgoing::done_when_written`], it is
    /// taken out when the put is written, since the put is done then.
    pub(crate) id: Option<u64>,
    /// True while the memory still holds the put's bytes. With [`Outgoing::done_when_written`],
    /// false once the put is written: the put is then done, so the memory may change, although the
    /// peer has not acknowledged the put yet.
    pub(crate) has_bytes: bool,
    /// True for credits, CTS and notes, of which there are never many.
    pub(crate) is_control: bool,
}

impl Put {
    fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.source.bytes() + self.tail.as_ref().map_or(0, Region::bytes)
    }
}

/// The sending half of a stripe.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Unacknowledged puts and notes, oldest first.
    queue: VecDeque<Put>,
    /// Number of data puts in `queue`.
    data: usize,
    /// Number of frames of the queue that the socket has taken in full.
    sent: usize,
    /// Number of bytes that the socket has taken of the partly written frame, if any; else 0.
    written: usize,
    /// Header with which the partly written frame began; not used if `written` is 0.
    begun: [u8; HEADER_BYTES],
    /// Encoded headers without puts, sent before the next frame.
    bare_headers: VecDeque<[u8; HEADER_BYTES]>,
    /// Number of bytes that the socket has taken of the first of `bare_headers`.
    bare_written: usize,
    /// Number of puts and notes that the peer has acknowledged, modulo 2^32.
    acknowledged: u32,
    /// True if a put is done as soon as it is written: the connection has taken all its bytes.
    done_when_written: bool,
    /// Identifiers of puts that are written and not reported yet.
    written_out: Vec<u64>,
}

impl Outgoing {
    pub(crate) fn new(done_when_written: bool) -> Outgoing {
        Outgoing {
            queue: VecDeque::with_capacity(FRAMES_PER_WRITE),
            data: 0,
            sent: 0,
            written: 0,
            begun: [0; HEADER_BYTES],
            bare_headers: VecDeque::with_capacity(FRAMES_PER_WRITE),
            bare_written: 0,
            acknowledged: 0,
            done_when_written,
            written_out: Vec::with_capacity(FRAMES_PER_WRITE),
        }
    }

    /// Takes the identifiers of puts that are done because they are written.
    pub(crate) fn take_written(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.written_out.drain(..)
    }

    /// Returns whether `take_written` has anything to return.
    pub(crate) fn has_written(&self) -> bool {
        !self.written_out.is_empty()
    }

    /// Returns the number of puts of data that are not acknowledged.
    pub(crate) fn outstanding_data(&self) -> usize {
        self.data
    }

    /// Returns whether everything is acknowledged.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn push(&mut self, put: Put) {
        self.data += usize::from(!put.is_control);
        self.queue.push_back(put);
    }

    /// Gives a put a new source for its tail, if this stripe has the put.
    pub(crate) fn relocate(&mut self, id: u64, to: &Region) -> Result<(), TransportError> {
        let found = self.queue.iter_mut().find(|put| put.id == Some(id));
        let Some(tail) = found.and_then(|put| put.tail.as_mut()) else { return Ok(()) };
        let (bytes, given) = (tail.bytes(), to.bytes());
        if bytes != given {
            return Err(TransportError::OtherLength { bytes, given });
        }
        *tail = to.clone();
        Ok(())
    }

    /// Returns whether the connection has taken everything.
    pub(crate) fn is_drained(&self) -> bool {
        self.has_written_all() && self.bare_headers.is_empty()
    }

    /// Returns whether headers without puts are queued.
    pub(crate) fn has_bare_headers(&self) -> bool {
        !self.bare_headers.is_empty()
    }

    /// Returns whether every frame of the queue is written. A frame written before a break counts
    /// as written until [`Outgoing::resume`] learns that the peer lacks it.
    pub(crate) fn has_written_all(&self) -> bool {
        self.sent == self.queue.len()
    }

    /// Queues a header without a put. The header is sent before all frames that wait, but after a
    /// frame that is partly written.
    pub(crate) fn push_bare_header(&mut self, kind: Kind, received: u32) {
        self.bare_headers.push_back(Header::bare(kind, received).encode());
    }

    /// Handles an acknowledgement of `received` frames, modulo 2^32: their puts are done.
    pub(crate) fn acknowledge(
        &mut self,
        received: u32,
        done: &mut Vec<u64>,
    ) -> Result<(), ProtocolError> {
        let more = received.wrapping_sub(self.acknowledged) as usize;
        if more > self.sent {
            return Err(ProtocolError::NeverSent);
        }
        self.acknowledged = received;
        self.sent -= more;
        for put in self.queue.drain(..more) {
            self.data -= usize::from(!put.is_control);
            done.extend(put.id);
        }
        Ok(())
    }

    /// Prepares for a new connection, on which everything that the peer has not received is sent
    /// again.
    pub(crate) fn restart(&mut self) {
        (self.written, self.bare_written) = (0, 0);
        self.bare_headers.clear();
    }

    /// Continues after [`Outgoing::restart`] from the number of frames that the peer has received.
    pub(crate) fn resume(
        &mut self,
        received: u32,
        done: &mut Vec<u64>,
    ) -> Result<(), ProtocolError> {
        // A failed write over TLS may have sent frames that `sent` does not count, so the peer may
        // have received any frame of the queue.
        self.sent = self.queue.len();
        self.acknowledge(received, done)?;
        self.sent = 0;
        let lost = self.queue.iter().filter(|put| !put.has_bytes).count();
        if lost > 0 {
            return Err(ProtocolError::GivenBack(lost));
        }
        Ok(())
    }

    /// Drops everything that is queued.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        (self.data, self.sent) = (0, 0);
        self.restart();
    }

    /// Writes as much as the socket takes; `received` is the number of frames received from the
    /// peer. Returns whether that number was sent, which is the case if this call begins a frame.
    /// Queued headers, and the header of a frame that was partly written before, carry an older
    /// number.
    pub(crate) fn write(
        &mut self,
        connection: &mut Connection,
        received: u32,
    ) -> Result<bool, ConnectionEnd> {
        let mut told = false;
        while self.write_bare_headers(connection)? && self.sent < self.queue.len() {
            let (begun, more) = self.write_frames(connection, received)?;
            told |= begun;
            if !more {
                break;
            }
        }
        Ok(told)
    }

    /// Writes queued headers, unless a frame is partly written. Returns whether a frame may follow.
    pub(crate) fn write_bare_headers(
        &mut self,
        connection: &mut Connection,
    ) -> Result<bool, ConnectionEnd> {
        while let (Some(header), 0) = (self.bare_headers.front(), self.written) {
            match connection.write(&[IoSlice::new(&header[self.bare_written..])]) {
                Got::Bytes(count) => self.bare_written += count,
                Got::Nothing => return Ok(false),
                Got::End(end) => return Err(end),
            }
            if self.bare_written == HEADER_BYTES {
                self.bare_headers.pop_front();
                self.bare_written = 0;
            }
        }
        Ok(true)
    }

    /// Writes frames of the queue in one call. Returns whether a frame was begun, and whether the
    /// socket may take more.
    fn write_frames(
        &mut self,
        connection: &mut Connection,
        received: u32,
    ) -> Result<(bool, bool), ConnectionEnd> {
        // If headers are still queued here, they wait for the end of a partly written frame: only
        // that frame is written.
        let frames = if self.bare_headers.is_empty() { FRAMES_PER_WRITE } else { 1 };
        let mut headers = [[0; HEADER_BYTES]; FRAMES_PER_WRITE];
        let frames = frames.min(self.queue.len() - self.sent);
        for (header, put) in headers.iter_mut().zip(self.queue.range(self.sent..)).take(frames) {
            *header = Header { acknowledged: received, ..put.header }.encode();
        }
        if self.written > 0 {
            headers[0] = self.begun;
        }
        self.begun = headers[0];
        let mut slices = [IoSlice::new(&[]); 3 * FRAMES_PER_WRITE];
        let (mut filled, puts) = (0, self.queue.range(self.sent..).take(frames));
        for (header, put) in headers.iter().zip(puts) {
            slices[filled] = IoSlice::new(header);
            slices[filled + 1] = readable(&put.source, 0, put.source.bytes());
            filled += 2;
            if let Some(tail) = &put.tail {
                slices[filled] = readable(tail, 0, tail.bytes());
                filled += 1;
            }
        }
        let mut rest = &mut slices[..filled];
        IoSlice::advance_slices(&mut rest, self.written);
        let (asked, taken) =
            (rest.iter().map(|slice| slice.len()).sum::<usize>(), connection.write(rest));
        match taken {
            Got::Bytes(count) => Ok((self.took(count, &headers), count == asked)),
            Got::Nothing => Ok((false, false)),
            Got::End(end) => Err(end),
        }
    }

    /// Counts bytes that the socket has taken. Returns whether a frame was begun.
    fn took(&mut self, mut count: usize, headers: &[[u8; HEADER_BYTES]]) -> bool {
        let mut begun = false;
        for header in headers {
            let Some(put) = self.queue.get_mut(self.sent) else { break };
            begun |= self.written == 0 && count > 0;
            let left = put.frame_bytes() - self.written;
            if count < left {
                self.written += count;
                self.begun = *header;
                break;
            }
            count -= left;
            (self.sent, self.written) = (self.sent + 1, 0);
            if self.done_when_written
                && let Some(id) = put.id.take()
            {
                put.has_bytes = false;
                self.written_out.push(id);
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn put(id: u64) -> Put {
        let bytes = vec![id as u8; 3 * id as usize];
        let source = Region::private(bytes.len());
        source.write(0, &bytes).unwrap();
        let header =
            Header { bytes: bytes.len() as u32, memory: id as u32, ..Header::bare(Kind::Put, 0) };
        let (tail, id) = (None, Some(id));
        Put { header, source, tail, id, has_bytes: true, is_control: false }
    }

    /// Returns the frames of puts with these ids.
    fn frames(ids: std::ops::Range<u64>) -> Vec<u8> {
        let frame = |id| [&put(id).header.encode()[..], &vec![id as u8; 3 * id as usize]].concat();
        ids.flat_map(frame).collect()
    }

    /// Makes a connection, and the stream at its other end.
    fn pair() -> (Connection, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (Connection::plain(near.into()), far)
    }

    fn all(mut from: &UnixStream) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let count = std::io::Read::read(&mut from, &mut bytes).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn after_a_break_only_missing_frames_are_sent_again() {
        const PUTS: u64 = 5;
        for received in 0..=PUTS {
            let mut outgoing = Outgoing::new(false);
            (0..PUTS).for_each(|id| outgoing.push(put(id)));
            let (mut connection, far) = pair();
            outgoing.write(&mut connection, 0).unwrap();
            assert_eq!(all(&far), frames(0..PUTS));
            drop((connection, far));
            outgoing.restart();
            let mut done = Vec::new();
            outgoing.resume(received as u32, &mut done).unwrap();
            assert_eq!(done, Vec::from_iter(0..received));
            let (mut connection, far) = pair();
            outgoing.write(&mut connection, 0).unwrap();
            assert_eq!(all(&far), frames(received..PUTS));
            outgoing.acknowledge(PUTS as u32, &mut done).unwrap();
            assert_eq!((done, outgoing.outstanding_data()), (Vec::from_iter(0..PUTS), 0));
        }
    }

    #[test]
    fn acknowledging_frames_that_were_not_sent_is_an_error() {
        let mut outgoing = Outgoing::new(false);
        outgoing.push(put(1));
        assert!(outgoing.acknowledge(1, &mut Vec::new()).is_err(), "an unsent put is acknowledged");
        let (mut connection, _far) = pair();
        outgoing.write(&mut connection, 0).unwrap();
        assert!(outgoing.acknowledge(2, &mut Vec::new()).is_err());
        assert!(outgoing.acknowledge(1, &mut Vec::new()).is_ok());
    }

    #[test]
    fn puts_whose_memory_is_released_cannot_be_sent_again() {
        let mut outgoing = Outgoing::new(true);
        (0..2).for_each(|id| outgoing.push(put(id)));
        let (mut connection, _far) = pair();
        outgoing.write(&mut connection, 0).unwrap();
        assert_eq!(outgoing.take_written().collect::<Vec<_>>(), [0, 1]);
        outgoing.restart();
        let error = outgoing.resume(1, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("has not received 1 messages"), "{error}");
    }
}
