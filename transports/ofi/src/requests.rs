//! Requests that were posted to the provider.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ccl_core::transport::{EndpointId, Slice, TransportError};
use ccl_memory::Region;
use libfabric_sys::fi_context2;

use crate::memory::Registered;
use crate::messages::HEAD_BYTES;
use crate::native::{Domain, LOCAL, Memory, RANGES_MAX, Range, transport_error};

/// Number of message heads in one registration of memory.
const CHUNK_HEADS: usize = 64;

/// A request to the provider: a put as one write, or one message of a put that is sent as messages.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) endpoint: EndpointId,
    pub(crate) id: u64,
    pub(crate) is_control: bool,
    /// Number of messages of the put that are not done; none if the put is a single request.
    left: Option<Arc<AtomicUsize>>,
    /// True if the request's completion queue has failed, so that the request never completes.
    is_given_up: bool,
    /// Memory that the request reads, kept until the request is done. None in a [`Write`] whose
    /// last request was handed to the provider.
    keeps: [Option<Arc<Registered>>; 2],
}

impl Request {
    /// Makes the put consist of `parts` requests, which share one count.
    pub(crate) fn divide(&mut self, parts: usize) {
        self.left = (parts > 1).then(|| Arc::new(AtomicUsize::new(parts)));
    }

    /// Counts the request as done or failed; returns whether it was the last one of its put. To be
    /// called once per request.
    pub(crate) fn count_end(&self) -> bool {
        self.left.as_ref().is_none_or(|left| left.fetch_sub(1, Ordering::Relaxed) == 1)
    }

    /// Returns the put's last request, which takes over the memory that the put keeps.
    fn take_last(&mut self) -> Request {
        let keeps = std::mem::take(&mut self.keeps);
        Request { keeps, left: self.left.clone(), ..*self }
    }

    fn reads(&self, memory: &Arc<Registered>) -> bool {
        self.keeps.iter().flatten().any(|own| Arc::ptr_eq(own, memory))
    }

    /// Returns whether memory that the request reads was deregistered.
    pub(crate) fn is_void(&self) -> bool {
        self.keeps.iter().flatten().any(|own| own.is_ended())
    }
}

/// A slot for a request. The provider gets the address of the slot's context. The context is the
/// first field, so its address is also the address of the slot.
#[repr(C)]
#[derive(Debug)]
struct Slot {
    context: fi_context2,
    /// Number of the slot; its head has the same number in [`Heads`].
    number: usize,
    request: Option<Request>,
}

/// Memory from which the provider sends the heads of messages, one head per slot.
#[derive(Debug)]
struct Heads {
    domain: Arc<Domain>,
    /// Memory of [`CHUNK_HEADS`] heads each, with its registration if the provider requires one.
    chunks: Vec<(Region, Option<Memory>)>,
}

impl Heads {
    /// Writes a head; returns its range.
    fn write(&mut self, number: usize, head: &[u8; HEAD_BYTES]) -> Result<Range, TransportError> {
        let (chunk, offset) = (number / CHUNK_HEADS, number % CHUNK_HEADS * HEAD_BYTES);
        while self.chunks.len() <= chunk {
            let region = Region::allocate(CHUNK_HEADS * HEAD_BYTES)?;
            let memory = match self.domain.needs_local() {
                true => Some(Memory::register(&self.domain, region.clone(), LOCAL)),
                false => None,
            };
            self.chunks.push((region, memory.transpose().map_err(transport_error)?));
        }
        let (region, memory) = &self.chunks[chunk];
        region.write(offset, head)?;
        let descriptor = memory.as_ref().map_or(std::ptr::null_mut(), Memory::descriptor);
        Ok((region.start().wrapping_add(offset).cast_const(), HEAD_BYTES, descriptor))
    }
}

/// Requests that were posted to the provider, each found by the address of its context.
#[derive(Debug)]
pub(crate) struct Requests {
    heads: Heads,
    /// Separately allocated slots, by the address of their contexts; all are freed by `clear`.
    slots: BTreeMap<usize, NonNull<Slot>>,
    free: Vec<NonNull<Slot>>,
}

