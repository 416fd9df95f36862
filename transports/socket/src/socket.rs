//! Sockets that never block.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ccl_core::transport::TransportError;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
    SocketType, sockopt,
};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::end::ConnectionEnd;
use crate::{CONGESTION, DESCRIPTORS, os};

const BACKLOG: i32 = 1024;

/// Congestion control that every kernel has and lets every process choose.
const SIMPLEST: &str = "reno";

fn flags() -> SocketFlags {
    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK
}

fn made(family: AddressFamily) -> Result<OwnedFd, TransportError> {
    rustix::net::socket_with(family, SocketType::STREAM, flags(), None)
        .map_err(|error| os("socket", error, DESCRIPTORS))
}

/// Opens a listening socket on a free port of all addresses, of both IP versions if the host has
/// IPv6. Returns the socket and the port.
pub(crate) fn listen() -> Result<(OwnedFd, u16), TransportError> {
    let both = made(AddressFamily::INET6).and_then(|socket| {
        sockopt::set_ipv6_v6only(&socket, false)
            .and_then(|()| bind(&socket, IpAddr::V6(Ipv6Addr::UNSPECIFIED)))
            .map(|()| socket)
            .map_err(|error| os("bind to a free port", error, "try again"))
    });
    let socket = match both {
        Ok(socket) => socket,
        Err(_) => {
            let socket = made(AddressFamily::INET)?;
            bind(&socket, IpAddr::V4(Ipv4Addr::UNSPECIFIED)).map_err(|error| {
                os("bind to a free port", error, "if no port is free, close other sockets")
            })?;
            socket
        }
    };
    rustix::net::listen(&socket, BACKLOG)
        .map_err(|error| os("listen", error, "this kernel is not usable"))?;
    let name = rustix::net::getsockname(&socket)
        .and_then(SocketAddr::try_from)
        .map_err(|error| os("getsockname", error, "this kernel is not usable"))?;
    Ok((socket, name.port()))
}

fn bind(socket: &OwnedFd, ip: IpAddr) -> Result<(), Errno> {
    rustix::net::bind(socket, &SocketAddr::new(ip, 0))
}

/// Begins to connect.
pub(crate) fn dial(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags(), None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Returns whether a dialled socket is connected.
pub(crate) fn is_connected(socket: &OwnedFd) -> Result<bool, Errno> {
    sockopt::socket_error(socket)??;
    match rustix::net::getpeername(socket) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Accepts a connection; none if nobody has connected.
pub(crate) fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>, TransportError> {
    loop {
        return match rustix::net::accept_with(listener, flags()) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            // The failure of one connection does not concern the listener.
            Err(
                Errno::CONNABORTED
                | Errno::INTR
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::PROTO,
            ) => continue,
            Err(error) => Err(os("accept", error, DESCRIPTORS)),
        };
    }
}

/// Idle time before a keepalive probe; the shortest that Linux has.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(1);
/// Time after which an unanswered probe is repeated.
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(10);
/// Number of successive unanswered probes that break a connection: after 20 minutes.
const KEEPALIVES_MAX: u32 = 120;

/// Turns off Nagle's algorithm: small messages leave at once.
pub(crate) fn set_nodelay(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)
}

/// Turns on keepalive probes: one leaves whenever the connection was idle for [`KEEPALIVE`]. A
/// connection that a middlebox has forgotten then breaks on both sides, even on a side that sends
/// nothing. A short network outage breaks nothing.
pub(crate) fn keep_alive(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_AGAIN)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVES_MAX)?;
    sockopt::set_socket_keepalive(socket, true)
}

/// Sets a socket's congestion control.
pub(crate) fn congest(socket: &OwnedFd, name: &str) -> Result<(), Errno> {
    sockopt::set_tcp_congestion(socket, name)
}

/// `TCP_ESTABLISHED`: value of `tcpi_state`, the first byte of `tcp_info`, on an established
/// connection.
const ESTABLISHED: u8 = 1;

/// Offset of `tcpi_min_rtt` in Linux's `struct tcp_info` (`include/uapi/linux/tcp.h`), which only
/// ever grows at its end. The C library's copy of the struct may be older than the kernel.
const MIN_RTT: usize = 148;

/// Returns the shortest round trip that the kernel has seen on a connection; none before the first
/// one, and none for anything but an established TCP connection. The kernel measures round trips,
/// so slow processes at either end do not lengthen them.
#[must_use]
pub fn round_trip(socket: impl AsFd) -> Option<Duration> {
    let mut info = [0_u8; MIN_RTT + 4];
    let mut bytes = libc::socklen_t::try_from(info.len()).ok()?;
    // SAFETY: the pointers lead to the buffer and to its length, both alive during the call; the
    // kernel writes no more than that length.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let microseconds = u32::from_ne_bytes(info[MIN_RTT..].try_into().ok()?);
    // The value is all ones before the first round trip. An older kernel writes fewer bytes.
    let is_whole = status == 0 && bytes as usize == info.len();
    let is_known = is_whole && info[0] == ESTABLISHED && microseconds != u32::MAX;
    is_known.then(|| Duration::from_micros(microseconds.into()))
}

