//! Functions with which the points call a plugin: one set for all versions of the interface. If a
//! function differs between versions, an enum has its signatures, and this module converts the
//! arguments.
//!
//! A plugin's contexts, communicators, registrations and requests are numbers here; this program
//! never dereferences them. The methods of [`Calls`] are safe to call, whatever the arguments: they
//! run in a process that was started to find out whether the plugin survives such calls.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;

use nccl_net_abi::{
    Accept, Attributes, Close, CommConfig, ConnectV9, ConnectV10, ConnectV12, DeregMr,
    DeviceHandle, Devices, Finalize, GetDeviceMr, HANDLE_BYTES, Iflush, InitV9, InitV10, InitV12,
    IrecvConsumed, IrecvV8, IrecvV9, IrecvV12, IsendV8, IsendV9, IsendV12, ListenV10, ListenV12,
    NcclResult, Parts, Profiler, RegMr, RegMrDmaBuf, SetAttributes, Test, v8, v9, v10, v11, v12,
};

use crate::log::logger;
use crate::memory::Memory;
use crate::properties::{Describe, Properties, text};

/// A pointer that a plugin hands out, as a number.
pub(crate) type Opaque = usize;

/// Largest number of parts of a group (the buffers of one `irecv`). NCCL itself puts at most this
/// many operations into a group.
pub(crate) const GROUP_MAX: usize = 64;

/// Bytes of a handle, and after them the same number of guard bytes. The plugin must not change the
/// guard bytes.
pub(crate) type HandleBuffer = [u8; 2 * HANDLE_BYTES];

/// A buffer of a call of `irecv` or `isend`, with its registration, tag and event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Memory of the buffer.
    pub(crate) memory: Memory,
    /// Registration of the memory.
    pub(crate) registration: Opaque,
    /// Tag that matches sends to receives.
    pub(crate) tag: i32,
    /// Profiler event of the transfer, or 0; ignored before version 10.
    pub(crate) event: Opaque,
}

#[derive(Clone, Copy, Debug)]
enum Init {
    V12(InitV12),
    V10(InitV10),
    V9(InitV9),
}

#[derive(Clone, Copy, Debug)]
enum Listen {
    V12(ListenV12),
    V10(ListenV10),
}

#[derive(Clone, Copy, Debug)]
enum Connect {
    V12(ConnectV12),
    V10(ConnectV10),
    V9(ConnectV9),
}

#[derive(Clone, Copy, Debug)]
enum Isend {
    V12(IsendV12),
    V9(IsendV9),
    V8(IsendV8),
}

#[derive(Clone, Copy, Debug)]
enum Irecv {
    V12(IrecvV12),
    V9(IrecvV9),
    V8(IrecvV8),
}

type MakeDevice<const N: usize> = unsafe extern "C" fn(*mut c_int, *mut Parts<N>) -> NcclResult;

/// `makeVDevice`, whose argument has room for 8 devices to merge, or for 4.
#[derive(Clone, Copy, Debug)]
enum Make {
    Of8(MakeDevice<8>),
    Of4(MakeDevice<4>),
}

/// A plugin's functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    name: *const c_char,
    init: Init,
    devices: Devices,
    properties: Describe,
    listen: Listen,
    connect: Connect,
    accept: Accept,
    register: RegMr,
    register_dma_buf: Option<RegMrDmaBuf>,
    deregister: DeregMr,
    isend: Isend,
    irecv: Irecv,
    iflush: Iflush,
    test: Test,
    close_send: Close,
    close_receive: Close,
    close_listen: Close,
    device_registration: Option<GetDeviceMr>,
    consumed: Option<IrecvConsumed>,
    finalize: Option<Finalize>,
    set_attributes: Option<SetAttributes>,
    make_device: Option<Make>,
}

// SAFETY: the only raw pointer in `Calls` is the plugin's name, which stays valid and unchanged
// while the plugin is open.
unsafe impl Send for Calls {}
// SAFETY: likewise; and a plugin's functions may be called from any thread.
unsafe impl Sync for Calls {}

