//! Handshake by which two processes prove to each other that they know a secret, before anything
//! else is read.
//!
//! ```text
//! connector                         listener
//!   hello: version, nonce, text  ─▶
//!                                ◀─  challenge: version, nonce
//!   proof                        ─▶
//!                                ◀─  proof
//! ```
//!
//! The text is the transport's own: it says, for example, what the connection is for. In the
//! comments below, the *hello* is this text alone.
//!
//! A proof is a keyed hash (HMAC-SHA256) over the protocol, the side, both nonces and the hello. A
//! proof is therefore refused if an attacker replays it on another connection or sends it back to
//! its sender. The connector proves first: a stranger that connects learns nothing but the version
//! and a nonce.
//!
//! Where an encrypted channel is put over the proved connection, both sides prove the secret once
//! more, over keys that only the two ends of that channel share ([`Handshake::channel_proof`]). An
//! attacker that relays the first proofs has a different channel with each side, and fails here.
//!
//! No I/O happens here: messages are handed in and out whole.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::Secret;

/// A random number used once.
pub type Nonce = [u8; 32];

/// Keys exported from an encrypted channel: only its two ends know them, and they differ between
/// channels.
pub type ChannelKeys = [u8; 32];

/// Proof of the secret for the other end of an encrypted channel.
pub type ChannelProof = [u8; 32];

/// Returns an upper bound on the length of the messages of a handshake whose hello has `hello`
/// bytes.
#[must_use]
pub const fn message_bytes_max(hello: usize) -> usize {
    64 + 2 + 32 + hello
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Connector,
    Listener,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Connector => Side::Listener,
            Side::Listener => Side::Connector,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Hello,
    Challenge,
    Proof,
}

/// Protocol of a transport: both sides must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Name, at most 32 bytes. Proofs cover the name, so a proof for one protocol proves nothing in
    /// another.
    pub name: &'static str,
    /// Version; it changes with every change of the messages after the handshake.
    pub version: u16,
    /// The longest hello, in bytes.
    pub hello_bytes_max: usize,
}

/// Refusal of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason, as the end of a sentence about the peer.
    pub reason: String,
    /// Message to send before hanging up, so that the peer learns the reason.
    pub farewell: Option<Vec<u8>>,
}

/// Answer to a message of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Message to send.
    pub send: Option<Vec<u8>>,
    /// True if both sides have proved the secret.
    pub proved: bool,
}

/// A connection whose sides have not proved the secret yet.
#[derive(Debug)]
pub struct Handshake {
    protocol: Protocol,
    side: Side,
    stage: Stage,
    secret: Secret,
    connector_nonce: Nonce,
    listener_nonce: Nonce,
    hello: Vec<u8>,
}

impl Handshake {
    /// Returns the connecting side, and the message that it begins with.
    #[must_use]
    pub fn connector(
        protocol: Protocol,
        secret: &Secret,
        nonce: Nonce,
        hello: &[u8],
    ) -> (Handshake, Vec<u8>) {
        let mut made = Handshake::new(protocol, Side::Connector, secret, nonce);
        made.hello = hello.to_vec();
        let first = made.message("hello", &[&protocol.version.to_le_bytes(), &nonce, hello]);
        (made, first)
    }

    /// Returns the listening side, which waits for the first message.
    #[must_use]
    pub fn listener(protocol: Protocol, secret: &Secret, nonce: Nonce) -> Handshake {
        Handshake::new(protocol, Side::Listener, secret, nonce)
    }

    fn new(protocol: Protocol, side: Side, secret: &Secret, nonce: Nonce) -> Handshake {
        Handshake {
            protocol,
            side,
            stage: if side == Side::Connector { Stage::Challenge } else { Stage::Hello },
            secret: secret.clone(),
            connector_nonce: nonce,
            listener_nonce: nonce,
            hello: Vec::new(),
        }
    }

