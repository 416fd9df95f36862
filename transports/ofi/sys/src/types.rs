//! Types as libfabric's headers declare them (ABI 1.6 of version 1.17; later versions only append
//! fields). The manual pages `fi_getinfo(3)`, `fi_endpoint(3)`, `fi_cq(3)`, `fi_av(3)`, `fi_mr(3)`,
//! `fi_msg(3)` and `fi_rma(3)` explain them.

use libc::{c_char, c_int, c_void, iovec, size_t, ssize_t};

/// Number of a peer in an address vector.
pub type fi_addr_t = u64;

/// Functions that every object has.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops {
    pub size: size_t,
    pub close: Option<unsafe extern "C" fn(*mut fid) -> c_int>,
    pub bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
    pub control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
    pub ops_open: Option<
        unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
    >,
}

/// First field of every object.
#[repr(C)]
#[derive(Debug)]
pub struct fid {
    pub fclass: size_t,
    pub context: *mut c_void,
    pub ops: *mut fi_ops,
}

/// Attributes of sending.
#[repr(C)]
#[derive(Debug)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: size_t,
    pub size: size_t,
    pub iov_limit: size_t,
    pub rma_iov_limit: size_t,
    pub tclass: u32,
}

/// Attributes of receiving.
#[repr(C)]
#[derive(Debug)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: size_t,
    pub size: size_t,
    pub iov_limit: size_t,
}

/// Attributes of an endpoint.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ep_attr {
    pub r#type: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: size_t,
    pub msg_prefix_size: size_t,
    pub max_order_raw_size: size_t,
    pub max_order_war_size: size_t,
    pub max_order_waw_size: size_t,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: size_t,
    pub rx_ctx_cnt: size_t,
    pub auth_key_size: size_t,
    pub auth_key: *mut u8,
}

/// Attributes of a domain. Only the library allocates this structure, since later versions append
/// fields.
#[repr(C)]
#[derive(Debug)]
pub struct fi_domain_attr {
    pub domain: *mut fid_domain,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: size_t,
    pub cq_data_size: size_t,
    pub cq_cnt: size_t,
    pub ep_cnt: size_t,
    pub tx_ctx_cnt: size_t,
    pub rx_ctx_cnt: size_t,
    pub max_ep_tx_ctx: size_t,
    pub max_ep_rx_ctx: size_t,
    pub max_ep_stx_ctx: size_t,
    pub max_ep_srx_ctx: size_t,
    pub cntr_cnt: size_t,
    pub mr_iov_limit: size_t,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: size_t,
    pub max_err_data: size_t,
    pub mr_cnt: size_t,
    pub tclass: u32,
}

/// Attributes of a fabric.
#[repr(C)]
#[derive(Debug)]
pub struct fi_fabric_attr {
    pub fabric: *mut fid_fabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// Offer of a provider: an element of a linked list. Only the library allocates it.
#[repr(C)]
#[derive(Debug)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: size_t,
    pub dest_addrlen: size_t,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut fid,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    pub nic: *mut fid_nic,
}

/// Network interface behind an offer.
#[repr(C)]
#[derive(Debug)]
pub struct fid_nic {
    pub fid: fid,
    pub device_attr: *mut c_void,
    pub bus_attr: *mut fi_bus_attr,
    pub link_attr: *mut fi_link_attr,
    pub prov_attr: *mut c_void,
}

/// Position of a device on the PCI bus.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_pci_attr {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

/// Bus that a device is on; `pci` is valid if `bus_type` is [`FI_BUS_PCI`](crate::FI_BUS_PCI).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_bus_attr {
    pub bus_type: c_int,
    pub pci: fi_pci_attr,
}

/// State of a device's link; `speed` is in bits per second.
#[repr(C)]
#[derive(Debug)]
pub struct fi_link_attr {
    pub address: *mut c_char,
    pub mtu: size_t,
    pub speed: size_t,
    pub state: c_int,
    pub network_type: *mut c_char,
}