/// Returns the congestion control to set: `asked` if it names one, else `reno` if the kernel's
/// choice is bbr, else none. BBR paces packets by a model of the path. The pauses of collectives
/// mislead the model: messages then wait for a millisecond although the network is idle. Credits
/// and CTS bound the bytes in flight, so the simplest control is enough.
///
/// # Errors
///
/// When the kernel has no control of that name, or does not let this process choose it.
pub fn congestion(asked: &str) -> Result<Option<Arc<str>>, TransportError> {
    let socket = made(AddressFamily::INET)?;
    if !asked.is_empty() {
        return match congest(&socket, asked) {
            Ok(()) => Ok(Some(asked.into())),
            Err(error) => Err(os("TCP_CONGESTION", error, CONGESTION)),
        };
    }
    let paced = sockopt::tcp_congestion(&socket).is_ok_and(|own| own.starts_with("bbr"));
    Ok((paced && congest(&socket, SIMPLEST).is_ok()).then(|| SIMPLEST.into()))
}

/// Returns the address of the other end, for errors and logs.
pub(crate) fn peer(socket: &OwnedFd) -> String {
    let name = rustix::net::getpeername(socket).ok().flatten();
    let address = name.and_then(|name| SocketAddr::try_from(name).ok());
    address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string())
}

/// Returns whether a read would return bytes or the end of the stream.
pub(crate) fn is_readable(socket: &OwnedFd) -> bool {
    let mut byte = [0; 1];
    let peeked = rustix::net::recv(socket, &mut byte, RecvFlags::PEEK);
    !matches!(peeked, Err(Errno::AGAIN | Errno::INTR))
}

/// Outcome of a read or a write.
#[derive(Debug)]
pub enum Got {
    /// Number of bytes that were read or written.
    Bytes(usize),
    /// No bytes could be read or written now.
    Nothing,
    /// End of the connection.
    End(ConnectionEnd),
}

/// Reads available bytes into several buffers.
pub fn read(socket: &OwnedFd, into: &mut [IoSliceMut<'_>]) -> Got {
    loop {
        let received = match &mut *into {
            // The usual case, and the cheaper call.
            [one] => rustix::net::recv(socket, &mut **one, RecvFlags::empty()).map(|(_, n)| n),
            several => {
                let mut control = RecvAncillaryBuffer::default();
                rustix::net::recvmsg(socket, several, &mut control, RecvFlags::empty())
                    .map(|message| message.bytes)
            }
        };
        return match received {
            Ok(0) => Got::End(ConnectionEnd::Closed),
            Ok(bytes) => Got::Bytes(bytes),
            Err(Errno::AGAIN) => Got::Nothing,
            Err(Errno::INTR) => continue,
            Err(error) => Got::End(ConnectionEnd::System(error)),
        };
    }
}

/// Largest number of bytes for which one copy is cheaper than a call with several buffers.
const COPIED_BYTES: usize = 1024;

/// Writes as many bytes as the socket takes.
pub fn write(socket: &OwnedFd, from: &[IoSlice<'_>]) -> Got {
    let bytes: usize = from.iter().map(|slice| slice.len()).sum();
    if bytes > COPIED_BYTES {
        return send(|flags| {
            let mut control = SendAncillaryBuffer::default();
            rustix::net::sendmsg(socket, from, &mut control, flags)
        });
    }
    let (mut together, mut end) = ([0; COPIED_BYTES], 0);
    for slice in from {
        together[end..end + slice.len()].copy_from_slice(slice);
        end += slice.len();
    }
    send(|flags| rustix::net::send(socket, &together[..end], flags))
}

fn send(mut call: impl FnMut(SendFlags) -> Result<usize, Errno>) -> Got {
    loop {
        return match call(SendFlags::NOSIGNAL) {
            Ok(bytes) => Got::Bytes(bytes),
            Err(Errno::AGAIN) => Got::Nothing,
            Err(Errno::INTR) => continue,
            Err(error) => Got::End(ConnectionEnd::System(error)),
        };
    }
}

/// Returns random bytes from the kernel.
///
/// # Errors
///
/// When the kernel has none yet.
pub fn random<const N: usize>() -> Result<[u8; N], TransportError> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK) {
        Ok(filled) if filled == N => Ok(bytes),
        Ok(_) => Err(os("getrandom", Errno::AGAIN, "try again")),
        Err(error) => Err(os("getrandom", error, "wait until the system has gathered randomness")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_has_a_round_trip_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(round_trip(&listener), None);
        let socket = made(AddressFamily::INET).unwrap();
        let _ = rustix::net::connect(&socket, &listener.local_addr().unwrap());
        let (accepted, _) = listener.accept().unwrap();
        for end in [round_trip(&socket), round_trip(&accepted)] {
            assert!(end.unwrap() < Duration::from_secs(1), "a round trip takes {end:?}");
        }
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(round_trip(&datagrams), None);
    }

    #[test]
    fn no_connection_is_paced_unless_so_configured() {
        let chosen = congestion("").unwrap();
        let socket = made(AddressFamily::INET).unwrap();
        if let Some(name) = &chosen {
            congest(&socket, name).unwrap();
        }
        let own = sockopt::tcp_congestion(&socket).unwrap();
        assert!(!own.starts_with("bbr"), "connections use {own}, chosen {chosen:?}");
        assert_eq!(congestion("reno").unwrap().as_deref(), Some("reno"));
        let error = congestion("ring").unwrap_err().to_string();
        assert!(error.contains("FERROCCL_CONGESTION"), "{error}");
    }
}
