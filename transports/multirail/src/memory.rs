//! Memory keys. A remote key of this transport holds the memory's keys on all rails.

use std::sync::Arc;

use ccl_core::encoding;
use ccl_core::transport::{Imported, MrKey, RemoteKey};
use serde::{Deserialize, Serialize};

use crate::RAILS_MAX;

/// Keys of this side's memory, by device; none for a failed device.
pub(crate) type LocalKeys = Arc<[Option<MrKey>]>;

/// Memory that a peer has shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Theirs {
    /// Number by which the peer names the memory.
    pub(crate) number: u32,
    pub(crate) bytes: u64,
}

impl Imported for Theirs {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Keys of memory, one per rail; none for a rail that was down when the memory was shared, or that
/// does not reach the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keys {
    pub(crate) memory: Theirs,
    pub(crate) rails: Vec<Option<RemoteKey>>,
}

impl Keys {
    pub(crate) fn encode(&self) -> RemoteKey {
        RemoteKey(encoding::encode(self))
    }

    pub(crate) fn decode(key: &RemoteKey) -> Option<Keys> {
        let keys: Keys = encoding::decode(&key.0).ok()?;
        (1..=RAILS_MAX).contains(&keys.rails.len()).then_some(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_encoding_and_invalid_bytes_are_not_decoded() {
        let some = |bytes: usize| Some(RemoteKey(vec![bytes as u8; bytes]));
        let memory = Theirs { number: 7, bytes: 1 << 40 };
        let keys = Keys { memory, rails: vec![some(37), None, some(255), some(1)] };
        let key = keys.encode();
        assert_eq!(Keys::decode(&key), Some(keys.clone()));
        for bytes in 0..key.0.len() {
            assert_eq!(Keys::decode(&RemoteKey(key.0[..bytes].to_vec())), None, "{bytes}");
        }
        for nonsense in [vec![0xff; key.0.len()], vec![0; 1000], [&key.0[..], &[0]].concat()] {
            assert_eq!(Keys::decode(&RemoteKey(nonsense)), None);
        }
        let many = Keys { rails: vec![some(1); RAILS_MAX + 1], ..keys };
        assert_eq!(Keys::decode(&many.encode()), None);
    }

    /// Checks that the record of a CTS has room for the keys of four rails.
    #[test]
    fn the_keys_of_four_rdma_rails_fit_a_cts() {
        let rails = vec![Some(RemoteKey(vec![1; 37])); 4];
        let key = Keys { memory: Theirs { number: 1, bytes: 2 }, rails }.encode();
        assert!(key.0.len() + 33 <= ccl_core::transport::CTS_BYTES_MAX);
    }
}
