//! Version 8, since NCCL 2.20.3: lengths are `int`s, devices have no parts.

use core::ffi::{CStr, c_int};
use core::mem::offset_of;

use crate::{
    Accept, Close, ConnectV9, DeregMr, Devices, GetDeviceMr, Iflush, InitV9, IrecvConsumed,
    IrecvV8, IsendV8, ListenV10, NcclResult, RegMr, RegMrDmaBuf, Test, Text,
};

/// The name of the table.
pub const SYMBOL: &CStr = c"ncclNetPlugin_v8";

/// What a plugin exports.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Its name in `NCCL_NET`; read before anything is called.
    pub name: Text,
    /// Called once per process.
    pub init: Option<InitV9>,
    /// Called again for later communicators.
    pub devices: Option<Devices>,
    /// Of a device.
    pub properties: Option<unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult>,
    /// Must not block.
    pub listen: Option<ListenV10>,
    /// Polled, with the same handle, until it gives a communicator.
    pub connect: Option<ConnectV9>,
    /// Polled until it gives a communicator.
    pub accept: Option<Accept>,
    /// Also while transfers run.
    pub register: Option<RegMr>,
    /// May be null.
    pub register_dma_buf: Option<RegMrDmaBuf>,
    /// Also while transfers run.
    pub deregister: Option<DeregMr>,
    /// Sends to the peer; null for a request that cannot be taken now.
    pub isend: Option<IsendV8>,
    /// Receives, up to `receives_max` at once; likewise.
    pub irecv: Option<IrecvV8>,
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
}
const _: () = assert!(size_of::<Net>() == 152);
crate::table_order!();

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
}
const _: () = assert!(size_of::<Properties>() == 64);
const _: () = {
    assert!(offset_of!(Properties, name) == 0);
    assert!(offset_of!(Properties, pci_path) == 8);
    assert!(offset_of!(Properties, guid) == 16);
    assert!(offset_of!(Properties, memory_kinds) == 24);
    assert!(offset_of!(Properties, registration_is_global) == 28);
    assert!(offset_of!(Properties, speed_mbps) == 32);
    assert!(offset_of!(Properties, port) == 36);
    assert!(offset_of!(Properties, latency_us) == 40);
    assert!(offset_of!(Properties, comms_max) == 44);
    assert!(offset_of!(Properties, receives_max) == 48);
    assert!(offset_of!(Properties, device_type) == 52);
    assert!(offset_of!(Properties, device_version) == 56);
};
