//! Version 10, since NCCL 2.26.2: without contexts; the configuration comes with `connect`.

use core::ffi::{CStr, c_int};

use crate::{
    Accept, Close, ConnectV10, DeregMr, Devices, GetDeviceMr, Iflush, InitV10, IrecvConsumed,
    IrecvV12, IsendV12, ListenV10, NcclResult, Parts, RegMr, RegMrDmaBuf, Test, Text,
};

pub use crate::v9::Properties;

/// The name of the table.
pub const SYMBOL: &CStr = c"ncclNetPlugin_v10";

/// What a plugin exports.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Its name in `NCCL_NET`; read before anything is called.
    pub name: Text,
    /// Called once per process.
    pub init: Option<InitV10>,
    /// Called again for later communicators.
    pub devices: Option<Devices>,
    /// Of a device.
    pub properties: Option<unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult>,
    /// Must not block.
    pub listen: Option<ListenV10>,
    /// Polled, with the same handle, until it gives a communicator.
    pub connect: Option<ConnectV10>,
    /// Polled until it gives a communicator.
    pub accept: Option<Accept>,
    /// Also while transfers run.
    pub register: Option<RegMr>,
    /// May be null.
    pub register_dma_buf: Option<RegMrDmaBuf>,
    /// Also while transfers run.
    pub deregister: Option<DeregMr>,
    /// Sends to the peer; null for a request that cannot be taken now.
    pub isend: Option<IsendV12>,
    /// Receives, up to `receives_max` at once; likewise.
    pub irecv: Option<IrecvV12>,
    /// For memory of devices.
    pub iflush: Option<Iflush>,
    /// Whether a request is done.
    pub test: Option<Test>,
    /// Of a sending communicator.
    pub close_send: Option<Close>,
    /// Of a receiving communicator.
    pub close_receive: Option<Close>,
    /// Of a listening communicator.
    pub close_listen: Option<Close>,
    /// May be null.
    pub device_registration: Option<GetDeviceMr>,
    /// May be null.
    pub consumed: Option<IrecvConsumed>,
    /// Joins physical devices to one. May be null.
    pub make_device: Option<unsafe extern "C" fn(*mut c_int, *mut Parts<4>) -> NcclResult>,
}
const _: () = assert!(size_of::<Net>() == 160);
crate::table_order!(make_device);
