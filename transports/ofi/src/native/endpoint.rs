//! Endpoints, each with a completion queue and an address vector of its own.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use libc::{EAGAIN, ENOSYS, c_char, c_int, c_void, iovec, ssize_t};
use libfabric_sys::{
    FI_ADDR_STR, FI_AV_TABLE, FI_CQ_FORMAT_DATA, FI_DELIVERY_COMPLETE, FI_EAVAIL, FI_EOTHER,
    FI_MR_ENDPOINT, FI_OPT_EFA_EMULATED_WRITE, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE,
    FI_SEND, FI_SOCKADDR, FI_SOCKADDR_IB, FI_WAIT_FD, FI_WAIT_NONE, fi_av_attr, fi_av_insert,
    fi_av_open, fi_close, fi_context2, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry, fi_cq_open,
    fi_cq_read, fi_cq_readerr, fi_cq_strerror, fi_cq_wait_fd, fi_enable, fi_endpoint, fi_ep_bind,
    fi_eq_attr, fi_eq_err_entry, fi_eq_open, fi_eq_readerr, fi_getname, fi_getopt_bool, fi_mr_bind,
    fi_mr_enable, fi_msg, fi_msg_rma, fi_recv, fi_rma_iov, fi_senddata, fi_sendmsg, fi_setname,
    fi_trywait, fi_writedata, fi_writemsg, fid, fid_av, fid_cq, fid_ep, fid_eq,
};

use super::{Domain, Info, Memory, OfiError, check, reason, shm};

/// Room for a provider's address, in bytes: no provider has longer addresses.
const ADDRESS_BYTES_MAX: usize = 512;
/// Largest number of messages that posting one receive drops.
const DROPPED_MAX: usize = 1 << 10;
/// First major version of `tcp;ofi_rxm` that keeps its receives: that of libfabric 2.0.
const KEEPS_RECEIVES: u32 = 200;
/// Longest error text of a provider, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Completion of a request of this side, or of a peer's write to this side's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// Flags that show the kind of the request (`FI_RECV`, `FI_SEND`, `FI_WRITE` or
    /// `FI_REMOTE_WRITE`), and `FI_REMOTE_CQ_DATA` if `data` is valid.
    pub(crate) flags: u64,
    /// Data that the peer has sent with its request.
    pub(crate) data: u64,
    /// Bytes that have arrived.
    pub(crate) bytes: usize,
    /// Context of the request; not valid for a peer's request.
    pub(crate) context: *mut fi_context2,
}

impl Completion {
    /// Returns whether the completion is of a peer's message or write.
    pub(crate) fn is_arrival(&self) -> bool {
        self.flags & (FI_RECV | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) != 0
    }
}

/// Completions of one read. To save time, entries that no completion has filled are never
/// initialised: a lane that waits reads its queue several times per microsecond.
pub(crate) struct Completions {
    entries: [MaybeUninit<fi_cq_data_entry>; COMPLETIONS_MAX],
    count: usize,
    most: usize,
}

impl Completions {
    /// Returns room for `most` completions, at most [`COMPLETIONS_MAX`].
    pub(crate) fn room(most: usize) -> Completions {
        let entries = [const { MaybeUninit::uninit() }; COMPLETIONS_MAX];
        Completions { entries, count: 0, most: most.min(COMPLETIONS_MAX) }
    }

    /// Returns whether the last read has found nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether the last read has filled the room, so that more completions may be there.
    pub(crate) fn is_full(&self) -> bool {
        self.count == self.most
    }

    /// Returns the completions of the last read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Completion> + '_ {
        self.entries[..self.count].iter().map(|entry| {
            // SAFETY: the last read has filled the first `count` entries.
            let fi_cq_data_entry { op_context, flags, len, data, .. } =
                unsafe { entry.assume_init_read() };
            Completion { flags, data, bytes: len, context: op_context.cast() }
        })
    }
}

/// Object whose failure a completion queue reports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failed {
    /// Queue itself: nothing can be read from it.
    Queue,
    /// Request, by its context.
    Request(*mut fi_context2),
    /// Packet of the provider's own, such as the provider's first packet to a peer that has ended.
    /// The request for which the packet was sent has a completion or a failure of its own.
    Packet,
}

