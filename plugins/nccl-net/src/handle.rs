//! Handle of a listener. NCCL carries it from rank to rank, and passes the same memory to each call
//! of `connect`, so that `connect` can store the number of its attempt in the handle.

use ccl_core::transport::{Address, Secret};
use nccl_net_abi::HANDLE_BYTES;
use sha2::{Digest, Sha256};

use crate::error::NetError;
use crate::table::{Id, Kind};

const MAGIC: [u8; 4] = *b"fccl";
/// Version of the handle, and of all messages between the two ends of a connection.
pub(crate) const VERSION: u8 = 4;
const SEED_BYTES: usize = 16;
const ATTEMPT: usize = 8;
const SEED: usize = 16;
const ADDRESS: usize = SEED + SEED_BYTES;

/// Random bytes from which the secret of a listener is made.
pub(crate) type Seed = [u8; SEED_BYTES];

/// First bytes of the SHA-256 digest of the setting `FERROCCL_HOSTID`; the setting is empty by
/// default. Processes with different tags count as being on different hosts; equal tags do not
/// prove that the host is the same.
pub(crate) type HostTag = [u8; 4];

/// A decoded handle.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) transport: u8,
    pub(crate) seed: Seed,
    pub(crate) address: Address,
    /// Tag of the listener's host, and the listener's address for processes on that host.
    pub(crate) near: Option<(HostTag, Address)>,
    /// Connection attempt begun with this handle; none before the first `connect`.
    pub(crate) attempt: Option<Id>,
}

impl Handle {
    /// Returns the handle's secret; each end of a connection proves that it knows this secret.
    pub(crate) fn secret(&self) -> Secret {
        let mut hash = Sha256::new();
        hash.update(b"ferroccl nccl-net");
        hash.update([VERSION]);
        hash.update(self.seed);
        Secret(hash.finalize().into())
    }

    /// Encodes the handle. If it is too long, `shorten` leaves out network locations (IP address
    /// and port) and devices of the address, down to two devices. If that is not enough, `near` is
    /// left out, and if even that is not enough, the second device. The second device matters more
    /// than `near`, because the first device's link may be down.
    pub(crate) fn fit(
        &mut self,
        shorten: impl Fn(&Address, usize) -> Option<Address>,
    ) -> Option<[u8; HANDLE_BYTES]> {
        let mut least = 2;
        loop {
            if let Some(bytes) = self.encode() {
                return Some(bytes);
            }
            match shorten(&self.address, least) {
                Some(shorter) => self.address = shorter,
                None if self.near.take().is_some() => {}
                None if least == 1 => return None,
                None => least = 1,
            }
        }
    }

    /// Encodes the handle; none if the addresses are too long.
    pub(crate) fn encode(&self) -> Option<[u8; HANDLE_BYTES]> {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        let Address(address) = &self.address;
        let near = match &self.near {
            Some((tag, Address(address))) => [&tag[..], address].concat(),
            None => Vec::new(),
        };
        bytes[4..ATTEMPT].copy_from_slice(&[
            VERSION,
            self.transport,
            u8::try_from(address.len()).ok()?,
            u8::try_from(near.len()).ok()?,
        ]);
        let attempt = self.attempt.map_or(0, Id::number);
        bytes[ATTEMPT..SEED].copy_from_slice(&attempt.to_le_bytes());
        bytes[SEED..ADDRESS].copy_from_slice(&self.seed);
        let behind = ADDRESS + address.len();
        bytes.get_mut(ADDRESS..behind)?.copy_from_slice(address);
        bytes.get_mut(behind..behind + near.len())?.copy_from_slice(&near);
        Some(bytes)
    }