/// Functions of a fabric.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_fabric {
    pub size: size_t,
    pub domain: unsafe extern "C" fn(
        *mut fid_fabric,
        *mut fi_info,
        *mut *mut fid_domain,
        *mut c_void,
    ) -> c_int,
    pub passive_ep: *mut c_void,
    pub eq_open: Option<
        unsafe extern "C" fn(
            *mut fid_fabric,
            *mut fi_eq_attr,
            *mut *mut fid_eq,
            *mut c_void,
        ) -> c_int,
    >,
    pub wait_open: *mut c_void,
    pub trywait: Option<unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int>,
}

/// Fabric: a network whose devices reach each other.
#[repr(C)]
#[derive(Debug)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *mut fi_ops_fabric,
    pub api_version: u32,
}

/// Attributes of an event queue.
#[repr(C)]
#[derive(Debug)]
pub struct fi_eq_attr {
    pub size: size_t,
    pub flags: u64,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

/// Error that an event queue reports.
#[repr(C)]
#[derive(Debug)]
pub struct fi_eq_err_entry {
    pub fid: *mut fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: size_t,
}

/// Functions of an event queue.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_eq {
    pub size: size_t,
    pub read: *mut c_void,
    pub readerr: Option<unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> ssize_t>,
    pub write: *mut c_void,
    pub sread: *mut c_void,
    pub strerror: *mut c_void,
}

/// Event queue: holds events of objects, but no completions of requests.
#[repr(C)]
#[derive(Debug)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *mut fi_ops_eq,
}

/// Functions of a domain.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_domain {
    pub size: size_t,
    pub av_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_av_attr,
        *mut *mut fid_av,
        *mut c_void,
    ) -> c_int,
    pub cq_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_cq_attr,
        *mut *mut fid_cq,
        *mut c_void,
    ) -> c_int,
    pub endpoint:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
}

/// Functions of a domain that register memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_mr {
    pub size: size_t,
    pub reg: *mut c_void,
    pub regv: *mut c_void,
    pub regattr:
        Option<unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int>,
}

/// Domain: a device that a process has opened.
#[repr(C)]
#[derive(Debug)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}

/// Attributes of an address vector.
#[repr(C)]
#[derive(Debug)]
pub struct fi_av_attr {
    pub r#type: c_int,
    pub rx_ctx_bits: c_int,
    pub count: size_t,
    pub ep_per_node: size_t,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// Functions of an address vector.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_av {
    pub size: size_t,
    pub insert: unsafe extern "C" fn(
        *mut fid_av,
        *const c_void,
        size_t,
        *mut fi_addr_t,
        u64,
        *mut c_void,
    ) -> c_int,
    pub insertsvc: *mut c_void,
    pub insertsym: *mut c_void,
    pub remove: Option<unsafe extern "C" fn(*mut fid_av, *mut fi_addr_t, size_t, u64) -> c_int>,
}

/// Address vector: the peers that an endpoint can name.
#[repr(C)]
#[derive(Debug)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *mut fi_ops_av,
}

/// Registered memory.
#[repr(C)]
#[derive(Debug)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// Memory of an accelerator, as a file of the kernel (DMA-BUF). The structure has existed since
/// libfabric 1.20.
#[repr(C)]
#[derive(Debug)]
pub struct fi_mr_dmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: size_t,
    pub base_addr: *mut c_void,
}

/// Attributes of memory to register.
#[repr(C)]
#[derive(Debug)]
pub struct fi_mr_attr {
    /// Address of a range; with `FI_MR_DMABUF`, the address of an [`fi_mr_dmabuf`].
    pub mr_iov: *const iovec,
    pub iov_count: size_t,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: size_t,
    pub auth_key: *mut u8,
    pub iface: c_int,
    pub device: u64,
    /// Room for fields that later versions append; zero.
    pub later: [u64; 4],
}

