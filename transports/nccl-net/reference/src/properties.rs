//! What there is to know of the device, in each version's words.

use core::ffi::{CStr, c_int};

use nccl_net_abi::{
    DEVICE_HOST, HOST, NcclResult, Parts, TRANSFER_BYTES_MAX, UNDEFINED, v8, v9, v11, v12,
};

use crate::exports::{check_device, entry, place};
use crate::plugin::GROUP_MAX;

const DEVICE_NAME: &CStr = c"reference0";
/// The port of the only device is a card of its own.
const GUID: u64 = 0x7265_662d_6e65_7430;
/// Nobody asks a socket how fast it is.
const SPEED_MBPS: c_int = 10_000;
const COMMS_MAX: c_int = 65_536;

pub(crate) unsafe extern "C" fn properties_v12(
    device: c_int,
    into: *mut v12::Properties,
) -> NcclResult {
    entry(|_| {
        check_device(device)?;
        // SAFETY: the caller has room for them.
        let into = unsafe { place(into) }?;
        into.write(v12::Properties {
            name: DEVICE_NAME.as_ptr(),
            pci_path: std::ptr::null(),
            guid: GUID,
            memory_kinds: HOST,
            registration_is_global: 1,
            force_flush: 0,
            speed_mbps: SPEED_MBPS,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: DEVICE_HOST,
            device_version: 0,
            parts: Parts::one(device),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            collective_bytes_max: TRANSFER_BYTES_MAX,
            multi_request_bytes_max: 1,
            rail: UNDEFINED as i16,
            plane: UNDEFINED as i16,
        });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn properties_v11(
    device: c_int,
    into: *mut v11::Properties,
) -> NcclResult {
    entry(|_| {
        check_device(device)?;
        // SAFETY: the caller has room for them.
        let into = unsafe { place(into) }?;
        into.write(v11::Properties {
            name: DEVICE_NAME.as_ptr(),
            pci_path: std::ptr::null(),
            guid: GUID,
            memory_kinds: HOST,
            registration_is_global: 1,
            force_flush: 0,
            speed_mbps: SPEED_MBPS,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: DEVICE_HOST,
            device_version: 0,
            parts: Parts::one(device),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            collective_bytes_max: TRANSFER_BYTES_MAX,
            multi_request_bytes_max: 1,
        });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn properties_v9(
    device: c_int,
    into: *mut v9::Properties,
) -> NcclResult {
    entry(|_| {
        check_device(device)?;
        // SAFETY: the caller has room for them.
        let into = unsafe { place(into) }?;
        into.write(v9::Properties {
            name: DEVICE_NAME.as_ptr(),
            pci_path: std::ptr::null(),
            guid: GUID,
            memory_kinds: HOST,
            registration_is_global: 1,
            force_flush: 0,
            speed_mbps: SPEED_MBPS,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: DEVICE_HOST,
            device_version: 0,
            parts: Parts::one(device),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            collective_bytes_max: TRANSFER_BYTES_MAX,
        });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn properties_v8(
    device: c_int,
    into: *mut v8::Properties,
) -> NcclResult {
    entry(|_| {
        check_device(device)?;
        // SAFETY: the caller has room for them.
        let into = unsafe { place(into) }?;
        into.write(v8::Properties {
            name: DEVICE_NAME.as_ptr(),
            pci_path: std::ptr::null(),
            guid: GUID,
            memory_kinds: HOST,
            registration_is_global: 1,
            speed_mbps: SPEED_MBPS,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: DEVICE_HOST,
            device_version: 0,
        });
        Ok(())
    })
}
