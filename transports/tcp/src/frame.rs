//! What travels on a stripe: headers of 32 bytes, each followed by the bytes of a put or a note.
//!
//! ```text
//! 0   kind      1 put, 2 acknowledgement, 3 farewell, 4 resumption, 5 note
//! 1   flags     1: the immediate is to be seen
//! 4   immediate
//! 8   offset    first byte in the peer's memory
//! 16  memory    which of the pieces that the receiver has shared
//! 20  bytes     that follow
//! 24  acknowledged: frames that the sender of this header has received on the stripe, modulo 2^32
//! ```

use ccl_core::transport::NOTE_BYTES_MAX;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    /// Tells nothing but what was received.
    Acknowledge,
    /// The sender closes the endpoint in good order.
    Farewell,
    /// The first on a connection that takes the place of a broken one.
    Resume,
    /// A few bytes for the peer to read.
    Note,
}

/// A header, understood.
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
    /// One without a put.
    pub(crate) fn bare(kind: Kind, acknowledged: u32) -> Header {
        Header { kind, immediate: None, offset: 0, memory: 0, bytes: 0, acknowledged }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = match self.kind {
            Kind::Put => 1,
            Kind::Acknowledge => 2,
            Kind::Farewell => 3,
            Kind::Resume => 4,
            Kind::Note => 5,
        };
        bytes[1] = u8::from(self.immediate.is_some());
        bytes[4..8].copy_from_slice(&self.immediate.unwrap_or(0).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.memory.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let kind = match bytes[0] {
            1 => Kind::Put,
            2 => Kind::Acknowledge,
            3 => Kind::Farewell,
            4 => Kind::Resume,
            5 => Kind::Note,
            _ => return None,
        };
        let header = Header {
            kind,
            immediate: (bytes[1] == 1).then(|| word(4)),
            offset: u64::from(word(8)) | u64::from(word(12)) << 32,
            memory: word(16),
            bytes: word(20),
            acknowledged: word(24),
        };
        let bytes_max = match kind {
            Kind::Put => u32::MAX,
            Kind::Note => NOTE_BYTES_MAX as u32,
            _ => 0,
        };
        (header.bytes <= bytes_max).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_their_journey() {
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
