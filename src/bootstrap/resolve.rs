//! Resolution of names to addresses, with a deadline.

use super::socket::Deadline;
use super::{BootstrapError, Endpoint};
use crossbeam::channel;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Returns whether a name is `localhost` or a loopback address.
pub(crate) fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns all addresses of an endpoint. The system's resolver knows no deadline, so it runs on a
/// thread of its own, which is left behind if the resolver does not answer in time.
pub fn resolve(endpoint: &Endpoint, deadline: Deadline) -> Result<Vec<SocketAddr>, BootstrapError> {
    if let Ok(address) = endpoint.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, endpoint.port)]);
    }
    let error = |text: String| BootstrapError::Resolve { endpoint: endpoint.clone(), text };
    let (sender, receiver) = channel::bounded(1);
    let name = (endpoint.host.clone(), endpoint.port);
    std::thread::Builder::new()
        .name("ferroccl-resolve".to_owned())
        .spawn(move || {
            let found = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            // Nobody listens any more once the deadline has passed.
            let _ = sender.send(found);
        })
        .map_err(|e| error(e.to_string()))?;
    match receiver.recv_timeout(deadline.left()) {
        Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Ok(Ok(_)) => Err(error("no address was found".to_owned())),
        Ok(Err(e)) => Err(error(e.to_string())),
        Err(_) => Err(error("the resolver did not answer in time".to_owned())),
    }
}
