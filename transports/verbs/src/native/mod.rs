//! Wrappers of libibverbs objects. A wrapper ends the library's object when it is dropped, and
//! keeps alive the objects that must outlive it. All `unsafe` code of this crate is here.

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

/// Checks the result of a call: 0, an error number, or -1 with the error number in `errno`.
fn check(call: &'static str, result: c_int, advice: &'static str) -> Result<(), TransportError> {
    match result {
        0 => Ok(()),
        code if code > 0 => Err(failure(call, code, advice)),
        _ => Err(last(call, advice)),
    }
}

/// Returns the error of a call that has set `errno`.
fn last(call: &'static str, advice: &'static str) -> TransportError {
    let code = std::io::Error::last_os_error().raw_os_error();
    failure(call, code.unwrap_or(libc::EIO), advice)
}

/// Clears `errno`: some drivers fail without setting it, and it would then still hold the error of
/// an earlier call.
fn forget_errors() {
    // SAFETY: the function takes no arguments.
    let own = unsafe { libc::__errno_location() };
    // SAFETY: each thread has its own error number.
    unsafe { own.write(0) };
}

fn failure(call: &'static str, code: c_int, advice: &'static str) -> TransportError {
    let full = std::io::Error::from_raw_os_error(code).to_string();
    let reason = full.split(" (os error").next().unwrap_or_default().to_owned();
    let makes_object = call.starts_with("ibv_reg") || call.starts_with("ibv_create");
    let advice = if code == libc::EAGAIN && makes_object { GROUP } else { advice };
    TransportError::Os { call, code, reason, advice }
}

/// Advice for the error of a control group that has reached its limit of RDMA objects.
const GROUP: &str = "the process's control group has reached its limit of RDMA objects: raise the \
                     limit (`rdma.max`, see /sys/fs/cgroup), or use fewer queue pairs per peer, \
                     such as FERROCCL_IB_POLICY=2";

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the advice for two kinds of RDMA objects. Other errors keep the advice of their call.
    #[test]
    fn an_error_at_a_control_groups_limit_of_objects_has_advice_about_the_limit() {
        let text = |call, code| failure(call, code, "other advice").to_string();
        for call in ["ibv_reg_mr", "ibv_create_qp"] {
            let said = text(call, libc::EAGAIN);
            assert!(said.contains("rdma.max"), "{said}");
        }
        for said in [text("ibv_reg_mr", libc::ENOMEM), text("fcntl", libc::EAGAIN)] {
            assert!(said.ends_with("other advice"), "{said}");
        }
    }
}
