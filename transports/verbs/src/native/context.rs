//! Devices that are open.

use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::transport::TransportError;
use rdma_sys::*;
use rustix::process::{Pid, getpid};

use super::{check, last};

/// A row of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidRow {
    pub(crate) index: u32,
    pub(crate) gid: [u8; 16],
    /// Type of the address: `IBV_GID_TYPE_...`.
    pub(crate) kind: u32,
}

/// Asynchronous event of an open device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    pub(crate) event: ibv_event_type,
    /// Number of the queue pair, if the event concerns one.
    pub(crate) pair: Option<u32>,
    /// Number of the port, if the event concerns one.
    pub(crate) port: Option<u8>,
}

/// A device that is open.
pub(crate) struct Context {
    pub(crate) functions: &'static Functions,
    context: NonNull<ibv_context>,
    name: String,
    /// Process that opened the device: the child of a fork has the same devices, and must not end
    /// what its parent uses.
    process: Pid,
}

// SAFETY: libibverbs may be called from several threads, and locks what they share.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Returns the names of all devices; none if there is no RDMA on this machine.
    pub(crate) fn names(functions: &'static Functions) -> Vec<String> {
        with_list(functions, |devices| {
            devices.iter().filter_map(|device| name(functions, *device)).collect()
        })
    }

    /// Returns the type of the device, such as `1: CA`, where the kernel reports it.
    pub(crate) fn node_type(&self) -> Option<String> {
        std::fs::read_to_string(format!("/sys/class/infiniband/{}/node_type", self.name)).ok()
    }

    /// Returns the NUMA node that is nearest to the device, where the kernel reports it.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        let path = format!("/sys/class/infiniband/{}/device/numa_node", self.name);
        // The file says -1 where the node is not known; software devices have no such file.
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Returns the canonical path of the device's PCI function in sysfs; software devices have no
    /// such path.
    pub(crate) fn pci_path(&self) -> Option<String> {
        let link = format!("/sys/class/infiniband/{}/device", self.name);
        std::fs::canonicalize(link).ok()?.into_os_string().into_string().ok()
    }

    /// Opens the device with the name `requested`.
    pub(crate) fn open(
        functions: &'static Functions,
        requested: &str,
    ) -> Result<Arc<Context>, TransportError> {
        with_list(functions, |devices| {
            let named =
                |device: &&*mut ibv_device| name(functions, **device).as_deref() == Some(requested);
            let device = devices.iter().find(named).ok_or_else(|| {
                let advice = "`ibv_devices` lists the RDMA devices of this host".to_owned();
                TransportError::NoDevice { device: requested.to_owned(), advice }
            })?;
            // SAFETY: the device is in the list, which is not freed yet.
            let context = unsafe { (functions.open_device)(*device) };
            let context = NonNull::new(context).ok_or_else(|| last("ibv_open_device", OPEN))?;
            let name = requested.to_owned();
            let opened = Context { functions, context, name, process: getpid() };
            opened.no_waiting()?;
            Ok(Arc::new(opened))
        })
    }

    /// Makes queries for events non-blocking.
    fn no_waiting(&self) -> Result<(), TransportError> {
        let events = self.events();
        rustix::fs::fcntl_getfl(events)
            .and_then(|flags| rustix::fs::fcntl_setfl(events, flags | rustix::fs::OFlags::NONBLOCK))
            .map_err(|error| {
                super::failure("fcntl", error.raw_os_error(), "this kernel is not usable")
            })
    }

    /// Returns whether this process, not one that it was forked from, has opened the device.
    pub(super) fn is_ours(&self) -> bool {
        self.process == getpid()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Returns the limits of the device.
    pub(crate) fn limits(&self) -> Result<ibv_device_attr, TransportError> {
        let mut attr = std::mem::MaybeUninit::zeroed();
        // SAFETY: the device is open, and there is room for the result.
        let result = unsafe { (self.functions.query_device)(self.raw(), attr.as_mut_ptr()) };
        check("ibv_query_device", result, DRIVER)?;
        // SAFETY: the structure holds only numbers, and the call has written them.
        Ok(unsafe { attr.assume_init() })
    }

    /// Returns the attributes of a port; ports are numbered from 1.
    pub(crate) fn port(&self, port: u8) -> Result<ibv_port_attr, TransportError> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the device is open, and there is room for the result.
        let result = unsafe { (self.functions.query_port)(self.raw(), port, &raw mut attr) };
        check("ibv_query_port", result, "see whether the port exists: `ibv_devinfo`")?;
        Ok(attr)
    }

    /// Returns the rows of a port's GID table that hold an address.
    pub(crate) fn gids(&self, port: u8, rows: u32) -> Vec<GidRow> {
        (0..rows).filter_map(|row| self.gid(port, row)).collect()
    }

    /// Returns a row of a port's GID table, unless it is empty.
    pub(crate) fn gid(&self, port: u8, row: u32) -> Option<GidRow> {
        let Some(query) = self.functions.query_gid_ex else { return self.gid_of_old(port, row) };
        let (mut entry, bytes) = (ibv_gid_entry::default(), size_of::<ibv_gid_entry>());
        // SAFETY: the device is open, and there is room for an entry of this size.
        let result = unsafe { query(self.raw(), u32::from(port), row, &raw mut entry, 0, bytes) };
        let found = GidRow { index: row, gid: entry.gid.raw, kind: entry.gid_type };
        (result == 0 && found.gid != [0; 16]).then_some(found)
    }

    /// Returns a row, with its type from sysfs, for a library that does not report types.
    fn gid_of_old(&self, port: u8, row: u32) -> Option<GidRow> {
        let mut gid = ibv_gid::default();
        // SAFETY: the device is open, and there is room for the result.
        let result =
            unsafe { (self.functions.query_gid)(self.raw(), port, row as i32, &raw mut gid) };
        let name = &self.name;
        let path = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{row}");
        let kind = match std::fs::read_to_string(path).ok()?.trim() {
            "RoCE v2" => IBV_GID_TYPE_ROCE_V2,
            // The kernel has one name for InfiniBand and RoCE version 1.
            _ => IBV_GID_TYPE_IB,
        };
        let found = GidRow { index: row, gid: gid.raw, kind };
        (result == 0 && found.gid != [0; 16]).then_some(found)
    }

    /// Returns an entry of a port's partition key (P_Key) table.
    pub(crate) fn partition(&self, port: u8, row: u16) -> Option<u16> {
        let mut key = 0;
        // SAFETY: the device is open, and there is room for the result.
        let result =
            unsafe { (self.functions.query_pkey)(self.raw(), port, row.into(), &raw mut key) };
        (result == 0).then_some(u16::from_be(key))
    }

    /// Returns the descriptor that is readable when there is an event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the library's context is open as long as `self` lives.
        let descriptor = unsafe { (*self.raw()).async_fd };
        // SAFETY: the descriptor stays open as long as the context.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    /// Returns the next event, if there is one.
    pub(crate) fn async_event(&self) -> Option<AsyncEvent> {
        let mut event = ibv_async_event {
            element: ibv_async_event_element { port_num: 0 },
            event_type: IBV_EVENT_COMM_EST,
        };
        // SAFETY: the device is open, and there is room for the result.
        if unsafe { (self.functions.get_async_event)(self.raw(), &raw mut event) } != 0 {
            return None;
        }
        let of_pair = matches!(
            event.event_type,
            IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
        );
        let pair = of_pair.then(|| {
            // SAFETY: the element of an event of these types is a queue pair.
            let pair = unsafe { event.element.qp };
            // SAFETY: a queue pair is not destroyed before its events are acknowledged.
            unsafe { (*pair).qp_num }
        });
        let of_port = matches!(
            event.event_type,
            IBV_EVENT_PORT_ERR
                | IBV_EVENT_PORT_ACTIVE
                | IBV_EVENT_LID_CHANGE
                | IBV_EVENT_PKEY_CHANGE
                | IBV_EVENT_GID_CHANGE
        );
        let port = match of_port {
            // SAFETY: the element of an event of these types is a port's number.
            true => u8::try_from(unsafe { event.element.port_num }).ok(),
            false => None,
        };
        // SAFETY: the library has just returned the event, which is acknowledged once.
        unsafe { (self.functions.ack_async_event)(&raw mut event) };
        Some(AsyncEvent { event: event.event_type, pair, port })
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.name).finish()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // SAFETY: every object made from the context keeps it alive, so none is left.
        unsafe { (self.functions.close_device)(self.raw()) };
    }
}

