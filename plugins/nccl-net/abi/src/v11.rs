//! Version 11, since NCCL 2.28.3: parts are four at most, and devices have no rail or plane.

use core::ffi::{CStr, c_int};
use core::mem::offset_of;

use crate::{
    Accept, Close, ConnectV12, DeregMr, Devices, Finalize, GetDeviceMr, Iflush, InitV12,
    IrecvConsumed, IrecvV12, IsendV12, ListenV12, NcclResult, Parts, RegMr, RegMrDmaBuf,
    SetAttributes, Test, Text,
};

/// The name of the table.
pub const SYMBOL: &CStr = c"ncclNetPlugin_v11";

/// What a plugin exports.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Its name in `NCCL_NET`; read before anything is called.
    pub name: Text,
    /// Called for each communicator.
    pub init: Option<InitV12>,
    /// Called again for later communicators.
    pub devices: Option<Devices>,
    /// Of a device.
    pub properties: Option<unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult>,
    /// Must not block.
    pub listen: Option<ListenV12>,
    /// Polled, with the same handle, until it gives a communicator.
    pub connect: Option<ConnectV12>,
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
    /// Once for each `init` that succeeded.
    pub finalize: Option<Finalize>,
    /// May be null.
    pub set_attributes: Option<SetAttributes>,
}
const _: () = assert!(size_of::<Net>() == 176);
crate::table_order!(make_device, finalize, set_attributes);

/// What there is to know of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// Unlike that of any other device.
    pub name: Text,
    /// Of its PCI function in sysfs; null if it has none.
    pub pci_path: Text,
    /// Devices with the same share a card.
    pub guid: u64,
    /// Bits: [`HOST`](crate::HOST), [`CUDA`](crate::CUDA), [`DMA_BUF`](crate::DMA_BUF).
    pub memory_kinds: c_int,
    /// Whether memory that was registered with one communicator serves all of the device.
    pub registration_is_global: c_int,
    /// Whether `iflush` is needed even where the GPU orders writes by itself.
    pub force_flush: c_int,
    /// Megabits per second.
    pub speed_mbps: c_int,
    /// Of the card.
    pub port: c_int,
    /// Microseconds.
    pub latency_us: f32,
    /// The most communicators.
    pub comms_max: c_int,
    /// The most buffers in one `irecv`.
    pub receives_max: c_int,
    /// [`DEVICE_HOST`](crate::DEVICE_HOST).
    pub device_type: c_int,
    /// Of the type.
    pub device_version: c_int,
    /// The physical devices that it is made of.
    pub parts: Parts<4>,
    /// The longest transfer; at most [`TRANSFER_BYTES_MAX`](crate::TRANSFER_BYTES_MAX).
    pub transfer_bytes_max: usize,
    /// The longest collective in the network.
    pub collective_bytes_max: usize,
    /// Requests that may be joined to one.
    pub multi_request_bytes_max: c_int,
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
    assert!(offset_of!(Properties, multi_request_bytes_max) == 104);
};
