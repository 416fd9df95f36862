//! The connection beside the queue pairs: the two sides agree over it on these, write notes on it,
//! and learn from its end that the other is gone.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use ccl_core::transport::NOTE_BYTES_MAX;
use ccl_wire::{Got, Wire};

const HEAD_BYTES: usize = 3;
/// Bytes read at once.
const READ_BYTES: usize = 4096;
/// Reads in a row, so that a peer that never ends does not keep its hearer.
const READS_MAX: usize = 16;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Queue pairs, as bytes of an [`Offer`](crate::offer::Offer).
    Offer(Vec<u8>),
    /// The queue pairs of this side are connected.
    Ready,
    /// A note of the user's.
    Note(Vec<u8>),
    /// Nothing goes over the queue pairs of this side any more, and why.
    Failed(String),
}

impl Word {
    fn kind(&self) -> u8 {
        match self {
            Word::Offer(_) => 1,
            Word::Ready => 2,
            Word::Note(_) => 3,
            Word::Failed(_) => 4,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Word::Offer(bytes) | Word::Note(bytes) => bytes,
            Word::Ready => &[],
            Word::Failed(reason) => reason.as_bytes(),
        }
    }

    fn new(kind: u8, bytes: &[u8]) -> Option<Word> {
        match kind {
            1 => Some(Word::Offer(bytes.to_vec())),
            2 if bytes.is_empty() => Some(Word::Ready),
            3 => Some(Word::Note(bytes.to_vec())),
            // A peer's text is shown: nothing in it may steer a terminal.
            4 => Some(Word::Failed(
                String::from_utf8_lossy(bytes).replace(char::is_control, " ").trim().to_owned(),
            )),
            _ => None,
        }
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Side {
    wire: Wire,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Side {
    pub(crate) fn new(wire: Wire) -> Side {
        Side { wire, outgoing: Vec::new(), incoming: Vec::new() }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        self.wire.socket()
    }

    /// Says something as soon as the socket takes it.
    pub(crate) fn say(&mut self, word: &Word) {
        let bytes = word.bytes();
        self.outgoing.push(word.kind());
        self.outgoing.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.outgoing.extend_from_slice(bytes);
        // An end of the connection is noticed by who reads.
        let _ = self.flush();
    }

    /// Whether the socket has taken everything.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() && self.wire.is_flushed()
    }

    fn flush(&mut self) -> Result<(), String> {
        while !self.outgoing.is_empty() {
            match self.wire.write(&[IoSlice::new(&self.outgoing)]) {
                Got::Bytes(count) => drop(self.outgoing.drain(..count)),
                Got::Nothing => break,
                Got::End(reason) => return Err(reason),
            }
        }
        self.wire.flush()
    }

    /// Appends what has been said. An error is the end of the connection.
    pub(crate) fn listen(&mut self, words: &mut Vec<Word>) -> Result<(), String> {
        let flushed = self.flush();
        for _ in 0..READS_MAX {
            let have = self.incoming.len();
            self.incoming.resize(have + READ_BYTES, 0);
            let got = self.wire.read(&mut [IoSliceMut::new(&mut self.incoming[have..])]);
            let count = if let Got::Bytes(count) = got { count } else { 0 };
            self.incoming.truncate(have + count);
            match got {
                Got::Bytes(_) => self.understand(words)?,
                Got::Nothing => break,
                Got::End(reason) => return Err(reason),
            }
        }
        flushed
    }

    /// Ends the connection for both sides, also where a forked child still has its socket.
    pub(crate) fn close(&mut self) {
        // What was not heard would reset it, and with it what the peer has not read yet.
        let _ = self.listen(&mut Vec::new());
        let _ = rustix::net::shutdown(self.wire.socket(), rustix::net::Shutdown::Both);
    }

    fn understand(&mut self, words: &mut Vec<Word>) -> Result<(), String> {
        while let Some(&[kind, low, high]) = self.incoming.first_chunk::<HEAD_BYTES>() {
            let bytes = usize::from(u16::from_le_bytes([low, high]));
            if bytes > NOTE_BYTES_MAX {
                return Err("it says something longer than anything may be".to_owned());
            }
            let Some(text) = self.incoming.get(HEAD_BYTES..HEAD_BYTES + bytes) else { break };
            let word = Word::new(kind, text);
            words.push(word.ok_or("it says something that means nothing here")?);
            self.incoming.drain(..HEAD_BYTES + bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn sides() -> (Side, Side) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (one, other) = pair.unwrap();
        (Side::new(Wire::plain(one)), Side::new(Wire::plain(other)))
    }

    #[test]
    fn words_arrive_in_order_and_the_end_after_them() {
        let (mut one, mut other) = sides();
        let long = Word::Note(vec![7; NOTE_BYTES_MAX]);
        let said = [
            Word::Offer(vec![1, 2]),
            Word::Ready,
            long,
            Word::Note(Vec::new()),
            Word::Failed("x".into()),
        ];
        said.iter().for_each(|word| one.say(word));
        let mut heard = Vec::new();
        while heard.len() < said.len() {
            one.listen(&mut Vec::new()).unwrap();
            other.listen(&mut heard).unwrap();
        }
        assert_eq!(heard, said);
        assert!(one.is_flushed());
        one.say(&Word::Ready);
        drop(one);
        assert!(other.listen(&mut heard).is_err());
        assert_eq!(heard.last(), Some(&Word::Ready));
    }

    #[test]
    fn nonsense_ends_it() {
        for nonsense in [&[9, 0, 0][..], &[2, 1, 0, 5], &[3, 0xff, 0xff]] {
            let (mut one, mut other) = sides();
            one.outgoing.extend_from_slice(nonsense);
            one.flush().unwrap();
            assert!(other.listen(&mut Vec::new()).is_err(), "{nonsense:?}");
        }
    }
}
