//! Forks a child that does nothing. A program forks to run a command, and a plugin in the program
//! must survive the fork.

use crate::stop::{Outcome, failed};

/// Forks a child that ends at once, and waits for its end.
pub(crate) fn fork_and_reap() -> Outcome {
    // SAFETY: the child only calls `_exit`, which the child of a process with threads may do.
    let child = unsafe { libc::fork() };
    match child {
        -1 => failed("the system refused to fork"),
        0 => {
            // SAFETY: ends the child without running exit handlers of the plugin.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status lives on the stack; the child ends at once, so the wait is short.
            let reaped = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if reaped == child { Ok(()) } else { failed("the forked child could not be reaped") }
        }
    }
}
