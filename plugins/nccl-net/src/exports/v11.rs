//! Version 11 of the interface.

use std::ffi::c_int;

use nccl_net_abi::v11::{Net, Properties};
use nccl_net_abi::{DEVICE_HOST, HOST, NcclResult, Parts, TRANSFER_BYTES_MAX};

use super::{Exported, NAME, calls, put, with};
use crate::comm::wire::GROUP_MAX;
use crate::device::pointer;

/// Table that NCCL loads.
#[unsafe(export_name = "ncclNetPlugin_v11")]
pub static NCCL_NET_PLUGIN_V11: Exported<Net> = Exported(Net {
    name: NAME.as_ptr(),
    init: Some(calls::init_v12),
    devices: Some(calls::devices),
    properties: Some(properties),
    listen: Some(calls::listen_v12),
    connect: Some(calls::connect_v12),
    accept: Some(calls::accept),
    register: Some(calls::register),
    register_dma_buf: Some(calls::register_dma_buf),
    deregister: Some(calls::deregister),
    isend: Some(calls::isend_v12),
    irecv: Some(calls::irecv_v12),
    iflush: Some(calls::iflush),
    test: Some(calls::test),
    close_send: Some(calls::close_send),
    close_receive: Some(calls::close_receive),
    close_listen: Some(calls::close_listen),
    device_registration: None,
    consumed: None,
    make_device: Some(calls::make_device::<4>),
    finalize: Some(calls::finalize),
    set_attributes: Some(calls::set_attributes),
});

unsafe extern "C" fn properties(number: c_int, to: *mut Properties) -> NcclResult {
    with("getProperties", |plugin| {
        let device = plugin.devices.get(number)?;
        // SAFETY: NCCL has room for the properties at `to`.
        unsafe {
            put(
                to,
                Properties {
                    name: device.name.as_ptr(),
                    pci_path: pointer(device.pci_path.as_deref()),
                    guid: device.guid,
                    memory_kinds: HOST,
                    registration_is_global: 1,
                    force_flush: 0,
                    speed_mbps: device.speed_mbps,
                    port: device.port,
                    latency_us: device.latency_us,
                    comms_max: crate::comm::COMMS_MAX,
                    receives_max: GROUP_MAX as c_int,
                    device_type: DEVICE_HOST,
                    device_version: 0,
                    parts: Parts::of(&device.parts),
                    transfer_bytes_max: crate::comm::TRANSFER_BYTES_MAX.min(TRANSFER_BYTES_MAX),
                    collective_bytes_max: TRANSFER_BYTES_MAX,
                    multi_requests_max: 1,
                },
            )
        }
    })
}