/// Largest number of completions that one read takes. It is more than one because a software
/// provider makes system calls at each read.
pub(crate) const COMPLETIONS_MAX: usize = 16;

/// Bytes that are sent or written, and the descriptor of their registration.
pub(crate) type Range = (*const u8, usize, *mut c_void);

/// Largest number of ranges of one request. A message has one range for its head, and up to two
/// more for the bytes of a put.
pub(crate) const RANGES_MAX: usize = 3;

/// Ranges in libfabric's format; one empty range if there are none.
struct Local {
    ranges: [iovec; RANGES_MAX],
    descriptors: [*mut c_void; RANGES_MAX],
    count: usize,
}

impl Local {
    fn new(of: &[Range]) -> Local {
        let mut ranges = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; RANGES_MAX];
        let mut descriptors = [ptr::null_mut(); RANGES_MAX];
        let slots = ranges.iter_mut().zip(&mut descriptors);
        for ((start, bytes, of), (range, descriptor)) in of.iter().zip(slots) {
            *range = iovec { iov_base: start.cast_mut().cast(), iov_len: *bytes };
            *descriptor = *of;
        }
        Local { ranges, descriptors, count: of.len().clamp(1, RANGES_MAX) }
    }
}

/// An endpoint for reliable datagrams.
#[derive(Debug)]
pub(crate) struct Endpoint {
    raw: *mut fid_ep,
    queue: *mut fid_cq,
    vector: *mut fid_av,
    /// Queue of errors of the provider's own packets, where the provider needs one.
    events: *mut fid_eq,
    /// Descriptor for waiting on the queue, if the provider has one.
    bell: Option<Arc<OwnedFd>>,
    domain: Arc<Domain>,
}

/// Means of waiting for an endpoint.
#[derive(Debug)]
pub(crate) enum Bell {
    /// The provider cannot wake a lane, or was not asked to.
    Silent,
    /// A completion, or work of the provider, is pending: a wait could miss it.
    Busy,
    /// Descriptor that becomes readable once there is a completion, or work of the provider. The
    /// descriptor outlives the endpoint, but never becomes readable after the endpoint has closed.
    Rings(Arc<OwnedFd>),
}

