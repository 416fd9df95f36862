//! Identity of the process at the other end of a socket, as the kernel reports it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ccl_core::transport::TransportError;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use crate::{DESCRIPTORS, os};

/// The process at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Name of the process, for errors and logs.
    pub(crate) name: String,
    /// Pidfd, which becomes readable when the process ends; none if it could not be opened.
    pub(crate) process: Option<OwnedFd>,
}

/// Returns the peer of a connected socket, if the peer runs as this process's user or as root.
pub(crate) fn identify(socket: BorrowedFd<'_>) -> Result<Peer, TransportError> {
    let (pid, uid) = credentials(socket)
        .map_err(|error| os("getsockopt(SO_PEERCRED)", error, "the socket is not usable"))?;
    let name = match pid {
        0 => "a process of another PID namespace".to_owned(),
        pid => format!("process {pid}"),
    };
    let own = geteuid().as_raw();
    if uid != own && uid != 0 {
        let reason = format!(
            "it runs as user {uid} and this process as user {own}; run all ranks of a host as \
             the same user"
        );
        return Err(TransportError::Refused { peer: name, reason });
    }
    let process = match Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(process)) => Some(process),
        Some(Err(error @ (Errno::MFILE | Errno::NFILE))) => {
            return Err(os("pidfd_open", error, DESCRIPTORS));
        }
        // Old kernel, ended process or other PID namespace: only a hang-up of the socket tells
        // that the peer has ended.
        Some(Err(_)) | None => None,
    };
    Ok(Peer { name, process })
}

/// Returns the peer's process id and user id. A peer of another PID namespace has the process id 0,
/// which rustix's type does not admit, so this function calls libc.
fn credentials(socket: BorrowedFd<'_>) -> Result<(i32, u32), Errno> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers lead to a ucred and to its length, both alive during the call.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if status == 0 {
        return Ok((found.pid, found.uid));
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}
