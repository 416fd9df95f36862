//! Rank 0's socket, and the unique id that goes with it.

use super::resolve::{is_loopback_name, resolve};
use super::socket::{Deadline, random_bytes};
use super::{BootstrapError, Endpoint, Secret, UniqueId};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

/// Hosts from which rank 0 can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This host alone.
    Loopback,
    /// All hosts; they try this host's addresses, then its name.
    Anywhere,
    /// All hosts; they try this name or address first.
    Host(String),
}

/// A socket on a port of the system's choice and the unique id that leads to it.
#[derive(Debug)]
pub struct Listening {
    /// Unique id to hand to the other ranks.
    pub id: UniqueId,
    /// Socket to give to [`super::Join::listener`] on rank 0.
    pub listener: TcpListener,
}

impl Listening {
    /// Listens and draws a secret.
    ///
    /// # Errors
    /// The system gives no port or no randomness.
    pub fn new(reach: &Reach) -> Result<Listening, BootstrapError> {
        let secret = Secret::from_bytes(random_bytes()?);
        let wildcard = Endpoint::new("*", 0);
        let (listener, hosts) = match reach {
            Reach::Loopback => {
                (listen_at(&Endpoint::new("127.0.0.1", 0))?, vec!["127.0.0.1".to_owned()])
            }
            Reach::Anywhere => (bind_wildcard(&wildcard)?, own_hosts()),
            Reach::Host(host) => {
                let mut hosts = vec![host.clone()];
                hosts.extend(own_hosts());
                hosts.dedup();
                (bind_wildcard(&wildcard)?, hosts)
            }
        };
        let local = listener.local_addr();
        let doing = "read the listening address";
        let port = local.map_err(|error| BootstrapError::System { doing, error })?.port();
        let endpoints = hosts.into_iter().map(|host| Endpoint::new(host, port)).collect();
        Ok(Listening { id: UniqueId { endpoints, secret }, listener })
    }
}

/// Listens at an endpoint that the ranks agreed on before. A loopback endpoint is bound as it is.
/// Any other endpoint is bound at its port on all addresses, because a host's name often resolves
/// to a loopback address such as 127.0.1.1 on the host itself.
///
/// # Errors
/// The port is taken, or a loopback endpoint cannot be resolved or bound. An address of another
/// host is no error, because only its port is used.
pub fn listen_at(endpoint: &Endpoint) -> Result<TcpListener, BootstrapError> {
    if !is_loopback_name(&endpoint.host) {
        return bind_wildcard(endpoint);
    }
    let error = |error| BootstrapError::Listen { endpoint: endpoint.clone(), error };
    let deadline = Deadline::after(std::time::Duration::from_secs(5));
    let addresses = resolve(endpoint, deadline)?;
    bind(&addresses).map_err(error)
}

fn bind_wildcard(endpoint: &Endpoint) -> Result<TcpListener, BootstrapError> {
    // A socket on the IPv6 wildcard takes IPv4 connections as well. The IPv4 wildcard is for hosts
    // without IPv6.
    let addresses = [
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, endpoint.port)),
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, endpoint.port)),
    ];
    bind(&addresses).map_err(|error| BootstrapError::Listen { endpoint: endpoint.clone(), error })
}

/// Binds the first address that can be bound. The standard library sets SO_REUSEADDR and
/// close-on-exec.
fn bind(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    TcpListener::bind(addresses)
}

/// Returns the names and addresses under which others may reach this host, best first: the source
/// addresses of its default routes, then its name.
pub fn own_hosts() -> Vec<String> {
    let mut hosts: Vec<String> = [
        // Documentation networks (RFC 5737, RFC 3849). Connecting a datagram socket sends
        // nothing: it makes the kernel choose the route.
        ("0.0.0.0:0", "192.0.2.1:9"),
        ("[::]:0", "[2001:db8::1]:9"),
    ]
    .iter()
    .filter_map(|(local, far)| source_address(local, far).ok())
    .filter(|address| !address.is_loopback() && !address.is_unspecified())
    .map(|address| address.to_string())
    .collect();
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if !name.is_empty() && format!("{name}:1").parse::<Endpoint>().is_ok() {
        hosts.push(name);
    }
    hosts
}

fn source_address(local: &str, far: &str) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind(local)?;
    socket.connect(far)?;
    Ok(socket.local_addr()?.ip())
}
