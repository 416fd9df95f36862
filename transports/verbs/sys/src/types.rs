//! Structures that libibverbs shares with its callers, from its header. A structure that only the
//! library makes is declared up to the last field that this workspace reads.

use libc::{c_char, c_int, c_uint, c_void};

use crate::constants::{
    ibv_event_type, ibv_mtu, ibv_port_state, ibv_qp_state, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode,
};

/// A device before it is opened.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_device {
    _opaque: [u8; 0],
}

/// Calls of the fast path. The other entries are not used here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_context_ops {
    _before_poll_cq: [*mut c_void; 11],
    /// Pointer behind [`ibv_poll_cq`](crate::ibv_poll_cq).
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    /// Pointer behind [`ibv_req_notify_cq`](crate::ibv_req_notify_cq).
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _before_post_send: [*mut c_void; 12],
    /// Pointer behind [`ibv_post_send`](crate::ibv_post_send).
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    /// Pointer behind [`ibv_post_recv`](crate::ibv_post_recv).
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _after_post_recv: [*mut c_void; 5],
}

impl Default for ibv_context_ops {
    fn default() -> ibv_context_ops {
        ibv_context_ops {
            _before_poll_cq: [std::ptr::null_mut(); 11],
            poll_cq: None,
            req_notify_cq: None,
            _before_post_send: [std::ptr::null_mut(); 12],
            post_send: None,
            post_recv: None,
            _after_post_recv: [std::ptr::null_mut(); 5],
        }
    }
}

/// An opened device.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_context {
    /// The device that is open.
    pub device: *mut ibv_device,
    /// Calls of the fast path.
    pub ops: ibv_context_ops,
    /// File descriptor for commands to the kernel.
    pub cmd_fd: c_int,
    /// File descriptor that is readable when there is an asynchronous event.
    pub async_fd: c_int,
    /// Number of interrupts over which completion queues can be distributed.
    pub num_comp_vectors: c_int,
}

/// Limits of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The manual page of ibv_query_device explains the fields.
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// Attributes of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // The manual page of ibv_query_port explains the fields.
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// Address of a port, as it travels on the wire.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    /// Bytes in network order; with RoCE an IPv6 address, or an IPv4 address mapped to one.
    pub raw: [u8; 16],
}

/// Row of a port's GID table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // The manual page of ibv_query_gid_ex explains the fields.
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// Protection domain, which keeps memory and queue pairs of one user together.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_pd {
    /// Device of the domain.
    pub context: *mut ibv_context,
    /// The kernel's handle of the domain.
    pub handle: u32,
}

/// Registered memory.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_mr {
    /// Device of the registration.
    pub context: *mut ibv_context,
    /// Protection domain of the registration.
    pub pd: *mut ibv_pd,
    /// Address of the first byte.
    pub addr: *mut c_void,
    /// Number of bytes.
    pub length: usize,
    /// The kernel's handle of the registration.
    pub handle: u32,
    /// Key for work requests of this side.
    pub lkey: u32,
    /// Key for work requests of peers.
    pub rkey: u32,
}

/// Completion channel, which wakes a thread that waits for completions.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_comp_channel {
    /// Device of the channel.
    pub context: *mut ibv_context,
    /// File descriptor that is readable when a completion queue has an event.
    pub fd: c_int,
    /// Number of completion queues that use the channel.
    pub refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_cq {
    /// Device of the queue.
    pub context: *mut ibv_context,
    /// Channel that wakes a thread that waits for the queue.
    pub channel: *mut ibv_comp_channel,
    /// Pointer for the owner's use.
    pub cq_context: *mut c_void,
    /// The kernel's handle of the queue.
    pub handle: u32,
    /// Number of completions that the queue can hold.
    pub cqe: c_int,
}

/// A queue pair.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp {
    /// Device of the queue pair.
    pub context: *mut ibv_context,
    /// Pointer for the owner's use.
    pub qp_context: *mut c_void,
    /// Protection domain of the queue pair.
    pub pd: *mut ibv_pd,
    /// Completion queue for sends.
    pub send_cq: *mut ibv_cq,
    /// Completion queue for receives.
    pub recv_cq: *mut ibv_cq,
    /// Shared receive queue; unused.
    pub srq: *mut c_void,
    /// The kernel's handle of the queue pair.
    pub handle: u32,
    /// Number by which peers know the queue pair.
    pub qp_num: u32,
    /// Last state that the library has learned of.
    pub state: ibv_qp_state,
    /// Type of the queue pair.
    pub qp_type: c_uint,
}

