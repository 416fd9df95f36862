//! Connection: a queue in each direction.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_core::transport::{Inner, MrKey};

/// Locks a mutex, and ignores poisoning: no panic can leave the data of these mutexes half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Message from one side to the other.
#[derive(Debug)]
pub(crate) enum Frame {
    Put { key: MrKey, offset: usize, bytes: Vec<u8>, immediate: Option<u32>, is_control: bool },
    Note(Vec<u8>),
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) frames: Mutex<VecDeque<Frame>>,
    pub(crate) closed: AtomicBool,
}

impl Drop for ToyInner {
    /// Ends the connection for both sides.
    fn drop(&mut self) {
        self.0.iter().for_each(|queue| queue.closed.store(true, Ordering::Release));
    }
}

/// Connection: the queues to the peer and from it.
#[derive(Debug)]
pub(crate) struct ToyInner(pub(crate) [Arc<Queue>; 2]);

impl Inner for ToyInner {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
