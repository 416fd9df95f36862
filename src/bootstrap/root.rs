//! Joining at rank 0: the sockets of `RootJoin`, the state machine of rank 0.

use super::resolve::resolve;
use super::socket::{self, Deadline, Got, random_bytes};
use super::{BootstrapError, Endpoint, Join, Joined, contact, listen_at};
use crate::clock::now;
use ccl_bootstrap::{ConnectionId, JoinFailure, RootAction, RootJoin, Roster};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest time for sending the last messages of joining.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longest time for which late ranks are told the reason of a failure.
const LATE: Duration = Duration::from_secs(3);
/// Pause after `accept` has failed, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Connection {
    stream: TcpStream,
    outbox: Vec<u8>,
    closing: bool,
}

struct Driver {
    listener: TcpListener,
    machine: RootJoin,
    connections: BTreeMap<ConnectionId, Connection>,
    accepted: u64,
    pause: Option<Deadline>,
}

pub(super) fn join(join: &mut Join) -> Result<Joined, BootstrapError> {
    let listener = match (join.listener.take(), join.id.endpoints.first()) {
        (Some(listener), _) => listener,
        (None, Some(endpoint)) => listen_at(endpoint)?,
        (None, None) => return Err(no_endpoint()),
    };
    let system = |doing| move |error| BootstrapError::System { doing, error };
    let address = listener.local_addr().map_err(system("read the listening address"))?;
    if join.id.secret.is_public() && !join.insecure && !address.ip().is_loopback() {
        return Err(BootstrapError::NoSecret { address });
    }
    listener.set_nonblocking(true).map_err(system("prepare the listening socket"))?;
    socket::widen(&listener, join.ranks);
    socket::allow_descriptors(join.ranks);
    let (control, contact) = contact::of_root(address)?;
    let hello = join.hello(contact);
    let machine = RootJoin::new(join.id.secret.clone(), hello, join.limits, now());
    let connections = BTreeMap::new();
    let mut driver = Driver { listener, machine, connections, accepted: 0, pause: None };
    driver.run(join)?;
    let roster = driver.conclude(join)?;
    let addresses = contact::addresses(&roster, contact::LOCAL);
    Ok(Joined { roster, listener: Some(control), addresses })
}

fn no_endpoint() -> BootstrapError {
    let error = std::io::Error::other("the unique id has no endpoint");
    BootstrapError::System { doing: "find where to listen", error }
}

/// Returns whether an endpoint is certainly not on this host.
fn is_foreign(endpoint: &Endpoint, by: Deadline) -> bool {
    let not_here = |address: &SocketAddr| {
        let bound = UdpSocket::bind(SocketAddr::new(address.ip(), 0));
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
    };
    let addresses = resolve(endpoint, by);
    addresses.is_ok_and(|addresses| addresses.iter().all(not_here))
}

impl Driver {
    fn run(&mut self, join: &Join) -> Result<(), BootstrapError> {
        while self.machine.outcome().is_none() {
            join.give_up.check(join.rank)?;
            let timeout = self.machine.poll_timeout().since(now()).min(join.give_up.every());
            let ready = self.wait(timeout, true);
            self.accept()?;
            self.read(&ready);
            self.machine.tick(now());
            self.act();
        }
        self.act();
        self.take_leave(join)
    }

    /// Sends the last messages before the sockets are closed. After a failure, also sends the
    /// reason to ranks that connect a little later.
    fn take_leave(&mut self, join: &Join) -> Result<(), BootstrapError> {
        let failed = self.machine.outcome().is_some_and(Result::is_err);
        let longest = if self.machine.has_unsent_answers() { LATE } else { FAREWELL };
        let end = Deadline::after(longest);
        while !end.is_past() {
            let unsent = self.connections.values().any(|c| !c.outbox.is_empty());
            let expected = failed && self.machine.has_half_open();
            let unsent_answers =
                self.machine.has_unsent_answers() && join.give_up.check(join.rank).is_ok();
            if !(unsent || expected || unsent_answers) {
                break;
            }
            let ready = self.wait(end.left().min(join.give_up.every()), failed);
            if failed {
                self.accept()?;
                self.read(&ready);
            }
            self.act();
        }
        Ok(())
    }

