//! Control ports: the addresses at which each rank listens and at which the other ranks reach it.

use super::resolve::is_loopback_name;
use super::{BootstrapError, Contact, Join, Roster, socket};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

/// Address of rank 0, as rank 0 itself uses it; [`address`] sets the port.
pub(super) const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Backlog of a control port. Each neighbour (a rank that keeps a control connection to this rank)
/// connects once, but strangers may connect more often.
const WAITING: u32 = 1024;

fn listen(ip: IpAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
    listener.set_nonblocking(true)?;
    socket::widen(&listener, WAITING);
    Ok(listener)
}

fn failed(error: io::Error) -> BootstrapError {
    BootstrapError::System { doing: "listen for control connections", error }
}

/// Opens the control port of rank 0, at the IP address at which rank 0 listens for joining. The
/// contact holds no address: the other ranks use the address at which they reach rank 0.
pub(super) fn of_root(joining: SocketAddr) -> Result<(TcpListener, Contact), BootstrapError> {
    let listener = listen(joining.ip()).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, Contact::new(None, port)))
}

/// Returns whether some ranks might be on other hosts.
pub(super) fn spans_hosts(join: &Join) -> bool {
    join.spans_hosts || join.id.endpoints.iter().any(|endpoint| !is_loopback_name(&endpoint.host))
}

/// Opens the control port of this rank (not 0), at the address from which this rank reaches rank 0.
/// The port listens on all addresses instead if three conditions are met: that address is loopback
/// (this rank is then on rank 0's host), other ranks might be on other hosts, and joining beyond
/// loopback is allowed. The other ranks then use the address at which they reach rank 0.
pub(super) fn of_member(
    join: &Join,
    root: &TcpStream,
) -> Result<(TcpListener, Contact), BootstrapError> {
    let own = root.local_addr().map_err(failed)?.ip().to_canonical();
    let is_exposed = join.insecure || !join.id.secret.is_public();
    let has_others = spans_hosts(join);
    if !own.is_loopback() || !is_exposed || !has_others {
        let listener = listen(own).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        return Ok((listener, Contact::new(Some(own), port)));
    }
    // An IPv6 wildcard takes IPv4 as well, unless the host has no IPv6 at all.
    let any = listen(Ipv6Addr::UNSPECIFIED.into());
    let listener = any.or_else(|_| listen(Ipv4Addr::UNSPECIFIED.into())).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, Contact::new(None, port)))
}

/// Returns the address of a control port, as seen from a rank that reaches rank 0 at `root`.
pub(super) fn address(contact: &Contact, root: SocketAddr) -> SocketAddr {
    let mut address = root;
    if let Some(ip) = contact.ip() {
        address.set_ip(ip);
    }
    // The scope id of `root` stays: a link-local address is valid on the interface towards rank 0.
    address.set_port(contact.port);
    address
}

/// Returns the addresses of all control ports, by rank.
pub(super) fn addresses(roster: &Roster, root: SocketAddr) -> Vec<SocketAddr> {
    roster.members.iter().map(|member| address(&member.contact, root)).collect()
}
