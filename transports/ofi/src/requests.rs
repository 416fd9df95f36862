//! Requests that the provider has.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ccl_core::transport::{EndpointId, Slice};
use libfabric_sys::fi_context2;

use crate::memory::Registered;
use crate::messages::{HEAD_BYTES, PART_BYTES};
use crate::native::{RANGES_MAX, Range};

/// A write that the provider has.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) endpoint: EndpointId,
    pub(crate) id: u64,
    /// Number of messages of the put that are not done.
    pub(crate) left: Arc<AtomicUsize>,
    /// Memory that it reads, kept until it is done.
    keeps: [Option<Arc<Registered>>; 2],
}

impl Request {
    fn reads(&self, memory: &Arc<Registered>) -> bool {
        self.keeps.iter().flatten().any(|own| Arc::ptr_eq(own, memory))
    }

    /// Returns whether memory that it reads was given back.
    pub(crate) fn is_void(&self) -> bool {
        self.keeps.iter().flatten().any(|own| own.is_ended())
    }
}

/// A slot for a request, whose address the provider has. The context comes first: its address is
/// that of the whole.
#[repr(C)]
#[derive(Debug)]
struct Slot {
    context: fi_context2,
    /// Head of a message, which the provider sends from here.
    head: [u8; HEAD_BYTES],
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
            let slot = NonNull::from(Box::leak(Box::new(Slot {
                context,
                head: [0; HEAD_BYTES],
                request: None,
            })));
            self.slots.insert(slot.addr().get(), slot);
            slot
        });
        // SAFETY: the slot lives until the end, and the provider touches only the context.
        unsafe { (*slot.as_ptr()).request = Some(request) };
        slot.cast().as_ptr()
    }

    /// Takes a slot for a message with this head; returns its context, and the head in its slot.
    pub(crate) fn add_message(
        &mut self,
        request: Request,
        head: [u8; HEAD_BYTES],
    ) -> (*mut fi_context2, *const u8) {
        let context = self.add(request);
        let slot: *mut Slot = context.cast();
        // SAFETY: the slot lives until the end, and the provider has none of it yet.
        unsafe { (*slot).head = head };
        // SAFETY: as above; the head stays until the request has ended.
        (context, unsafe { (&raw const (*slot).head).cast() })
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

impl Requests {
    fn requests(&self) -> impl Iterator<Item = &Request> {
        // SAFETY: the slots live until the end, and the provider touches only the contexts.
        self.slots.values().filter_map(|slot| unsafe { &*slot.as_ptr() }.request.as_ref())
    }

    /// Returns whether any request reads this memory.
    pub(crate) fn any_of(&self, memory: &Arc<Registered>) -> bool {
        self.requests().any(|request| request.reads(memory))
    }

    /// Forgets all requests, whose endpoints are closed.
    pub(crate) fn clear(&mut self) {
        self.free.clear();
        for slot in std::mem::take(&mut self.slots).into_values() {
            // SAFETY: it was made by a box, and the provider, whose endpoints are closed, has none
            // of it any more.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.clear();
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
    pub(crate) request: Request,
    /// Bytes that the provider has, and their messages.
    pub(crate) handed: usize,
    /// Number of the put among those of the link.
    pub(crate) put: u64,
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
        let left = Arc::new(AtomicUsize::new(1));
        let request = Request { endpoint, id, left, keeps: [const { None }; 2] };
        let ranges = [(std::ptr::null(), 0, std::ptr::null_mut()); 2];
        Write { ranges, count: 0, immediate, remote, request, handed: 0, put: 0 }
    }

    /// Returns the bytes that are written, one range behind the other.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges[..self.count]
    }

    /// Returns the number of its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.ranges().iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// Returns the bytes from `handed` on, as far as they go in one message, behind a head; and how
    /// many ranges and bytes there are.
    pub(crate) fn part(&self, head: *const u8) -> ([Range; RANGES_MAX], usize, usize) {
        let mut part = [(std::ptr::null(), 0, std::ptr::null_mut()); RANGES_MAX];
        part[0] = (head, HEAD_BYTES, std::ptr::null_mut());
        let (mut count, mut taken, mut skip) = (1, 0, self.handed);
        for (start, bytes, descriptor) in self.ranges() {
            let here = bytes.saturating_sub(skip).min(PART_BYTES - taken);
            if here > 0 {
                part[count] = (start.wrapping_add(skip), here, *descriptor);
                (count, taken) = (count + 1, taken + here);
            }
            skip = skip.saturating_sub(*bytes);
        }
        (part, count, taken)
    }

    /// Adds bytes; there are two slices at most.
    pub(crate) fn add(&mut self, slice: &Slice<'_, Arc<Registered>>) {
        let registered = &slice.registration.with;
        let start = slice.registration.region.start().wrapping_add(slice.offset);
        self.ranges[self.count] = (start.cast_const(), slice.bytes, registered.descriptor());
        self.request.keeps[self.count] = Some(Arc::clone(registered));
        self.count += 1;
    }
}