/// Defines the constructor of `Calls` from the table of one version; the arguments name the
/// version's signatures.
macro_rules! from_table {
    (@contexts with, $table:ident) => {
        (Some(needed($table.finalize, "finalize")?), $table.set_attributes)
    };
    (@contexts without, $table:ident) => {
        (None, None)
    };
    (@make Of8, $table:ident) => {
        $table.make_device.map(Make::Of8)
    };
    (@make Of4, $table:ident) => {
        $table.make_device.map(Make::Of4)
    };
    (@make none, $table:ident) => {
        None
    };
    ($version:ident, $init:ident, $properties:ident, $listen:ident, $connect:ident, $send:ident,
     $receive:ident, $contexts:ident, $make:ident) => {
        /// Reads the table of this version; the error names a missing function.
        pub(crate) fn $version(table: &$version::Net) -> Result<Calls, String> {
            let (finalize, set_attributes) = from_table!(@contexts $contexts, table);
            Ok(Calls {
                name: table.name,
                init: Init::$init(needed(table.init, "init")?),
                devices: needed(table.devices, "devices")?,
                properties: Describe::$properties(needed(table.properties, "getProperties")?),
                listen: Listen::$listen(needed(table.listen, "listen")?),
                connect: Connect::$connect(needed(table.connect, "connect")?),
                accept: needed(table.accept, "accept")?,
                register: needed(table.register, "regMr")?,
                register_dma_buf: table.register_dma_buf,
                deregister: needed(table.deregister, "deregMr")?,
                isend: Isend::$send(needed(table.isend, "isend")?),
                irecv: Irecv::$receive(needed(table.irecv, "irecv")?),
                // NCCL calls `iflush` for device memory only, but rejects a table without it.
                iflush: needed(table.iflush, "iflush")?,
                test: needed(table.test, "test")?,
                close_send: needed(table.close_send, "closeSend")?,
                close_receive: needed(table.close_receive, "closeRecv")?,
                close_listen: needed(table.close_listen, "closeListen")?,
                device_registration: table.device_registration,
                consumed: table.consumed,
                finalize,
                set_attributes,
                make_device: from_table!(@make $make, table),
            })
        }
    };
}

fn needed<T>(function: Option<T>, name: &str) -> Result<T, String> {
    function.ok_or_else(|| format!("{name} is NULL in the table of functions, but NCCL calls it"))
}

impl Calls {
    from_table!(v12, V12, V12, V12, V12, V12, V12, with, Of8);
    from_table!(v11, V12, V11, V12, V12, V12, V12, with, Of4);
    from_table!(v10, V10, V9, V10, V10, V12, V12, without, Of4);
    from_table!(v9, V9, V9, V10, V9, V9, V9, without, Of4);
    from_table!(v8, V9, V8, V10, V9, V8, V8, without, none);

    /// Returns the plugin's name, which NCCL reads before any call.
    pub(crate) fn name(&self) -> Option<String> {
        text(self.name)
    }

    /// Returns whether the plugin has contexts, which `init` makes and `finalize` ends. Version 11
    /// of the interface introduced them.
    pub(crate) fn has_contexts(&self) -> bool {
        self.finalize.is_some()
    }