/// Limits of a queue pair: the requested ones, which the library replaces by the granted ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // The manual page of ibv_create_qp explains the fields.
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Attributes that a queue pair is made with.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)] // The manual page of ibv_create_qp explains the fields.
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// Routed part of a path.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_global_route {
    /// Address of the peer.
    pub dgid: ibv_gid,
    /// Label that tells flows apart. If the device does not choose the UDP source port itself, the
    /// port follows from the label.
    pub flow_label: u32,
    /// Row of this port's GID table.
    pub sgid_index: u8,
    /// Number of routers that a packet may pass.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

/// Path to a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    /// Routed part, used if `is_global` is set.
    pub grh: ibv_global_route,
    /// Address of the peer in an InfiniBand subnet (LID).
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Path bits, which select one of this port's LIDs.
    pub src_path_bits: u8,
    /// Highest rate of the path; 0 for the port's own.
    pub static_rate: u8,
    /// 1 if the path is routed, as it always is with RoCE; else 0.
    pub is_global: u8,
    /// Number of this side's port, from 1.
    pub port_num: u8,
}

/// Attributes of a queue pair, requested or queried.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // The manual page of ibv_modify_qp explains the fields.
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// Range of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
    /// Key for this side: [`ibv_mr::lkey`].
    pub lkey: u32,
}

/// Destination of a write.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_send_wr_rdma {
    /// Address of the first byte in the peer's memory.
    pub remote_addr: u64,
    /// Key of the peer's memory: its [`ibv_mr::rkey`].
    pub rkey: u32,
    _longer_kinds: [u32; 5],
}

/// A request to send.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr {
    /// Id that comes back with the completion.
    pub wr_id: u64,
    /// Next request of the list, or null.
    pub next: *mut ibv_send_wr,
    /// Memory that the request reads.
    pub sg_list: *mut ibv_sge,
    /// Number of entries of `sg_list`.
    pub num_sge: c_int,
    /// Operation of the request.
    pub opcode: ibv_wr_opcode,
    /// Flags `IBV_SEND_...`.
    pub send_flags: c_uint,
    /// Immediate, in network byte order.
    pub imm_data: u32,
    /// Destination of the write.
    pub rdma: ibv_send_wr_rdma,
    _kinds_not_used: [u64; 7],
}

impl Default for ibv_send_wr {
    fn default() -> ibv_send_wr {
        ibv_send_wr {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: crate::IBV_WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            rdma: ibv_send_wr_rdma::default(),
            _kinds_not_used: [0; 7],
        }
    }
}

/// A request to receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_recv_wr {
    /// Id that comes back with the completion.
    pub wr_id: u64,
    /// Next request of the list, or null.
    pub next: *mut ibv_recv_wr,
    /// Memory for the message; null if the request only takes writes with immediate.
    pub sg_list: *mut ibv_sge,
    /// Number of entries of `sg_list`.
    pub num_sge: c_int,
}

impl Default for ibv_recv_wr {
    fn default() -> ibv_recv_wr {
        let (next, sg_list) = (std::ptr::null_mut(), std::ptr::null_mut());
        ibv_recv_wr { wr_id: 0, next, sg_list, num_sge: 0 }
    }
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    /// Id of the request.
    pub wr_id: u64,
    /// Status of the request. After a failure, the other valid fields are `wr_id`, `qp_num` and
    /// `vendor_err`.
    pub status: ibv_wc_status,
    /// Operation that completed.
    pub opcode: ibv_wc_opcode,
    /// The device's own code of a failure.
    pub vendor_err: u32,
    /// Number of bytes that arrived.
    pub byte_len: u32,
    /// Immediate, in network byte order.
    pub imm_data: u32,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Number of the sender's queue pair; datagrams only.
    pub src_qp: u32,
    /// Flags, such as `IBV_WC_WITH_IMM`.
    pub wc_flags: c_uint,
    /// Index into the P_Key table; datagrams only.
    pub pkey_index: u16,
    /// Address of the sender in an InfiniBand subnet (LID); datagrams only.
    pub slid: u16,
    /// Service level; datagrams only.
    pub sl: u8,
    /// Path bits of the receiver's LID; datagrams only.
    pub dlid_path_bits: u8,
}

/// Asynchronous event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_async_event {
    /// Object of the event: a pointer, or the number of a port.
    pub element: ibv_async_event_element,
    /// Kind of the event.
    pub event_type: ibv_event_type,
}

/// Object of an asynchronous event; `event_type` says which field is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element {
    /// A completion queue.
    pub cq: *mut ibv_cq,
    /// A queue pair.
    pub qp: *mut ibv_qp,
    /// Number of a port, from 1.
    pub port_num: c_int,
}

impl std::fmt::Debug for ibv_async_event_element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ibv_async_event_element")
    }
}

// These sizes are checked in each build. If the header is installed, the tests in `layout.rs`
// compare sizes, offsets and constants with it.
const _: () = {
    assert!(size_of::<ibv_context_ops>() == 32 * size_of::<usize>());
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_gid_entry>() == 32);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_async_event>() == 16);
};