// SAFETY: the slots belong to this value alone, whichever thread owns it. Nothing else uses
// them but the provider, which may write to their contexts from any thread.
unsafe impl Send for Requests {}

impl Requests {
    pub(crate) fn new(domain: &Arc<Domain>) -> Requests {
        let heads = Heads { domain: Arc::clone(domain), chunks: Vec::new() };
        Requests { heads, slots: BTreeMap::new(), free: Vec::new() }
    }

    /// Takes a slot for a request; returns its context, for the provider.
    pub(crate) fn add(&mut self, request: Request) -> *mut fi_context2 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let context = fi_context2 { internal: [std::ptr::null_mut(); 8] };
            let number = self.slots.len();
            let slot = Box::leak(Box::new(Slot { context, number, request: None }));
            let slot = NonNull::from(slot);
            self.slots.insert(slot.addr().get(), slot);
            slot
        });
        // SAFETY: the slot lives until `clear` frees it, and the provider touches only the context.
        unsafe { (*slot.as_ptr()).request = Some(request) };
        slot.cast().as_ptr()
    }

    /// Takes a slot for a message, and copies the message's head. Returns the slot's context, and
    /// the range of the copy, which is valid until the request has ended.
    ///
    /// # Errors
    ///
    /// When there is no memory for the head, or registering the memory fails.
    pub(crate) fn add_message(
        &mut self,
        request: Request,
        head: &[u8; HEAD_BYTES],
    ) -> Result<(*mut fi_context2, Range), TransportError> {
        let context = self.add(request);
        let slot: *mut Slot = context.cast();
        // SAFETY: the slot lives until `clear` frees it, and the provider does not use it yet.
        let number = unsafe { (*slot).number };
        let head = self.heads.write(number, head);
        if head.is_err() {
            self.end(context);
        }
        Ok((context, head?))
    }

    /// Ends and returns the request with this context; none if no request has this context.
    pub(crate) fn end(&mut self, context: *mut fi_context2) -> Option<Request> {
        let slot = *self.slots.get(&context.addr())?;
        // SAFETY: the slot lives until `clear` frees it, and the provider touches only the context.
        let request = unsafe { (*slot.as_ptr()).request.take() }?;
        self.free.push(slot);
        Some(request)
    }
}

impl Requests {
    fn requests(&self) -> impl Iterator<Item = &Request> {
        // SAFETY: the slots live until `clear` frees them, and the provider touches only the
        // contexts.
        self.slots.values().filter_map(|slot| unsafe { &*slot.as_ptr() }.request.as_ref())
    }

    /// Returns whether any request belongs to an endpoint that `is_one` accepts.
    pub(crate) fn any_to(&self, is_one: impl Fn(EndpointId) -> bool) -> bool {
        self.requests().any(|request| is_one(request.endpoint))
    }

    /// Returns whether any request with this value of `is_given_up` reads this memory.
    pub(crate) fn any_of(&self, memory: &Arc<Registered>, is_given_up: bool) -> bool {
        self.requests().any(|one| one.is_given_up == is_given_up && one.reads(memory))
    }

    /// Gives up the requests of the endpoints that `is_one` accepts, because the completion queue
    /// of these endpoints has failed.
    pub(crate) fn give_up(&mut self, is_one: impl Fn(EndpointId) -> bool) {
        for slot in self.slots.values() {
            // SAFETY: the slots live until `clear` frees them, and the provider touches only the
            // contexts.
            let request = unsafe { &mut (*slot.as_ptr()).request };
            if let Some(request) = request.as_mut().filter(|request| is_one(request.endpoint)) {
                request.is_given_up = true;
            }
        }
    }

    /// Ends the requests that are given up, after their endpoints are closed.
    pub(crate) fn end_given_up(&mut self) {
        for slot in self.slots.values() {
            // SAFETY: the slots live until `clear` frees them, and the provider touches only the
            // contexts.
            let request = unsafe { &mut (*slot.as_ptr()).request };
            if request.take_if(|request| request.is_given_up).is_some() {
                self.free.push(*slot);
            }
        }
    }

