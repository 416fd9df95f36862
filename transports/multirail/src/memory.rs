//! Memory keys as they travel: those of all rails in a row.

use ccl_core::transport::{Imported, RemoteKey};

use crate::RAILS_MAX;

const FIXED_BYTES: usize = 4 + 8 + 1;

/// Memory that a peer has shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Theirs {
    /// By which it names it.
    pub(crate) number: u32,
    pub(crate) bytes: u64,
}

impl Imported for Theirs {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The keys of memory on each rail; none where there was no rail when it was shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) memory: Theirs,
    pub(crate) rails: Vec<Option<RemoteKey>>,
}

impl Keys {
    /// None if a key is too long.
    pub(crate) fn encode(&self) -> Option<RemoteKey> {
        let mut bytes = self.memory.number.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.memory.bytes.to_le_bytes());
        bytes.push(u8::try_from(self.rails.len()).ok()?);
        for key in &self.rails {
            let key = key.as_ref().map_or(&[][..], |key| &key.0);
            bytes.push(u8::try_from(key.len()).ok()?);
            bytes.extend_from_slice(key);
        }
        Some(RemoteKey(bytes))
    }

    pub(crate) fn decode(key: &RemoteKey) -> Option<Keys> {
        let (fixed, mut rest) = key.0.split_at_checked(FIXED_BYTES)?;
        let (number, fixed) = fixed.split_first_chunk()?;
        let (bytes, count) = fixed.split_first_chunk()?;
        let count = usize::from(*count.first()?);
        if !(1..=RAILS_MAX).contains(&count) {
            return None;
        }
        let mut rails = Vec::with_capacity(count);
        for _ in 0..count {
            let (length, behind) = rest.split_first()?;
            let (key, behind) = behind.split_at_checked(usize::from(*length))?;
            rails.push((!key.is_empty()).then(|| RemoteKey(key.to_vec())));
            rest = behind;
        }
        let (number, bytes) = (u32::from_le_bytes(*number), u64::from_le_bytes(*bytes));
        rest.is_empty().then_some(Keys { memory: Theirs { number, bytes }, rails })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_journey_and_nonsense_does_not() {
        let some = |bytes: usize| Some(RemoteKey(vec![bytes as u8; bytes]));
        let memory = Theirs { number: 7, bytes: 1 << 40 };
        let keys = Keys { memory, rails: vec![some(37), None, some(255), some(1)] };
        let key = keys.encode().unwrap();
        assert_eq!(Keys::decode(&key), Some(keys.clone()));
        for bytes in 0..key.0.len() {
            assert_eq!(Keys::decode(&RemoteKey(key.0[..bytes].to_vec())), None, "{bytes}");
        }
        for nonsense in [vec![0xff; key.0.len()], vec![0; 1000], [&key.0[..], &[0]].concat()] {
            assert_eq!(Keys::decode(&RemoteKey(nonsense)), None);
        }
        let long = Keys { rails: vec![some(256)], ..keys };
        assert_eq!(long.encode(), None);
    }

    /// What a record of a transfer grant has room for.
    #[test]
    fn four_rails_of_rdma_fit_a_grant() {
        let rails = vec![Some(RemoteKey(vec![1; 37])); 4];
        let key = Keys { memory: Theirs { number: 1, bytes: 2 }, rails }.encode().unwrap();
        assert!(key.0.len() + 33 <= ccl_core::transport::GRANT_BYTES_MAX);
    }
}
