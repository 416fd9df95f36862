//! Address of a listener: a random abstract name, valid on one boot of one host in one network
//! namespace.

use std::os::unix::fs::MetadataExt;

use ccl_core::encoding;
use ccl_core::transport::{Address, TransportError};
use rustix::net::SocketAddrUnix;
use serde::{Deserialize, Serialize};

use crate::os;

const KIND: [u8; 4] = *b"shm1";

/// Boot of a host, and the network namespace in which abstract names are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    /// Kernel's random identity of this boot; other containers of the host have the same.
    pub(crate) boot: [u8; 16],
    /// Inode of the network namespace; 0 if unknown.
    pub(crate) network: u64,
}

impl Namespace {
    /// Returns the namespace of this process.
    pub(crate) fn here() -> Result<Namespace, TransportError> {
        let path = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(path).ok().and_then(|text| parse_boot(&text));
        let Some(boot) = boot else {
            let reason = format!(
                "{path} cannot be read, so processes of this host cannot recognise each other; \
                 mount /proc"
            );
            return Err(TransportError::Unusable { what: "shared memory".to_owned(), reason });
        };
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |meta| meta.ino());
        Ok(Namespace { boot, network })
    }
}

fn parse_boot(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| value.to_be_bytes())
}

/// A listener's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Name(pub(crate) [u8; 16]);

impl Name {
    /// Returns the name as the kernel shows it (after an `@`) in `/proc/net/unix`.
    pub(crate) fn text(self) -> String {
        format!("ferroccl-shm-{:032x}", u128::from_be_bytes(self.0))
    }

    /// Returns the socket address.
    pub(crate) fn socket(self) -> Result<SocketAddrUnix, TransportError> {
        SocketAddrUnix::new_abstract_name(self.text().as_bytes())
            .map_err(|error| os("naming the socket", error, "this is a defect of the transport"))
    }
}

/// Encodes a listener's address for its peers.
pub(crate) fn encode(name: Name, namespace: Namespace) -> Address {
    Address(encoding::encode(&(KIND, name, namespace)))
}

/// Returns the listener's name in an address, if the listener can be reached from `here`.
pub(crate) fn decode(address: &Address, here: Namespace) -> Result<Name, TransportError> {
    let (name, there) = match encoding::decode(&address.0) {
        Ok((KIND, name, there)) => (name, there),
        _ => {
            let (bytes, of) = (address.0.len(), "a shared memory listener");
            return Err(TransportError::NoAddress { bytes, of });
        }
    };
    let (name, there): (Name, Namespace) = (name, there);
    let refused = |reason: &str| TransportError::Refused {
        peer: format!("shared memory listener {}", name.text()),
        reason: reason.to_owned(),
    };
    if there.boot != here.boot {
        return Err(refused(
            "it is on another host, which shared memory cannot reach, or this host was rebooted \
             after the address was made; use a network transport",
        ));
    }
    if there.network != here.network {
        return Err(refused(
            "it is in another network namespace of this host, and this process cannot reach the \
             sockets there; use a network transport or, if both processes run in containers, start \
             the containers in one network namespace",
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_address_is_refused_with_the_reason() {
        let here = Namespace::here().unwrap();
        let name = Name([7; 16]);
        assert_eq!(decode(&encode(name, here), here), Ok(name));
        let mut other = here;
        other.boot[3] ^= 1;
        let error = decode(&encode(name, other), here).unwrap_err().to_string();
        assert!(error.contains("another host"), "{error}");
        let other = Namespace { network: here.network + 1, ..here };
        let error = decode(&encode(name, other), here).unwrap_err().to_string();
        assert!(error.contains("namespace"), "{error}");
    }

    #[test]
    fn malformed_bytes_are_no_address() {
        let here = Namespace::here().unwrap();
        let good = encode(Name([7; 16]), here).0;
        let long = [&good[..], &[0]].concat();
        for bytes in [&good[..good.len() - 1], &long, b"", b"shm1", &good[1..]] {
            let error = decode(&Address(bytes.to_vec()), here).unwrap_err();
            assert!(matches!(error, TransportError::NoAddress { .. }), "{error}");
        }
    }
}
