//! Fuzz targets of this crate: messages between the two ends of a connection, and handles. The
//! targets follow the rules of `ccl_core::fuzzing`.

use nccl_net_abi::HANDLE_BYTES;

use crate::comm::wire::{HEADER_BYTES, Header, Immediate, Note, RECORD_BYTES, Record};
use crate::handle::Handle;

/// Decodes a record, a header, an immediate, a note or a handle, as the first byte says, and checks
/// that encoding loses nothing.
pub fn nccl_net(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 5 {
        0 => {
            let mut bytes = [0; RECORD_BYTES];
            let given = data.len().min(RECORD_BYTES);
            bytes[..given].copy_from_slice(&data[..given]);
            let Some(record) = Record::decode(&bytes) else { return };
            let (written, used) = record.encode();
            assert_eq!(written[..used], bytes[..used]);
        }
        1 => {
            let Some(bytes) = data.first_chunk::<HEADER_BYTES>() else { return };
            let header = Header::decode(bytes);
            assert_eq!(Header::decode(&header.encode()), header);
        }
        2 => {
            let Some(bytes) = data.first_chunk() else { return };
            let immediate = u32::from_le_bytes(*bytes);
            if let Some(decoded) = Immediate::decode(immediate) {
                assert_eq!(decoded.encode(), immediate);
            }
        }
        3 => match Note::decode(data) {
            // Decoding keeps printable characters only.
            Some(Note::Peer(name)) => assert!(name.is_ascii()),
            Some(note) => assert_eq!(Note::decode(&note.encode()), Some(note)),
            None => {}
        },
        _ => {
            let Some(bytes) = data.first_chunk::<HANDLE_BYTES>() else { return };
            if let Ok(handle) = Handle::decode(bytes) {
                let again = handle.encode().and_then(|bytes| Handle::decode(&bytes).ok());
                assert!(again.is_some_and(|again| again == handle));
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    use crate::comm::wire::{RECORD_BYTES, Record};

    #[test]
    fn the_target_survives_its_corpus_and_mutations() {
        replay("nccl_net", super::nccl_net);
    }

    #[test]
    fn the_corpus_has_valid_records() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/nccl_net/");
        for (name, count) in [("record", 1), ("group", 8)] {
            let data = std::fs::read(format!("{kept}{name}")).unwrap();
            let mut bytes = [0; RECORD_BYTES];
            bytes[..data.len() - 1].copy_from_slice(&data[1..]);
            assert_eq!(Record::decode(&bytes).unwrap().count, count);
        }
    }
}
