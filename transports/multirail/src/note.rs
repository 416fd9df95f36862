//! What the two sides of a link tell each other, as notes over one of its rails.

use ccl_core::transport::{Address, NOTE_BYTES_MAX};

use crate::rail::WINDOW;

/// A note of the user's travels in pieces so long.
pub(crate) const PIECE_BYTES: usize = NOTE_BYTES_MAX - 8;
/// Keys that one note tells take so much at most.
pub(crate) const KEYS_BYTES: usize = NOTE_BYTES_MAX - 8;

/// A rail has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Down {
    pub(crate) rail: u8,
    /// How often it had come back.
    pub(crate) epoch: u32,
    /// Puts with an immediate that were done since then.
    pub(crate) done: u64,
    /// The immediates of those that were not.
    pub(crate) open: Vec<u32>,
}

/// What became of the puts over a rail that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) rail: u8,
    pub(crate) epoch: u32,
    /// Puts that are done and have not arrived, which cannot be.
    pub(crate) missing: u64,
    /// In the order in which it was asked.
    pub(crate) arrived: Vec<bool>,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A piece of a user's note, by its number; and whether it is the note's last.
    Piece {
        number: u32,
        is_last: bool,
        bytes: Vec<u8>,
    },
    /// All pieces below this number have come.
    Heard {
        below: u32,
    },
    Down(Down),
    Fate(Fate),
    /// Memory that is shared, by its numbers, and its keys on the rail that this goes over.
    Keys(Vec<(u32, Vec<u8>)>),
    /// All of them have been told, and this side takes keys over the rail.
    Ready,
    /// Those have been told, too, that the peer may have missed before it said [`Note::Ready`].
    Told,
    /// Where a device of this side is.
    Address {
        device: u8,
        address: Address,
    },
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Note::Piece { number, is_last, bytes: piece } => {
                bytes.extend([1, u8::from(*is_last)]);
                bytes.extend(number.to_le_bytes());
                bytes.extend(piece);
            }
            Note::Heard { below } => {
                bytes.push(2);
                bytes.extend(below.to_le_bytes());
            }
            Note::Down(Down { rail, epoch, done, open }) => {
                bytes.extend([3, *rail]);
                bytes.extend(epoch.to_le_bytes());
                bytes.extend(done.to_le_bytes());
                open.iter().for_each(|name| bytes.extend(name.to_le_bytes()));
            }
            Note::Fate(Fate { rail, epoch, missing, arrived }) => {
                bytes.extend([4, *rail]);
                bytes.extend(epoch.to_le_bytes());
                bytes.extend(missing.to_le_bytes());
                bytes.extend(arrived.iter().map(|arrived| u8::from(*arrived)));
            }
            Note::Keys(keys) => {
                bytes.push(5);
                for (number, key) in keys {
                    bytes.extend(number.to_le_bytes());
                    // A key that is too long was not shared.
                    bytes.push(key.len() as u8);
                    bytes.extend(key);
                }
            }
            Note::Ready => bytes.push(6),
            Note::Told => bytes.push(8),
            Note::Address { device, address } => {
                bytes.extend([7, *device]);
                bytes.extend(&address.0);
            }
        }
        bytes
    }

    /// None if the bytes mean nothing.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Note> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            1 => {
                let (last, rest) = rest.split_first()?;
                let (number, piece) = rest.split_first_chunk()?;
                let (number, is_last) = (u32::from_le_bytes(*number), *last == 1);
                (*last <= 1).then(|| Note::Piece { number, is_last, bytes: piece.to_vec() })
            }
            2 => Some(Note::Heard { below: u32::from_le_bytes(rest.try_into().ok()?) }),
            3 => {
                let (rail, epoch, done, names) = rail(rest)?;
                let (names, odd) = names.as_chunks();
                let open = names.iter().map(|name| u32::from_le_bytes(*name)).collect();
                let plausible = odd.is_empty() && names.len() <= WINDOW;
                plausible.then_some(Note::Down(Down { rail, epoch, done, open }))
            }
            4 => {
                let (rail, epoch, missing, arrived) = rail(rest)?;
                let plausible = arrived.len() <= WINDOW && arrived.iter().all(|byte| *byte <= 1);
                let arrived = arrived.iter().map(|byte| *byte == 1).collect();
                plausible.then_some(Note::Fate(Fate { rail, epoch, missing, arrived }))
            }
            5 => {
                let (mut keys, mut rest) = (Vec::new(), rest);
                while !rest.is_empty() {
                    let (number, behind) = rest.split_first_chunk()?;
                    let (length, behind) = behind.split_first()?;
                    let (key, behind) = behind.split_at_checked(usize::from(*length))?;
                    keys.push((u32::from_le_bytes(*number), key.to_vec()));
                    rest = behind;
                }
                Some(Note::Keys(keys))
            }
            6 => rest.is_empty().then_some(Note::Ready),
            8 => rest.is_empty().then_some(Note::Told),
            7 => {
                let (device, address) = rest.split_first()?;
                Some(Note::Address { device: *device, address: Address(address.to_vec()) })
            }
            _ => None,
        }
    }
}

/// Which rail is meant, and a count.
fn rail(bytes: &[u8]) -> Option<(u8, u32, u64, &[u8])> {
    let (rail, rest) = bytes.split_first()?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    Some((*rail, u32::from_le_bytes(*epoch), u64::from_le_bytes(*count), rest))
}

/// Keys as notes of no more than so many bytes.
pub(crate) fn keys(all: Vec<(u32, Vec<u8>)>) -> Vec<Note> {
    let mut notes = Vec::new();
    let (mut some, mut bytes) = (Vec::new(), 0);
    for (number, key) in all {
        let more = 5 + key.len();
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
    fn notes_survive_their_journey_and_fit() {
        let open = (0..WINDOW as u32).collect();
        let arrived = (0..WINDOW).map(|at| at % 3 == 0).collect();
        let all = (0..300u32).map(|number| (number, vec![3; number as usize % 256])).collect();
        let mut notes = keys(all);
        assert!(notes.len() > 5);
        notes.extend([
            Note::Piece { number: 9, is_last: true, bytes: vec![5; PIECE_BYTES] },
            Note::Piece { number: 0, is_last: false, bytes: Vec::new() },
            Note::Heard { below: u32::MAX },
            Note::Down(Down { rail: 3, epoch: 77, done: 1 << 50, open }),
            Note::Fate(Fate { rail: 3, epoch: 77, missing: 0, arrived }),
            Note::Ready,
            Note::Told,
            Note::Address { device: 3, address: Address(vec![1; 2000]) },
        ]);
        for note in notes {
            let bytes = note.encode();
            assert!(bytes.len() <= NOTE_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(Note::decode(&bytes), Some(note));
        }
    }

    #[test]
    fn nonsense_is_no_note() {
        for nonsense in
            [&[][..], &[0], &[1], &[1, 2, 0, 0, 0, 0], &[2, 0], &[3, 0, 0], &[5, 1], &[6, 6], &[9]]
        {
            assert_eq!(Note::decode(nonsense), None, "{nonsense:?}");
        }
        let long = Down { rail: 0, epoch: 0, done: 0, open: vec![0; WINDOW + 1] };
        assert_eq!(Note::decode(&Note::Down(long).encode()), None);
    }
}
