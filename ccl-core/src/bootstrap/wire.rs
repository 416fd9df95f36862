//! The bytes of a message: fixed little-endian integers and length-prefixed strings, read with
//! every bound checked.

use thiserror::Error;

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("malformed message: {what}")]
pub struct MessageError {
    /// What was wrong with the bytes.
    pub what: &'static str,
}

/// Reads a message front to back.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (front, rest) =
            self.0.split_first_chunk::<N>().ok_or(MessageError { what: "it ends too early" })?;
        self.0 = rest;
        Ok(*front)
    }

    pub(super) fn u8(&mut self) -> Result<u8, MessageError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of things of `bytes_each` that must all still be there.
    pub(super) fn count(&mut self, bytes_each: usize) -> Result<usize, MessageError> {
        let count = self.u32()? as usize;
        match count.checked_mul(bytes_each) {
            Some(bytes) if bytes <= self.0.len() => Ok(count),
            _ => Err(MessageError { what: "it announces more than it holds" }),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], MessageError> {
        let count = self.count(1)?;
        let (front, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(front)
    }

    pub(super) fn text(&mut self, bytes_max: usize) -> Result<String, MessageError> {
        let bytes = self.bytes()?;
        if bytes.len() > bytes_max {
            return Err(MessageError { what: "a text is too long" });
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| MessageError { what: "a text is not UTF-8" })
    }

    pub(super) fn end(self) -> Result<(), MessageError> {
        if self.0.is_empty() { Ok(()) } else { Err(MessageError { what: "bytes follow its end" }) }
    }
}

/// Writes a message front to back.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn array(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Writer {
        self.array(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Writer {
        self.array(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Writer {
        self.array(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Writer {
        self.array(&value.to_le_bytes())
    }

    pub(super) fn count(&mut self, count: usize) -> &mut Writer {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.count(bytes.len()).array(bytes)
    }

    /// At most `bytes_max` of the text, cut between two characters.
    pub(super) fn text(&mut self, text: &str, bytes_max: usize) -> &mut Writer {
        let mut end = text.len().min(bytes_max);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end])
    }
}
