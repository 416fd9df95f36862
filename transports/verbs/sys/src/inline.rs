//! Calls of the fast path. In the C header they are inline functions that call pointers in the
//! context.

use libc::c_int;

use crate::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};

/// Hands a list of requests to a queue pair. Returns 0, or an error number; `bad` then points to
/// the first request that was not taken.
///
/// # Safety
///
/// The queue pair is alive, and the list and all that it points to are valid. Other threads may
/// post to the queue pair at the same time, unless it was made without the library's locks.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the queue pair is alive.
    let context = unsafe { (*qp).context };
    // SAFETY: so is its context.
    match unsafe { (*context).ops.post_send } {
        // SAFETY: the caller keeps the contract.
        Some(call) => unsafe { call(qp, list, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Hands a list of receive requests to a queue pair, like [`ibv_post_send`].
///
/// # Safety
///
/// The contract is that of [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue pair is alive.
    let context = unsafe { (*qp).context };
    // SAFETY: so is its context.
    match unsafe { (*context).ops.post_recv } {
        // SAFETY: the caller keeps the contract.
        Some(call) => unsafe { call(qp, list, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Takes up to `count` completions. Returns their number, or a negative number for an error.
///
/// # Safety
///
/// The queue is alive, and `into` has room for `count` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, count: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: the queue is alive.
    let context = unsafe { (*cq).context };
    // SAFETY: so is its context.
    match unsafe { (*context).ops.poll_cq } {
        // SAFETY: the caller keeps the contract.
        Some(call) => unsafe { call(cq, count, into) },
        None => -1,
    }
}

/// Makes the queue's channel readable at the next completion. Returns 0, or an error number.
///
/// # Safety
///
/// The queue is alive.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the queue is alive.
    let context = unsafe { (*cq).context };
    // SAFETY: so is its context.
    match unsafe { (*context).ops.req_notify_cq } {
        // SAFETY: the caller keeps the contract.
        Some(call) => unsafe { call(cq, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}