/// Protection domain, which keeps memory and queue pairs of one device together.
pub(crate) struct Domain {
    pub(crate) context: Arc<Context>,
    domain: NonNull<ibv_pd>,
}

// SAFETY: libibverbs may be called from several threads, and locks what they share.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(context: Arc<Context>) -> Result<Arc<Domain>, TransportError> {
        // SAFETY: the device is open.
        let domain = unsafe { (context.functions.alloc_pd)(context.raw()) };
        let domain = NonNull::new(domain).ok_or_else(|| last("ibv_alloc_pd", DRIVER))?;
        Ok(Arc::new(Domain { context, domain }))
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.context).finish()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.context.is_ours() {
            return;
        }
        // SAFETY: every object made from the domain keeps it alive, so none is left.
        unsafe { (self.context.functions.dealloc_pd)(self.raw()) };
    }
}

fn with_list<T>(functions: &'static Functions, run: impl FnOnce(&[*mut ibv_device]) -> T) -> T {
    let mut count = 0;
    // SAFETY: there is room for the number.
    let list = unsafe { (functions.get_device_list)(&raw mut count) };
    if list.is_null() {
        return run(&[]);
    }
    // SAFETY: the list holds `count` devices.
    let result = run(unsafe { std::slice::from_raw_parts(list, count.max(0) as usize) });
    // SAFETY: the library has returned the list, which is freed once.
    unsafe { (functions.free_device_list)(list) };
    result
}

fn name(functions: &'static Functions, device: *mut ibv_device) -> Option<String> {
    // SAFETY: the device is in a list that is not freed yet.
    let name = unsafe { (functions.get_device_name)(device) };
    if name.is_null() {
        return None;
    }
    // SAFETY: the name is a C string, and stays valid until the list is freed.
    let name = CString::from(unsafe { CStr::from_ptr(name) });
    name.into_string().ok()
}

const OPEN: &str = "see whether this user may open /dev/infiniband/uverbs* (in a container, pass \
                    the devices in)";
const DRIVER: &str = "see whether the device's driver works: `ibv_devinfo`";
