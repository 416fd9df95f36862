//! A pair's connections once both sides have proved the secret, and what is needed to mend them.

use std::any::Any;
use std::sync::{Arc, Mutex};

use ccl_core::transport::Inner;

use crate::acceptor::Acceptor;
use crate::address::{Place, Token};
use crate::shake::Setup;
use crate::wire::Wire;

/// Names a link in both processes; random.
pub(crate) type LinkId = [u8; 16];

/// The longest text that the user of a connection may give to it.
pub(crate) const TEXT_BYTES_MAX: usize = 64;
/// The longest hello on the wire.
pub(crate) const HELLO_BYTES_MAX: usize = FIXED_BYTES + TEXT_BYTES_MAX;
const FIXED_BYTES: usize = 16 + 16 + 2 + 2 + 1 + 1;

/// What the connecting side says of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The listener that is meant.
    pub(crate) token: Token,
    pub(crate) link: LinkId,
    /// Which of the link's stripes this is.
    pub(crate) stripe: u16,
    /// How many there are.
    pub(crate) stripes: u16,
    /// Whether it takes the place of a broken one.
    pub(crate) resumes: bool,
    /// Whether it is to be encrypted.
    pub(crate) encrypts: bool,
    /// Its user's text.
    pub(crate) text: Vec<u8>,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.text.len());
        bytes.extend_from_slice(&self.token);
        bytes.extend_from_slice(&self.link);
        bytes.extend_from_slice(&self.stripe.to_le_bytes());
        bytes.extend_from_slice(&self.stripes.to_le_bytes());
        bytes.push(u8::from(self.resumes));
        bytes.push(u8::from(self.encrypts));
        bytes.extend_from_slice(&self.text);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Hello> {
        let (token, rest) = bytes.split_first_chunk()?;
        let (link, rest) = rest.split_first_chunk()?;
        let (stripe, rest) = rest.split_first_chunk()?;
        let (stripes, rest) = rest.split_first_chunk()?;
        let (resumes, rest) = rest.split_first()?;
        let (encrypts, text) = rest.split_first()?;
        let (stripe, stripes) = (u16::from_le_bytes(*stripe), u16::from_le_bytes(*stripes));
        let plausible =
            stripe < stripes && *resumes <= 1 && *encrypts <= 1 && text.len() <= TEXT_BYTES_MAX;
        plausible.then(|| Hello {
            token: *token,
            link: *link,
            stripe,
            stripes,
            resumes: *resumes == 1,
            encrypts: *encrypts == 1,
            text: text.to_vec(),
        })
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
    fn hellos_survive_their_journey_and_nonsense_does_not() {
        let hello = Hello {
            token: [1; 16],
            link: [2; 16],
            stripe: 3,
            stripes: 4,
            resumes: true,
            encrypts: false,
            text: b"rank 5".to_vec(),
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        assert_eq!(Hello::decode(&bytes[..30]), None);
        let mut beyond = bytes.clone();
        beyond[32] = 4;
        assert_eq!(Hello::decode(&beyond), None, "stripe 4 of 4");
        let mut neither = bytes;
        neither[37] = 2;
        assert_eq!(Hello::decode(&neither), None, "neither encrypted nor not");
    }
}
