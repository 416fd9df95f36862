//! Descriptors that a child inherits, and children that die with their parent. This module has the
//! only unsafe code of `launch`.

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::service::DescriptorError;

/// Adopts a descriptor that this process inherited, and makes it close-on-exec. Each descriptor can
/// be adopted once in the life of the process.
pub(super) fn adopt(fd: i32) -> Result<OwnedFd, DescriptorError> {
    static ADOPTED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
    if fd < 3 {
        return Err(DescriptorError::Standard);
    }
    let mut adopted = ADOPTED.lock().unwrap_or_else(PoisonError::into_inner);
    if adopted.contains(&fd) {
        return Err(DescriptorError::Used);
    }
    // SAFETY: the calls only read and set the descriptor's flags; they fail with EBADF if the
    // descriptor is closed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_getfd(borrowed).map_err(|_| DescriptorError::Closed)?;
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(DescriptorError::Io)?;
    adopted.insert(fd);
    // SAFETY: the descriptor is open, and the launcher made it for this process alone and named it
    // in the environment; `ADOPTED` ensures that no second owner is made here.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the child die with the thread that starts it, and so with this process. The child inherits
/// `inherited` under the same descriptor number.
pub(super) fn tie(command: &mut Command, inherited: Option<OwnedFd>) {
    let parent = getpid();
    // SAFETY: between fork and exec, `bind_child` makes three system calls through rustix, which
    // neither allocate nor lock; the closure captures plain numbers and a descriptor.
    unsafe { command.pre_exec(move || bind_child(parent, inherited.as_ref())) };
}

fn bind_child(parent: Pid, inherited: Option<&OwnedFd>) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above: then no signal will come.
    if getppid() != Some(parent) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    if let Some(fd) = inherited {
        fcntl_setfd(fd.as_fd(), FdFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    #[test]
    fn a_descriptor_is_adopted_once_if_it_is_open() {
        let fd = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        let owned = adopt(fd).unwrap();
        assert_eq!(fcntl_getfd(&owned).unwrap(), FdFlags::CLOEXEC);
        assert_eq!(adopt(fd).unwrap_err(), DescriptorError::Used);
        assert_eq!(adopt(1).unwrap_err(), DescriptorError::Standard);
        assert_eq!(adopt(987_654).unwrap_err(), DescriptorError::Closed);
    }
}