    /// Returns the hello of the connecting side. Do not trust it before that side has proved the
    /// secret.
    #[must_use]
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Takes a message of the peer.
    ///
    /// # Errors
    ///
    /// When the peer must be refused.
    pub fn take(&mut self, message: &[u8]) -> Result<Answer, Refusal> {
        match self.stage {
            Stage::Hello => self.take_hello(message),
            Stage::Challenge => self.take_challenge(message),
            Stage::Proof => self.take_proof(message),
        }
    }

    /// Returns the probable reason why the peer has hung up, as the end of a sentence about the
    /// peer, and whether the peer has thereby refused this side.
    #[must_use]
    pub fn closed(&self) -> (&'static str, bool) {
        if self.side == Side::Connector && self.stage == Stage::Proof {
            let reason = "it closed the connection after this process answered its challenge: the \
                          two processes have different secrets";
            return (reason, true);
        }
        ("it closed the connection before it had proved the secret", false)
    }

    /// Returns the message that this side sends first in an encrypted channel over this connection.
    /// Both sides must have proved the secret before. The message proves the secret once more, over
    /// the channel's keys and everything that the handshake's proofs cover.
    #[must_use]
    pub fn channel_proof(&self, keys: &ChannelKeys) -> ChannelProof {
        self.proof_over_channel(self.side, keys).finalize().into_bytes().into()
    }

    /// Takes the message that the peer sends first in an encrypted channel.
    ///
    /// # Errors
    ///
    /// When the peer has another channel than this side, or does not know the secret.
    pub fn take_channel_proof(
        &self,
        keys: &ChannelKeys,
        claimed: &ChannelProof,
    ) -> Result<(), Refusal> {
        // `verify_slice` takes the same time wherever the difference is.
        self.proof_over_channel(self.side.other(), keys).verify_slice(claimed).map_err(|_| {
            refuse(
                "it does not share the keys of this encrypted channel: somebody between the two \
                 processes decrypts what they send and encrypts it anew; look for a proxy or an \
                 attacker",
            )
        })
    }

    fn take_hello(&mut self, message: &[u8]) -> Result<Answer, Refusal> {
        let (version, rest) = self.versioned(message, "hello")?;
        let own = self.protocol.version.to_le_bytes();
        let challenge = self.message("challenge", &[&own, &self.listener_nonce]);
        // Checks the version before the rest of the message, which can have another form in another
        // version. A peer of another version learns this side's version from the challenge.
        self.check_version(version)
            .map_err(|refusal| Refusal { farewell: Some(challenge.clone()), ..refusal })?;
        match rest.split_first_chunk() {
            Some((nonce, hello)) if hello.len() <= self.protocol.hello_bytes_max => {
                self.connector_nonce = *nonce;
                self.hello = hello.to_vec();
                self.stage = Stage::Proof;
                Ok(Answer { send: Some(challenge), proved: false })
            }
            _ => Err(refuse("its hello has a wrong length")),
        }
    }

    fn take_challenge(&mut self, message: &[u8]) -> Result<Answer, Refusal> {
        let (version, rest) = self.versioned(message, "challenge")?;
        self.check_version(version)?;
        self.listener_nonce =
            rest.try_into().map_err(|_| refuse("its challenge has a wrong length"))?;
        self.stage = Stage::Proof;
        Ok(Answer { send: Some(self.own_proof()), proved: false })
    }

    fn take_proof(&mut self, message: &[u8]) -> Result<Answer, Refusal> {
        let claimed = message.strip_prefix(&*self.message("proof", &[])).unwrap_or_default();
        // `verify_slice` takes the same time wherever the difference is.
        if self.proof(self.side.other()).verify_slice(claimed).is_err() {
            return Err(refuse("it does not know the secret of this communicator"));
        }
        let listens = self.side == Side::Listener;
        Ok(Answer { send: listens.then(|| self.own_proof()), proved: true })
    }

    fn own_proof(&self) -> Vec<u8> {
        self.message("proof", &[&self.proof(self.side).finalize().into_bytes()])
    }

    fn message(&self, kind: &str, parts: &[&[u8]]) -> Vec<u8> {
        let mut message = format!("{} {kind}", self.protocol.name).into_bytes();
        parts.iter().for_each(|part| message.extend_from_slice(part));
        message
    }

