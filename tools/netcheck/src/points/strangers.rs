//! Points on strangers (processes that connect without being a peer) and on invalid handles.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use nccl_net_abi::HANDLE_BYTES;

use super::Point;
use super::connect::exchange;
use crate::link::Link;
use crate::net::{Handle, Listener};
use crate::side::Side;
use crate::stop::{Outcome, Stop, failed, skipped};

/// Time to poll for an event that must not happen.
const A_WHILE: Duration = Duration::from_millis(200);

pub(super) const STRANGER_ON_PORT: Point = Point::pair(
    "stranger_on_port",
    "A program that connects to a listener's port and is no peer (a scanner, say) is turned away, \
     and peers connect as if nothing had happened.",
    |side| {
        let net = side.net()?;
        let (listener, handle) = net.listen()?;
        let ports = listening();
        if ports.is_empty() {
            return skipped("the plugin listens on no TCP port");
        }
        let mut held = Vec::new();
        for at in ports {
            side.step(&format!("strangers connect to {at}"));
            held.extend(strangers(at));
            turned_away(side, &listener)?;
        }
        side.send_value(&handle)?;
        side.step("accepting a peer, while strangers hold connections");
        let comm = side.until("accept to give a communicator, in spite of strangers", || {
            listener
                .accept()
                .map_err(|refusal| Stop::Failed(format!("{refusal} because a stranger connected")))
        })?;
        listener.close()?;
        exchange(&Link { side, comm })
    },
    |side| {
        let net = side.net()?;
        exchange(&Link::open(side, &net)?)
    },
);

/// Calls `accept` for a while, and fails if it reports a connection or an error.
fn turned_away(side: &Side, listener: &Listener) -> Outcome {
    side.step("accept, when strangers have connected");
    side.poll_for(A_WHILE, || match side.promptly("accept", || Ok(listener.accept()))? {
        Ok(None) => Ok(false),
        Ok(Some(_)) => failed("accept gave a communicator for a stranger's connection"),
        Err(refusal) => {
            failed(format!("{refusal} because a stranger connected; it must turn strangers away"))
        }
    })?;
    Ok(())
}

/// Connects as several strangers would, and returns the connections that stay open.
fn strangers(at: SocketAddr) -> Vec<TcpStream> {
    let connect = || TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok();
    // One stranger connects and leaves.
    drop(connect());
    let says = |what: &[u8]| {
        connect().map(|mut stream| {
            // The plugin may close the connection before all is written.
            let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
            let _ = stream.write_all(what);
            stream
        })
    };
    // Two strangers send and leave; the second one resets its connection.
    drop(says(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    if let Some(stream) = says(&[0xFF; 64 << 10]) {
        let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    }
    // One stranger sends nothing, one a single byte, two send nonsense; all four stay connected.
    let stay = [connect(), says(&[0]), says(&[0; 4096]), says(&[0x5A; 300])];
    stay.into_iter().flatten().collect()
}

/// Returns the addresses on which this process listens.
fn listening() -> Vec<SocketAddr> {
    let sockets: BTreeSet<String> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(&"0A"), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
            else {
                continue;
            };
            if sockets.contains(*inode) {
                found.extend(address(local));
            }
        }
    }
    found
}

/// Parses an address as the kernel prints it: hexadecimal words in host byte order, and the port.
/// The unspecified address (all interfaces) becomes the loopback address.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for at in (0..ip.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    let ip = match *bytes.as_slice() {
        [a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    let ip = match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Some(SocketAddr::new(ip, port))
}

pub(super) const BAD_HANDLE: Point = Point::pair(
    "bad_handle",
    "connect, called with a handle that no listener wrote (zeros, noise), returns an error or no \
     communicator, and valid handles still work.",
    |side| {
        let net = side.net()?;
        exchange(&Link::open(side, &net)?)
    },
    |side| {
        let net = side.net()?;
        let good: Handle = side.receive_value()?;
        let noise = |seed: u32| (0..HANDLE_BYTES as u32).map(move |at| (at * 167 + seed) as u8);
        let bad: [(&str, Handle); 4] = [
            ("zeros", vec![0; HANDLE_BYTES]),
            ("ones", vec![0xFF; HANDLE_BYTES]),
            ("noise", noise(91).collect()),
            ("the inverted bits of a valid handle", good.iter().map(|byte| !byte).collect()),
        ];
        for (what, handle) in bad {
            side.step(&format!("connect with a handle made of {what}"));
            let mut dial = net.dial(&handle);
            side.poll_for(A_WHILE, || match side.promptly("connect", || dial.try_poll())? {
                Ok(None) => Ok(false),
                Err(_) => Ok(true),
                Ok(Some(_)) => failed(format!("connect succeeded with a handle made of {what}")),
            })?;
        }
        exchange(&Link::to(side, &net, &good)?)
    },
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_from_the_kernel_are_parsed() {
        let (local, all) = ("0100007F:1F90", "00000000000000000000000000000000:0050");
        assert_eq!(address(local), Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(address(all), Some("[::1]:80".parse().unwrap()));
        assert_eq!(address("x"), None);
    }

    #[test]
    fn own_listeners_are_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listening().contains(&listener.local_addr().unwrap()));
    }
}
