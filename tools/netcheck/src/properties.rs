//! Properties of a device in one form for all versions of the interface.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

use nccl_net_abi::{NcclResult, v8, v9, v11, v12};

/// Properties of a device. A field that a version does not have holds the value that NCCL assumes
/// for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Properties {
    pub(crate) name: Option<String>,
    pub(crate) pci_path: Option<String>,
    pub(crate) guid: u64,
    pub(crate) memory_kinds: i32,
    pub(crate) registration_is_global: i32,
    pub(crate) force_flush: i32,
    pub(crate) speed_mbps: i32,
    pub(crate) port: i32,
    pub(crate) latency_us: f32,
    pub(crate) comms_max: i32,
    pub(crate) receives_max: i32,
    pub(crate) device_type: i32,
    pub(crate) device_version: i32,
    /// Number of physical devices that this device consists of, and the array of the indices of
    /// these devices, unused entries included.
    pub(crate) parts: (i32, Vec<i32>),
    pub(crate) transfer_bytes_max: usize,
    pub(crate) rail: i16,
    pub(crate) plane: i16,
}

/// `getProperties`, by version.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Describe {
    V12(unsafe extern "C" fn(c_int, *mut v12::Properties) -> NcclResult),
    V11(unsafe extern "C" fn(c_int, *mut v11::Properties) -> NcclResult),
    V9(unsafe extern "C" fn(c_int, *mut v9::Properties) -> NcclResult),
    V8(unsafe extern "C" fn(c_int, *mut v8::Properties) -> NcclResult),
}

impl Describe {
    /// Returns the properties of one device.
    pub(crate) fn of(self, device: i32) -> Result<Properties, NcclResult> {
        match self {
            Describe::V12(describe) => of_v12(filled(|place| {
                // SAFETY: `place` is large enough for this version's properties.
                unsafe { describe(device, place) }
            })?),
            Describe::V11(describe) => of_v11(filled(|place| {
                // SAFETY: likewise.
                unsafe { describe(device, place) }
            })?),
            Describe::V9(describe) => of_v9(filled(|place| {
                // SAFETY: likewise.
                unsafe { describe(device, place) }
            })?),
            Describe::V8(describe) => of_v8(
                device,
                filled(|place| {
                    // SAFETY: likewise.
                    unsafe { describe(device, place) }
                })?,
            ),
        }
    }
}

/// Reads a string of the plugin.
pub(crate) fn text(address: *const c_char) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the plugin promises a string at `address`, valid for the life of the process.
    Some(unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned())
}

/// Returns the value that `call` writes; each byte that `call` leaves unwritten is 0xEE.
fn filled<T: Copy>(call: impl FnOnce(*mut T) -> NcclResult) -> Result<T, NcclResult> {
    let mut place = MaybeUninit::<T>::uninit();
    // SAFETY: `place` is writable, and has room for the one `T` that is filled.
    unsafe { ptr::write_bytes(place.as_mut_ptr(), 0xEE, 1) };
    match call(place.as_mut_ptr()) {
        // SAFETY: every byte was written, and `T` has only integers, floats and raw pointers.
        NcclResult::SUCCESS => Ok(unsafe { place.assume_init() }),
        result => Err(result),
    }
}

/// Makes `Properties` from the fields that every version has and from the other given fields.
macro_rules! properties {
    ($from:ident, $($more:tt)*) => {
        Ok(Properties {
            name: text($from.name),
            pci_path: text($from.pci_path),
            guid: $from.guid,
            memory_kinds: $from.memory_kinds,
            registration_is_global: $from.registration_is_global,
            speed_mbps: $from.speed_mbps,
            port: $from.port,
            latency_us: $from.latency_us,
            comms_max: $from.comms_max,
            receives_max: $from.receives_max,
            device_type: $from.device_type,
            device_version: $from.device_version,
            $($more)*
        })
    };
}

fn of_v12(from: v12::Properties) -> Result<Properties, NcclResult> {
    properties!(
        from,
        force_flush: from.force_flush,
        parts: (from.parts.count, from.parts.devices.to_vec()),
        transfer_bytes_max: from.transfer_bytes_max,
        rail: from.rail,
        plane: from.plane,
    )
}

fn of_v11(from: v11::Properties) -> Result<Properties, NcclResult> {
    properties!(
        from,
        force_flush: from.force_flush,
        parts: (from.parts.count, from.parts.devices.to_vec()),
        transfer_bytes_max: from.transfer_bytes_max,
        rail: -1,
        plane: -1,
    )
}

fn of_v9(from: v9::Properties) -> Result<Properties, NcclResult> {
    properties!(
        from,
        force_flush: from.force_flush,
        parts: (from.parts.count, from.parts.devices.to_vec()),
        transfer_bytes_max: from.transfer_bytes_max,
        rail: -1,
        plane: -1,
    )
}

fn of_v8(device: i32, from: v8::Properties) -> Result<Properties, NcclResult> {
    properties!(
        from,
        force_flush: 0,
        parts: (1, vec![device]),
        transfer_bytes_max: 1 << 30,
        rail: -1,
        plane: -1,
    )
}
