//! Version 11, since NCCL 2.28.3: unlike in version 12, a device has at most four parts, and its
//! properties have no fields for a rail and a plane.

use core::ffi::{CStr, c_int};
use core::mem::offset_of;

use crate::{
    Accept, Close, ConnectV12, DeregMr, Devices, Finalize, GetDeviceMr, Iflush, InitV12,
    IrecvConsumed, IrecvV12, IsendV12, ListenV12, NcclResult, Parts, RegMr, RegMrDmaBuf,
    SetAttributes, Test, Text,
};

/// Name of the table's symbol.
pub const SYMBOL: &CStr = c"ncclNetPlugin_v11";

/// Table of functions that a plugin exports.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Name of the plugin in `NCCL_NET`; read before anything is called.
    pub name: Text,
    /// Initialises a context; called for each communicator.
    pub init: Option<InitV12>,
    /// Gives the number of devices; called again for later communicators.
    pub devices: Option<Devices>,
    /// Gives the properties of a device.
    pub properties: Option<unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult>,
    /// Begins to listen; must not block.
    pub listen: Option<ListenV12>,
    /// Connects; polled, with the same handle, until it gives a communicator.
    pub connect: Option<ConnectV12>,
    /// Accepts a connection; polled until it gives a communicator.
    pub accept: Option<Accept>,
    /// Registers memory; called also while transfers run.
    pub register: Option<RegMr>,
    /// Registers memory of a DMA-BUF descriptor. May be null.
    pub register_dma_buf: Option<RegMrDmaBuf>,
    /// Deregisters memory; called also while transfers run.
    pub deregister: Option<DeregMr>,
    /// Sends to the peer; gives a null request if the plugin cannot take the send now.
    pub isend: Option<IsendV12>,
    /// Receives into up to `receives_max` buffers; gives a null request if the plugin cannot take
    /// the receive now.
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
    /// Ends a context; called once for each `init` that succeeded.
    pub finalize: Option<Finalize>,
    /// Gives a hint about NCCL's next operations. May be null.
    pub set_attributes: Option<SetAttributes>,
}
const _: () = assert!(size_of::<Net>() == 176);
crate::table_order!(make_device, finalize, set_attributes);

/// Properties of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// Unique name of the device.
    pub name: Text,
    /// Path of the device's PCI function in sysfs; null if there is none.
    pub pci_path: Text,
    /// Identifier of the card, which devices of one card share.
    pub guid: u64,
    /// Bits of memory kinds: [`HOST`](crate::HOST), [`CUDA`](crate::CUDA),
    /// [`DMA_BUF`](crate::DMA_BUF).
    pub memory_kinds: c_int,
    /// Nonzero if a registration is valid for all communicators of the device.
    pub registration_is_global: c_int,
    /// Nonzero if `iflush` is needed even where the GPU orders writes by itself.
    pub force_flush: c_int,
    /// Speed in megabits per second.
    pub speed_mbps: c_int,
    /// Port of the card.
    pub port: c_int,
    /// Latency in microseconds.
    pub latency_us: f32,
    /// Largest number of communicators on the device.
    pub comms_max: c_int,
    /// Largest number of buffers in one `irecv`.
    pub receives_max: c_int,
    /// Type of the device: [`DEVICE_HOST`](crate::DEVICE_HOST).
    pub device_type: c_int,
    /// Version of the device type.
    pub device_version: c_int,
    /// Physical devices that the device is made of.
    pub parts: Parts<4>,
    /// Largest number of bytes in one transfer; must not exceed
    /// [`TRANSFER_BYTES_MAX`](crate::TRANSFER_BYTES_MAX).
    pub transfer_bytes_max: usize,
    /// Largest number of bytes in one collective that the network executes.
    pub collective_bytes_max: usize,
    /// Largest number of requests that NCCL may combine into one.
    pub multi_requests_max: c_int,
}
const _: () = assert!(size_of::<Properties>() == 112);
const _: () = {
    assert!(offset_of!(Properties, name) == 0);
    assert!(offset_of!(Properties, pci_path) == 8);
    assert!(offset_of!(Properties, guid) == 16);
    assert!(offset_of!(Properties, memory_kinds) == 24);
    assert!(offset_of!(Properties, registration_is_global) == 28);
    assert!(offset_of!(Properties, force_flush) == 32);
    assert!(offset_of!(Properties, speed_mbps) == 36);
    assert!(offset_of!(Properties, port) == 40);
    assert!(offset_of!(Properties, latency_us) == 44);
    assert!(offset_of!(Properties, comms_max) == 48);
    assert!(offset_of!(Properties, receives_max) == 52);
    assert!(offset_of!(Properties, device_type) == 56);
    assert!(offset_of!(Properties, device_version) == 60);
    assert!(offset_of!(Properties, parts) == 64);
    assert!(offset_of!(Properties, transfer_bytes_max) == 88);
    assert!(offset_of!(Properties, collective_bytes_max) == 96);
    assert!(offset_of!(Properties, multi_requests_max) == 104);
};