    fn versioned<'a>(&self, message: &'a [u8], kind: &str) -> Result<(u16, &'a [u8]), Refusal> {
        let rest = message.strip_prefix(&*self.message(kind, &[]));
        let (version, rest) = rest
            .and_then(<[u8]>::split_first_chunk)
            .ok_or_else(|| refuse("it speaks no protocol that is known here"))?;
        Ok((u16::from_le_bytes(*version), rest))
    }

    fn check_version(&self, version: u16) -> Result<(), Refusal> {
        let Protocol { name, version: own, .. } = self.protocol;
        if version == own {
            return Ok(());
        }
        Err(refuse(&format!(
            "it speaks version {version} of {name}, and this process speaks version {own}; run the \
             same build on all ranks"
        )))
    }

    fn proof(&self, side: Side) -> Hmac<Sha256> {
        let label = match side {
            Side::Connector => b"connector",
            Side::Listener => b"listener ",
        };
        self.keyed(label, &[])
    }

    fn proof_over_channel(&self, side: Side, keys: &ChannelKeys) -> Hmac<Sha256> {
        let label = match side {
            Side::Connector => b"channel-c",
            Side::Listener => b"channel-l",
        };
        self.keyed(label, keys)
    }

    fn keyed(&self, label: &[u8; 9], keys: &[u8]) -> Hmac<Sha256> {
        // HMAC accepts a key of any length, so the error branch is unreachable. The key in that
        // branch is all zeros, and would prove nothing.
        let mut proof = Hmac::<Sha256>::new_from_slice(&self.secret.0)
            .unwrap_or_else(|_| Hmac::new(&Default::default()));
        // The name is a constant of the code, the hello comes last, and the label implies the
        // lengths of all other inputs. So different inputs give different bytes.
        proof.update(self.protocol.name.as_bytes());
        proof.update(label);
        proof.update(&self.protocol.version.to_le_bytes());
        proof.update(&self.connector_nonce);
        proof.update(&self.listener_nonce);
        proof.update(keys);
        proof.update(&self.hello);
        proof
    }
}

