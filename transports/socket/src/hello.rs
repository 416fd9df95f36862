//! The hello: data of the connecting side about a connection, protected by that side's proof.

use crate::address::Token;

/// Longest text of a hello, in bytes.
pub const TEXT_BYTES_MAX: usize = 128;
/// Largest number of bytes of a hello on the wire.
pub(crate) const HELLO_BYTES_MAX: usize = FIXED_BYTES + TEXT_BYTES_MAX;
const FIXED_BYTES: usize = 16 + 1;

const ENCRYPTS: u8 = 1;
const RESUMES: u8 = 2;

/// Hello of the connecting side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Token of the gate (the peer's listener) to enter.
    pub token: Token,
    /// True if the connection is to be encrypted.
    pub encrypts: bool,
    /// True if the connection replaces a broken one, on which both sides had proved the secret.
    pub resumes: bool,
    /// Purpose of the connection, in its protocol's format; at most [`TEXT_BYTES_MAX`] bytes.
    pub text: Vec<u8>,
}

impl Hello {
    /// Encodes the hello.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.text.len());
        bytes.extend_from_slice(&self.token);
        let encrypts = if self.encrypts { ENCRYPTS } else { 0 };
        bytes.push(encrypts | if self.resumes { RESUMES } else { 0 });
        bytes.extend_from_slice(&self.text);
        bytes
    }

    /// Decodes a hello; none if the bytes are anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let (token, rest) = bytes.split_first_chunk()?;
        let (flags, text) = rest.split_first()?;
        let plausible = flags & !(ENCRYPTS | RESUMES) == 0 && text.len() <= TEXT_BYTES_MAX;
        plausible.then(|| Hello {
            token: *token,
            encrypts: flags & ENCRYPTS != 0,
            resumes: flags & RESUMES != 0,
            text: text.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_hello_decodes_and_malformed_bytes_do_not() {
        for (encrypts, resumes) in [(true, false), (false, true)] {
            let hello = Hello { token: [1; 16], encrypts, resumes, text: b"rank 5".to_vec() };
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
        assert_eq!(Hello::decode(&[1; 16]), None, "a truncated hello was decoded");
        assert_eq!(Hello::decode(&[7; 17]), None, "unknown flags were decoded");
        assert_eq!(Hello::decode(&[0; HELLO_BYTES_MAX + 1]), None, "an overlong text was decoded");
    }
}
