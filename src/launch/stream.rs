//! Reads and writes on a launcher's socket, under a deadline.

use super::service::ServiceError;
use crate::bootstrap::socket::{self, Deadline};
use crate::bootstrap::{Endpoint, resolve::resolve};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A byte stream to a launcher.
pub(super) struct LauncherStream {
    fd: OwnedFd,
    deadline: Deadline,
}

impl LauncherStream {
    pub(super) fn new(fd: OwnedFd, deadline: Deadline) -> LauncherStream {
        LauncherStream { fd, deadline }
    }

    /// Connects, and tries again until the deadline, in case the launcher does not listen yet.
    pub(super) fn connect(
        endpoint: &Endpoint,
        deadline: Deadline,
    ) -> Result<LauncherStream, ServiceError> {
        let mut pause = Duration::from_millis(10);
        loop {
            let error = match LauncherStream::connect_once(endpoint, deadline) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if deadline.left() <= pause {
                return Err(error);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    fn connect_once(
        endpoint: &Endpoint,
        deadline: Deadline,
    ) -> Result<LauncherStream, ServiceError> {
        let mut last = ServiceError::NoAddress;
        let named = resolve(endpoint, deadline);
        for address in named.map_err(|error| ServiceError::Name(Box::new(error)))? {
            let timeout = deadline.left().clamp(Duration::from_millis(1), Duration::from_secs(5));
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(LauncherStream::new(stream.into(), deadline));
                }
                Err(error) => last = ServiceError::Connect(error),
            }
        }
        Err(last)
    }

    /// Sets the deadline of all later reads and writes.
    pub(super) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    /// Reads at least one byte; `None` at the end of the stream.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, ServiceError> {
        loop {
            self.wait(PollFlags::IN)?;
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => return Ok(Some(count)),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(ServiceError::Io(error)),
            }
        }
    }

    pub(super) fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<(), ServiceError> {
        while !buffer.is_empty() {
            let count = self.read(buffer)?.ok_or(ServiceError::Closed)?;
            buffer = &mut buffer[count..];
        }
        Ok(())
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), ServiceError> {
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT)?;
            // `send` avoids SIGPIPE if the other end is gone, but pipes do not support `send`.
            let sent = match send(&self.fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Err(Errno::NOTSOCK) => rustix::io::write(&self.fd, bytes),
                sent => sent,
            };
            match sent {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(ServiceError::Io(error)),
            }
        }
        Ok(())
    }

    /// Waits until the kernel reports the descriptor as ready or broken. The report can be wrong,
    /// so callers must handle a descriptor that is not ready.
    fn wait(&self, flags: PollFlags) -> Result<(), ServiceError> {
        loop {
            if self.deadline.is_past() {
                return Err(ServiceError::Late { waited_ms: self.deadline.waited_ms() });
            }
            if socket::is_ready(self.fd.as_fd(), flags, self.deadline.left()) {
                return Ok(());
            }
        }
    }
}
