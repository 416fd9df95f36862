//! Both sides of a connection.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nccl_net_abi::v12::{Net, Properties};
use nccl_net_abi::{HANDLE_BYTES, HOST, LogLevel, NcclResult};
use nccl_net_ferroccl::NCCL_NET_PLUGIN_V12;

pub(crate) const NET: &Net = &NCCL_NET_PLUGIN_V12.0;
const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn ok(result: NcclResult) {
    assert_eq!(result, NcclResult::SUCCESS, "{}", result.name());
}

/// Calls `ask` until it answers; panics after [`DEADLINE`].
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < DEADLINE, "{what} did not complete in time");
        std::thread::yield_now();
    }
}

/// NCCL's two communicators of one connection, `sendComm` and `recvComm`. Each has one registered
/// buffer: the sender has `from`, registered as `out`, and the receiver `into`, registered as
/// `back`.
pub(crate) struct Pair {
    pub(crate) context: *mut c_void,
    pub(crate) listener: *mut c_void,
    pub(crate) sender: *mut c_void,
    pub(crate) receiver: *mut c_void,
    pub(crate) from: Vec<u8>,
    pub(crate) into: Vec<u8>,
    pub(crate) out: *mut c_void,
    pub(crate) back: *mut c_void,
}

/// The lines that the plugin has logged, each with its level.
pub(crate) static LOG: Mutex<Vec<(LogLevel, String)>> = Mutex::new(Vec::new());