/// Attributes of a completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct fi_cq_attr {
    pub size: size_t,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
    /// Room for fields that later versions append; null.
    pub later: *mut c_void,
}

/// Completion, in the format [`FI_CQ_FORMAT_DATA`](crate::FI_CQ_FORMAT_DATA).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: size_t,
    pub buf: *mut c_void,
    pub data: u64,
}

/// Completion of a failed request.
#[repr(C)]
#[derive(Debug)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: size_t,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: size_t,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: size_t,
    /// Room for fields that later versions append (`src_addr` since 1.20).
    pub later: u64,
}

/// Functions of a completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cq {
    pub size: size_t,
    pub read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, size_t) -> ssize_t,
    pub readfrom: *mut c_void,
    pub readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> ssize_t,
    pub sread: *mut c_void,
    pub sreadfrom: *mut c_void,
    pub signal: *mut c_void,
    pub strerror: Option<
        unsafe extern "C" fn(
            *mut fid_cq,
            c_int,
            *const c_void,
            *mut c_char,
            size_t,
        ) -> *const c_char,
    >,
}

/// Completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *mut fi_ops_cq,
}

/// Functions of an endpoint that concern connections and names.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cm {
    pub size: size_t,
    pub setname: Option<unsafe extern "C" fn(*mut fid, *mut c_void, size_t) -> c_int>,
    pub getname: Option<unsafe extern "C" fn(*mut fid, *mut c_void, *mut size_t) -> c_int>,
}

/// Functions of an endpoint that send and receive.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_msg {
    pub size: size_t,
    pub recv: unsafe extern "C" fn(
        *mut fid_ep,
        *mut c_void,
        size_t,
        *mut c_void,
        fi_addr_t,
        *mut c_void,
    ) -> ssize_t,
    pub recvv: *mut c_void,
    pub recvmsg: *mut c_void,
    pub send: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        fi_addr_t,
        *mut c_void,
    ) -> ssize_t,
    pub sendv: *mut c_void,
    pub sendmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> ssize_t>,
    pub inject: *mut c_void,
    pub senddata: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            size_t,
            *mut c_void,
            u64,
            fi_addr_t,
            *mut c_void,
        ) -> ssize_t,
    >,
}

/// Functions of an endpoint that write to a peer's memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_rma {
    pub size: size_t,
    pub read: *mut c_void,
    pub readv: *mut c_void,
    pub readmsg: *mut c_void,
    pub write: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            size_t,
            *mut c_void,
            fi_addr_t,
            u64,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub writev: *mut c_void,
    pub writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> ssize_t>,
    pub inject: *mut c_void,
    pub writedata: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            size_t,
            *mut c_void,
            u64,
            fi_addr_t,
            u64,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
}

/// A message.
#[repr(C)]
#[derive(Debug)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: size_t,
    pub addr: fi_addr_t,
    pub context: *mut c_void,
    pub data: u64,
}

/// Range of a peer's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: size_t,
    pub key: u64,
}

/// A write to a peer's memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: size_t,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: size_t,
    pub context: *mut c_void,
    pub data: u64,
}

/// Functions of an endpoint that concern its options.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_ep {
    pub size: size_t,
    pub cancel: *mut c_void,
    pub getopt:
        Option<unsafe extern "C" fn(*mut fid, c_int, c_int, *mut c_void, *mut size_t) -> c_int>,
}

/// Endpoint.
#[repr(C)]
#[derive(Debug)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
    pub msg: *mut fi_ops_msg,
    pub rma: *mut fi_ops_rma,
}

/// Context of a request: memory that the provider uses until the request completes, if the provider
/// sets the mode bit [`FI_CONTEXT2`](crate::FI_CONTEXT2) or [`FI_CONTEXT`](crate::FI_CONTEXT).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_context2 {
    pub internal: [*mut c_void; 8],
}
