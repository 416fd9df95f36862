//! Communicators made from another communicator: the rendezvous of their ranks, and their secret.

use super::super::resolve::is_loopback_name;
use super::super::{Endpoint, GiveUp, Join, Secret, UniqueId, Verdict, contact, listen};
use super::{ControlPlane, VerdictError};
use ccl_core::types::Rank;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Largest number of addresses of rank 0 in an invitation.
const HOSTS_MAX: usize = 8;

/// Addresses for the rendezvous of communicators that are made from this communicator.
#[derive(Debug)]
pub(super) struct Reachable {
    /// Address at which the rank listens.
    listen: IpAddr,
    /// Host names and addresses of rank 0 in the unique id.
    root_hosts: Vec<String>,
    spans_hosts: bool,
}

impl Reachable {
    pub(super) fn of(join: &Join, control_port: Option<&TcpListener>) -> Reachable {
        let hosts = join.id.endpoints.iter().map(|endpoint| endpoint.host.clone());
        let root_hosts = Vec::from_iter(hosts);
        let spans_hosts = contact::spans_hosts(join);
        let own = control_port.and_then(|listener| listener.local_addr().ok());
        // A single rank has no control port.
        let alone = match spans_hosts || root_hosts.is_empty() {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::LOCALHOST.into(),
        };
        Reachable { listen: own.map_or(alone, |address| address.ip()), root_hosts, spans_hosts }
    }
}

/// Invitation with which new ranks join the members of a communicator when the members call `grow`.
/// The secret is valid for this invitation only.
#[derive(Debug)]
pub struct Invitation {
    /// Unique id to hand to each newcomer.
    pub id: UniqueId,
    /// Rank of the first newcomer; the ranks of the other newcomers follow.
    pub first: Rank,
    /// Number of ranks, newcomers included.
    pub ranks: u32,
    spans_hosts: bool,
    /// [`ControlPlane::origin`] of the communicator that made the invitation.
    pub(crate) origin: [u8; 32],
    /// Listening socket, on rank 0 alone.
    listener: Option<TcpListener>,
}

impl Invitation {
    /// Returns the parameters with which member `rank` meets the newcomers.
    pub(crate) fn accept(self, rank: Rank) -> Join {
        let mut join = Join::new(rank, self.ranks, self.id);
        join.listener = self.listener;
        join.spans_hosts = self.spans_hosts;
        join
    }
}

fn host_of(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => {
            format!("{}%{}", address.ip(), address.scope_id())
        }
        _ => address.ip().to_canonical().to_string(),
    }
}

/// Returns the hosts that an invitation names: valid ones only, loopback last.
fn worth_naming(hosts: &[String]) -> Vec<String> {
    let is_name = |host: &&String| {
        Endpoint::new(host.as_str(), 1)
            .to_string()
            .parse()
            .is_ok_and(|read: Endpoint| read.host == **host)
    };
    let is_somewhere =
        |host: &&String| host.parse::<IpAddr>().map_or(true, |address| !address.is_unspecified());
    let mut all: Vec<&String> = hosts.iter().filter(is_name).filter(is_somewhere).collect();
    all.sort_by_key(|host| (is_loopback_name(host), host.as_str()));
    all.dedup();
    all.into_iter().take(HOSTS_MAX).cloned().collect()
}

impl ControlPlane {
    /// Opens a socket at which other ranks can meet this rank: on the address at which this rank
    /// listens, with a port of the system's choice.
    ///
    /// # Errors
    /// Binding fails.
    pub(crate) fn open_rendezvous(&self) -> std::io::Result<TcpListener> {
        let bound = TcpListener::bind(SocketAddr::new(self.reachable.listen, 0));
        // A host may have no IPv6 at all.
        let any = (Ipv4Addr::UNSPECIFIED, 0);
        bound.or_else(|error| match self.reachable.listen.is_unspecified() {
            true => TcpListener::bind(any),
            false => Err(error),
        })
    }

    /// Returns the parameters with which this rank, `members[position]`, joins a new communicator
    /// of `members` as rank `position`. The members meet at `port` of the first member, which alone
    /// has the listener.
    pub(crate) fn derived_join(
        &self,
        members: &[Rank],
        position: usize,
        (port, listener): (u16, Option<TcpListener>),
        purpose: &str,
    ) -> Join {
        let leader = members.first().copied().unwrap_or(self.rank);
        let address = self.addresses.get(leader as usize).copied();
        let hosts = match address {
            // Rank 0 knows no address of itself that others can use.
            Some(address) if leader != 0 || self.rank != 0 => vec![host_of(address)],
            _ => self.reachable.root_hosts.clone(),
        };
        let endpoints = hosts.into_iter().map(|host| Endpoint::new(host, port)).collect();
        let secret = Secret::from_bytes(self.secret.derive(purpose.as_bytes()));
        // `members` has at most RANKS_MAX ranks, so the casts below are exact.
        let id = UniqueId { endpoints, secret };
        let mut join = Join::new(position as Rank, members.len() as u32, id);
        join.listener = listener;
        join.spans_hosts = self.reachable.spans_hosts;
        join
    }

