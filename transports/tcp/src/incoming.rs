//! What one stripe receives: headers through a buffer, bytes straight to where they belong.

use std::io::IoSliceMut;

use ccl_memory::{Region, RegionError};

use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::memory::writable;
use crate::socket::Got;
use crate::wire::Wire;

const BUFFER_BYTES: usize = 32 << 10;
/// While a long frame comes in, and after it, no more than this is read behind its end: the next
/// one is probably long too, and its bytes need not pass through the buffer.
const BEHIND_BYTES: usize = 2 << 10;
const LONG_BYTES: usize = 16 << 10;
/// Reads before others have their turn.
const READS_PER_TURN: usize = 64;

/// Something that has come in whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Put { immediate: u32, bytes: usize },
    Note(Vec<u8>),
    Acknowledged(u32),
    Farewell,
    Resume(u32),
}

/// A frame of which not all bytes have come.
#[derive(Debug)]
struct Partial {
    header: Header,
    /// Where its bytes go; none if that memory was withdrawn.
    into: Option<Region>,
    done: usize,
}

impl Partial {
    fn left(&self) -> usize {
        self.header.bytes as usize - self.done
    }

    /// What is to be told, now that it is whole.
    fn arrival(&self) -> Result<Option<Arrival>, RegionError> {
        let bytes = self.header.bytes as usize;
        match (&self.into, self.header.kind) {
            (Some(region), Kind::Note) => {
                let mut note = vec![0; bytes];
                region.read(0, &mut note)?;
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
    /// What of the buffer is filled and not yet understood.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    /// Whether the last put was long.
    long: bool,
    /// Frames received, modulo 2^32.
    received: u32,
}

impl Incoming {
    pub(crate) fn new() -> Incoming {
        let buffer = vec![0; BUFFER_BYTES];
        Incoming { buffer, start: 0, end: 0, partial: None, long: false, received: 0 }
    }

    /// Frames received whole, modulo 2^32.
    pub(crate) fn received(&self) -> u32 {
        self.received
    }

    /// On a new connection the peer sends again what has not come whole.
    pub(crate) fn restart(&mut self) {
        (self.start, self.end, self.partial) = (0, 0, None);
    }

    /// Reads what is there. `shared` is what the peer may write to; withdrawn memory is none.
    /// Returns whether there may be more. An error is the end of the connection.
    pub(crate) fn read(
        &mut self,
        wire: &mut Wire,
        shared: &[Option<Region>],
        arrivals: &mut Vec<Arrival>,
    ) -> Result<bool, End> {
        for _ in 0..READS_PER_TURN {
            let (got, asked) = self.fill(wire);
            let count = match got {
                Got::Bytes(count) => count,
                Got::Nothing => return Ok(false),
                Got::End(reason) => return Err(End::Broken(reason)),
            };
            self.understand(shared, arrivals).map_err(End::Nonsense)?;
            if count < asked {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads once. Returns how many bytes there was room for: fewer came if that was all.
    fn fill(&mut self, wire: &mut Wire) -> (Got, usize) {
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
            let got = wire.read(&mut [IoSliceMut::new(behind)]);
            self.end += if let Got::Bytes(count) = got { count } else { 0 };
            return (got, asked);
        };
        let left = partial.left();
        let (got, asked) = match &partial.into {
            Some(region) => {
                let direct = writable(region, partial.done, left);
                let got = wire.read(&mut [direct, IoSliceMut::new(behind)]);
                (got, left + most)
            }
            // Nobody wants these bytes any more.
            None => {
                let most = left.min(behind.len());
                (wire.read(&mut [IoSliceMut::new(&mut behind[..most])]), most)
            }
        };
        if let Got::Bytes(count) = got {
            let own = count.min(left);
            partial.done += own;
            self.end += count - own;
        }
        (got, asked)
    }

    /// Goes through what has come in.
    fn understand(
        &mut self,
        shared: &[Option<Region>],
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), String> {
        loop {
            if let Some(partial) = &mut self.partial {
                let here = partial.left().min(self.end - self.start);
                if let Some(region) = &partial.into {
                    let bytes = &self.buffer[self.start..self.start + here];
                    region.write(partial.done, bytes).map_err(|error| error.to_string())?;
                }
                partial.done += here;
                self.start += here;
                if partial.left() > 0 {
                    return Ok(());
                }
                self.received = self.received.wrapping_add(1);
                if let Some(partial) = self.partial.take() {
                    arrivals.extend(partial.arrival().map_err(|error| error.to_string())?);
                }
            }
            let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>()
            else {
                return Ok(());
            };
            let header = Header::decode(bytes).ok_or("it sent something that is no frame")?;
            self.start += HEADER_BYTES;
            self.begin(header, shared, arrivals)?;
        }
    }

    fn begin(
        &mut self,
        header: Header,
        shared: &[Option<Region>],
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), String> {
        if header.kind == Kind::Resume {
            arrivals.push(Arrival::Resume(header.acknowledged));
            return Ok(());
        }
        arrivals.push(Arrival::Acknowledged(header.acknowledged));
        match header.kind {
            Kind::Farewell => arrivals.push(Arrival::Farewell),
            Kind::Put => {
                let into = target(&header, shared)?;
                self.long = header.bytes as usize >= LONG_BYTES;
                self.partial = Some(Partial { header, into, done: 0 });
            }
            Kind::Note => {
                let into = Some(Region::private(header.bytes as usize));
                self.partial = Some(Partial { header, into, done: 0 });
            }
            Kind::Acknowledge | Kind::Resume => {}
        }
        Ok(())
    }
}

/// Where a put's bytes go.
fn target(header: &Header, shared: &[Option<Region>]) -> Result<Option<Region>, String> {
    let outside = "it wrote to memory that was not shared with it";
    let region = shared.get(header.memory as usize).ok_or(outside)?;
    let (Some(region), Ok(offset)) = (region, usize::try_from(header.offset)) else {
        return Ok(None);
    };
    region.part(offset, header.bytes as usize).map(Some).map_err(|_| outside.to_owned())
}

/// Why nothing more comes.
#[derive(Debug)]
pub(crate) enum End {
    /// The connection broke; it may be mended.
    Broken(String),
    /// The peer does not keep to the protocol.
    Nonsense(String),
}
