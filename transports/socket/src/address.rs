//! Where a gate can be reached: its token, and each address of its host.

use std::net::{IpAddr, SocketAddr};

use ccl_core::transport::{Address, TransportError};

const MAGIC: &[u8; 4] = b"tcp1";
/// The most addresses of one host.
const ADDRESSES_MAX: usize = 64;

/// Tells a gate from all others, so that an address that means another host elsewhere (every
/// host has a 127.0.0.1, and often the same bridge) does not lead to the wrong one.
pub type Token = [u8; 16];

/// A gate's address, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which gate.
    pub token: Token,
    /// The addresses of its host, the likeliest first.
    pub addresses: Vec<SocketAddr>,
}

impl Place {
    /// Returns an address without its last place, which is the least likely to be of use; none if
    /// it has no other.
    #[must_use]
    pub fn fewer(address: &Address) -> Option<Address> {
        let mut place = Place::decode(address).ok().filter(|it| it.addresses.len() > 1)?;
        place.addresses.pop();
        Some(place.encode())
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Address {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.token);
        for address in self.addresses.iter().take(ADDRESSES_MAX) {
            match address.ip() {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(6);
                    bytes.extend_from_slice(&ip.octets());
                }
            }
            bytes.extend_from_slice(&address.port().to_le_bytes());
        }
        Address(bytes)
    }

    /// From bytes.
    ///
    /// # Errors
    ///
    /// When they are no address of a gate.
    pub fn decode(address: &Address) -> Result<Place, TransportError> {
        parse(&address.0).ok_or_else(|| {
            let bytes = address.0.len();
            TransportError::Usage(format!("{bytes} bytes that are no address of a TCP listener"))
        })
    }

    /// For messages.
    #[must_use]
    pub fn text(&self) -> String {
        let texts: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        texts.join(" or ")
    }
}

fn parse(bytes: &[u8]) -> Option<Place> {
    let (token, mut rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<16>()?;
    let mut addresses = Vec::new();
    while let Some((kind, tail)) = rest.split_first() {
        let (ip, tail) = match kind {
            4 => tail.split_first_chunk::<4>().map(|(ip, tail)| (IpAddr::from(*ip), tail))?,
            6 => tail.split_first_chunk::<16>().map(|(ip, tail)| (IpAddr::from(*ip), tail))?,
            _ => return None,
        };
        let (port, tail) = tail.split_first_chunk::<2>()?;
        addresses.push(SocketAddr::new(ip, u16::from_le_bytes(*port)));
        rest = tail;
    }
    let plausible = (1..=ADDRESSES_MAX).contains(&addresses.len());
    plausible.then_some(Place { token: *token, addresses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_their_journey_and_nonsense_does_not() {
        let addresses = ["10.1.2.3:4", "[fd00::1]:65535"].map(|text| text.parse().unwrap());
        let place = Place { token: [9; 16], addresses: addresses.to_vec() };
        let address = place.encode();
        assert_eq!(Place::decode(&address), Ok(place));
        for bytes in 0..address.0.len() {
            let cut = Address(address.0[..bytes].to_vec());
            let known = Place::decode(&cut).map_or(0, |place| place.addresses.len());
            assert!(known < 2, "{bytes}");
        }
        assert!(Place::decode(&Address(vec![7; 40])).is_err());
    }
}