    /// Returns the parameters with which this rank joins a new communicator of the survivors. The
    /// survivors keep their order as ranks; the lowest survivor becomes rank 0 and listens already.
    /// Limits and timing are defaults.
    ///
    /// # Errors
    /// This rank is not among the survivors, or the lowest survivor could not listen.
    pub fn regroup(&self, verdict: &Verdict) -> Result<Join, VerdictError> {
        let no = |reason| VerdictError::NoRendezvous { rank: self.rank, reason };
        let survivors = &verdict.survivors;
        let position =
            survivors.binary_search(&self.rank).map_err(|_| no("it is not among them"))?;
        let port = verdict.rendezvous_port;
        if port == 0 && survivors.len() > 1 {
            return Err(no("the lowest of them could not open a socket to listen at"));
        }
        let mut listener = None;
        if position == 0 && survivors.len() > 1 {
            // The socket is cloned, because another attempt may need it.
            let rendezvous_listeners = self.shared.rendezvous_listeners();
            let known =
                rendezvous_listeners.get(&port).and_then(|listener| listener.try_clone().ok());
            listener = Some(known.ok_or(no("the socket for this rendezvous is closed"))?);
        }
        let purpose = format!("survivors {}", verdict.epoch);
        Ok(self.derived_join(survivors, position, (port, listener), &purpose))
    }

    /// Closes the socket at which the survivors of a verdict met.
    pub(crate) fn end_rendezvous(&self, verdict: &Verdict) {
        self.shared.rendezvous_listeners().remove(&verdict.rendezvous_port);
    }

    /// Returns the reason why these ranks can no longer go on together; none if they can.
    pub(crate) fn obstacle(&self, members: &[Rank]) -> Option<String> {
        if self.is_forked() { None } else { self.shared.lock().obstacle(members) }
    }

    /// Does what [`ControlPlane::obstacle`] does, and waits up to `timeout` for an obstacle.
    pub(crate) fn await_obstacle(&self, members: &[Rank], timeout: Duration) -> Option<String> {
        if self.is_forked() {
            return None;
        }
        self.shared.await_change(timeout, |control| control.obstacle(members))
    }

    /// Returns whether one of these ranks is dead or has left.
    pub(crate) fn has_lost(&self, members: &[Rank]) -> bool {
        !self.is_forked() && self.shared.lock().has_lost(members)
    }

    /// Returns a condition that ends a wait for these ranks when one of them dies, leaves or gives
    /// up.
    pub(crate) fn unless_gone(self: &Arc<Self>, members: Vec<Rank>) -> GiveUp {
        let plane = Arc::downgrade(self);
        GiveUp::when(move || plane.upgrade()?.obstacle(&members))
    }

    /// Makes an abort of this communicator also abort `successor` while `successor` is being made.
    pub(crate) fn set_successor(&self, successor: &Weak<ControlPlane>) {
        successor.clone_into(&mut self.shared.successor());
    }

    /// Returns the hosts at which rank 0 can be reached, as far as this rank knows.
    pub(crate) fn root_hosts(&self) -> Vec<String> {
        match self.addresses.first() {
            Some(address) if self.rank != 0 => vec![host_of(*address)],
            _ if self.reachable.root_hosts.is_empty() => listen::own_hosts(),
            _ => self.reachable.root_hosts.clone(),
        }
    }

    /// Returns an invitation to a rendezvous at this port of rank 0, which is reached at `hosts`.
    pub(crate) fn invitation(
        &self,
        hosts: &[String],
        (port, listener): (u16, Option<TcpListener>),
        added: u32,
        purpose: &str,
    ) -> Invitation {
        let hosts = worth_naming(hosts).into_iter();
        let endpoints = hosts.map(|host| Endpoint::new(host, port)).collect();
        let secret = Secret::from_bytes(self.secret.derive(purpose.as_bytes()));
        Invitation {
            id: UniqueId { endpoints, secret },
            first: self.ranks(),
            ranks: self.ranks().saturating_add(added),
            spans_hosts: self.reachable.spans_hosts,
            origin: self.origin(),
            listener,
        }
    }

    /// Returns bytes that differ between communicators, and reveal nothing about their secrets.
    pub(crate) fn origin(&self) -> [u8; 32] {
        self.secret.derive(b"origin of invitations")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_names_reachable_addresses_first() {
        let all = ["127.0.0.1", "node7", "0.0.0.0", "10.0.0.1", "fe80::1%2", "node7", "::1"];
        let named = worth_naming(&all.map(str::to_owned));
        assert_eq!(named, ["10.0.0.1", "node7", "127.0.0.1", "::1"]);
    }
}
