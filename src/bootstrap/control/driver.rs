//! The thread behind a control plane: its sockets, its clock, its control port.

use super::super::socket::{self, Deadline, Got};
use super::{Shared, publish};
use crate::clock::now;
use ccl_bootstrap::{ConnectionId, Control};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Longest time that a leaving rank waits for the others to close their connections, once it has
/// sent everything. The time counts from the moment at which the rank leaves.
const FAREWELL: Duration = Duration::from_millis(500);
/// Bytes read from one peer before the others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Pause after a connection could not be accepted, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The control thread: its connections and control port.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    /// The control port; none for a single rank.
    pub(super) listener: Option<TcpListener>,
    /// Addresses of the control ports, by rank.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) streams: BTreeMap<ConnectionId, Stream>,
    pub(super) accept_pause: Option<Deadline>,
}

pub(super) struct Stream {
    stream: TcpStream,
    is_connecting: bool,
    /// True if the round trip of the connection was measured. One measurement is enough: the kernel
    /// reports the shortest round trip so far, the TCP handshake included.
    is_measured: bool,
}

impl Driver {
    pub(super) fn run(mut self) {
        let mut buffer = vec![0; 64 << 10];
        let mut ready = Ready::default();
        let shared = self.shared.clone();
        while !self.is_done() {
            let mut control = shared.lock();
            self.read(&mut control, &ready, &mut buffer);
            if ready.listener {
                self.accept(&mut control);
            }
            control.tick(now());
            if control.wants_rendezvous_port() {
                let port = self.open_rendezvous();
                control.set_rendezvous_port(port, now());
            }
            if control.wants_note()
                && let Some(note) = shared.recorder.note()
            {
                control.note(note, now());
            }
            self.dial(&mut control);
            self.write(&mut control);
            // The failure is sent first and published second: a caller that sees the published
            // failure can end this process at once.
            publish(&shared, &control);
            shared.changed.notify_all();
            drop(control);
            shared.recorder.sample();
            shared.recorder.dump_on_signal();
            if shared.failure.get().is_some() {
                shared.recorder.dump_end();
            }
            ready = self.wait();
        }
    }

    fn is_done(&self) -> bool {
        let Some(leaving) = self.shared.leaving.get() else { return false };
        let control = self.shared.lock();
        let unsent = self.streams.keys().any(|id| !control.outbox(*id).is_empty());
        leaving.left().is_zero()
            || (control.is_detached() && !control.is_awaited())
            || (!unsent && leaving.waited() >= FAREWELL)
    }

