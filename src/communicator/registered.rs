//! Buffers that stay registered for RDMA from call to call.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::admission::CachedMemory;
use ccl_memory::Region;

use super::element::Element;
use super::{Communicator, Error};

/// Elements whose memory stays registered between the calls of one communicator. They are used like
/// any slice. Their registration ends when they are dropped or taken out with
/// [`Registered::into_inner`].
#[derive(Debug)]
pub struct Registered<T> {
    elements: Vec<T>,
    cached: Arc<CachedMemory>,
}

impl<T> Registered<T> {
    /// Returns the elements and ends their registration.
    #[must_use]
    pub fn into_inner(mut self) -> Vec<T> {
        self.cached.end();
        std::mem::take(&mut self.elements)
    }
}

impl<T> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}

impl<T> Drop for Registered<T> {
    fn drop(&mut self) {
        // The registration ends before the memory is freed.
        self.cached.end();
    }
}

impl Communicator {
    /// Keeps memory registered as long as the result lives. Over RDMA, large messages then need no
    /// registration in each call. Messages of `FERROCCL_ZERO_COPY_BYTES` or more then move between
    /// this memory and the network without a copy. Messages from or to any other buffer move
    /// without a copy only if that buffer has 256 KiB or more. At most `FERROCCL_REGISTERED_BYTES`
    /// of the memory given to this method stay registered between calls. Over other transports
    /// nothing changes.
    ///
    /// # Errors
    ///
    /// When the communicator has ended.
    pub fn register<T: Element>(&mut self, elements: Vec<T>) -> Result<Registered<T>, Error> {
        self.usable()?;
        let mut elements = elements;
        let bytes = size_of_val(&*elements);
        // The address is exposed, like the addresses of the buffers of calls.
        let address = elements.as_mut_ptr().expose_provenance();
        let start = std::ptr::with_exposed_provenance_mut(address);
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(());
        // SAFETY: the elements stay where they are, in a vector that nobody can grow, until
        // `CachedMemory::end` has ended every use of the region. The region is read and written
        // only in calls that borrow the elements.
        let region = unsafe { Region::new(start, bytes, owner) };
        let cached = CachedMemory::new(region);
        if let Some(messages) = self.engine.ports.links().messages() {
            messages.cache(Arc::clone(&cached));
        }
        Ok(Registered { elements, cached })
    }
}