// SAFETY: the domain was asked for with `FI_THREAD_SAFE`: any thread may call its objects.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint.
    pub(crate) fn open(domain: &Arc<Domain>) -> Result<Endpoint, OfiError> {
        Endpoint::open_by(domain, &domain.info)
    }

    /// Opens an endpoint that sends in the traffic class of low latency, if the provider has one.
    pub(crate) fn open_low_latency(domain: &Arc<Domain>) -> Result<Option<Endpoint>, OfiError> {
        domain.low_latency.as_ref().map(|info| Endpoint::open_by(domain, info)).transpose()
    }

    /// Opens a queue for errors of the provider's own packets, such as its first packet to a peer
    /// that has ended. Without a queue, EFA's provider ends the process at such an error.
    fn open_events(&mut self) -> Result<(), OfiError> {
        let Domain { fabric, info, .. } = &*self.domain;
        if !info.is_efa() {
            return Ok(());
        }
        let mut events = fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: FI_WAIT_NONE,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: the fabric is open.
        let returned = unsafe { fi_eq_open(*fabric, &raw mut events, &raw mut self.events) };
        check(info.functions, "fi_eq_open", returned)
    }

    /// Takes the errors of the provider's own packets.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut all = Vec::new();
        while !self.events.is_null() {
            let none = ptr::null_mut();
            let mut entry = fi_eq_err_entry {
                fid: ptr::null_mut(),
                context: none,
                data: 0,
                err: 0,
                prov_errno: 0,
                err_data: none,
                err_data_size: 0,
            };
            // SAFETY: the queue is open.
            if unsafe { fi_eq_readerr(self.events, &raw mut entry) } <= 0 {
                break;
            }
            all.push(reason(self.domain.info.functions, entry.err));
        }
        all
    }

    /// Returns a duplicate of the queue's descriptor. The queue must be opened with `FI_WAIT_FD`.
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        let mut descriptor = -1;
        // SAFETY: the queue is open, and was opened with a descriptor.
        let found = unsafe { fi_cq_wait_fd(self.queue, &mut descriptor) };
        // SAFETY: the descriptor is the queue's, which is open.
        let own = (found == 0 && descriptor >= 0)
            .then(|| unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned());
        own.and_then(Result::ok).map(Arc::new)
    }

    fn open_by(domain: &Arc<Domain>, info: &Info) -> Result<Endpoint, OfiError> {
        let (none, info) = (ptr::null_mut(), info.raw());
        let domain = Arc::clone(domain);
        let functions = domain.info.functions;
        let mut made = Endpoint {
            raw: ptr::null_mut(),
            queue: ptr::null_mut(),
            vector: ptr::null_mut(),
            events: ptr::null_mut(),
            bell: None,
            domain,
        };
        // The descriptor of EFA's provider stays readable after the first event, so a wait on it
        // would not sleep.
        let woken = made.domain.woken && !made.domain.info.is_efa();
        let mut queue = fi_cq_attr {
            size: 0,
            flags: 0,
            format: FI_CQ_FORMAT_DATA,
            wait_obj: if woken { FI_WAIT_FD } else { FI_WAIT_NONE },
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: none,
            later: none,
        };
        let mut vector = fi_av_attr {
            r#type: FI_AV_TABLE,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: none,
            flags: 0,
        };
        let opened = made.domain.raw;
        // SAFETY: the domain is open.
        let mut returned = unsafe { fi_cq_open(opened, &raw mut queue, &raw mut made.queue) };
        if returned < 0 && queue.wait_obj != FI_WAIT_NONE {
            // Some providers have no descriptor to wait for.
            queue.wait_obj = FI_WAIT_NONE;
            // SAFETY: as above.
            returned = unsafe { fi_cq_open(opened, &raw mut queue, &raw mut made.queue) };
        }
        check(functions, "fi_cq_open", returned)?;
        if queue.wait_obj == FI_WAIT_FD {
            made.bell = made.descriptor();
        }
        // SAFETY: the domain is open.
        let returned = unsafe { fi_av_open(opened, &raw mut vector, &raw mut made.vector) };
        check(functions, "fi_av_open", returned)?;
        // SAFETY: the domain is open, and `info` is the one that it was opened with, except perhaps
        // for the traffic class.
        let returned = unsafe { fi_endpoint(opened, info, &raw mut made.raw) };
        check(functions, "fi_endpoint", returned)?;
        made.open_events()?;
        let bound = [
            (made.queue.cast(), FI_SEND | FI_RECV),
            (made.vector.cast(), 0),
            (made.events.cast(), 0),
        ];
        for (to, flags) in bound.into_iter().filter(|(to, _): &(*mut fid, u64)| !to.is_null()) {
            // SAFETY: both are open, and the endpoint is not enabled yet.
            check(functions, "fi_ep_bind", unsafe { fi_ep_bind(made.raw, to, flags) })?;
        }
        made.choose_name()?;
        // SAFETY: everything is bound.
        check(functions, "fi_enable", unsafe { fi_enable(made.raw) })?;
        made.keep_connections();
        Ok(made)
    }

    /// Begins a connection of an endpoint of `ofi_rxm` over TCP to itself. When a long message
    /// meets its receive, `ofi_rxm` looks up the message's connection. The table of 1,024
    /// connections is freed with the last of them (up to 2.6), and a look-up after that crashes the
    /// process. So the own connection keeps the table, which is enough for the first 1,023 peers.
    /// The transport sends no such long messages (see [`eager_bytes`]), but another program may.
    ///
    /// [`eager_bytes`]: crate::provider::eager_bytes
    fn keep_connections(&self) {
        if !self.domain.info.is_rxm_over_tcp() {
            return;
        }
        // The first send only begins the connection.
        let begun = self.address().and_then(|address| self.insert(&address)).and_then(|own| {
            // SAFETY: the message is empty, and `ofi_rxm` uses no context (`FI_CONTEXT`).
            unsafe { self.send_ranges(&[], own, false, ptr::null_mut()) }
        });
        if let Err(error) = begun {
            tracing::info!(%error, "an endpoint of ofi_rxm cannot connect to itself");
        }
    }

    /// Gives an endpoint of `shm` a name that no other process gives.
    fn choose_name(&self) -> Result<(), OfiError> {
        if self.domain.info.provider() != shm::PROVIDER {
            return Ok(());
        }
        let name = shm::new_name();
        let (address, bytes) = (name.as_ptr().cast_mut().cast(), name.len());
        // SAFETY: the endpoint is open and not enabled; `shm`'s addresses are texts that end with a
        // zero byte, and the provider copies them.
        self.check("fi_setname", unsafe { fi_setname(self.raw, address, bytes) })
    }

    fn check(&self, call: &'static str, returned: c_int) -> Result<(), OfiError> {
        check(self.domain.info.functions, call, returned)
    }

    /// Returns whether the device itself does writes that carry remote CQ data, as newer EFA
    /// adapters do since libfabric 1.18. Otherwise, messages stand in for writes.
    pub(crate) fn writes(&self) -> bool {
        let mut emulates = true;
        // SAFETY: the endpoint is open, and EFA's option is a `bool`.
        let asked = unsafe { fi_getopt_bool(self.raw, FI_OPT_EFA_EMULATED_WRITE, &mut emulates) };
        asked == 0 && !emulates
    }

    /// Returns how to wait for the endpoint now.
    pub(crate) fn bell(&self) -> Bell {
        let Some(bell) = &self.bell else { return Bell::Silent };
        let mut queues: [*mut fid; 1] = [self.queue.cast()];
        // SAFETY: all are open, and the queue has a descriptor.
        match unsafe { fi_trywait(self.domain.fabric, &mut queues) } {
            0 => Bell::Rings(Arc::clone(bell)),
            returned if returned == -ENOSYS => Bell::Silent,
            _ => Bell::Busy,
        }
    }

    /// Returns the address that peers insert.
    pub(crate) fn address(&self) -> Result<Vec<u8>, OfiError> {
        let mut address = vec![0; ADDRESS_BYTES_MAX];
        let mut bytes = address.len();
        // SAFETY: the endpoint is enabled, and `address` has room for `bytes` bytes.
        let returned = unsafe { fi_getname(self.raw, address.as_mut_ptr().cast(), &raw mut bytes) };
        self.check("fi_getname", returned)?;
        address.truncate(bytes);
        Ok(address)
    }

    /// Inserts a peer's address; returns its number.
    pub(crate) fn insert(&self, address: &[u8]) -> Result<u64, OfiError> {
        // The provider reads as many bytes as its address format prescribes.
        let own = self.address()?;
        let is_whole = match self.domain.info.info().addr_format {
            FI_ADDR_STR => address.last() == Some(&0),
            // The address family determines how much is read.
            FI_SOCKADDR..=FI_SOCKADDR_IB => {
                address.len() == own.len() && address.get(..2) == own.get(..2)
            }
            _ => address.len() == own.len(),
        };
        if !is_whole {
            return self.check("fi_av_insert", -libc::EINVAL).map(|()| 0);
        }
        let mut number = 0;
        // SAFETY: the provider reads no more bytes than the address has, as checked above.
        let returned =
            unsafe { fi_av_insert(self.vector, address.as_ptr().cast(), &raw mut number) };
        self.check("fi_av_insert", returned)?;
        if returned == 1 {
            Ok(number)
        } else {
            self.check("fi_av_insert", -libc::EINVAL).map(|()| 0)
        }
    }

    /// Binds memory to this endpoint, if the provider requires this for writes of peers.
    pub(crate) fn expose(&self, memory: &Memory) -> Result<(), OfiError> {
        if !self.domain.info.registers(FI_MR_ENDPOINT) {
            return Ok(());
        }
        // SAFETY: both are open.
        self.check("fi_mr_bind", unsafe { fi_mr_bind(memory.raw, self.raw) })?;
        // SAFETY: the memory is bound.
        self.check("fi_mr_enable", unsafe { fi_mr_enable(memory.raw) })
    }

    /// Returns whether a request was taken; false if the provider is busy.
    fn taken(&self, call: &'static str, returned: ssize_t) -> Result<bool, OfiError> {
        if returned == -(EAGAIN as ssize_t) {
            return Ok(false);
        }
        self.check(call, returned as c_int).map(|()| true)
    }

    /// Posts a receive into all of `memory`. Returns false if the provider takes nothing now.
    /// `ofi_rxm` over TCP drops long messages whose senders have ended, instead of posting the
    /// receive (see [`Endpoint::keep_connections`]); the receive is then posted again.
    ///
    /// # Safety
    ///
    /// Memory and context stay until the request has completed, or the endpoint is closed.
    pub(crate) unsafe fn recv(
        &self,
        memory: &Memory,
        context: *mut fi_context2,
    ) -> Result<bool, OfiError> {
        let (start, bytes) = (memory.region.start(), memory.region.bytes());
        for dropped in 0..DROPPED_MAX {
            // SAFETY: the caller keeps the contract.
            let returned = unsafe {
                fi_recv(self.raw, start.cast(), bytes, memory.descriptor(), context.cast())
            };
            if returned == -(FI_EOTHER as ssize_t) && self.domain.info.is_rxm_over_tcp() {
                continue;
            }
            if dropped > 0 {
                tracing::info!(dropped, "messages whose senders have ended are dropped");
            }
            return self.taken("fi_recv", returned);
        }
        Ok(false)
    }

    /// Returns whether the provider loses a receive with each message that it drops, and with each
    /// receive that fails, as `ofi_rxm` does before 2.0. Once all are lost, it takes no receive.
    pub(crate) fn loses_receives(&self) -> bool {
        let info = &self.domain.info;
        info.is_rxm_over_tcp() && info.version().0 < KEEPS_RECEIVES
    }

    /// Sends all of `memory`. Returns false if the provider takes nothing now.
    ///
    /// # Safety
    ///
    /// The contract is that of [`Endpoint::recv`].
    pub(crate) unsafe fn send(
        &self,
        memory: &Memory,
        data: u64,
        to: u64,
        context: *mut fi_context2,
    ) -> Result<bool, OfiError> {
        let start = memory.region.start().cast_const().cast::<c_void>();
        let what = (start, memory.region.bytes(), memory.descriptor());
        // SAFETY: the caller keeps the contract.
        let returned = unsafe { fi_senddata(self.raw, what, data, to, context.cast()) };
        self.taken("fi_senddata", returned)
    }

    /// Writes all of `memory` to a peer's memory. Returns false if the provider takes nothing now.
    ///
    /// # Safety
    ///
    /// The contract is that of [`Endpoint::recv`].
    pub(crate) unsafe fn write(
        &self,
        memory: &Memory,
        data: u64,
        to: u64,
        remote: (u64, u64),
        context: *mut fi_context2,
    ) -> Result<bool, OfiError> {
        let start = memory.region.start().cast_const().cast::<c_void>();
        let what = (start, memory.region.bytes(), memory.descriptor());
        // SAFETY: the caller keeps the contract.
        let returned = unsafe { fi_writedata(self.raw, what, data, to, remote, context.cast()) };
        self.taken("fi_writedata", returned)
    }

    /// Sends ranges, one behind the other, as one message. An `acknowledged` message is done only
    /// when it is in a receive of the peer. Returns false if the provider takes nothing now.
    ///
    /// # Safety
    ///
    /// The contract is that of [`Endpoint::recv`].
    pub(crate) unsafe fn send_ranges(
        &self,
        ranges: &[Range],
        to: u64,
        acknowledged: bool,
        context: *mut fi_context2,
    ) -> Result<bool, OfiError> {
        let mut local = Local::new(ranges);
        let message = fi_msg {
            msg_iov: local.ranges.as_ptr(),
            desc: local.descriptors.as_mut_ptr(),
            iov_count: local.count,
            addr: to,
            context: context.cast(),
            data: 0,
        };
        let flags = if acknowledged { FI_DELIVERY_COMPLETE } else { 0 };
        // SAFETY: the caller keeps the contract; the message itself is read before this returns.
        let returned = unsafe { fi_sendmsg(self.raw, &raw const message, flags) };
        self.taken("fi_sendmsg", returned)
    }

    /// Writes ranges, one behind the other, to a peer's memory. If there is `data`, the peer's
    /// completion carries it. Returns false if the provider takes nothing now.
    ///
    /// # Safety
    ///
    /// The contract is that of [`Endpoint::recv`].
    pub(crate) unsafe fn write_ranges(
        &self,
        ranges: &[Range],
        data: Option<u64>,
        to: u64,
        (address, key): (u64, u64),
        acknowledged: bool,
        context: *mut fi_context2,
    ) -> Result<bool, OfiError> {
        let mut local = Local::new(ranges);
        let bytes = ranges.iter().map(|(_, bytes, _)| bytes).sum();
        let remote = fi_rma_iov { addr: address, len: bytes, key };
        let message = fi_msg_rma {
            msg_iov: local.ranges.as_ptr(),
            desc: local.descriptors.as_mut_ptr(),
            iov_count: local.count,
            addr: to,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: context.cast(),
            data: data.unwrap_or(0),
        };
        let tells = if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        let flags = tells | if acknowledged { FI_DELIVERY_COMPLETE } else { 0 };
        // SAFETY: the caller keeps the contract; the message itself is read before this returns.
        let returned = unsafe { fi_writemsg(self.raw, &raw const message, flags) };
        self.taken("fi_writemsg", returned)
    }

    /// Takes one completion, if there is one, and lets the provider make progress.
    pub(crate) fn poll(&self, what: &'static str) -> Result<Option<Completion>, OfiError> {
        let mut one = Completions::room(1);
        self.take(what, &mut one).map_err(|(_, error)| error)?;
        Ok(one.iter().next())
    }

    /// Takes all completions for which `into` has room. On a failure, returns an
    /// error and takes no completion.
    pub(crate) fn take(
        &self,
        what: &'static str,
        into: &mut Completions,
    ) -> Result<(), (Failed, OfiError)> {
        into.count = 0;
        let entries = into.entries.as_mut_ptr().cast();
        // SAFETY: the queue is open, its entries have this format, and there is room for `most` of
        // them.
        let returned = unsafe { fi_cq_read(self.queue, entries, into.most) };
        if returned == -(FI_EAVAIL as ssize_t) {
            return Err(self.failure(what));
        }
        let taken = self.taken("fi_cq_read", returned).map_err(|error| (Failed::Queue, error))?;
        into.count = if taken { (returned as usize).min(into.most) } else { 0 };
        Ok(())
    }

    /// Takes the failure that is at the head of the queue.
    fn failure(&self, what: &'static str) -> (Failed, OfiError) {
        let none = ptr::null_mut();
        let mut entry = fi_cq_err_entry {
            op_context: none,
            flags: 0,
            len: 0,
            buf: none,
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: none,
            err_data_size: 0,
            later: 0,
        };
        // SAFETY: the queue is open.
        let returned = unsafe { fi_cq_readerr(self.queue, &raw mut entry) };
        let functions = self.domain.info.functions;
        if let Err(error) = check(functions, "fi_cq_readerr", returned as c_int) {
            return (Failed::Queue, error);
        }
        let mut space: [c_char; TEXT_BYTES_MAX] = [0; TEXT_BYTES_MAX];
        // SAFETY: the entry is the last that was taken.
        let text = unsafe { fi_cq_strerror(self.queue, &entry, &mut space) };
        let detail = match text.is_null() {
            true => "nothing".to_owned(),
            // SAFETY: the text ends with a zero, and is the provider's or in `space`.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        let reason = reason(functions, entry.err);
        let error = OfiError::Request { what, code: entry.err, reason, detail };
        let failed = match entry.op_context.is_null() {
            true => Failed::Packet,
            false => Failed::Request(entry.op_context.cast()),
        };
        (failed, error)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.domain.is_ours() {
            return;
        }
        let objects: [*mut fid; 4] =
            [self.raw.cast(), self.queue.cast(), self.vector.cast(), self.events.cast()];
        for object in objects.into_iter().filter(|object| !object.is_null()) {
            // SAFETY: the object is open, and the objects that depended on it are closed.
            unsafe { fi_close(object) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ccl_memory::Region;

    use super::*;
    use crate::messages::Inbox;
    use crate::native::LOCAL;
    use crate::provider::{installed, offered};

    /// Bytes of a message that `ofi_rxm` sends only when it has met its receive: more than
    /// `FI_OFI_RXM_EAGER_LIMIT`.
    const LONG_BYTES: usize = 1 << 20;

    fn memory(domain: &Arc<Domain>) -> Memory {
        Memory::register(domain, Region::allocate(LONG_BYTES).unwrap(), LOCAL).unwrap()
    }

    fn contexts<const N: usize>() -> [fi_context2; N] {
        [const { fi_context2 { internal: [ptr::null_mut(); 8] } }; N]
    }

    /// Sends long messages until the first of them has arrived, then ends the sender. Returns the
    /// first message's data.
    fn send_and_end(
        (domain, receiver): (&Arc<Domain>, &Endpoint),
        data: u64,
        contexts: &mut [fi_context2],
    ) -> u64 {
        let content = memory(domain);
        let sender = Endpoint::open(domain).unwrap();
        let to = sender.insert(&receiver.address().unwrap()).unwrap();
        let mut contexts = contexts.iter_mut().map(ptr::from_mut);
        let (mut next, mut arrived) = (contexts.next(), None);
        let end = Instant::now() + Duration::from_secs(20);
        while next.is_some() || arrived.is_none() {
            assert!(Instant::now() < end, "nothing has arrived");
            if let Some(context) = next
                // SAFETY: memory and contexts stay until the endpoint is closed.
                && unsafe { sender.send(&content, data, to, context) }.unwrap()
            {
                next = contexts.next();
            }
            sender.poll("a message").unwrap();
            let found = receiver.poll("a message").unwrap().filter(Completion::is_arrival);
            arrived = arrived.or(found.map(|found| found.data));
        }
        drop(sender);
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            assert!(receiver.poll("a message").unwrap().is_none());
        }
        arrived.unwrap()
    }

    /// `ofi_rxm` keeps a long message that meets no receive as the name of the sender's memory.
    #[test]
    fn long_messages_of_senders_that_have_ended_are_dropped() {
        let Some(info) = installed("tcp;ofi_rxm") else { return };
        let domain = Domain::open(info, true).unwrap();
        let (taken, mut received, mut sent) = (memory(&domain), contexts::<3>(), contexts::<40>());
        let receiver = Endpoint::open(&domain).unwrap();
        for (data, count) in [(0, 40), (1, 40), (2, 1)] {
            let context = &raw mut received[data];
            // SAFETY: memory and contexts stay until the endpoint is closed.
            assert!(unsafe { receiver.recv(&taken, context) }.unwrap());
            let data = data as u64;
            assert_eq!(send_and_end((&domain, &receiver), data, &mut sent[..count]), data);
        }
    }

    #[test]
    fn an_endpoint_can_lose_all_its_receives() {
        let Some(info) = installed("tcp;ofi_rxm") else { return };
        let domain = Domain::open(info, true).unwrap();
        let (taken, mut received, mut sent) = (memory(&domain), contexts::<8>(), contexts::<40>());
        let mut inbox = Inbox::new(&domain).unwrap();
        let receiver = Endpoint::open(&domain).unwrap();
        let all_posted = received.iter_mut().all(|context| {
            // SAFETY: memory and contexts stay until the endpoint is closed.
            let is_posted = unsafe { receiver.recv(&taken, context) }.unwrap();
            if is_posted {
                send_and_end((&domain, &receiver), 0, &mut sent);
            }
            is_posted
        });
        assert_eq!(all_posted, !receiver.loses_receives());
        assert_eq!(inbox.post(&receiver), if all_posted { Ok(()) } else { Err(OfiError::Deaf) });
    }

    #[test]
    fn an_address_that_is_cut_off_is_refused() {
        for name in ["tcp", "tcp;ofi_rxm", "shm"] {
            let Some(info) = offered(name) else { continue };
            let domain = Domain::open(info, true).unwrap();
            let endpoint = Endpoint::open(&domain).unwrap();
            let address = endpoint.address().unwrap();
            let error = endpoint.insert(&address[..address.len() - 1]).unwrap_err();
            assert!(error.to_string().starts_with("fi_av_insert: "), "{name}: {error}");
            assert!(endpoint.insert(&[]).is_err(), "{name} accepted an empty address");
            let mut other = address.clone();
            other[0] ^= 0xff;
            assert!(
                name == "shm" || endpoint.insert(&other).is_err(),
                "{name} accepted an address of another family"
            );
            endpoint.insert(&address).unwrap();
        }
    }
}
