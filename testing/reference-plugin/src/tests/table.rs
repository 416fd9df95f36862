//! Wrappers of the functions in the plugin's table, with the arguments that tests care about.

use core::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use nccl_net_abi::{HANDLE_BYTES, HOST, NcclResult, v12::Net};

use crate::versions::ncclNetPlugin_v12;

/// Deadline that no correct call reaches.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) type Pointer = *mut c_void;
pub(super) type Result<T> = std::result::Result<T, NcclResult>;

pub(super) fn net() -> &'static Net {
    &ncclNetPlugin_v12.0
}

pub(super) fn check(result: NcclResult) -> Result<()> {
    if result == NcclResult::SUCCESS { Ok(()) } else { Err(result) }
}

/// Returns the pointer that a call writes to its output argument.
pub(super) fn gives(call: impl FnOnce(*mut Pointer) -> NcclResult) -> Result<Pointer> {
    let mut pointer = null_mut();
    check(call(&raw mut pointer)).map(|()| pointer)
}

pub(super) fn init() -> Pointer {
    // SAFETY: there is room for the context.
    gives(|output| unsafe { net().init.unwrap()(output, 7, null_mut(), None, None) }).unwrap()
}

pub(super) fn finalize(context: Pointer) -> Result<()> {
    // SAFETY: the plugin looks the context up by its number.
    check(unsafe { net().finalize.unwrap()(context) })
}

/// Listening communicator and its handle.
pub(super) struct Listening(pub(super) Pointer, pub(super) [u8; HANDLE_BYTES]);

pub(super) fn listen(context: Pointer) -> Listening {
    let mut handle = [0; HANDLE_BYTES];
    let bytes = handle.as_mut_ptr().cast();
    // SAFETY: there is room for handle and communicator.
    let comm = gives(|output| unsafe { net().listen.unwrap()(context, 0, bytes, output) });
    Listening(comm.unwrap(), handle)
}

pub(super) fn connect(context: Pointer, handle: &mut [u8; HANDLE_BYTES]) -> Result<Pointer> {
    let bytes = handle.as_mut_ptr().cast();
    // SAFETY: `bytes` is a handle, and there is room for the communicator.
    gives(|output| unsafe { net().connect.unwrap()(context, 0, bytes, output, null_mut()) })
}

pub(super) fn accept(listener: Pointer) -> Result<Pointer> {
    // SAFETY: there is room for the communicator.
    gives(|output| unsafe { net().accept.unwrap()(listener, output, null_mut()) })
}

/// Calls `call` until it returns something; panics after [`PATIENCE`].
pub(super) fn poll<T>(mut call: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = call() {
            return found;
        }
        assert!(Instant::now() < deadline, "the call returned nothing before the deadline");
    }
}

/// Connected sending and receiving communicators.
pub(super) struct Pair {
    pub(super) context: Pointer,
    pub(super) send: Pointer,
    pub(super) receive: Pointer,
}

impl Pair {
    pub(super) fn new() -> Pair {
        let context = init();
        let Listening(listener, mut handle) = listen(context);
        let (send, receive) = join(context, listener, &mut handle);
        // SAFETY: the plugin looks the communicator up by its number.
        check(unsafe { net().close_listen.unwrap()(listener) }).unwrap();
        Pair { context, send, receive }
    }

    pub(super) fn close(&self) {
        close_send(self.send).unwrap();
        close_receive(self.receive).unwrap();
        finalize(self.context).unwrap();
    }
}

pub(super) fn join(
    context: Pointer,
    listener: Pointer,
    handle: &mut [u8; HANDLE_BYTES],
) -> (Pointer, Pointer) {
    let some = |pointer: Pointer| (!pointer.is_null()).then_some(pointer);
    let send = poll(|| some(connect(context, handle).unwrap()));
    (send, poll(|| some(accept(listener).unwrap())))
}

pub(super) fn close_send(comm: Pointer) -> Result<()> {
    // SAFETY: the plugin looks the communicator up by its number.
    check(unsafe { net().close_send.unwrap()(comm) })
}

pub(super) fn close_receive(comm: Pointer) -> Result<()> {
    // SAFETY: the plugin looks the communicator up by its number.
    check(unsafe { net().close_receive.unwrap()(comm) })
}

pub(super) fn register(comm: Pointer, bytes: &mut [u8]) -> Result<Pointer> {
    let (start, count) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: there is room for the registration.
    gives(|output| unsafe { net().register.unwrap()(comm, start, count, HOST, output) })
}

pub(super) fn deregister(comm: Pointer, registration: Pointer) -> Result<()> {
    // SAFETY: the plugin looks both up by their numbers.
    check(unsafe { net().deregister.unwrap()(comm, registration) })
}

/// Registered memory that outlives the requests of a test.
pub(super) struct Buffer {
    pub(super) bytes: Vec<u8>,
    pub(super) registration: Pointer,
}

impl Buffer {
    pub(super) fn new(comm: Pointer, mut bytes: Vec<u8>) -> Buffer {
        let registration = register(comm, &mut bytes).unwrap();
        Buffer { bytes, registration }
    }
}

/// Returns the request of a send; null if the send cannot be taken now.
pub(super) fn isend(comm: Pointer, buffer: &mut Buffer, tag: c_int) -> Result<Pointer> {
    let (start, bytes) = (buffer.bytes.as_mut_ptr().cast(), buffer.bytes.len());
    let (call, registration) = (net().isend.unwrap(), buffer.registration);
    // SAFETY: the buffer outlives the request, and there is room for the request's pointer.
    gives(|output| unsafe { call(comm, start, bytes, tag, registration, null_mut(), output) })
}

/// Returns the request of a receive; null if the receive cannot be taken now.
pub(super) fn irecv(comm: Pointer, buffers: &mut [Buffer], tags: &[c_int]) -> Result<Pointer> {
    let mut starts: Vec<Pointer> =
        buffers.iter_mut().map(|buffer| buffer.bytes.as_mut_ptr().cast()).collect();
    let mut sizes: Vec<usize> = buffers.iter().map(|buffer| buffer.bytes.len()).collect();
    let mut registrations: Vec<Pointer> =
        buffers.iter().map(|buffer| buffer.registration).collect();
    let mut tags = tags.to_vec();
    let (call, count) = (net().irecv.unwrap(), buffers.len() as c_int);
    let (starts, sizes) = (starts.as_mut_ptr(), sizes.as_mut_ptr());
    let (tags, registrations) = (tags.as_mut_ptr(), registrations.as_mut_ptr());
    gives(|output| {
        // SAFETY: the buffers outlive the request, each array has `count` entries, and there is
        // room for the request.
        unsafe { call(comm, count, starts, sizes, tags, registrations, null_mut(), output) }
    })
}

/// Returns the sizes of a request; `None` if the request is not done yet.
pub(super) fn test(request: Pointer) -> Result<Option<[c_int; 8]>> {
    let (mut done, mut sizes) = (0, [-1; 8]);
    // SAFETY: there is room for the flag and the sizes.
    check(unsafe { net().test.unwrap()(request, &raw mut done, sizes.as_mut_ptr()) })?;
    Ok((done != 0).then_some(sizes))
}

/// Waits until a request is done and returns its sizes.
pub(super) fn wait(request: Pointer) -> [c_int; 8] {
    assert!(!request.is_null(), "the request was not taken");
    poll(|| test(request).unwrap())
}