    /// Calls `init` and returns the context, or 0 if the interface has no contexts. Interfaces
    /// before version 10 take no profiler, and `profiler` is then ignored.
    pub(crate) fn init(
        &self,
        hash: u64,
        traffic_class: i32,
        profiler: Profiler,
    ) -> (NcclResult, Opaque) {
        let mut config = CommConfig { traffic_class };
        let mut context = ptr::null_mut();
        let result = match self.init {
            // SAFETY: the variables live on the stack for the length of the call.
            Init::V12(init) => unsafe {
                init(&raw mut context, hash, &raw mut config, logger(), profiler)
            },
            // SAFETY: the logger, and the profiler if there is one, are functions of this program.
            Init::V10(init) => unsafe { init(logger(), profiler) },
            // SAFETY: the logger is a function of this program.
            Init::V9(init) => unsafe { init(logger()) },
        };
        (result, number(context))
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> (NcclResult, i32) {
        let mut count = -1;
        // SAFETY: the variable lives on the stack for the length of the call.
        let result = unsafe { (self.devices)(&raw mut count) };
        (result, count)
    }

    /// Returns the properties of one device.
    pub(crate) fn properties(&self, device: i32) -> Result<Properties, NcclResult> {
        self.properties.of(device)
    }

    /// Merges several devices into one; `None` if the plugin cannot, or if the interface has no
    /// room for this number of devices.
    pub(crate) fn make_device(&self, parts: &[i32]) -> Option<(NcclResult, i32)> {
        let mut made = -1;
        let make = self.make_device?;
        let room = match make {
            Make::Of8(_) => 8,
            Make::Of4(_) => 4,
        };
        if parts.len() > room {
            return None;
        }
        let result = match make {
            Make::Of8(make) => {
                let mut parts = Parts::<8>::of(parts);
                // SAFETY: the variables live on the stack for the length of the call.
                unsafe { make(&raw mut made, &raw mut parts) }
            }
            Make::Of4(make) => {
                let mut parts = Parts::<4>::of(parts);
                // SAFETY: likewise.
                unsafe { make(&raw mut made, &raw mut parts) }
            }
        };
        Some((result, made))
    }

    /// Calls `listen`, which writes the handle, and returns the listening communicator.
    pub(crate) fn listen(
        &self,
        context: Opaque,
        device: i32,
        handle: &mut HandleBuffer,
    ) -> (NcclResult, Opaque) {
        let mut listener = ptr::null_mut();
        let handle = handle.as_mut_ptr().cast();
        let result = match self.listen {
            // SAFETY: the handle has twice the bytes that a plugin may write.
            Listen::V12(listen) => unsafe {
                listen(pointer(context), device, handle, &raw mut listener)
            },
            // SAFETY: likewise.
            Listen::V10(listen) => unsafe { listen(device, handle, &raw mut listener) },
        };
        (result, number(listener))
    }

    /// Returns the sending communicator and its device handle, or 0 for each that does not exist
    /// (yet). Callers repeat the call with the same `handle`, in which plugins keep their state.
    pub(crate) fn connect(
        &self,
        context: Opaque,
        device: i32,
        handle: &mut HandleBuffer,
    ) -> (NcclResult, Opaque, Opaque) {
        let mut config = CommConfig { traffic_class: nccl_net_abi::UNDEFINED };
        let (mut comm, mut device_handle) = (ptr::null_mut(), ptr::null_mut());
        let (handle, place) = (handle.as_mut_ptr().cast(), &raw mut comm);
        let result = match self.connect {
            // SAFETY: the variables live on the stack for the length of the call; the handle has
            // twice the bytes that a plugin may write.
            Connect::V12(connect) => unsafe {
                connect(pointer(context), device, handle, place, &raw mut device_handle)
            },
            // SAFETY: likewise.
            Connect::V10(connect) => unsafe {
                connect(device, &raw mut config, handle, place, &raw mut device_handle)
            },
            // SAFETY: likewise.
            Connect::V9(connect) => unsafe {
                connect(device, handle, place, &raw mut device_handle)
            },
        };
        (result, number(comm), number(device_handle.cast()))
    }

    /// Returns the receiving communicator and its device handle, or 0 for each that does not exist.
    pub(crate) fn accept(&self, listener: Opaque) -> (NcclResult, Opaque, Opaque) {
        let (mut comm, mut device_handle) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the variables live on the stack for the length of the call.
        let result =
            unsafe { (self.accept)(pointer(listener), &raw mut comm, &raw mut device_handle) };
        (result, number(comm), number(device_handle.cast()))
    }

    /// Registers memory and returns the registration. `kind` is NCCL's number of the kind of
    /// memory, such as [`nccl_net_abi::HOST`].
    pub(crate) fn register(&self, comm: Opaque, memory: Memory, kind: i32) -> (NcclResult, Opaque) {
        let mut registration = ptr::null_mut();
        let (address, bytes) = (memory.address(), memory.len());
        // SAFETY: the memory is never freed.
        let result =
            unsafe { (self.register)(pointer(comm), address, bytes, kind, &raw mut registration) };
        (result, number(registration))
    }

    /// Registers memory of the given kind with a DMA-BUF descriptor, at offset 0; `None` if the
    /// plugin has no such function.
    pub(crate) fn register_dma_buf(
        &self,
        comm: Opaque,
        memory: Memory,
        kind: i32,
        descriptor: RawFd,
    ) -> Option<(NcclResult, Opaque)> {
        let register = self.register_dma_buf?;
        let mut registration = ptr::null_mut();
        let (comm, address, bytes) = (pointer(comm), memory.address(), memory.len());
        let place = &raw mut registration;
        // SAFETY: the memory is never freed; the plugin has to refuse an invalid descriptor.
        let result = unsafe { register(comm, address, bytes, kind, 0, descriptor, place) };
        Some((result, number(registration)))
    }

    /// Returns a registration in the form that device code uses; `None` if the plugin has no such
    /// function.
    pub(crate) fn device_registration(
        &self,
        comm: Opaque,
        registration: Opaque,
    ) -> Option<(NcclResult, Opaque)> {
        let get = self.device_registration?;
        let mut device = ptr::null_mut();
        // SAFETY: the plugin handed out both pointers; the variable lives on the stack for the
        // call.
        let result = unsafe { get(pointer(comm), pointer(registration), &raw mut device) };
        Some((result, number(device)))
    }

    /// Ends a registration.
    pub(crate) fn deregister(&self, comm: Opaque, registration: Opaque) -> NcclResult {
        // SAFETY: the plugin handed out both pointers, or has to refuse them.
        unsafe { (self.deregister)(pointer(comm), pointer(registration)) }
    }

    /// Sends a part and returns the request, or 0 if the plugin cannot take the part now.
    pub(crate) fn isend(&self, comm: Opaque, part: &Part) -> (NcclResult, Opaque) {
        let (address, bytes, tag) = (part.memory.address(), part.memory.len(), part.tag);
        let (comm, registration) = (pointer(comm), pointer(part.registration));
        let mut request = ptr::null_mut();
        let place = &raw mut request;
        let result = match self.isend {
            // SAFETY: the memory is never freed; the event is only given back to the profiler.
            Isend::V12(isend) => unsafe {
                isend(comm, address, bytes, tag, registration, pointer(part.event), place)
            },
            // SAFETY: the memory is never freed.
            Isend::V9(isend) => unsafe { isend(comm, address, bytes, tag, registration, place) },
            // SAFETY: likewise; with version 8, NCCL sends no message too long for `c_int`.
            Isend::V8(isend) => unsafe {
                isend(comm, address, bytes as c_int, tag, registration, place)
            },
        };
        (result, number(request))
    }

    /// Receives a group and returns the request, or 0 if the plugin cannot take the group now. The
    /// request pointer holds `preset` before the call. At most [`GROUP_MAX`] parts are used.
    pub(crate) fn irecv(
        &self,
        comm: Opaque,
        parts: &[Part],
        preset: Opaque,
    ) -> (NcclResult, Opaque) {
        let parts = &parts[..parts.len().min(GROUP_MAX)];
        let count = parts.len() as c_int;
        let mut addresses = [ptr::null_mut(); GROUP_MAX];
        let mut registrations = [ptr::null_mut(); GROUP_MAX];
        let mut events = [ptr::null_mut(); GROUP_MAX];
        let (mut bytes, mut bytes_v8) = ([0; GROUP_MAX], [0; GROUP_MAX]);
        let mut tags = [0; GROUP_MAX];
        for (at, part) in parts.iter().enumerate() {
            addresses[at] = part.memory.address();
            registrations[at] = pointer(part.registration);
            bytes[at] = part.memory.len();
            bytes_v8[at] = part.memory.len() as c_int;
            tags[at] = part.tag;
            events[at] = pointer(part.event);
        }
        let (addresses, tags) = (addresses.as_mut_ptr(), tags.as_mut_ptr());
        let (registrations, events) = (registrations.as_mut_ptr(), events.as_mut_ptr());
        let (comm, bytes, bytes_v8) = (pointer(comm), bytes.as_mut_ptr(), bytes_v8.as_mut_ptr());
        let mut request = pointer(preset);
        let place = &raw mut request;
        let result = match self.irecv {
            // SAFETY: all arrays have `count` entries; the memory is never freed.
            Irecv::V12(irecv) => unsafe {
                irecv(comm, count, addresses, bytes, tags, registrations, events, place)
            },
            // SAFETY: likewise.
            Irecv::V9(irecv) => unsafe {
                irecv(comm, count, addresses, bytes, tags, registrations, place)
            },
            // SAFETY: likewise.
            Irecv::V8(irecv) => unsafe {
                irecv(comm, count, addresses, bytes_v8, tags, registrations, place)
            },
        };
        (result, number(request))
    }

    /// Returns the request that makes received data visible to a device, or 0 if there is nothing
    /// to do. At most [`GROUP_MAX`] parts are used.
    pub(crate) fn iflush(&self, comm: Opaque, parts: &[Part]) -> (NcclResult, Opaque) {
        let parts = &parts[..parts.len().min(GROUP_MAX)];
        let count = parts.len() as c_int;
        let (mut addresses, mut bytes) = ([ptr::null_mut(); GROUP_MAX], [0; GROUP_MAX]);
        let mut registrations = [ptr::null_mut(); GROUP_MAX];
        for (at, part) in parts.iter().enumerate() {
            addresses[at] = part.memory.address();
            bytes[at] = part.memory.len() as c_int;
            registrations[at] = pointer(part.registration);
        }
        let (addresses, bytes) = (addresses.as_mut_ptr(), bytes.as_mut_ptr());
        let (comm, registrations) = (pointer(comm), registrations.as_mut_ptr());
        let mut request = ptr::null_mut();
        // SAFETY: all arrays have `count` entries; the memory is never freed.
        let result = unsafe {
            (self.iflush)(comm, count, addresses, bytes, registrations, &raw mut request)
        };
        (result, number(request))
    }

    /// Returns whether the request is done; fills in the bytes of each part if `sizes` is given.
    pub(crate) fn test(
        &self,
        request: Opaque,
        sizes: Option<&mut [c_int; GROUP_MAX]>,
    ) -> (NcclResult, c_int) {
        let mut done = 0;
        let sizes = sizes.map_or(ptr::null_mut(), |sizes| sizes.as_mut_ptr());
        // SAFETY: there is room for the sizes of the longest group.
        let result = unsafe { (self.test)(pointer(request), &raw mut done, sizes) };
        (result, done)
    }

    /// Returns whether the plugin has `irecvConsumed`.
    pub(crate) fn has_consumed(&self) -> bool {
        self.consumed.is_some()
    }

    /// Reports that the data of a receive of `parts` parts was consumed; `None` if the plugin has
    /// no such function.
    pub(crate) fn consumed(
        &self,
        comm: Opaque,
        parts: usize,
        request: Opaque,
    ) -> Option<NcclResult> {
        let consumed = self.consumed?;
        // SAFETY: the plugin handed out both pointers; callers give only requests that are done.
        Some(unsafe { consumed(pointer(comm), parts as c_int, pointer(request)) })
    }

    /// Closes a sending communicator.
    pub(crate) fn close_send(&self, comm: Opaque) -> NcclResult {
        // SAFETY: the plugin handed out the pointer, or has to refuse it.
        unsafe { (self.close_send)(pointer(comm)) }
    }

    /// Closes a receiving communicator.
    pub(crate) fn close_receive(&self, comm: Opaque) -> NcclResult {
        // SAFETY: likewise.
        unsafe { (self.close_receive)(pointer(comm)) }
    }

    /// Closes a listening communicator.
    pub(crate) fn close_listen(&self, listener: Opaque) -> NcclResult {
        // SAFETY: likewise.
        unsafe { (self.close_listen)(pointer(listener)) }
    }

    /// Ends a context; does nothing if the interface has no contexts.
    pub(crate) fn finalize(&self, context: Opaque) -> NcclResult {
        match self.finalize {
            // SAFETY: likewise.
            Some(finalize) => unsafe { finalize(pointer(context)) },
            None => NcclResult::SUCCESS,
        }
    }

    /// Announces the next operations; `None` if the plugin has no such function.
    pub(crate) fn set_attributes(
        &self,
        context: Opaque,
        mut attributes: Attributes,
    ) -> Option<NcclResult> {
        let set = self.set_attributes?;
        // SAFETY: the attributes live on the stack for the length of the call.
        Some(unsafe { set(pointer(context), &raw mut attributes) })
    }
}

/// Returns the type and the version of a device handle; `None` for 0.
pub(crate) fn device_side(handle: Opaque) -> Option<(i32, i32)> {
    // SAFETY: the plugin promises that the device handle lives as long as its communicator.
    let handle = unsafe { pointer(handle).cast::<DeviceHandle>().as_ref() }?;
    Some((handle.device_type, handle.device_version))
}

fn pointer(number: Opaque) -> *mut c_void {
    ptr::with_exposed_provenance_mut(number)
}

fn number(pointer: *mut c_void) -> Opaque {
    pointer.expose_provenance()
}
