//! Memory keys as they travel.

use ccl_core::transport::{Imported, RemoteKey};
use ccl_socket::LinkId;

/// Memory that a peer may write to, over one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) link: LinkId,
    /// Whether the side that had connected shares it.
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
        let mut bytes = self.link.to_vec();
        bytes.push(u8::from(self.dialled));
        bytes.extend_from_slice(&self.address.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.key.to_le_bytes());
        RemoteKey(bytes)
    }

    pub(crate) fn decode(key: &RemoteKey) -> Option<Shared> {
        let (link, rest) = key.0.split_first_chunk()?;
        let (dialled, rest) = rest.split_first()?;
        let (address, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let key: [u8; 4] = rest.try_into().ok()?;
        let (address, bytes) = (u64::from_le_bytes(*address), u64::from_le_bytes(*bytes));
        let plausible = *dialled <= 1 && address.checked_add(bytes).is_some();
        let (dialled, key) = (*dialled == 1, u32::from_le_bytes(key));
        plausible.then_some(Shared { link: *link, dialled, address, bytes, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_journey_and_nonsense_does_not() {
        let shared = Shared { link: [3; 16], dialled: true, address: 1 << 40, bytes: 77, key: 9 };
        let key = shared.encode();
        assert_eq!(Shared::decode(&key), Some(shared));
        for bytes in 0..key.0.len() {
            assert_eq!(Shared::decode(&RemoteKey(key.0[..bytes].to_vec())), None, "{bytes}");
        }
        assert_eq!(Shared::decode(&RemoteKey(vec![0xff; key.0.len()])), None);
    }
}
