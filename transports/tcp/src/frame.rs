//! Format of the bytes on one connection of a link: headers of 32 bytes, each followed by the bytes
//! of a put or a note.
//!
//! ```text
//! 0   kind      1 put, 2 acknowledgement, 3 farewell, 4 resumption, 5 note
//! 1   flags     1: the put has an immediate, which the receiving lane reports
//! 4   immediate
//! 8   offset    first byte in the receiver's memory
//! 16  memory    number of the registered memory, chosen by the receiver
//! 20  bytes     number of bytes that follow
//! 24  acknowledged: number of puts and notes that this header's sender has received, mod 2^32
//! ```

use bytemuck::{Pod, Zeroable};
use ccl_core::transport::NOTE_BYTES_MAX;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    /// Carries nothing but the count of received puts and notes.
    Acknowledge,
    /// The sender closes the endpoint in good order.
    Farewell,
    /// The first frame on a connection that replaces a broken one.
    Resume,
    /// A few bytes for the peer to read.
    Note,
}

/// A header as it is sent; all hosts are little-endian.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Layout {
    kind: u8,
    flags: u8,
    zero: u16,
    immediate: u32,
    offset: u64,
    memory: u32,
    bytes: u32,
    acknowledged: u32,
    end: u32,
}
const _: () = assert!(cfg!(target_endian = "little"), "frames need a little-endian host");

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) immediate: Option<u32>,
    pub(crate) offset: u64,
    pub(crate) memory: u32,
    pub(crate) bytes: u32,
    pub(crate) acknowledged: u32,
}

impl Header {
    /// Creates a header without a put.
    pub(crate) fn bare(kind: Kind, acknowledged: u32) -> Header {
        Header { kind, immediate: None, offset: 0, memory: 0, bytes: 0, acknowledged }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            Kind::Put => 1,
            Kind::Acknowledge => 2,
            Kind::Farewell => 3,
            Kind::Resume => 4,
            Kind::Note => 5,
        };
        bytemuck::must_cast(Layout {
            kind,
            flags: u8::from(self.immediate.is_some()),
            zero: 0,
            immediate: self.immediate.unwrap_or(0),
            offset: self.offset,
            memory: self.memory,
            bytes: self.bytes,
            acknowledged: self.acknowledged,
            end: 0,
        })
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let layout: Layout = bytemuck::must_cast(*bytes);
        let kind = match layout.kind {
            1 => Kind::Put,
            2 => Kind::Acknowledge,
            3 => Kind::Farewell,
            4 => Kind::Resume,
            5 => Kind::Note,
            _ => return None,
        };
        let Layout { immediate, offset, memory, bytes, acknowledged, .. } = layout;
        let immediate = (layout.flags == 1).then_some(immediate);
        let bytes_max = match kind {
            Kind::Put => u32::MAX,
            Kind::Note => NOTE_BYTES_MAX as u32,
            _ => 0,
        };
        (bytes <= bytes_max).then_some(Header {
            kind,
            immediate,
            offset,
            memory,
            bytes,
            acknowledged,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_header_decodes_to_the_same_header() {
        for kind in [Kind::Put, Kind::Acknowledge, Kind::Farewell, Kind::Resume, Kind::Note] {
            for immediate in [None, Some(0), Some(u32::MAX)] {
                let bytes = if kind == Kind::Put { 1 << 31 } else { 0 };
                let header = Header {
                    kind,
                    immediate,
                    offset: 5 << 40,
                    memory: 3,
                    bytes,
                    acknowledged: u32::MAX,
                };
                assert_eq!(Header::decode(&header.encode()), Some(header));
            }
        }
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
        assert_eq!(Header::decode(&[9; HEADER_BYTES]), None);
    }
}
