//! What the connecting side says that a connection is for.

use ccl_core::transport::HELLO_BYTES_MAX;

use super::LinkId;

/// The purpose of a connection, as the connecting side states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The link that it belongs to.
    pub link: LinkId,
    /// Its number among the link's connections.
    pub number: u16,
    /// How many the link has.
    pub count: u16,
    /// The user's text.
    pub text: Vec<u8>,
}

impl Intent {
    /// Encodes it as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.link.to_vec();
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.count.to_le_bytes());
        bytes.extend_from_slice(&self.text);
        bytes
    }

    /// Decodes what [`Intent::encode`] wrote; none if the bytes are anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Intent> {
        let (link, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (count, text) = rest.split_first_chunk()?;
        let (number, count) = (u16::from_le_bytes(*number), u16::from_le_bytes(*count));
        let plausible = number < count && text.len() <= HELLO_BYTES_MAX;
        plausible.then(|| Intent { link: *link, number, count, text: text.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_survive_their_journey_and_nonsense_does_not() {
        let intent = Intent { link: [2; 16], number: 3, count: 4, text: b"rank 5".to_vec() };
        let bytes = intent.encode();
        assert_eq!(Intent::decode(&bytes), Some(intent));
        assert_eq!(Intent::decode(&bytes[..18]), None);
        let mut beyond = bytes;
        beyond[16] = 4;
        assert_eq!(Intent::decode(&beyond), None, "connection 4 of 4");
    }
}
