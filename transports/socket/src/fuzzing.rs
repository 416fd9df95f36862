//! Fuzz targets of this crate: data from strangers, and text from users. The targets follow the
//! rules of `ccl_core::fuzzing`.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use ccl_core::transport::{Address, Secret};

use crate::address::Location;
use crate::hello::Hello;
use crate::interface::Filter;
use crate::shake::{Setup, SocketHandshake, protocol};
use crate::socket;

/// Checks that the decoded address of a listener is the same after encoding and decoding.
pub fn wire_address(data: &[u8]) {
    if let Ok(location) = Location::decode(&Address(data.to_vec())) {
        assert_eq!(Location::decode(&location.encode()), Ok(location));
    }
}

/// Checks that a decoded hello is encoded to the same bytes.
pub fn wire_hello(data: &[u8]) {
    if let Some(hello) = Hello::decode(data) {
        assert_eq!(hello.encode(), data);
    }
}

/// Checks that either a filter of interfaces or its negation (`^`) takes an interface, never both.
pub fn wire_interfaces(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (filter, opposite) = (Filter::parse(&text), Filter::parse(&format!("^{}", text.trim())));
    if text.trim_start().starts_with('^') {
        return;
    }
    for (name, address) in [("eth0", "10.1.2.3"), ("lo", "127.0.0.1"), ("ib3", "fd00::7")] {
        let Ok(address) = address.parse() else { continue };
        assert_ne!(filter.takes(name, address), opposite.takes(name, address), "{text:?}");
    }
}

/// Checks that the listening side admits no stranger without the secret, whatever bytes the
/// stranger sends.
pub fn wire_shake(data: &[u8]) {
    let _ = stranger(data);
}

fn stranger(data: &[u8]) -> Option<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").ok()?;
    let location = listener.local_addr().ok()?;
    let theirs = TcpStream::connect_timeout(&location, Duration::from_secs(1)).ok()?;
    let (ours, _) = listener.accept().ok()?;
    ours.set_nonblocking(true).ok()?;
    let secret = Secret(socket::random().ok()?);
    let setup = Setup { protocol: protocol("fuzzed", 3), secret, tls: None, congestion: None };
    let mut shake = SocketHandshake::listener(ours.into(), &setup, [7; 16]).ok()?;
    for part in data.chunks(100) {
        (&theirs).write_all(part).ok()?;
        match shake.step() {
            Ok(proved) => assert!(!proved, "a stranger was admitted"),
            Err(_) => return None,
        }
    }
    Some(())
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn addresses() {
        replay("wire_address", super::wire_address);
    }

    #[test]
    fn hellos() {
        replay("wire_hello", super::wire_hello);
    }

    #[test]
    fn interfaces() {
        replay("wire_interfaces", super::wire_interfaces);
    }

    #[test]
    fn shakes() {
        replay("wire_shake", super::wire_shake);
    }
}
