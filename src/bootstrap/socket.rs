//! Sockets that never block, and randomness.

use super::BootstrapError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Returns advice for connections that cannot be made.
pub(super) fn advice() -> &'static str {
    let tried = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    match tried {
        Err(Errno::MFILE | Errno::NFILE) => {
            "this process has no file descriptor left; raise the limit with `ulimit -n`"
        }
        _ => "see whether that host can be reached from here, and whether its ports are filtered",
    }
}

/// A moment by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: std::time::Instant,
    after: Duration,
}

impl Deadline {
    /// Returns a deadline this long from now.
    pub fn after(after: Duration) -> Deadline {
        Deadline { start: std::time::Instant::now(), after }
    }

    /// Returns the time left; zero once the deadline has passed.
    pub fn left(&self) -> Duration {
        self.after.saturating_sub(self.start.elapsed())
    }

    /// Returns whether the deadline has passed.
    pub fn is_past(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns the time since the deadline was set.
    pub fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the time since the deadline was set, in milliseconds.
    pub fn waited_ms(&self) -> u64 {
        u64::try_from(self.waited().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Returns 32 random bytes from the operating system.
///
/// # Errors
/// The system gives no random bytes.
pub fn random_bytes() -> Result<[u8; 32], BootstrapError> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(BootstrapError::System {
                    doing: "draw random bytes",
                    error: error.into(),
                });
            }
        }
    }
    Ok(bytes)
}

/// Prepares a fresh stream: nothing blocks on it, and small messages leave at once.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

/// Waits until a descriptor is ready or broken, at most `timeout`. Returns for each descriptor
/// whether it is ready or broken.
pub(crate) fn wait(fds: &[(BorrowedFd<'_>, PollFlags)], timeout: Duration) -> Vec<bool> {
    let mut polled: Vec<_> =
        fds.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    // Rounded up: a timeout that ends a moment too early would make the caller spin.
    let timeout = Timespec::try_from(timeout.saturating_add(Duration::from_micros(100)));
    match poll(&mut polled, timeout.ok().as_ref()) {
        Ok(_) => polled.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(error) => {
            // An interruption is a wake-up like any other; after another error, the sleep prevents
            // spinning.
            if error != rustix::io::Errno::INTR {
                std::thread::sleep(Duration::from_millis(10));
            }
            vec![false; fds.len()]
        }
    }
}

/// Begins to connect; the stream becomes writable when connecting has succeeded or failed.
pub(super) fn begin_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns whether an attempt to connect found a host that does not listen at the port.
pub(super) fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// Raises the backlog to `waiting` connections, at least 128, as far as the system allows.
pub(super) fn widen(listener: &TcpListener, waiting: u32) {
    let waiting = i32::try_from(waiting.max(128)).unwrap_or(i32::MAX);
    // The socket listens already. If its backlog cannot be raised, some ranks have to connect
    // again.
    let _ = rustix::net::listen(listener, waiting);
}

/// Raises this process's limit of open files if the limit is too low for `connections`.
pub(super) fn allow_descriptors(connections: u32) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let needed = u64::from(connections) + 256;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(limit.maximum.map_or(needed, |maximum| needed.min(maximum)));
        // If the system refuses, accepting fails later with its own error.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Result of one attempt to read.
pub(super) enum Got {
    Bytes(usize),
    Nothing,
    End,
}

/// Reads the bytes that have arrived.
pub(super) fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> Got {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Got::End,
            Ok(count) => return Got::Bytes(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Got::Nothing,
            Err(_) => return Got::End,
        }
    }
}

/// Writes what the socket accepts and returns the number of bytes. A broken socket accepts none;
/// reading from it reports the end.
pub(super) fn write(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

/// Waits until a descriptor is ready or broken, at most `timeout`. Returns whether it is ready or
/// broken; false also if a signal interrupts the wait.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, flags)];
    let timeout = Timespec::try_from(timeout).ok();
    matches!(poll(&mut polled, timeout.as_ref()), Ok(ready) if ready > 0)
}