    /// Decodes a handle.
    pub(crate) fn decode(bytes: &[u8; HANDLE_BYTES]) -> Result<Handle, NetError> {
        let no_handle = "these 128 bytes are no handle of ferroccl's: do all ranks use this plugin \
                         (NCCL_NET_PLUGIN, NCCL_NET)?";
        if bytes[..4] != MAGIC {
            return Err(NetError::argument(no_handle));
        }
        if bytes[4] != VERSION {
            return Err(NetError::argument(format!(
                "the peer's plugin speaks version {}, this one {VERSION}: use the same \
                 libnccl-net-ferroccl.so on all hosts",
                bytes[4]
            )));
        }
        let parts = (|| {
            let attempt = u64::from_le_bytes(*bytes[ATTEMPT..].first_chunk()?);
            let seed = *bytes[SEED..].first_chunk()?;
            let behind = ADDRESS + usize::from(bytes[6]);
            let address = bytes.get(ADDRESS..behind)?.to_vec();
            let near = bytes.get(behind..behind + usize::from(bytes[7]))?;
            let near = near.split_first_chunk().map(|(tag, near)| (*tag, Address(near.to_vec())));
            Some((attempt, seed, Address(address), near))
        })();
        let (attempt, seed, address, near) = parts.ok_or_else(|| NetError::argument(no_handle))?;
        let attempt = Id::read(attempt).map(|(id, _)| id).filter(|id| id.kind == Kind::Attempt);
        Ok(Handle { transport: bytes[5], seed, address, near, attempt })
    }
}

#[cfg(test)]
mod tests {
    use ccl_socket::Location;

    use super::*;
    use crate::device::shorten;
    use crate::table::{self, Table};

    /// Bytes of the longest address that fits into a handle.
    const ADDRESS_BYTES_MAX: usize = HANDLE_BYTES - ADDRESS;

    fn handle(address: usize) -> Handle {
        let attempt = Table::new(table::Kind::Attempt).add(Box::new(())).unwrap();
        let address = Address((0..address as u8).collect());
        Handle { transport: 3, seed: [7; 16], address, near: None, attempt: Some(attempt) }
    }

    #[test]
    fn addresses_that_do_not_fit_a_handle_are_left_out() {
        let at = |port: u16| ([10, 0, 0, 1], port).into();
        let location = Location { token: [9; 16], addresses: (0..20).map(at).collect() };
        let near = Some(([1; 4], Address(vec![5; 44])));
        let networks = ferroccl::transports::of_reach(ccl_core::registry::Reach::Network);
        let kind = networks.into_iter().find(|kind| !kind.adapters).unwrap();
        let fewer = |address: &Address, least| shorten(kind, address, least);
        let mut handle = Handle { address: location.encode(), near, ..handle(0) };
        let read =
            Handle::decode(&handle.fit(fewer).unwrap()).unwrap_or_else(|error| panic!("{error}"));
        let found = Location::decode(&read.address).unwrap();
        assert!(found.addresses.len() >= 3 && found.token == location.token);
        assert_eq!(found.addresses, location.addresses[..found.addresses.len()]);
        assert!(read.near == handle.near && read.near.is_some());
        handle.address = Address(vec![1; 90]);
        let read =
            Handle::decode(&handle.fit(fewer).unwrap()).unwrap_or_else(|error| panic!("{error}"));
        assert!(read.near.is_none() && read.address.0.len() == 90);
        handle.address = Address(vec![1; 99]);
        assert!(handle.fit(fewer).is_none());
    }

    #[test]
    fn handles_are_read_as_written() {
        for address in [0, 1, ADDRESS_BYTES_MAX] {
            let handle = handle(address);
            let read = Handle::decode(&handle.encode().unwrap());
            assert!(read.is_ok_and(|read| read == handle));
        }
        assert!(handle(ADDRESS_BYTES_MAX + 1).encode().is_none());
    }

    #[test]
    fn an_invalid_handle_is_an_error_with_advice() {
        let error = |bytes: &[u8; HANDLE_BYTES]| {
            Handle::decode(bytes).err().map(|error| error.text).unwrap_or_default()
        };
        assert!(error(&[0; HANDLE_BYTES]).contains("NCCL_NET_PLUGIN"));
        let mut other = handle(3).encode().unwrap();
        other[4] = 9;
        assert!(error(&other).contains("version 9"));
        let mut long = handle(3).encode().unwrap();
        long[6] = 255;
        assert!(error(&long).contains("no handle"));
        let mut attempt = handle(3).encode().unwrap();
        attempt[ATTEMPT..SEED].fill(0xff);
        assert!(Handle::decode(&attempt).is_ok_and(|handle| handle.attempt.is_none()));
    }
}
