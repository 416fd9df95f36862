//! Properties of the devices, in the layout of each version.

use core::ffi::{CStr, c_char, c_int};

use nccl_net_abi::{NcclResult, Parts, TRANSFER_BYTES_MAX, UNDEFINED, v8, v9, v11, v12};

use crate::exports::{check_device, entry, output};
use crate::fault::Fault;
use crate::limits::GROUP_MAX;
use crate::outcome::Outcome;
use crate::plugin::Plugin;

/// Names of the devices by number; the last one is the virtual device.
const NAMES: [&CStr; 3] = [c"reference0", c"reference1", c"reference0+reference1"];
/// GUID of the first device; each later device adds its number.
const GUID: u64 = 0x7265_662d_6e65_7430;
/// Nominal speed, since a socket has no fixed one.
const SPEED_MBPS: c_int = 10_000;
const COMMS_MAX: c_int = 65_536;

/// Returns the name of a device, or an error if there is no such device.
fn name(plugin: &Plugin, device: c_int) -> Outcome<&'static CStr> {
    check_device(plugin, device)?;
    let at = usize::try_from(device).ok();
    at.and_then(|at| NAMES.get(at)).copied().ok_or(NcclResult::INVALID_ARGUMENT)
}

/// Returns the PCI path: null, since sockets are on no bus; with [`Fault::BusIdAsPath`], a bus id.
fn pci_path(plugin: &Plugin) -> *const c_char {
    match plugin.has(Fault::BusIdAsPath) {
        true => c"0000:3b:00.0".as_ptr(),
        false => std::ptr::null(),
    }
}

pub(crate) unsafe extern "C" fn properties_v12(
    device: c_int,
    into: *mut v12::Properties,
) -> NcclResult {
    entry(|plugin| {
        let (name, parts) = (name(plugin, device)?, plugin.parts(&device));
        // SAFETY: the caller has room for the properties.
        let into = unsafe { output(into) }?;
        into.write(v12::Properties {
            name: name.as_ptr(),
            pci_path: pci_path(plugin),
            guid: GUID + device as u64,
            memory_kinds: plugin.memory_kinds(),
            registration_is_global: 1,
            force_flush: 0,
            speed_mbps: SPEED_MBPS * parts.len() as c_int,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: plugin.device_side().0,
            device_version: plugin.device_side().1,
            parts: Parts::of(parts),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            collective_bytes_max: TRANSFER_BYTES_MAX,
            multi_requests_max: 1,
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
    entry(|plugin| {
        let (name, parts) = (name(plugin, device)?, plugin.parts(&device));
        // SAFETY: the caller has room for the properties.
        let into = unsafe { output(into) }?;
        into.write(v11::Properties {
            name: name.as_ptr(),
            pci_path: pci_path(plugin),
            guid: GUID + device as u64,
            memory_kinds: plugin.memory_kinds(),
            registration_is_global: 1,
            force_flush: 0,
            speed_mbps: SPEED_MBPS * parts.len() as c_int,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: plugin.device_side().0,
            device_version: plugin.device_side().1,
            parts: Parts::of(parts),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            collective_bytes_max: TRANSFER_BYTES_MAX,
            multi_requests_max: 1,
        });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn properties_v9(
    device: c_int,
    into: *mut v9::Properties,
) -> NcclResult {
    entry(|plugin| {
        let (name, parts) = (name(plugin, device)?, plugin.parts(&device));
        // SAFETY: the caller has room for the properties.
        let into = unsafe { output(into) }?;
        into.write(v9::Properties {
            name: name.as_ptr(),
            pci_path: pci_path(plugin),
            guid: GUID + device as u64,
            memory_kinds: plugin.memory_kinds(),
            registration_is_global: 1,
            force_flush: 0,
            speed_mbps: SPEED_MBPS * parts.len() as c_int,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: plugin.device_side().0,
            device_version: plugin.device_side().1,
            parts: Parts::of(parts),
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
    entry(|plugin| {
        let (name, parts) = (name(plugin, device)?, plugin.parts(&device));
        // SAFETY: the caller has room for the properties.
        let into = unsafe { output(into) }?;
        into.write(v8::Properties {
            name: name.as_ptr(),
            pci_path: pci_path(plugin),
            guid: GUID + device as u64,
            memory_kinds: plugin.memory_kinds(),
            registration_is_global: 1,
            speed_mbps: SPEED_MBPS * parts.len() as c_int,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            receives_max: GROUP_MAX as c_int,
            device_type: plugin.device_side().0,
            device_version: plugin.device_side().1,
        });
        Ok(())
    })
}
