//! A pair's connections once both sides have proved the secret, and what is needed to mend them.

use std::any::Any;
use std::sync::{Arc, Mutex};

use ccl_core::transport::handshake::Protocol;
use ccl_core::transport::{HELLO_BYTES_MAX, Inner};
use ccl_wire::{Place, Setup, Wire, protocol};

use crate::acceptor::Acceptor;

/// Names a link in both processes; random.
pub(crate) type LinkId = [u8; 16];

/// Its version changes with every change of what is sent on a stripe.
pub(crate) const PROTOCOL: Protocol = protocol("ferroccl-tcp", 4);

/// What the connecting side says that a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) link: LinkId,
    /// Which of the link's stripes this is.
    pub(crate) stripe: u16,
    /// How many there are.
    pub(crate) stripes: u16,
    /// Its user's text.
    pub(crate) text: Vec<u8>,
}

impl Intent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.link.to_vec();
        bytes.extend_from_slice(&self.stripe.to_le_bytes());
        bytes.extend_from_slice(&self.stripes.to_le_bytes());
        bytes.extend_from_slice(&self.text);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Intent> {
        let (link, rest) = bytes.split_first_chunk()?;
        let (stripe, rest) = rest.split_first_chunk()?;
        let (stripes, text) = rest.split_first_chunk()?;
        let (stripe, stripes) = (u16::from_le_bytes(*stripe), u16::from_le_bytes(*stripes));
        let plausible = stripe < stripes && text.len() <= HELLO_BYTES_MAX;
        plausible.then(|| Intent { link: *link, stripe, stripes, text: text.to_vec() })
    }
}

/// How a broken stripe comes back.
#[derive(Debug)]
pub(crate) enum Way {
    /// The peer connects again, to this.
    Accepted(Arc<Mutex<Acceptor>>),
    /// This side connects again, there.
    Dialled { place: Place, setup: Setup },
}

/// The connections of a pair.
#[derive(Debug)]
pub(crate) struct Link {
    /// The device that it was made by.
    pub(crate) device: u64,
    pub(crate) id: LinkId,
    /// The peer's address, for messages.
    pub(crate) peer: String,
    pub(crate) stripes: Vec<Wire>,
    pub(crate) way: Way,
}

impl Inner for Link {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_survive_their_journey_and_nonsense_does_not() {
        let intent = Intent { link: [2; 16], stripe: 3, stripes: 4, text: b"rank 5".to_vec() };
        let bytes = intent.encode();
        assert_eq!(Intent::decode(&bytes), Some(intent));
        assert_eq!(Intent::decode(&bytes[..18]), None);
        let mut beyond = bytes;
        beyond[16] = 4;
        assert_eq!(Intent::decode(&beyond), None, "stripe 4 of 4");
    }
}