    /// Waits for something to do, and returns what is ready.
    fn wait(&self) -> Ready {
        let (mut timeout, unsent, has_room) = {
            let control = self.shared.lock();
            let unsent = |id: &&ConnectionId| !control.outbox(**id).is_empty();
            let unsent: Vec<_> = self.streams.keys().filter(unsent).copied().collect();
            (control.poll_timeout().since(now()), unsent, control.has_room(now()))
        };
        if let Some(leaving) = self.shared.leaving.get() {
            timeout = timeout.min(leaving.left()).min(FAREWELL / 5);
        }
        let pause = self.accept_pause.filter(|pause| !pause.is_past());
        timeout = pause.map_or(timeout, |pause| timeout.min(pause.left()));
        let mut fds = vec![(self.shared.wake.as_fd(), PollFlags::IN)];
        let listener = self.listener.as_ref().filter(|_| has_room && pause.is_none());
        fds.extend(listener.map(|listener| (listener.as_fd(), PollFlags::IN)));
        let first = fds.len();
        for (id, stream) in &self.streams {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, stream.is_connecting || unsent.contains(id));
            fds.push((stream.stream.as_fd(), flags));
        }
        let found = socket::wait(&fds, timeout);
        if found[0] {
            let mut drained = [0; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut drained);
        }
        let streams = self.streams.keys().zip(&found[first..]);
        Ready {
            listener: listener.is_some() && found[1],
            streams: streams.filter(|(_, ready)| **ready).map(|(id, _)| *id).collect(),
        }
    }

    fn read(&mut self, control: &mut Control, ready: &Ready, buffer: &mut [u8]) {
        for id in &ready.streams {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            if stream.is_connecting {
                self.connected(control, *id);
                continue;
            }
            let mut turn = 0;
            while turn < TURN_BYTES {
                match socket::read(&stream.stream, buffer) {
                    Got::Bytes(count) => {
                        control.received(*id, &buffer[..count], now());
                        // Connections of strangers are not measured.
                        if !stream.is_measured && control.is_neighbour(*id) {
                            stream.is_measured = true;
                            self.shared.measure(&stream.stream);
                        }
                        turn += count;
                    }
                    Got::Nothing => break,
                    Got::End => {
                        self.streams.remove(id);
                        control.hung_up(*id, now());
                        break;
                    }
                }
            }
        }
    }

    /// Handles the end of an attempt to connect: success or failure.
    fn connected(&mut self, control: &mut Control, id: ConnectionId) {
        let Some(connecting) = self.streams.get_mut(&id) else { return };
        let stream = &connecting.stream;
        let refused = match stream.take_error() {
            Ok(Some(error)) => Some(socket::is_refused(&error)),
            // A port that nobody listens at can connect to itself.
            Ok(None) => match (stream.local_addr(), stream.peer_addr()) {
                (Ok(local), Ok(peer)) if local != peer => None,
                (Ok(_), Ok(_)) => Some(true),
                _ => Some(false),
            },
            Err(_) => Some(false),
        };
        match (refused, super::super::random_bytes()) {
            (None, Ok(nonce)) => {
                connecting.is_connecting = false;
                control.dialed(id, nonce, now());
            }
            (refused, _) => {
                self.streams.remove(&id);
                control.dial_failed(id, refused == Some(true), now());
            }
        }
    }

    fn dial(&mut self, control: &mut Control) {
        while let Some((id, rank)) = control.next_dial() {
            let address = self.addresses.get(rank as usize);
            let begun = address.map(|address| socket::begin_connect(*address));
            match begun {
                Some(Ok(stream)) => {
                    self.streams
                        .insert(id, Stream { stream, is_connecting: true, is_measured: false });
                }
                Some(Err(error)) => control.dial_failed(id, socket::is_refused(&error), now()),
                None => control.dial_failed(id, false, now()),
            }
        }
    }

    fn accept(&mut self, control: &mut Control) {
        let Some(listener) = &self.listener else { return };
        while control.has_room(now()) {
            match listener.accept() {
                Ok((stream, from)) => {
                    let Ok(nonce) = super::super::random_bytes() else { return };
                    if socket::prepare(&stream).is_err() {
                        continue;
                    }
                    tracing::trace!(%from, "accepted a connection to the control port");
                    let id = control.accepted(nonce, now());
                    self.streams
                        .insert(id, Stream { stream, is_connecting: false, is_measured: false });
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "the control port cannot accept a connection now");
                    self.accept_pause = Some(Deadline::after(ACCEPT_PAUSE));
                    return;
                }
            }
        }
    }

    /// Sends what the sockets accept, and closes connections that are over.
    fn write(&mut self, control: &mut Control) {
        self.streams.retain(|id, stream| {
            if !stream.is_connecting {
                let written = socket::write(&stream.stream, control.outbox(*id));
                control.sent(*id, written);
            }
            !control.is_over(*id)
        });
    }

    /// Opens a socket at which the survivors can meet, and returns its port; 0 if that fails.
    fn open_rendezvous(&self) -> u16 {
        let Some(Ok(own)) = self.listener.as_ref().map(TcpListener::local_addr) else { return 0 };
        let opened = TcpListener::bind(SocketAddr::new(own.ip(), 0));
        let Ok(listener) = opened else { return 0 };
        let port = listener.local_addr().map_or(0, |address| address.port());
        self.shared.rendezvous_listeners().insert(port, listener);
        port
    }
}

/// Sockets that a wait has found ready.
#[derive(Default)]
struct Ready {
    listener: bool,
    streams: Vec<ConnectionId>,
}
