//! Offers (`fi_info`), and the functions of libfabric that list, copy and free offers.

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use libc::{ENODATA, c_char, c_int};
use libfabric_sys::*;

use crate::Limits;
use crate::network::{ADDRESS_BYTES, device_name, lock};
use crate::objects::{hand_out, hand_out_zeros, take_back};

/// Largest number of bytes of one message or write.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Returns an empty offer with all its attribute structures, which are zeroed.
fn empty() -> fi_info {
    fi_info {
        next: null_mut(),
        caps: 0,
        mode: 0,
        addr_format: 0,
        src_addrlen: 0,
        dest_addrlen: 0,
        src_addr: null_mut(),
        dest_addr: null_mut(),
        handle: null_mut(),
        // SAFETY: in these structures, zeros are valid numbers and null pointers.
        tx_attr: unsafe { hand_out_zeros() },
        // SAFETY: as above.
        rx_attr: unsafe { hand_out_zeros() },
        // SAFETY: as above.
        ep_attr: unsafe { hand_out_zeros() },
        // SAFETY: as above.
        domain_attr: unsafe { hand_out_zeros() },
        // SAFETY: as above.
        fabric_attr: unsafe { hand_out_zeros() },
        nic: null_mut(),
    }
}

/// Returns a C string that `strdup` allocates, as libfabric does.
fn text(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the text ends with a zero.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Returns a network adapter at this PCI function.
fn adapter(pci: fi_pci_attr) -> *mut fid_nic {
    hand_out(fid_nic {
        fid: fid { fclass: 0, context: null_mut(), ops: null_mut() },
        device_attr: null_mut(),
        bus_attr: hand_out(fi_bus_attr { bus_type: FI_BUS_PCI, pci }),
        link_attr: null_mut(),
        prov_attr: null_mut(),
    })
}

/// Returns a provider's offer to a program that asks for these capabilities.
fn offer(id: u32, limits: &Limits, caps: u64) -> fi_info {
    let mut info = empty();
    let writes = if limits.data_bytes > 0 { FI_RMA | FI_WRITE | FI_REMOTE_WRITE } else { 0 };
    info.caps = FI_MSG | FI_SEND | FI_RECV | FI_REMOTE_COMM | FI_LOCAL_COMM | writes;
    let mut mr_mode = limits.mr_mode;
    if mr_mode & FI_MR_HMEM != 0 && caps & FI_HMEM != 0 {
        info.caps |= FI_HMEM;
    } else {
        mr_mode &= !FI_MR_HMEM;
    }
    // SAFETY: the offer's structures were just made.
    let sending = unsafe { &mut *info.tx_attr };
    sending.size = limits.requests;
    (sending.iov_limit, sending.rma_iov_limit, sending.inject_size) = (4, 1, 64);
    // SAFETY: as above.
    let receiving = unsafe { &mut *info.rx_attr };
    (receiving.size, receiving.iov_limit) = (limits.requests, 1);
    // SAFETY: as above.
    let endpoint = unsafe { &mut *info.ep_attr };
    (endpoint.r#type, endpoint.max_msg_size) = (FI_EP_RDM, MESSAGE_BYTES_MAX);
    // SAFETY: as above.
    let domain = unsafe { &mut *info.domain_attr };
    domain.name = text(&device_name(id));
    domain.threading = FI_THREAD_SAFE;
    let progress = if limits.is_automatic { FI_PROGRESS_AUTO } else { FI_PROGRESS_MANUAL };
    (domain.control_progress, domain.data_progress) = (progress, progress);
    (domain.resource_mgmt, domain.av_type) = (FI_RM_ENABLED, FI_AV_TABLE);
    (domain.mr_mode, domain.mr_key_size) = (mr_mode, 8);
    domain.cq_data_size = limits.data_bytes;
    // SAFETY: as above.
    let fabric = unsafe { &mut *info.fabric_attr };
    (fabric.name, fabric.prov_name) = (text(limits.name), text(limits.name));
    (fabric.prov_version, fabric.api_version) = (FI_VERSION(limits.version, 0), FI_API_VERSION);
    info.src_addrlen = ADDRESS_BYTES;
    info.nic = limits.pci.map_or(null_mut(), adapter);
    info
}

pub(crate) unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi_info,
    list: *mut *mut fi_info,
) -> c_int {
    // SAFETY: the caller's hints are valid, with all their attribute structures.
    let hints = unsafe { &*hints };
    // SAFETY: as above.
    let (caps, name) = (hints.caps, unsafe { (*hints.fabric_attr).prov_name });
    // SAFETY: as above.
    let class = unsafe { (*hints.tx_attr).tclass };
    // SAFETY: a name ends with a zero.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
    let mut first: *mut fi_info = null_mut();
    for (id, provider) in lock().providers.iter().rev().filter(|(_, it)| it.is_listed) {
        let mut info = offer(*id, &provider.limits, caps);
        if class == FI_TC_LOW_LATENCY && provider.limits.low_latency {
            // SAFETY: the offer's structures were just made.
            unsafe { &mut *info.tx_attr }.tclass = class;
        }
        let is_asked = name.is_none_or(|name| name == provider.limits.name.as_bytes());
        info.next = first;
        let is_listed = is_asked && info.caps & caps == caps;
        let info = hand_out(info);
        if is_listed {
            first = info;
        } else {
            // SAFETY: the offer was just handed out, and nobody else has it.
            unsafe { free_one(info) };
        }
    }
    // SAFETY: the caller has room for the pointer.
    unsafe { list.write(first) };
    if first.is_null() { -ENODATA } else { 0 }
}

/// Frees one offer, but not the offers after it in its list.
///
/// # Safety
///
/// The offer was handed out, and nobody uses it any more.
unsafe fn free_one(info: *mut fi_info) {
    // SAFETY: the caller keeps the contract.
    let info = unsafe { Box::from_raw(info) };
    // SAFETY: the attributes were handed out with the offer.
    let domain = unsafe { Box::from_raw(info.domain_attr) };
    // SAFETY: as above.
    let fabric = unsafe { Box::from_raw(info.fabric_attr) };
    for text in [domain.name, fabric.name, fabric.prov_name] {
        // SAFETY: the C library has allocated each text that is not null.
        unsafe { libc::free(text.cast()) };
    }
    // SAFETY: the attributes were handed out with the offer.
    unsafe { take_back(info.tx_attr) };
    // SAFETY: as for `tx_attr`.
    unsafe { take_back(info.rx_attr) };
    // SAFETY: as for `tx_attr`.
    unsafe { take_back(info.ep_attr) };
    if !info.nic.is_null() {
        // SAFETY: as for `tx_attr`.
        let nic = unsafe { Box::from_raw(info.nic) };
        // SAFETY: the adapter was handed out with its bus.
        unsafe { take_back(nic.bus_attr) };
    }
}

pub(crate) unsafe extern "C" fn freeinfo(mut info: *mut fi_info) {
    while !info.is_null() {
        // SAFETY: the caller's list is whole.
        let next = unsafe { (*info).next };
        // SAFETY: as above.
        unsafe { free_one(info) };
        info = next;
    }
}

pub(crate) unsafe extern "C" fn dupinfo(from: *const fi_info) -> *mut fi_info {
    // SAFETY: the caller's offer is whole, or its pointer is null.
    let Some(from) = (unsafe { from.as_ref() }) else { return hand_out(empty()) };
    let again = |text: *mut c_char| match text.is_null() {
        true => null_mut(),
        // SAFETY: texts of offers end with a zero.
        false => unsafe { libc::strdup(text) },
    };
    // SAFETY: every offer has all attributes.
    let mut domain = unsafe { from.domain_attr.read() };
    domain.name = again(domain.name);
    // SAFETY: as above.
    let mut fabric = unsafe { from.fabric_attr.read() };
    (fabric.name, fabric.prov_name) = (again(fabric.name), again(fabric.prov_name));
    // SAFETY: the pointer is null, or the adapter is whole.
    let nic = unsafe { from.nic.as_ref() };
    // SAFETY: every adapter has its bus.
    let pci = nic.map(|nic| unsafe { (*nic.bus_attr).pci });
    hand_out(fi_info {
        next: null_mut(),
        nic: pci.map_or(null_mut(), adapter),
        // SAFETY: as above.
        tx_attr: hand_out(unsafe { from.tx_attr.read() }),
        // SAFETY: as above.
        rx_attr: hand_out(unsafe { from.rx_attr.read() }),
        // SAFETY: as above.
        ep_attr: hand_out(unsafe { from.ep_attr.read() }),
        domain_attr: hand_out(domain),
        fabric_attr: hand_out(fabric),
        // SAFETY: the offer is whole.
        ..unsafe { std::ptr::from_ref(from).read() }
    })
}

/// Finds the provider of an offer by the name of the offer's device.
///
/// # Safety
///
/// The offer is whole.
pub(crate) unsafe fn provider_of(info: *const fi_info) -> Option<u32> {
    // SAFETY: the caller keeps the contract.
    let domain = unsafe { (*info).domain_attr };
    // SAFETY: every offer has all attributes.
    let name = unsafe { (*domain).name };
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    let network = lock();
    network.providers.keys().copied().find(|id| device_name(*id) == name)
}

pub(crate) unsafe extern "C" fn strerror(code: c_int) -> *const c_char {
    match code {
        FI_ETRUNC => c"Truncation error".as_ptr(),
        FI_EOVERRUN => c"Queue has been overrun".as_ptr(),
        FI_EAVAIL => c"Error available".as_ptr(),
        // SAFETY: the function takes any number.
        _ if code < FI_EOTHER => unsafe { libc::strerror(code) },
        _ => null(),
    }
}
