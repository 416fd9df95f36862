//! Objects of libibverbs. Each ends the library's object when it is dropped, and keeps alive what
//! the library wants to outlive that. All `unsafe` code of this crate is here.

mod context;
mod memory;
mod pair;
mod queue;

use ccl_core::transport::TransportError;
use libc::c_int;

pub(crate) use context::{Context, Domain, GidRow};
pub(crate) use memory::{Memory, Sge};
pub(crate) use pair::{Pair, Path, Room, Write};
pub(crate) use queue::Queue;

/// Returns the error of a call that returns an error number, or -1 and leaves the number with the
/// thread.
fn check(call: &'static str, result: c_int, advice: &'static str) -> Result<(), TransportError> {
    match result {
        0 => Ok(()),
        code if code > 0 => Err(failure(call, code, advice)),
        _ => Err(last(call, advice)),
    }
}

/// Returns the error of a call that has left its number with the thread.
fn last(call: &'static str, advice: &'static str) -> TransportError {
    let code = std::io::Error::last_os_error().raw_os_error();
    failure(call, code.unwrap_or(libc::EIO), advice)
}

/// Clears the thread's error number: some drivers fail without one, and would leave another call's.
fn forget_errors() {
    // SAFETY: the call takes nothing.
    let own = unsafe { libc::__errno_location() };
    // SAFETY: each thread has its own error number.
    unsafe { own.write(0) };
}

fn failure(call: &'static str, code: c_int, advice: &'static str) -> TransportError {
    let full = std::io::Error::from_raw_os_error(code).to_string();
    let reason = full.split(" (os error").next().unwrap_or_default().to_owned();
    TransportError::Os { call, code, reason, advice }
}
