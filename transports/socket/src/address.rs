//! Address of a gate (a listener for peers): the gate's token, and the addresses of the gate's host
//! that are offered to peers.

use std::net::SocketAddr;

use ccl_core::encoding::{self, List};
use ccl_core::transport::{Address, TransportError};
use serde::{Deserialize, Serialize};

const MAGIC: [u8; 4] = *b"tcp1";
/// Limit on the addresses of one host.
const ADDRESSES_MAX: usize = 64;

/// Random identifier of a gate. An address of the gate may lead a peer to another host (every host
/// has 127.0.0.1, and many have a bridge with the same address); the token keeps the peer from
/// entering the wrong gate.
pub type Token = [u8; 16];

/// A gate's address, decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// Token of the gate.
    pub token: Token,
    /// Addresses of the gate's host, the most likely to be reachable first.
    #[serde(with = "List::<ADDRESSES_MAX>")]
    pub addresses: Vec<SocketAddr>,
}

impl Location {
    /// Returns the address without its last entry, the least likely to be reachable; none if there
    /// is only one entry, or if the bytes are no address of a gate.
    #[must_use]
    pub fn fewer(address: &Address) -> Option<Address> {
        let mut location = Location::decode(address).ok().filter(|it| it.addresses.len() > 1)?;
        location.addresses.pop();
        Some(location.encode())
    }

    /// Encodes the location as an address.
    #[must_use]
    pub fn encode(&self) -> Address {
        Address(encoding::encode(&(MAGIC, self)))
    }

    /// Decodes an address.
    ///
    /// # Errors
    ///
    /// When the bytes are no address of a gate.
    pub fn decode(address: &Address) -> Result<Location, TransportError> {
        match encoding::decode(&address.0) {
            Ok((MAGIC, Location { token, addresses })) if !addresses.is_empty() => {
                Ok(Location { token, addresses })
            }
            _ => Err(TransportError::NoAddress { bytes: address.0.len(), of: "a TCP listener" }),
        }
    }

    /// Returns the addresses as text, for messages.
    #[must_use]
    pub fn text(&self) -> String {
        let texts: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        texts.join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_location_decodes_and_malformed_bytes_do_not() {
        let addresses = ["10.1.2.3:4", "[fd00::1]:65535"].map(|text| text.parse().unwrap());
        let location = Location { token: [9; 16], addresses: addresses.to_vec() };
        let address = location.encode();
        assert_eq!(Location::decode(&address), Ok(location));
        for bytes in 0..address.0.len() {
            let cut = Address(address.0[..bytes].to_vec());
            assert!(Location::decode(&cut).is_err(), "{bytes} bytes were accepted");
        }
        assert!(Location::decode(&Address(vec![7; 40])).is_err());
    }
}
