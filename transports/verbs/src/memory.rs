//! Remote keys in their encoded form.

use ccl_core::encoding;
use ccl_core::transport::{Imported, RemoteKey};
use ccl_socket::LinkId;
use serde::{Deserialize, Serialize};

/// Memory that a peer may write to, over one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub(crate) link: LinkId,
    /// True if the side that dialled shares the memory.
    pub(crate) dialled: bool,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u32,
}

impl Imported for Shared {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Shared {
    pub(crate) fn encode(&self) -> RemoteKey {
        RemoteKey(encoding::encode(self))
    }

    pub(crate) fn decode(key: &RemoteKey) -> Option<Shared> {
        let shared: Shared = encoding::decode(&key.0).ok()?;
        shared.address.checked_add(shared.bytes).map(|_| shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_the_same_memory_and_invalid_bytes_to_none() {
        let shared = Shared { link: [3; 16], dialled: true, address: 1 << 40, bytes: 77, key: 9 };
        let key = shared.encode();
        assert_eq!(Shared::decode(&key), Some(shared));
        for bytes in 0..key.0.len() {
            assert_eq!(Shared::decode(&RemoteKey(key.0[..bytes].to_vec())), None, "{bytes} bytes");
        }
        assert_eq!(Shared::decode(&RemoteKey(vec![0xff; key.0.len()])), None);
        let beyond = Shared { address: u64::MAX, ..shared };
        assert_eq!(Shared::decode(&beyond.encode()), None);
    }
}
