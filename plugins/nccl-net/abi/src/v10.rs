//! Version 10, since NCCL 2.26.2: unlike in version 11, there are no contexts, and `connect`, not
//! `init`, takes the communicator's configuration.

use core::ffi::{CStr, c_int};

use crate::{
    Accept, Close, ConnectV10, DeregMr, Devices, GetDeviceMr, Iflush, InitV10, IrecvConsumed,
    IrecvV12, IsendV12, ListenV10, NcclResult, Parts, RegMr, RegMrDmaBuf, Test, Text,
};

pub use crate::v9::Properties;

/// Name of the table's symbol.
pub const SYMBOL: &CStr = c"ncclNetPlugin_v10";

/// Table of functions that a plugin exports.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Name of the plugin in `NCCL_NET`; read before anything is called.
    pub name: Text,
    /// Initialises the plugin; called once per process.
    pub init: Option<InitV10>,
    /// Gives the number of devices; called again for later communicators.
    pub devices: Option<Devices>,
    /// Gives the properties of a device.
    pub properties: Option<unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult>,
    /// Begins to listen; must not block.
    pub listen: Option<ListenV10>,
    /// Connects; polled, with the same handle, until it gives a communicator.
    pub connect: Option<ConnectV10>,
    /// Accepts a connection; polled until it gives a communicator.
    pub accept: Option<Accept>,
    /// Registers memory; called also while transfers run.
    pub register: Option<RegMr>,
    /// Registers memory of a DMA-BUF descriptor. May be null.
    pub register_dma_buf: Option<RegMrDmaBuf>,
    /// Deregisters memory; called also while transfers run.
    pub deregister: Option<DeregMr>,
    /// Sends to the peer; the request is null if the plugin cannot take it now.
    pub isend: Option<IsendV12>,
    /// Receives into up to `receives_max` buffers; gives null if it cannot take the request now.
    pub irecv: Option<IrecvV12>,
    /// Flushes received data in device memory.
    pub iflush: Option<Iflush>,
    /// Tests whether a request is done.
    pub test: Option<Test>,
    /// Closes a sending communicator.
    pub close_send: Option<Close>,
    /// Closes a receiving communicator.
    pub close_receive: Option<Close>,
    /// Closes a listening communicator.
    pub close_listen: Option<Close>,
    /// Gives a registration in the form that device code uses. May be null.
    pub device_registration: Option<GetDeviceMr>,
    /// Reports that a receive was consumed. May be null.
    pub consumed: Option<IrecvConsumed>,
    /// Merges physical devices into one. May be null.
    pub make_device: Option<unsafe extern "C" fn(*mut c_int, *mut Parts<4>) -> NcclResult>,
}
const _: () = assert!(size_of::<Net>() == 160);
crate::table_order!(make_device);
