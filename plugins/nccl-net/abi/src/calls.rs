//! The functions of a plugin, each under the newest version whose signature it has.

use core::ffi::{c_char, c_int, c_void};

use crate::{Attributes, CommConfig, DeviceHandle, Logger, NcclResult, Profiler};

/// Context, hash of the communicator, its configuration, logger, profiler.
pub type InitV12 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut CommConfig, Logger, Profiler) -> NcclResult;
/// Logger, profiler.
pub type InitV10 = unsafe extern "C" fn(Logger, Profiler) -> NcclResult;
/// Logger.
pub type InitV9 = unsafe extern "C" fn(Logger) -> NcclResult;

/// Where the number of devices goes.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> NcclResult;

/// Context, device, handle, where the listening communicator goes.
pub type ListenV12 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> NcclResult;
/// Device, handle, where the listening communicator goes.
pub type ListenV10 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> NcclResult;

/// Context, device, handle, where the sending communicator goes, and its device handle.
pub type ConnectV12 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut DeviceHandle,
) -> NcclResult;
/// Device, configuration, handle, where the sending communicator goes, and its device handle.
pub type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *mut CommConfig,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut DeviceHandle,
) -> NcclResult;
/// Device, handle, where the sending communicator goes, and its device handle.
pub type ConnectV9 = unsafe extern "C" fn(
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut DeviceHandle,
) -> NcclResult;

/// The listening communicator, where the receiving one goes, and its device handle.
pub type Accept =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut DeviceHandle) -> NcclResult;

/// A communicator, address, bytes, kind of memory, where the registration goes.
pub type RegMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> NcclResult;
/// A communicator, address, bytes, kind of memory, offset in the buffer that the descriptor names,
/// the descriptor, where the registration goes.
pub type RegMrDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> NcclResult;
/// The communicator, the registration.
pub type DeregMr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> NcclResult;

/// The communicator, address, bytes, tag, registration, event of the profiler, where the request
/// goes: null if it cannot be taken now.
pub type IsendV12 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// The same without an event.
pub type IsendV9 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// The same with bytes as an `int`.
pub type IsendV8 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> NcclResult;

/// The communicator, how many, and so many addresses, bytes, tags, registrations, events of the
/// profiler; where the request goes: null if it cannot be taken now.
pub type IrecvV12 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// The same without events.
pub type IrecvV9 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// The same with bytes as `int`s.
pub type IrecvV8 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;

/// The communicator, how many, and so many addresses, bytes, registrations; where the request goes:
/// null if there is nothing to flush.
pub type Iflush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// The request, where it goes whether it is done, and the bytes of each part.
pub type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> NcclResult;

/// The communicator.
pub type Close = unsafe extern "C" fn(*mut c_void) -> NcclResult;

/// The communicator, the registration, where the device's goes.
pub type GetDeviceMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> NcclResult;
/// The receiving communicator, how many, the request.
pub type IrecvConsumed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> NcclResult;

/// The context.
pub type Finalize = unsafe extern "C" fn(*mut c_void) -> NcclResult;
/// The context, what is about to be done.
pub type SetAttributes = unsafe extern "C" fn(*mut c_void, *mut Attributes) -> NcclResult;

/// Text of the plugin that lives as long as the process.
pub type Text = *const c_char;