    fn conclude(self, join: &Join) -> Result<Roster, BootstrapError> {
        let strays = self.machine.strays();
        match self.machine.outcome() {
            Some(Ok(roster)) => Ok(roster.clone()),
            Some(Err(failure)) => {
                // The address can be wrong only if no other rank has joined.
                let nobody = matches!(failure, JoinFailure::Missing { count, .. }
                    if *count + 1 == join.ranks);
                let by = Deadline::after(FAREWELL);
                let foreign =
                    nobody && join.id.endpoints.iter().all(|endpoint| is_foreign(endpoint, by));
                let foreign = join.id.endpoints.first().filter(|_| foreign).cloned().map(Box::new);
                Err(BootstrapError::Root { failure: failure.clone(), strays, foreign })
            }
            None => Err(no_endpoint()),
        }
    }

    /// Waits until a socket is ready, at most `timeout`. Returns the ready connections.
    fn wait(&self, timeout: Duration, listening: bool) -> Vec<ConnectionId> {
        let pause = self.pause.filter(|pause| !pause.is_past());
        let timeout = pause.map_or(timeout, |pause| pause.left().min(timeout));
        let mut fds = Vec::with_capacity(1 + self.connections.len());
        if listening && pause.is_none() && self.machine.has_room(now()) {
            fds.push((self.listener.as_fd(), PollFlags::IN));
        }
        let first = fds.len();
        for connection in self.connections.values() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, listening);
            flags.set(PollFlags::OUT, !connection.outbox.is_empty());
            fds.push((connection.stream.as_fd(), flags));
        }
        // The wait is at most 500 ms, so that the next wait soon checks for room again: if there is
        // no room for a new connection, the oldest half-open connection yields once it is 1 s old.
        let found = socket::wait(&fds, timeout.min(Duration::from_millis(500)));
        let found = self.connections.keys().zip(&found[first..]);
        found.filter(|(_, ready)| **ready).map(|(id, _)| *id).collect()
    }

    fn accept(&mut self) -> Result<(), BootstrapError> {
        while self.pause.is_none_or(|pause| pause.is_past()) && self.machine.has_room(now()) {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if socket::prepare(&stream).is_err() {
                        continue;
                    }
                    tracing::debug!(%from, "accepted a connection to rank 0");
                    self.accepted += 1;
                    let connection = Connection { stream, outbox: Vec::new(), closing: false };
                    self.connections.insert(self.accepted, connection);
                    self.machine.accepted(self.accepted, random_bytes()?, now());
                    self.act();
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "rank 0 cannot accept a connection now");
                    self.pause = Some(Deadline::after(ACCEPT_PAUSE));
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, ready: &[ConnectionId]) {
        let mut buffer = [0; 2048];
        for id in ready.iter().copied() {
            let Some(connection) = self.connections.get(&id) else { continue };
            match socket::read(&connection.stream, &mut buffer) {
                Got::Bytes(count) => self.machine.received(id, &buffer[..count]),
                Got::Nothing => {}
                Got::End => {
                    self.connections.remove(&id);
                    self.machine.closed(id);
                }
            }
            self.act();
            // Once all ranks have joined, further bytes and hang-ups do not concern joining.
            if self.machine.outcome().is_some_and(Result::is_ok) {
                return;
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.machine.next_action() {
            match action {
                RootAction::Send(id, bytes) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.outbox.extend(bytes);
                    }
                }
                RootAction::Close(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.closing = true;
                    }
                }
            }
        }
        self.connections.retain(|_, connection| {
            let written = socket::write(&connection.stream, &connection.outbox);
            connection.outbox.drain(..written);
            // A closing connection is dropped even if the socket did not accept all bytes.
            !connection.closing
        });
    }
}