    /// Forgets all requests; their endpoints must be closed already.
    pub(crate) fn clear(&mut self) {
        self.free.clear();
        for slot in std::mem::take(&mut self.slots).into_values() {
            // SAFETY: the slot was made by a box, and the provider no longer uses it, since its
            // endpoints are closed.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
        self.heads.chunks.clear();
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A put that the provider has not taken yet, or only in part.
#[derive(Debug)]
pub(crate) struct Write {
    ranges: [Range; 2],
    count: usize,
    pub(crate) immediate: Option<u32>,
    /// Address and key of the peer's memory.
    pub(crate) remote: (u64, u64),
    pub(crate) request: Request,
    /// Number of bytes that were handed to the provider.
    pub(crate) handed: usize,
    /// Number of the put among the link's puts.
    pub(crate) put: u64,
}

// SAFETY: the ranges lie in memory that the request keeps until the provider has taken the whole
// put, or the put has failed. After that, the ranges are not used.
unsafe impl Send for Write {}

impl Write {
    pub(crate) fn new(
        endpoint: EndpointId,
        (id, is_control): (u64, bool),
        immediate: Option<u32>,
        remote: (u64, u64),
    ) -> Write {
        let keeps = [const { None }; 2];
        let request = Request { endpoint, id, is_control, left: None, is_given_up: false, keeps };
        let ranges = [(std::ptr::null(), 0, std::ptr::null_mut()); 2];
        Write { ranges, count: 0, immediate, remote, request, handed: 0, put: 0 }
    }

    /// Returns the put's next request. The last one takes over the memory that the put keeps.
    pub(crate) fn next_request(&mut self, is_last: bool) -> Request {
        if is_last { self.request.take_last() } else { self.request.clone() }
    }

    /// Takes back the memory of a request that the provider has not taken.
    pub(crate) fn take_back(&mut self, refused: Option<Request>) {
        if let Some(Request { keeps, .. }) = refused {
            self.request.keeps = keeps;
        }
    }

    /// Returns the ranges of the bytes to write, in order.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges[..self.count]
    }

    /// Returns the number of bytes of the put.
    pub(crate) fn bytes(&self) -> usize {
        self.ranges().iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// Returns the ranges of the next message: the head, then `left` bytes of the put. Also returns
    /// the number of ranges.
    pub(crate) fn part(&self, head: Range, mut left: usize) -> ([Range; RANGES_MAX], usize) {
        let mut part = [(std::ptr::null(), 0, std::ptr::null_mut()); RANGES_MAX];
        part[0] = head;
        let (mut count, mut skip) = (1, self.handed);
        for (start, bytes, descriptor) in self.ranges() {
            let here = bytes.saturating_sub(skip).min(left);
            if here > 0 {
                part[count] = (start.wrapping_add(skip), here, *descriptor);
                (count, left) = (count + 1, left - here);
            }
            skip = skip.saturating_sub(*bytes);
        }
        (part, count)
    }

    /// Copies the bytes of the put to `to`, one range behind the other.
    pub(crate) fn copy_to(&self, to: &Region) -> Result<(), TransportError> {
        let mut at = 0;
        for (memory, (start, bytes, _)) in self.request.keeps.iter().flatten().zip(self.ranges()) {
            let offset = start.addr() - memory.region().start().addr();
            to.copy_from(at, memory.region(), offset, *bytes)?;
            at += bytes;
        }
        Ok(())
    }

    /// Makes the put send from `memory`, which holds a copy of the put's bytes.
    pub(crate) fn stage(&mut self, memory: Arc<Registered>) {
        let start = memory.region().start().cast_const();
        self.ranges[0] = (start, self.bytes(), memory.descriptor());
        self.count = 1;
        self.request.keeps = [Some(memory), None];
    }

    /// Adds a slice; a put has two at most.
    pub(crate) fn add(&mut self, slice: &Slice<'_, Arc<Registered>>) {
        let registered = &slice.registration.with;
        let start = slice.registration.region.start().wrapping_add(slice.offset);
        self.ranges[self.count] = (start.cast_const(), slice.bytes, registered.descriptor());
        self.request.keeps[self.count] = Some(Arc::clone(registered));
        self.count += 1;
    }
}
