//! Connection setup: the listener, and the connecting side.

use std::os::fd::AsFd;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Connected, Connecting, HELLO_BYTES_MAX, Listener, Secret, TransportError,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::address::{self, Name, Namespace};
use crate::credentials;
use crate::handshake::{Handshake, Shaken, random};
use crate::wire::Socket;
use crate::{DESCRIPTORS, os};

/// Limit on connections that have not proved the secret; further ones wait in the kernel's queue.
const HALF_OPEN_MAX: usize = 64;

/// Longest time that a connection may take to prove the secret.
const PROVE_WITHIN: Duration = Duration::from_secs(5);

const BACKLOG: i32 = 128;

fn socket() -> Result<Socket, TransportError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map(Socket::new)
        .map_err(|error| os("socket", error, DESCRIPTORS))
}

fn connected(handshake: Handshake, shaken: Shaken, hello: Vec<u8>) -> Connected {
    Connected { hello, inner: Box::new(handshake.finish(shaken)) }
}

/// A listener on a socket with a random abstract name.
#[derive(Debug)]
pub(crate) struct ShmListener {
    device: u64,
    address: Address,
    secret: Secret,
    socket: Socket,
    half_open: Vec<(Instant, Handshake)>,
    rejected: u64,
}

impl ShmListener {
    pub(crate) fn new(
        device: u64,
        namespace: Namespace,
        secret: &Secret,
    ) -> Result<ShmListener, TransportError> {
        let name = Name(random()?);
        let socket = socket()?;
        rustix::net::bind(&socket, &name.socket()?)
            .map_err(|error| os("bind to an abstract name", error, "try again"))?;
        rustix::net::listen(&socket, BACKLOG)
            .map_err(|error| os("listen", error, "this kernel is not usable"))?;
        Ok(ShmListener {
            device,
            address: address::encode(name, namespace),
            secret: secret.clone(),
            socket,
            half_open: Vec::new(),
            rejected: 0,
        })
    }

    /// Accepts queued connections, at most until [`HALF_OPEN_MAX`] are half open.
    fn accept(&mut self, now: Instant) -> Result<(), TransportError> {
        for _ in self.half_open.len()..HALF_OPEN_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => Socket::new(socket),
                Err(Errno::AGAIN) => break,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) => return Err(os("accept", error, DESCRIPTORS)),
            };
            let peer = credentials::identify(socket.as_fd());
            let begun =
                peer.and_then(|peer| Handshake::listener(self.device, socket, peer, &self.secret));
            match begun {
                Ok(handshake) => self.half_open.push((now + PROVE_WITHIN, handshake)),
                Err(error) => self.reject(error)?,
            }
        }
        Ok(())
    }

    /// Counts a rejected connection. An error of the operating system, which is not the peer's
    /// fault, is returned and not counted.
    fn reject(&mut self, error: TransportError) -> Result<(), TransportError> {
        if matches!(error, TransportError::Os { .. }) {
            return Err(error);
        }
        self.rejected += 1;
        tracing::debug!(%error, "dropped a connection to the shared memory listener");
        Ok(())
    }
}

impl Listener for ShmListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        self.accept(now)?;
        let mut index = 0;
        while let Some((until, handshake)) = self.half_open.get_mut(index) {
            let late = now >= *until;
            match handshake.step() {
                Ok(None) if !late => index += 1,
                Ok(Some(shaken)) => {
                    let (_, handshake) = self.half_open.swap_remove(index);
                    let hello = handshake.hello().to_vec();
                    return Ok(Some(connected(handshake, shaken, hello)));
                }
                Ok(None) => {
                    let (_, handshake) = self.half_open.swap_remove(index);
                    self.reject(late_proof(handshake.peer()))?;
                }
                Err(error) => {
                    self.half_open.swap_remove(index);
                    self.reject(error)?;
                }
            }
        }
        Ok(None)
    }

    fn rejected(&self) -> u64 {
        self.rejected
    }
}

fn late_proof(peer: &str) -> TransportError {
    let peer = peer.to_owned();
    TransportError::Deadline { what: "the proof of the secret", peer, after: PROVE_WITHIN }
}

/// Stage of a connection in the making.
#[derive(Debug)]
enum Progress {
    /// The socket is to be connected.
    Dial { socket: Socket, name: Name },
    /// The sides are proving the secret.
    Shake(Box<Handshake>),
    /// The attempt has ended, well or not.
    Over,
}

/// A connection in the making.
#[derive(Debug)]
pub(crate) struct ShmConnecting {
    device: u64,
    secret: Secret,
    hello: Vec<u8>,
    peer: String,
    started: Option<Instant>,
    deadline: Instant,
    progress: Progress,
}

impl ShmConnecting {
    pub(crate) fn new(
        device: u64,
        name: Name,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<ShmConnecting, TransportError> {
        if hello.len() > HELLO_BYTES_MAX {
            let (bytes, most) = (hello.len(), HELLO_BYTES_MAX);
            return Err(TransportError::TooLong { what: "hello", bytes, most });
        }
        Ok(ShmConnecting {
            device,
            secret: secret.clone(),
            hello: hello.to_vec(),
            peer: format!("shared memory listener {}", name.text()),
            started: None,
            deadline,
            progress: Progress::Dial { socket: socket()?, name },
        })
    }

    /// Connects the socket. Returns the stage `Dial` again if the listener's queue is full.
    fn dial(&self, socket: Socket, name: Name) -> Result<Progress, TransportError> {
        match rustix::net::connect(&socket, &name.socket()?) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Progress::Dial { socket, name }),
            Err(Errno::CONNREFUSED) => {
                let reason = "its process has ended, or has closed the listener".to_owned();
                return Err(TransportError::Lost { peer: self.peer.clone(), reason });
            }
            Err(error) => return Err(os("connect", error, "the listener is not reachable")),
        }
        let peer = credentials::identify(socket.as_fd())?;
        Handshake::connector(self.device, socket, peer, &self.secret, &self.hello)
            .map(|handshake| Progress::Shake(Box::new(handshake)))
    }

    fn advance(&mut self) -> Result<Option<Connected>, TransportError> {
        let progress = std::mem::replace(&mut self.progress, Progress::Over);
        let mut handshake = match progress {
            Progress::Dial { socket, name } => match self.dial(socket, name)? {
                Progress::Shake(handshake) => handshake,
                waiting => {
                    self.progress = waiting;
                    return Ok(None);
                }
            },
            Progress::Shake(handshake) => handshake,
            Progress::Over => return Ok(None),
        };
        handshake.peer().clone_into(&mut self.peer);
        if let Some(shaken) = handshake.step()? {
            return Ok(Some(connected(*handshake, shaken, Vec::new())));
        }
        self.progress = Progress::Shake(handshake);
        Ok(None)
    }
}

impl Connecting for ShmConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let started = *self.started.get_or_insert(now);
        if matches!(self.progress, Progress::Over) {
            return Err(TransportError::HandedOut);
        }
        let connected = self.advance()?;
        if connected.is_none() && now >= self.deadline {
            self.progress = Progress::Over;
            let (peer, after) = (self.peer.clone(), now.since(started));
            return Err(TransportError::Deadline { what: "connecting", peer, after });
        }
        Ok(connected)
    }
}
