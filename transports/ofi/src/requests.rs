//! Requests that the provider has.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::transport::{EndpointId, Slice};
use libfabric_sys::fi_context2;

use crate::memory::Registered;
use crate::native::Range;

/// A write that the provider has.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) endpoint: EndpointId,
    pub(crate) id: u64,
    /// Memory that it reads, kept until it is done.
    pub(crate) _keeps: [Option<Arc<Registered>>; 2],
}

/// A slot for a request, whose address the provider has. The context comes first: its address is
/// that of the whole.
#[repr(C)]
#[derive(Debug)]
struct Slot {
    context: fi_context2,
    request: Option<Request>,
}

/// Requests that the provider has, by the address of their contexts.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Allocations of their own, by the address of their contexts; each is freed at the end.
    slots: BTreeMap<usize, NonNull<Slot>>,
    free: Vec<NonNull<Slot>>,
}

// SAFETY: contexts hold what the provider writes there, which any thread may.
unsafe impl Send for Requests {}

impl Requests {
    /// Takes a slot for a request; returns its context, for the provider.
    pub(crate) fn add(&mut self, request: Request) -> *mut fi_context2 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let context = fi_context2 { internal: [std::ptr::null_mut(); 8] };
            let slot = NonNull::from(Box::leak(Box::new(Slot { context, request: None })));
            self.slots.insert(slot.addr().get(), slot);
            slot
        });
        // SAFETY: the slot lives until the end, and the provider touches only the context.
        unsafe { (*slot.as_ptr()).request = Some(request) };
        slot.cast().as_ptr()
    }

    /// Ends a request by its context; none if no request has it.
    pub(crate) fn end(&mut self, context: *mut fi_context2) -> Option<Request> {
        let slot = *self.slots.get(&context.addr())?;
        // SAFETY: as above.
        let request = unsafe { (*slot.as_ptr()).request.take() }?;
        self.free.push(slot);
        Some(request)
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        for slot in self.slots.values() {
            // SAFETY: it was made by a box, and the provider, whose endpoint is closed, has none of
            // it any more.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}

/// A put that the provider has not taken yet.
#[derive(Debug)]
pub(crate) struct Write {
    ranges: [Range; 2],
    count: usize,
    pub(crate) immediate: Option<u32>,
    /// Address and key of the peer's memory.
    pub(crate) remote: (u64, u64),
    /// Request; none while the provider has it.
    pub(crate) request: Option<Request>,
}

// SAFETY: the ranges lie in memory that the request keeps.
unsafe impl Send for Write {}

impl Write {
    pub(crate) fn new(
        endpoint: EndpointId,
        id: u64,
        immediate: Option<u32>,
        remote: (u64, u64),
    ) -> Write {
        let request = Some(Request { endpoint, id, _keeps: [const { None }; 2] });
        let ranges = [(std::ptr::null(), 0, std::ptr::null_mut()); 2];
        Write { ranges, count: 0, immediate, remote, request }
    }

    /// Returns the bytes that are written, one range behind the other.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges[..self.count]
    }

    /// Adds bytes; there are two slices at most.
    pub(crate) fn add(&mut self, slice: &Slice<'_, Arc<Registered>>) {
        let registered = &slice.registration.with;
        let start = slice.registration.region.start().wrapping_add(slice.offset);
        self.ranges[self.count] = (start.cast_const(), slice.bytes, registered.descriptor());
        if let Some(request) = &mut self.request {
            request._keeps[self.count] = Some(Arc::clone(registered));
        }
        self.count += 1;
    }
}
