//! Messages that the two sides of a link exchange, as notes over its rails.

use ccl_core::encoding::{decode, encode};
use ccl_core::transport::{Address, NOTE_BYTES_MAX};
use serde::{Deserialize, Serialize};

/// Largest distance on one rail, in puts, from the oldest put that is not done to the newest put.
/// This bounds how far arrivals can be out of order, and so the number of arrivals to remember.
pub(crate) const WINDOW: usize = 960;
/// Largest overhead of a note, in bytes: its kind, a number, a flag and a length.
const FIXED_BYTES: usize = 16;
/// Largest fragment of a user's note, in bytes.
pub(crate) const FRAGMENT_BYTES: usize = NOTE_BYTES_MAX - FIXED_BYTES;
/// Largest total size of the keys in one note, each with its overhead, in bytes.
pub(crate) const KEYS_BYTES: usize = NOTE_BYTES_MAX - FIXED_BYTES;
/// Largest overhead of a key, in bytes: the number of its memory, and its length.
const KEY_FIXED_BYTES: usize = 8;

/// Report that a rail has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RailFailure {
    pub(crate) rail: u8,
    /// Number of times that the rail had come back before this failure.
    pub(crate) epoch: u32,
    /// Number of puts with an immediate that were done since the rail last came back.
    pub(crate) done: u64,
    /// Immediates of the puts that were not done.
    pub(crate) open: Vec<u32>,
}

/// Fate of the puts over a rail that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArrivalReport {
    pub(crate) rail: u8,
    pub(crate) epoch: u32,
    /// Number of puts that were reported as done although they have not arrived. If this number is
    /// not 0, the link is lost.
    pub(crate) missing: u64,
    /// True for each put that has arrived, in the order of `RailFailure::open`.
    pub(crate) arrived: Vec<bool>,
}

/// Message of one side to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// Fragment of a user's note, with its number; `is_last` is true for the note's last fragment.
    Fragment {
        number: u32,
        is_last: bool,
        bytes: Vec<u8>,
    },
    /// Acknowledgement of all fragments below this number.
    Acknowledged {
        below: u32,
    },
    RailFailure(RailFailure),
    ArrivalReport(ArrivalReport),
    /// Keys for the rail that carries this note. Each key follows the number of its memory, which
    /// this side shares with the peer.
    Keys(Vec<(u32, Vec<u8>)>),
    /// This side has sent all its keys, and now accepts the peer's keys over the rail.
    Ready,
    /// Answer to [`Note::Ready`], after this side has sent all its keys again: the sender of
    /// `Ready` may have missed some keys.
    KeysSent,
    /// Address of a device of this side.
    Address {
        device: u8,
        address: Address,
    },
    /// Announcement that this side leaves. Rails that end afterwards have not failed.
    Leaving,
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a note; returns none if the bytes are not a note.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Note> {
        let note = decode(bytes).ok()?;
        let plausible = match &note {
            Note::RailFailure(down) => down.open.len() <= WINDOW,
            Note::ArrivalReport(fate) => fate.arrived.len() <= WINDOW,
            _ => true,
        };
        plausible.then_some(note)
    }
}

/// Splits keys into notes that are short enough; leaves out keys that fit no note.
pub(crate) fn keys(all: Vec<(u32, Vec<u8>)>) -> Vec<Note> {
    let mut notes = Vec::new();
    let (mut some, mut bytes) = (Vec::new(), 0);
    for (number, key) in all {
        let more = KEY_FIXED_BYTES + key.len();
        if more > KEYS_BYTES {
            continue;
        }
        if bytes + more > KEYS_BYTES {
            notes.push(Note::Keys(std::mem::take(&mut some)));
            bytes = 0;
        }
        bytes += more;
        some.push((number, key));
    }
    notes.extend((!some.is_empty()).then_some(Note::Keys(some)));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_encoding_and_fit_the_size_limit() {
        let open = (0..WINDOW as u32).collect();
        let arrived = (0..WINDOW).map(|at| at % 3 == 0).collect();
        let all = (0..300u32).map(|number| (number, vec![3; number as usize % 256])).collect();
        let mut notes = keys(all);
        assert!(notes.len() > 5);
        assert_eq!(keys(vec![(1, vec![0; NOTE_BYTES_MAX])]), []);
        notes.extend([
            Note::Fragment { number: 9, is_last: true, bytes: vec![5; FRAGMENT_BYTES] },
            Note::Fragment { number: 0, is_last: false, bytes: Vec::new() },
            Note::Acknowledged { below: u32::MAX },
            Note::RailFailure(RailFailure { rail: 3, epoch: 77, done: 1 << 50, open }),
            Note::ArrivalReport(ArrivalReport { rail: 3, epoch: 77, missing: 0, arrived }),
            Note::Ready,
            Note::KeysSent,
            Note::Address { device: 3, address: Address(vec![1; 2000]) },
            Note::Leaving,
        ]);
        for note in notes {
            let bytes = note.encode();
            assert!(bytes.len() <= NOTE_BYTES_MAX, "a note of {} bytes is too long", bytes.len());
            assert_eq!(Note::decode(&bytes), Some(note));
        }
    }

    #[test]
    fn invalid_bytes_are_not_decoded_as_a_note() {
        for nonsense in [&[][..], &[0], &[1], &[0, 0, 2, 0], &[2, 0], &[4, 1], &[5, 5], &[9]] {
            assert_eq!(Note::decode(nonsense), None, "{nonsense:?}");
        }
        let long = RailFailure { rail: 0, epoch: 0, done: 0, open: vec![0; WINDOW + 1] };
        assert_eq!(Note::decode(&Note::RailFailure(long).encode()), None);
    }
}
