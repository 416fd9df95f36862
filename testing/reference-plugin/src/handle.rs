//! Handle of a listener (the 128 bytes that NCCL carries to the connecting rank), and the hello,
//! which the connecting rank sends first.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nccl_net_abi::HANDLE_BYTES;

const MAGIC: [u8; 8] = *b"ref-net1";
const IP: usize = 8;
const PORT: usize = 24;
const TOKEN: usize = 32;
const ATTEMPT: usize = 64;

/// Secret that proves possession of the handle.
pub(crate) type Token = [u8; 16];

/// First bytes on a connection.
pub(crate) type Hello = [u8; 24];

/// Returns the hello that proves possession of the handle with this token.
pub(crate) fn hello(token: &Token) -> Hello {
    let mut hello = [0; 24];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..].copy_from_slice(token);
    hello
}

/// Handle in the caller's memory, or a copy of it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Handle([u8; HANDLE_BYTES]);

impl Handle {
    /// Returns the handle of a listener.
    pub(crate) fn new(address: SocketAddr, token: &Token) -> Handle {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[IP..IP + 16].copy_from_slice(&ip.octets());
        bytes[PORT..PORT + 2].copy_from_slice(&address.port().to_le_bytes());
        bytes[TOKEN..TOKEN + 16].copy_from_slice(token);
        Handle(bytes)
    }

    /// Returns the listener's address and token; `None` if the handle is not from this plugin.
    pub(crate) fn target(&self) -> Option<(SocketAddr, Token)> {
        if self.0[..8] != MAGIC {
            return None;
        }
        let ip = Ipv6Addr::from(*self.0.get(IP..)?.first_chunk::<16>()?).to_canonical();
        let port = u16::from_le_bytes(*self.0.get(PORT..)?.first_chunk()?);
        Some((SocketAddr::new(ip, port), *self.0.get(TOKEN..)?.first_chunk()?))
    }

    /// Returns the stored number of a connection attempt; 0 if none is stored.
    pub(crate) fn attempt(&self) -> u64 {
        let bytes = self.0.get(ATTEMPT..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Stores the number of a connection attempt for the next call with this handle.
    pub(crate) fn set_attempt(&mut self, attempt: u64) {
        self.0[ATTEMPT..ATTEMPT + 8].copy_from_slice(&attempt.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_where_the_listener_is() {
        for address in ["127.0.0.1:9", "[fd00::7]:65535"] {
            let address: SocketAddr = address.parse().unwrap();
            let mut handle = Handle::new(address, &[3; 16]);
            handle.set_attempt(77);
            assert_eq!(handle.target(), Some((address, [3; 16])));
            assert_eq!(handle.attempt(), 77);
        }
        assert_eq!(Handle([0; HANDLE_BYTES]).target(), None);
    }
}
