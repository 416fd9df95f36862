//! Types of a plugin's functions; a suffix names the newest version with that signature.

use core::ffi::{c_char, c_int, c_void};

use crate::{Attributes, CommConfig, DeviceHandle, Logger, NcclResult, Profiler};

/// Arguments: output for the context, hash of the communicator, its configuration, logger,
/// profiler.
pub type InitV12 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut CommConfig, Logger, Profiler) -> NcclResult;
/// Arguments: logger, profiler.
pub type InitV10 = unsafe extern "C" fn(Logger, Profiler) -> NcclResult;
/// Argument: logger.
pub type InitV9 = unsafe extern "C" fn(Logger) -> NcclResult;

/// Argument: output for the number of devices.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> NcclResult;

/// Arguments: context, device, handle, output for the listening communicator.
pub type ListenV12 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> NcclResult;
/// Arguments: device, handle, output for the listening communicator.
pub type ListenV10 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> NcclResult;

/// Arguments: context, device, handle, outputs for the sending communicator and its device handle.
pub type ConnectV12 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut DeviceHandle,
) -> NcclResult;
/// Arguments: device, configuration, handle, outputs for the sending communicator and its device
/// handle.
pub type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *mut CommConfig,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut DeviceHandle,
) -> NcclResult;
/// Arguments: device, handle, outputs for the sending communicator and its device handle.
pub type ConnectV9 = unsafe extern "C" fn(
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut DeviceHandle,
) -> NcclResult;

/// Arguments: the listening communicator, outputs for the receiving one and its device handle.
pub type Accept =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut DeviceHandle) -> NcclResult;

/// Arguments: a communicator, address, bytes, kind of memory, output for the registration.
pub type RegMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> NcclResult;
/// Arguments: a communicator, address, bytes, kind of memory, offset in the DMA-BUF, its
/// descriptor, output for the registration.
pub type RegMrDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> NcclResult;
/// Arguments: the communicator, the registration.
pub type DeregMr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> NcclResult;

/// Arguments: the communicator, address, bytes, tag, registration, profiler event, output for the
/// request (null if the plugin cannot take the request now).
pub type IsendV12 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// Arguments of `IsendV12` without the event.
pub type IsendV9 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// Arguments of `IsendV9` with bytes as an `int`.
pub type IsendV8 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> NcclResult;

/// Arguments: the communicator; a count; arrays of that many addresses, bytes, tags, registrations
/// and profiler events; output for the request (null if the plugin cannot take the request now).
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
/// Arguments of `IrecvV12` without the events.
pub type IrecvV9 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// Arguments of `IrecvV9` with bytes as `int`s.
pub type IrecvV8 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;

/// Arguments: the communicator; a count; arrays of that many addresses, bytes and registrations;
/// output for the request (null if there is nothing to flush).
pub type Iflush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// Arguments: the request, outputs for the done flag and for the bytes of each buffer.
pub type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> NcclResult;

/// Argument: the communicator.
pub type Close = unsafe extern "C" fn(*mut c_void) -> NcclResult;

/// Arguments: the communicator, the registration, output for the registration in the form that
/// device code uses.
pub type GetDeviceMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> NcclResult;
/// Arguments: the receiving communicator, the number of buffers of the receive, its request.
pub type IrecvConsumed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> NcclResult;

/// Argument: the context.
pub type Finalize = unsafe extern "C" fn(*mut c_void) -> NcclResult;
/// Arguments: the context, a hint about the next operations.
pub type SetAttributes = unsafe extern "C" fn(*mut c_void, *mut Attributes) -> NcclResult;

/// C string that the plugin owns and keeps valid for the life of the process.
pub type Text = *const c_char;