fn refuse(reason: &str) -> Refusal {
    Refusal { reason: reason.to_owned(), farewell: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOL: Protocol = Protocol { name: "test", version: 3, hello_bytes_max: 8 };
    const SECRET: Secret = Secret([7; 32]);

    fn pair(hello: &[u8], secret: &Secret) -> (Handshake, Handshake, Vec<u8>) {
        let (connector, first) = Handshake::connector(PROTOCOL, secret, [1; 32], hello);
        (connector, Handshake::listener(PROTOCOL, &SECRET, [2; 32]), first)
    }

    #[test]
    fn a_peer_with_the_same_secret_is_accepted() {
        let (mut connector, mut listener, hello) = pair(b"rank 3", &SECRET);
        let challenge = listener.take(&hello).unwrap().send.unwrap();
        let proof = connector.take(&challenge).unwrap().send.unwrap();
        let answer = listener.take(&proof).unwrap();
        assert!(answer.proved && listener.hello() == b"rank 3");
        let last = connector.take(&answer.send.unwrap()).unwrap();
        assert_eq!(last, Answer { send: None, proved: true });
    }

    #[test]
    fn a_peer_with_another_secret_is_refused() {
        let (mut connector, mut listener, hello) = pair(b"", &Secret([8; 32]));
        let challenge = listener.take(&hello).unwrap().send.unwrap();
        let proof = connector.take(&challenge).unwrap().send.unwrap();
        let refusal = listener.take(&proof).unwrap_err();
        assert!(refusal.reason.contains("secret"), "{refusal:?}");
        assert!(connector.closed().1);
    }

    /// Shows that a proof with bytes missing or added is refused: a shorter one is easier to guess.
    #[test]
    fn a_proof_of_a_wrong_length_is_refused() {
        let (mut connector, mut listener, hello) = pair(b"", &SECRET);
        let challenge = listener.take(&hello).unwrap().send.unwrap();
        let proof = connector.take(&challenge).unwrap().send.unwrap();
        let head = proof.len() - 32;
        for length in [0, head, head + 1, head + 16, head + 31] {
            assert!(listener.take(&proof[..length]).is_err(), "accepted {length} bytes");
        }
        assert!(listener.take(&[&proof[..], &[0]].concat()).is_err(), "accepted one byte more");
        assert!(listener.take(&proof).unwrap().proved);
    }

    #[test]
    fn proofs_cannot_be_reflected_or_replayed() {
        let (mut connector, mut listener, hello) = pair(b"a", &SECRET);
        let challenge = listener.take(&hello).unwrap().send.unwrap();
        let proof = connector.take(&challenge).unwrap().send.unwrap();
        assert!(connector.take(&proof).is_err(), "the connector accepted its own proof");
        let mut later = Handshake::listener(PROTOCOL, &SECRET, [3; 32]);
        later.take(&hello).unwrap();
        assert!(later.take(&proof).is_err(), "accepted the proof of another connection");
    }

    /// Returns two sides that have proved the secret.
    fn proved(hello: &[u8]) -> (Handshake, Handshake) {
        let (mut connector, mut listener, first) = pair(hello, &SECRET);
        let challenge = listener.take(&first).unwrap().send.unwrap();
        let proof = connector.take(&challenge).unwrap().send.unwrap();
        let last = listener.take(&proof).unwrap().send.unwrap();
        assert!(connector.take(&last).unwrap().proved);
        (connector, listener)
    }

    #[test]
    fn the_ends_of_one_channel_accept_the_proofs_of_each_other() {
        let (connector, listener) = proved(b"a");
        let keys = [4; 32];
        assert_eq!(listener.take_channel_proof(&keys, &connector.channel_proof(&keys)), Ok(()));
        assert_eq!(connector.take_channel_proof(&keys, &listener.channel_proof(&keys)), Ok(()));
    }

    #[test]
    fn a_channel_proof_is_refused_by_all_but_the_other_end_of_its_channel() {
        let (connector, listener) = proved(b"a");
        let keys = [4; 32];
        let theirs = connector.channel_proof(&keys);
        let elsewhere = listener.take_channel_proof(&[5; 32], &theirs).unwrap_err();
        assert!(elsewhere.reason.contains("between the two"), "{elsewhere:?}");
        assert!(connector.take_channel_proof(&keys, &theirs).is_err(), "accepted its own proof");
        let (_, other) = proved(b"b");
        assert!(other.take_channel_proof(&keys, &theirs).is_err(), "accepted a replayed proof");
        let mut stranger = proved(b"a").1;
        stranger.secret = Secret([8; 32]);
        assert!(stranger.take_channel_proof(&keys, &theirs).is_err(), "accepted another secret");
        let plain = connector.own_proof();
        let plain = plain.last_chunk().unwrap();
        assert!(listener.take_channel_proof(&keys, plain).is_err(), "accepted a handshake proof");
    }

    #[test]
    fn nonsense_and_other_versions_are_refused_with_the_reason() {
        let mut listener = Handshake::listener(PROTOCOL, &SECRET, [2; 32]);
        for bytes in [&b""[..], b"GET / HTTP/1.1\r\n", b"test hello", b"test hello\x03\0short"] {
            assert!(listener.take(bytes).is_err());
        }
        let newer = Protocol { version: 4, ..PROTOCOL };
        let (mut connector, hello) = Handshake::connector(newer, &SECRET, [1; 32], b"");
        let refusal = listener.take(&hello).unwrap_err();
        assert!(refusal.reason.contains("version 4"), "{refusal:?}");
        let theirs = connector.take(&refusal.farewell.unwrap()).unwrap_err();
        assert!(theirs.reason.contains("version 3"), "{theirs:?}");
        let (_, long) = Handshake::connector(PROTOCOL, &SECRET, [1; 32], &[0; 9]);
        assert!(listener.take(&long).is_err());
    }
}
