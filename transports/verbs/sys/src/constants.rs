//! The values of the header's enumerations. They are numbers here, not Rust enumerations: a newer
//! library or kernel may say what nobody here has heard of.

use libc::{c_int, c_uint};

/// What became of a work request.
pub type ibv_wc_status = c_uint;
/// It was done.
pub const IBV_WC_SUCCESS: ibv_wc_status = 0;
/// More bytes than the receiver's or the device's limit.
pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = 1;
/// The queue pair could not carry it out.
pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = 2;
/// Local memory is not registered, or not for this.
pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = 4;
/// It was pending when its queue pair failed: the cause is another completion's.
pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = 5;
/// The peer answered what no peer answers.
pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = 7;
/// Local memory was written beyond its registration.
pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = 8;
/// The peer did not understand it, or does not allow such requests.
pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = 9;
/// The peer's memory is not registered, or not there.
pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = 10;
/// The peer could not carry it out.
pub const IBV_WC_REM_OP_ERR: ibv_wc_status = 11;
/// The peer did not acknowledge it, however often it was sent.
pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = 12;
/// The peer had no receive request for it, however long it was asked.
pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = 13;
/// The peer gave it up.
pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = 16;
/// The device failed.
pub const IBV_WC_FATAL_ERR: ibv_wc_status = 19;
/// No answer came in time.
pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = 20;
/// Something else.
pub const IBV_WC_GENERAL_ERR: ibv_wc_status = 21;

/// What kind of work request was completed.
pub type ibv_wc_opcode = c_uint;
/// A write to the peer's memory.
pub const IBV_WC_RDMA_WRITE: ibv_wc_opcode = 1;
/// A message from the peer.
pub const IBV_WC_RECV: ibv_wc_opcode = 1 << 7;
/// A write by the peer that told its immediate.
pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = IBV_WC_RECV + 1;

/// [`ibv_wc::imm_data`](crate::ibv_wc::imm_data) is there.
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;

/// What a work request is to do.
pub type ibv_wr_opcode = c_uint;
/// Write to the peer's memory.
pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = 0;
/// The same, and have the peer complete a receive request with the immediate.
pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = 1;

/// The request completes also if it succeeds.
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// The bytes are taken when the request is posted.
pub const IBV_SEND_INLINE: c_uint = 1 << 3;

/// What is allowed to be done with memory, or with a queue pair.
pub type ibv_access_flags = c_int;
/// This device may write there.
pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
/// Peers may write there.
pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 1 << 1;
/// Writes may overtake each other on the bus.
pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1 << 20;

/// How far a queue pair is.
pub type ibv_qp_state = c_uint;
/// New.
pub const IBV_QPS_RESET: ibv_qp_state = 0;
/// It takes receive requests.
pub const IBV_QPS_INIT: ibv_qp_state = 1;
/// Ready to receive.
pub const IBV_QPS_RTR: ibv_qp_state = 2;
/// Ready to send.
pub const IBV_QPS_RTS: ibv_qp_state = 3;
/// It does nothing more; what was pending is flushed.
pub const IBV_QPS_ERR: ibv_qp_state = 6;

/// Reliable connected.
pub const IBV_QPT_RC: c_uint = 2;

/// [`ibv_qp_attr::qp_state`](crate::ibv_qp_attr::qp_state) is to be changed; so with the others.
pub const IBV_QP_STATE: c_int = 1;
/// The access flags.
pub const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
/// The partition.
pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
/// The port.
pub const IBV_QP_PORT: c_int = 1 << 5;
/// The way to the peer.
pub const IBV_QP_AV: c_int = 1 << 7;
/// The longest packet.
pub const IBV_QP_PATH_MTU: c_int = 1 << 8;
/// How long an acknowledgement is waited for.
pub const IBV_QP_TIMEOUT: c_int = 1 << 9;
/// How often a packet is sent again.
pub const IBV_QP_RETRY_CNT: c_int = 1 << 10;
/// How often a receiver that is not ready is asked again.
pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
/// The first packet's number, of the peer.
pub const IBV_QP_RQ_PSN: c_int = 1 << 12;
/// Reads and atomics under way.
pub const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
/// How long a sender waits when this side is not ready.
pub const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// The first packet's number, of this side.
pub const IBV_QP_SQ_PSN: c_int = 1 << 16;
/// Reads and atomics of the peer under way.
pub const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
/// The peer's queue pair.
pub const IBV_QP_DEST_QPN: c_int = 1 << 20;

/// Lengths of packets: 256 bytes for 1, doubled by each step, to 4096 for 5.
pub type ibv_mtu = c_uint;
/// The shortest.
pub const IBV_MTU_256: ibv_mtu = 1;
/// The longest.
pub const IBV_MTU_4096: ibv_mtu = 5;

/// Whether a port works.
pub type ibv_port_state = c_uint;
/// No link.
pub const IBV_PORT_DOWN: ibv_port_state = 1;
/// A link that nobody has configured yet.
pub const IBV_PORT_INIT: ibv_port_state = 2;
/// Almost.
pub const IBV_PORT_ARMED: ibv_port_state = 3;
/// It works.
pub const IBV_PORT_ACTIVE: ibv_port_state = 4;

/// The library does not say.
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// InfiniBand.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// Ethernet: RoCE.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// [`ibv_port_attr::flags`](crate::ibv_port_attr::flags): ways must be routed.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

/// An address of InfiniBand.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// RoCE without IP.
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// RoCE over UDP and IP.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Something happened to a device, a port, or a queue pair.
pub type ibv_event_type = c_uint;
/// A completion queue overflowed.
pub const IBV_EVENT_CQ_ERR: ibv_event_type = 0;
/// A queue pair failed.
pub const IBV_EVENT_QP_FATAL: ibv_event_type = 1;
/// A queue pair received what it could not understand.
pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = 2;
/// A queue pair received what is not allowed.
pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = 3;
/// The first packet came before the connection was said to stand.
pub const IBV_EVENT_COMM_EST: ibv_event_type = 4;
/// The device failed.
pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = 8;
/// A port works again.
pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = 9;
/// A port lost its link.
pub const IBV_EVENT_PORT_ERR: ibv_event_type = 10;
/// A port's InfiniBand address changed.
pub const IBV_EVENT_LID_CHANGE: ibv_event_type = 11;
/// A port's partitions changed.
pub const IBV_EVENT_PKEY_CHANGE: ibv_event_type = 12;
/// A port's addresses changed.
pub const IBV_EVENT_GID_CHANGE: ibv_event_type = 18;
