//! Connections before they carry messages: listeners, whom strangers cannot disturb, and attempts
//! to connect. Nothing here waits.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nccl_net_abi::NcclResult;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::handle::{Handle, Hello, Token, hello};
use crate::plugin::Outcome;

/// Who has connected has so long for its hello.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// The most connections that may be without a hello; the oldest go first.
const STRANGERS_MAX: usize = 256;
/// The most connections that one call takes.
const TAKEN_MAX: usize = 64;

/// A connection that has not proved yet that it knows the handle.
#[derive(Debug)]
struct Stranger {
    socket: TcpStream,
    hello: Hello,
    read: usize,
    since: Instant,
}

/// What a stranger turned out to be.
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
        if self.read == expected.len() && self.hello == *expected {
            Seen::Peer
        } else if self.read == expected.len() || self.since.elapsed() > HELLO_DEADLINE {
            Seen::Wrong
        } else {
            Seen::Unknown
        }
    }
}

/// A listening communicator.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    expected: Hello,
    strangers: Vec<Stranger>,
}

impl Listener {
    /// Listens at an address, with the handle that leads to it.
    pub(crate) fn open(ip: IpAddr) -> Outcome<(Listener, Handle)> {
        let mut token: Token = [0; 16];
        let random = getrandom(&mut token, GetRandomFlags::empty());
        random.ok().filter(|bytes| *bytes == token.len()).ok_or(NcclResult::SYSTEM_ERROR)?;
        let socket = TcpListener::bind((ip, 0)).or(Err(NcclResult::SYSTEM_ERROR))?;
        socket.set_nonblocking(true).or(Err(NcclResult::SYSTEM_ERROR))?;
        let address = socket.local_addr().or(Err(NcclResult::SYSTEM_ERROR))?;
        let listener = Listener { socket, expected: hello(&token), strangers: Vec::new() };
        Ok((listener, Handle::new(address, &token)))
    }

    /// A connection whose hello is right, if there is one.
    pub(crate) fn accept(&mut self) -> Outcome<Option<TcpStream>> {
        self.take_new()?;
        let mut at = 0;
        while let Some(stranger) = self.strangers.get_mut(at) {
            match stranger.look(&self.expected) {
                Seen::Peer => return Ok(Some(self.strangers.remove(at).socket)),
                Seen::Wrong => drop(self.strangers.remove(at)),
                Seen::Unknown => at += 1,
            }
        }
        Ok(None)
    }

    fn take_new(&mut self) -> Outcome<()> {
        for _ in 0..TAKEN_MAX {
            let socket = match self.socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It went away before it was taken.
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

/// A connection that is being made.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Until it is connected.
    socket: Option<TcpStream>,
    hello: Hello,
    written: usize,
}

impl Attempt {
    /// Begins to connect to a listener that knows the token.
    pub(crate) fn begin(address: SocketAddr, token: &Token) -> Outcome<Attempt> {
        let socket = connect(address).or(Err(NcclResult::REMOTE_ERROR))?;
        let socket = TcpStream::from(socket);
        prepare(&socket).or(Err(NcclResult::SYSTEM_ERROR))?;
        Ok(Attempt { socket: Some(socket), hello: hello(token), written: 0 })
    }

    /// Whether it begins with that token.
    pub(crate) fn is_for(&self, token: &Token) -> bool {
        self.hello == hello(token)
    }

    /// Goes on with it; the socket if it is done.
    pub(crate) fn advance(&mut self) -> Outcome<Option<TcpStream>> {
        while self.written < self.hello.len() {
            let Some(mut socket) = self.socket.as_ref() else { break };
            // While it is not connected, nothing can be written.
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
