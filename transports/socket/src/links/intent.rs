//! The intent: what the connecting side says about the purpose of a connection.

use ccl_core::encoding::{decode, encode};
use ccl_core::transport::HELLO_BYTES_MAX;
use serde::{Deserialize, Serialize};

use super::LinkId;

/// The purpose of a connection, as the connecting side states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Link that the connection belongs to.
    pub link: LinkId,
    /// Index of the connection in the link; 0 for the first connection.
    pub number: u16,
    /// Number of connections in the link.
    pub count: u16,
    /// Hello that the caller gave to `Device::connect`; empty if the connection replaces a broken
    /// one.
    pub text: Vec<u8>,
}

impl Intent {
    /// Encodes the intent as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes the bytes of [`Intent::encode`]; none if the bytes are anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Intent> {
        let intent: Intent = decode(bytes).ok()?;
        let plausible = intent.number < intent.count && intent.text.len() <= HELLO_BYTES_MAX;
        plausible.then_some(intent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_intent_decodes_and_malformed_bytes_do_not() {
        let intent = Intent { link: [2; 16], number: 3, count: 4, text: b"rank 5".to_vec() };
        let bytes = intent.encode();
        assert_eq!(Intent::decode(&bytes), Some(intent));
        assert_eq!(Intent::decode(&bytes[..18]), None);
        let mut beyond = bytes;
        beyond[16] = 4;
        assert_eq!(Intent::decode(&beyond), None, "a number equal to the count was decoded");
    }
}
