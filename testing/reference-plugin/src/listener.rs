//! Connections before they carry messages: listeners, which strangers cannot disturb, and
//! connection attempts. Calls block only under planted faults.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nccl_net_abi::NcclResult;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::fault::Fault;
use crate::handle::{Handle, Hello, Token, hello};
use crate::outcome::Outcome;

/// Deadline for the hello of an accepted connection.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// Largest number of accepted connections without a complete hello; beyond it, the oldest is
/// dropped.
const STRANGERS_MAX: usize = 256;
/// Largest number of connections that one call of [`Listener::accept`] takes from the socket.
const TAKEN_MAX: usize = 64;

/// Longest time that [`Fault::BlockingConnect`] and [`Fault::BlockingAccept`] block.
const BLOCKED: Duration = Duration::from_secs(3);

/// Connection that has not yet proved possession of the handle.
#[derive(Debug)]
struct Stranger {
    socket: TcpStream,
    hello: Hello,
    read: usize,
    since: Instant,
}

/// State of a stranger's hello.
enum Seen {
    Peer,
    Unknown,
    Wrong,
}

impl Stranger {
    fn look(&mut self, expected: &Hello) -> Seen {
        match (&self.socket).read(&mut self.hello[self.read..]) {
            Ok(0) => return Seen::Wrong,
            Ok(read) => self.read += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Seen::Wrong,
        }
        if self.hello[..self.read] != expected[..self.read] {
            Seen::Wrong
        } else if self.read == expected.len() {
            Seen::Peer
        } else if self.since.elapsed() > HELLO_DEADLINE {
            Seen::Wrong
        } else {
            Seen::Unknown
        }
    }
}

/// Listening communicator.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    expected: Hello,
    strangers: Vec<Stranger>,
    fault: Option<Fault>,
    has_accepted: bool,
}

impl Listener {
    /// Listens at an address; also returns the handle of the listener.
    pub(crate) fn open(ip: IpAddr, fault: Option<Fault>) -> Outcome<(Listener, Handle)> {
        let mut token: Token = [0; 16];
        let random = getrandom(&mut token, GetRandomFlags::empty());
        random.ok().filter(|bytes| *bytes == token.len()).ok_or(NcclResult::SYSTEM_ERROR)?;
        let socket = TcpListener::bind((ip, 0)).or(Err(NcclResult::SYSTEM_ERROR))?;
        socket.set_nonblocking(true).or(Err(NcclResult::SYSTEM_ERROR))?;
        let address = socket.local_addr().or(Err(NcclResult::SYSTEM_ERROR))?;
        let (expected, strangers) = (hello(&token), Vec::new());
        let listener = Listener { socket, expected, strangers, fault, has_accepted: false };
        Ok((listener, Handle::new(address, &token)))
    }

    /// Returns a connection whose hello is right, if there is one.
    pub(crate) fn accept(&mut self) -> Outcome<Option<TcpStream>> {
        if self.has_accepted && self.fault == Some(Fault::HandleReuse) {
            return Err(NcclResult::INVALID_USAGE);
        }
        self.take_new()?;
        let mut at = 0;
        while let Some(stranger) = self.strangers.get_mut(at) {
            match stranger.look(&self.expected) {
                Seen::Peer => {
                    self.has_accepted = true;
                    return Ok(Some(self.strangers.remove(at).socket));
                }
                Seen::Wrong if self.fault == Some(Fault::StrangerKills) => {
                    return Err(NcclResult::REMOTE_ERROR);
                }
                Seen::Wrong => drop(self.strangers.remove(at)),
                Seen::Unknown => at += 1,
            }
        }
        Ok(None)
    }

    /// Waits for a connection for at most [`BLOCKED`].
    pub(crate) fn accept_blocking(&mut self) -> Outcome<Option<TcpStream>> {
        let since = Instant::now();
        loop {
            let found = self.accept()?;
            if found.is_some() || since.elapsed() > BLOCKED {
                return Ok(found);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Leaks a descriptor: duplicates the socket's descriptor and never closes the duplicate.
    pub(crate) fn leak(&self) {
        let _: Option<RawFd> = self.socket.try_clone().ok().map(IntoRawFd::into_raw_fd);
    }

    fn take_new(&mut self) -> Outcome<()> {
        for _ in 0..TAKEN_MAX {
            let socket = match self.socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The peer closed the connection before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Err(NcclResult::SYSTEM_ERROR),
            };
            if prepare(&socket).is_err() {
                continue;
            }
            if self.strangers.len() == STRANGERS_MAX {
                self.strangers.remove(0);
            }
            let since = Instant::now();
            self.strangers.push(Stranger { socket, hello: [0; 24], read: 0, since });
        }
        Ok(())
    }
}

/// Connection attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Socket of the attempt; `None` once it is connected and handed over.
    socket: Option<TcpStream>,
    hello: Hello,
    written: usize,
}

impl Attempt {
    /// Begins to connect to the listener at an address with its token.
    pub(crate) fn begin(address: SocketAddr, token: &Token) -> Outcome<Attempt> {
        let socket = connect(address).or(Err(NcclResult::REMOTE_ERROR))?;
        let socket = TcpStream::from(socket);
        prepare(&socket).or(Err(NcclResult::SYSTEM_ERROR))?;
        Ok(Attempt { socket: Some(socket), hello: hello(token), written: 0 })
    }

    /// Returns whether the attempt is for that token.
    pub(crate) fn is_for(&self, token: &Token) -> bool {
        self.hello == hello(token)
    }

    /// Makes progress; returns the socket once the attempt is done.
    pub(crate) fn advance(&mut self) -> Outcome<Option<TcpStream>> {
        while self.written < self.hello.len() {
            let Some(mut socket) = self.socket.as_ref() else { break };
            // A socket that is not yet connected accepts no bytes.
            match socket.write(&self.hello[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(NcclResult::REMOTE_ERROR),
            }
        }
        Ok(self.socket.take())
    }
}

fn connect(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

fn prepare(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)
}

/// Waits at most [`BLOCKED`] for the byte that [`admit`] sends.
pub(crate) fn wait_for_admission(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(BLOCKED))?;
    let mut reader = socket;
    // The connection continues even if no byte arrives.
    let _ = reader.read(&mut [0]);
    socket.set_nonblocking(true)
}

/// Tells the peer that its connection was accepted.
pub(crate) fn admit(mut socket: &TcpStream) -> std::io::Result<()> {
    socket.write(&[1]).map(|_| ())
}

/// Sets up the socket so that closing it resets the connection.
pub(crate) fn reset(socket: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
