//! Completion queues.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::transport::TransportError;
use rdma_sys::*;

use super::context::Context;
use super::{check, failure, last};

/// Completion queue, to which queue pairs report completed work requests.
pub(crate) struct Queue {
    context: Arc<Context>,
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs may be called from several threads, and locks what they share.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// Makes a queue that holds `room` completions.
    pub(crate) fn new(context: &Arc<Context>, room: u32) -> Result<Arc<Queue>, TransportError> {
        let functions = context.functions;
        // SAFETY: the device is open.
        let channel = unsafe { (functions.create_comp_channel)(context.raw()) };
        let channel = NonNull::new(channel)
            .ok_or_else(|| last("ibv_create_comp_channel", "raise `ulimit -n`"))?;
        let (room, none) = (i32::try_from(room).unwrap_or(i32::MAX), std::ptr::null_mut());
        // SAFETY: the device is open, and the channel is its own.
        let queue =
            unsafe { (functions.create_cq)(context.raw(), room, none, channel.as_ptr(), 0) };
        let Some(queue) = NonNull::new(queue) else {
            let error = last("ibv_create_cq", "the device has no room for this completion queue");
            // SAFETY: nobody uses the channel.
            unsafe { (functions.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let made = Queue { context: Arc::clone(context), queue, channel };
        let bell = made.bell();
        rustix::fs::fcntl_getfl(bell)
            .and_then(|flags| rustix::fs::fcntl_setfl(bell, flags | rustix::fs::OFlags::NONBLOCK))
            .map_err(|error| failure("fcntl", error.raw_os_error(), "this kernel is not usable"))?;
        Ok(Arc::new(made))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }

    /// Takes completions, and returns how many.
    pub(crate) fn poll(&self, into: &mut [ibv_wc]) -> Result<usize, TransportError> {
        // SAFETY: the queue is alive, and `into` has room for this number of completions.
        let count = unsafe { ibv_poll_cq(self.raw(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(count)
            .map_err(|_| failure("ibv_poll_cq", libc::EIO, "the device has failed: see `dmesg`"))
    }

    /// Makes [`Queue::bell`] readable at the next completion. Completions that came before this
    /// call do not ring the bell, so the caller must poll once more after arming.
    pub(crate) fn arm(&self) -> Result<(), TransportError> {
        self.silence();
        // SAFETY: the queue is alive.
        let result = unsafe { ibv_req_notify_cq(self.raw(), 0) };
        check("ibv_req_notify_cq", result, "the device has failed: see `dmesg`")
    }

    /// Reads and acknowledges all events of the bell.
    fn silence(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let functions = self.context.functions;
        // SAFETY: the channel is alive, and does not block.
        while unsafe {
            (functions.get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut context)
        } == 0
        {
            // SAFETY: one event of this queue was taken.
            unsafe { (functions.ack_cq_events)(queue, 1) };
        }
    }

    /// Returns the descriptor that becomes readable at a completion after [`Queue::arm`].
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive.
        let descriptor = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the descriptor stays open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.context).finish()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.context.is_ours() {
            return;
        }
        // Destroying the queue waits for unacknowledged events.
        self.silence();
        // SAFETY: every queue pair that reports here kept the queue alive, and none is left.
        unsafe { (self.context.functions.destroy_cq)(self.raw()) };
        // SAFETY: nobody uses the channel any more.
        unsafe { (self.context.functions.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}
