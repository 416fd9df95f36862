//! Encoding of the records that ranks send each other: derived with serde, written by `postcard`
//! (little-endian variable-length integers, length-prefixed sequences), and read with every bound
//! checked.
//!
//! CTS records and message headers are not encoded here: the data path reads them while a device
//! may be writing them, so their fields have fixed offsets, and CTS records have a checksum.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::types::Rank;

/// Error for bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("malformed message: {what}")]
pub struct MessageError {
    /// The reason why the bytes cannot be read.
    pub what: &'static str,
}

/// Returns the bytes of a record.
#[must_use]
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Encoding fails only for sequences of unknown length, and no record has one. If it failed, the
    // result would be empty, and readers would refuse it.
    postcard::to_allocvec(record).unwrap_or_default()
}

/// Reads a record from all of these bytes.
///
/// # Errors
/// When the bytes are no such record, or more bytes follow.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    match decode_first(bytes)? {
        (record, []) => Ok(record),
        _ => Err(MessageError { what: "bytes follow its end" }),
    }
}

/// Reads a record from the beginning of these bytes; returns the record and the remaining bytes.
///
/// # Errors
/// When the bytes do not begin with such a record.
pub fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), MessageError> {
    postcard::take_from_bytes(bytes).map_err(|error| MessageError {
        what: match error {
            postcard::Error::DeserializeUnexpectedEnd => "it ends too early",
            _ => "it is not of this protocol",
        },
    })
}

/// `#[serde(with = "Text::<N>")]`: a text of at most `N` bytes. A longer text is cut between two
/// characters when it is written and refused when it is read.
#[derive(Debug)]
pub struct Text<const N: usize>;

impl<const N: usize> Text<N> {
    /// Writes a text, cut between two characters if it is too long.
    ///
    /// # Errors
    /// Returns the serializer's error.
    pub fn serialize<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
        let mut end = text.len().min(N);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        to.serialize_str(&text[..end])
    }

    /// Reads a text of at most `N` bytes.
    ///
    /// # Errors
    /// Returns the deserializer's error, or one that says that the text is too long.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        let text = String::deserialize(from)?;
        if text.len() <= N { Ok(text) } else { Err(D::Error::custom("a text is too long")) }
    }
}

/// `#[serde(with = "List::<N>")]`: a list of at most `N` items. Further items are left out when the
/// list is written; a longer list is refused when it is read.
#[derive(Debug)]
pub struct List<const N: usize>;

impl<const N: usize> List<N> {
    /// Writes the first `N` items.
    ///
    /// # Errors
    /// Returns the serializer's error.
    pub fn serialize<T: Serialize, S: Serializer>(items: &[T], to: S) -> Result<S::Ok, S::Error> {
        items[..items.len().min(N)].serialize(to)
    }

    /// Reads a list of at most `N` items.
    ///
    /// # Errors
    /// Returns the deserializer's error, or one that says that the list is too long.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<T>, D::Error> {
        let items = Vec::deserialize(from)?;
        if items.len() <= N { Ok(items) } else { Err(D::Error::custom("a list is too long")) }
    }
}

/// `#[serde(with = "RankSet::<N>")]`: ranks below `N`, in order, as a bitmap that ends with the
/// byte of the highest rank: at most `N / 8` bytes, however many ranks the set contains.
#[derive(Debug)]
pub struct RankSet<const N: u32>;

impl<const N: u32> RankSet<N> {
    /// Writes a set of ranks as a bitmap.
    ///
    /// # Errors
    /// Returns the serializer's error.
    pub fn serialize<S: Serializer>(ranks: &[Rank], to: S) -> Result<S::Ok, S::Error> {
        let end = ranks.iter().max().map_or(0, |last| *last as usize + 1);
        let mut bits = vec![0u8; end.div_ceil(8)];
        for rank in ranks {
            bits[*rank as usize / 8] |= 1 << (rank % 8);
        }
        bits.serialize(to)
    }

    /// Reads the ranks of a bitmap, in order.
    ///
    /// # Errors
    /// Returns the deserializer's error, or an error for a bitmap that is too long for ranks below
    /// `N` or ends with a byte of 0.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Rank>, D::Error> {
        let bits = Vec::<u8>::deserialize(from)?;
        if bits.len() > N as usize / 8 || bits.last() == Some(&0) {
            return Err(D::Error::custom("a bitmap of ranks is too long or ends with 0"));
        }
        // Ranks are below N, so the cast loses nothing.
        let ranks = (0..bits.len() * 8).map(|rank| rank as Rank);
        Ok(ranks.filter(|rank| bits[*rank as usize / 8] & (1 << (rank % 8)) != 0).collect())
    }
}