/// Type of NCCL's logger with the arguments that this plugin passes: the last one, a string, is the
/// only argument of the format.
type Fixed =
    unsafe extern "C" fn(LogLevel, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

unsafe extern "C" fn log(
    level: LogLevel,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin gives two strings.
    let [format, text] = [format, text].map(|text| unsafe { CStr::from_ptr(text) });
    assert_eq!(format, c"NET/ferroccl: %s");
    LOG.lock().unwrap().push((level, text.to_string_lossy().into_owned()));
}

pub(crate) fn init() -> *mut c_void {
    let mut context = null_mut();
    // SAFETY: on x86-64 and aarch64 Linux, variadic functions and functions with fixed arguments
    // get pointers in the same way.
    let logger = unsafe {
        std::mem::transmute::<
            Fixed,
            unsafe extern "C" fn(LogLevel, c_ulong, *const c_char, c_int, *const c_char, ...),
        >(log as Fixed)
    };
    // SAFETY: `context` is a local variable, and `log` is a logger; there is no profiler.
    ok(unsafe { (NET.init.unwrap())(&mut context, 7, null_mut(), Some(logger), None) });
    assert!(!context.is_null());
    context
}

/// Returns a device's name.
pub(crate) fn name(device: c_int) -> String {
    // SAFETY: the device's name is a string for as long as this process lives.
    let name = unsafe { CStr::from_ptr(properties(device).name) };
    name.to_string_lossy().into_owned()
}

/// Returns the properties of a device that exists.
pub(crate) fn properties(device: c_int) -> Properties {
    let mut properties = std::mem::MaybeUninit::<Properties>::uninit();
    // SAFETY: `properties` is a local variable.
    ok(unsafe { (NET.properties.unwrap())(device, properties.as_mut_ptr()) });
    // SAFETY: the call has succeeded.
    unsafe { properties.assume_init() }
}

fn register(comm: *mut c_void, memory: &mut [u8]) -> *mut c_void {
    let mut mr = null_mut();
    let (start, bytes) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: the memory lives longer than its registration.
    ok(unsafe { (NET.register.unwrap())(comm, start, bytes, HOST, &mut mr) });
    mr
}

impl Pair {
    /// Connects a pair: the first number is the device that listens, the second the one that
    /// connects.
    pub(crate) fn on([listens, connects]: [c_int; 2], bytes: usize) -> Pair {
        let context = init();
        let (mut handle, mut listener) = ([0u8; HANDLE_BYTES], null_mut());
        let start = handle.as_mut_ptr().cast();
        // SAFETY: a handle of the right size.
        ok(unsafe { (NET.listen.unwrap())(context, listens, start, &mut listener) });
        let (mut sender, mut receiver): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        until("connecting", || {
            if sender.is_null() {
                let (net, handle) = (NET.connect.unwrap(), handle.as_mut_ptr().cast());
                // SAFETY: a handle of the right size.
                ok(unsafe { net(context, connects, handle, &mut sender, null_mut()) });
            }
            if receiver.is_null() {
                // SAFETY: `receiver` is a local variable.
                ok(unsafe { (NET.accept.unwrap())(listener, &mut receiver, null_mut()) });
            }
            (!sender.is_null() && !receiver.is_null()).then_some(())
        });
        let mut from: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let mut into = vec![0; bytes];
        let (out, back) = (register(sender, &mut from), register(receiver, &mut into));
        Pair { context, listener, sender, receiver, from, into, out, back }
    }

    pub(crate) fn isend(&mut self, at: usize, bytes: usize, tag: c_int) -> *mut c_void {
        let data = self.from[at..at + bytes].as_mut_ptr().cast();
        let mut request = null_mut();
        let (comm, mr) = (self.sender, self.out);
        let isend = NET.isend.unwrap();
        until("isend", || {
            // SAFETY: the buffer is registered and stays.
            ok(unsafe { isend(comm, data, bytes, tag, mr, null_mut(), &mut request) });
            (!request.is_null()).then_some(request)
        })
    }

    pub(crate) fn irecv(&mut self, parts: &[(usize, usize, c_int)]) -> *mut c_void {
        until("irecv", || {
            let request = self.try_irecv(parts);
            (!request.is_null()).then_some(request)
        })
    }

    pub(crate) fn try_irecv(&mut self, parts: &[(usize, usize, c_int)]) -> *mut c_void {
        let start = self.into.as_mut_ptr();
        let mut data: Vec<*mut c_void> =
            parts.iter().map(|(at, ..)| start.wrapping_add(*at).cast()).collect();
        let mut bytes: Vec<usize> = parts.iter().map(|(_, bytes, _)| *bytes).collect();
        let mut tags: Vec<c_int> = parts.iter().map(|(.., tag)| *tag).collect();
        let mut mrs = vec![self.back; parts.len()];
        let (count, mut request) = (parts.len() as c_int, null_mut());
        let (data, bytes) = (data.as_mut_ptr(), bytes.as_mut_ptr());
        let (tags, mrs) = (tags.as_mut_ptr(), mrs.as_mut_ptr());
        let (comm, irecv) = (self.receiver, NET.irecv.unwrap());
        // SAFETY: arrays of `count` elements, and buffers that are registered and stay.
        ok(unsafe { irecv(comm, count, data, bytes, tags, mrs, null_mut(), &mut request) });
        request
    }

    pub(crate) fn close(self) {
        // SAFETY: registrations and communicators of this pair, once each.
        ok(unsafe { (NET.deregister.unwrap())(self.sender, self.out) });
        // SAFETY: as above.
        ok(unsafe { (NET.deregister.unwrap())(self.receiver, self.back) });
        // SAFETY: as above.
        ok(unsafe { (NET.close_send.unwrap())(self.sender) });
        // SAFETY: as above.
        ok(unsafe { (NET.close_receive.unwrap())(self.receiver) });
        // SAFETY: as above.
        ok(unsafe { (NET.close_listen.unwrap())(self.listener) });
        // SAFETY: as above.
        ok(unsafe { (NET.finalize.unwrap())(self.context) });
    }
}

pub(crate) fn tested(request: *mut c_void) -> Option<Vec<usize>> {
    let (mut done, mut sizes) = (0, [-1; 8]);
    // SAFETY: `sizes` has 8 elements, the largest number of buffers that one `irecv` takes.
    ok(unsafe { (NET.test.unwrap())(request, &mut done, sizes.as_mut_ptr()) });
    let sizes = sizes.iter().take_while(|size| **size >= 0).map(|size| *size as usize);
    (done == 1).then(|| sizes.collect())
}

/// Tests two requests until both are done. Returns the sizes of the second one.
pub(crate) fn both(one: *mut c_void, other: *mut c_void) -> Vec<usize> {
    let (mut first, mut second) = (None, None);
    until("a transfer", || {
        first = first.take().or_else(|| tested(one));
        second = second.take().or_else(|| tested(other));
        (first.is_some() && second.is_some()).then_some(())
    });
    second.unwrap()
}
