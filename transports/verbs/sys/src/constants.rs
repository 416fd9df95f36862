//! Values of the header's enumerations. They are plain numbers, not Rust enumerations, because a
//! newer library or kernel may return values that this crate does not know.

use libc::{c_int, c_uint};

/// Status of a completed work request.
pub type ibv_wc_status = c_uint;
/// Success.
pub const IBV_WC_SUCCESS: ibv_wc_status = 0;
/// Error for more bytes than the receiver or the device allows.
pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = 1;
/// Error for a request that the queue pair could not carry out.
pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = 2;
/// Error for local memory that is not registered, or not registered for this use.
pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = 4;
/// Error for a request that was pending when its queue pair failed. Another completion holds the
/// cause.
pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = 5;
/// Error for an invalid response of the peer.
pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = 7;
/// Error for local memory that a peer's write with an immediate may not access.
pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = 8;
/// Error for a request that the peer did not understand or does not allow.
pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = 9;
/// Error for memory of the peer that is not registered under the given key, or not for this use.
pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = 10;
/// Error for a request that the peer could not carry out.
pub const IBV_WC_REM_OP_ERR: ibv_wc_status = 11;
/// Error for a request that the peer did not acknowledge after all retries.
pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = 12;
/// Error for a request that found no receive request at the peer after all retries.
pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = 13;
/// Error for a request that the peer aborted.
pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = 16;
/// Error for a device that failed.
pub const IBV_WC_FATAL_ERR: ibv_wc_status = 19;
/// Error for a response that did not come in time.
pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = 20;
/// Error for everything else.
pub const IBV_WC_GENERAL_ERR: ibv_wc_status = 21;

/// Kind of a completed work request.
pub type ibv_wc_opcode = c_uint;
/// Write to the peer's memory.
pub const IBV_WC_RDMA_WRITE: ibv_wc_opcode = 1;
/// Message from the peer.
pub const IBV_WC_RECV: ibv_wc_opcode = 1 << 7;
/// Write by the peer with an immediate.
pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = IBV_WC_RECV + 1;

/// Flag of a completion whose [`ibv_wc::imm_data`](crate::ibv_wc::imm_data) holds an immediate.
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;

/// Operation of a work request.
pub type ibv_wr_opcode = c_uint;
/// Write to the peer's memory.
pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = 0;
/// Write to the peer's memory that also completes a receive request of the peer; the completion
/// carries the immediate.
pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = 1;

/// Flag of a request for which a completion is reported even if it succeeds.
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// Flag of a request whose bytes are taken when it is posted.
pub const IBV_SEND_INLINE: c_uint = 1 << 3;

/// Accesses that memory or a queue pair allows.
pub type ibv_access_flags = c_int;
/// Flag that lets the local device write.
pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
/// Flag that lets peers write.
pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 1 << 1;
/// Flag that lets writes overtake each other on the bus.
pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1 << 20;

/// State of a queue pair.
pub type ibv_qp_state = c_uint;
/// State of a new queue pair.
pub const IBV_QPS_RESET: ibv_qp_state = 0;
/// State of a queue pair that takes receive requests.
pub const IBV_QPS_INIT: ibv_qp_state = 1;
/// State of a queue pair that is ready to receive.
pub const IBV_QPS_RTR: ibv_qp_state = 2;
/// State of a queue pair that is ready to send.
pub const IBV_QPS_RTS: ibv_qp_state = 3;
/// State of a queue pair that does nothing more; its pending requests are flushed.
pub const IBV_QPS_ERR: ibv_qp_state = 6;

/// Type of a reliable connected queue pair.
pub const IBV_QPT_RC: c_uint = 2;

/// Mask bit for [`ibv_qp_attr::qp_state`](crate::ibv_qp_attr::qp_state): a call changes only the
/// fields whose bits are set.
pub const IBV_QP_STATE: c_int = 1;
/// Mask bit for the access flags.
pub const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
/// Mask bit for the partition.
pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
/// Mask bit for the port.
pub const IBV_QP_PORT: c_int = 1 << 5;
/// Mask bit for the path to the peer.
pub const IBV_QP_AV: c_int = 1 << 7;
/// Mask bit for the length of the longest packet.
pub const IBV_QP_PATH_MTU: c_int = 1 << 8;
/// Mask bit for the acknowledgement timeout.
pub const IBV_QP_TIMEOUT: c_int = 1 << 9;
/// Mask bit for the number of times that a packet is sent again.
pub const IBV_QP_RETRY_CNT: c_int = 1 << 10;
/// Mask bit for the number of retries when the receiver is not ready.
pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
/// Mask bit for the sequence number (PSN) of the peer's first packet.
pub const IBV_QP_RQ_PSN: c_int = 1 << 12;
/// Mask bit for the number of reads and atomics under way.
pub const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
/// Mask bit for the time that a sender waits when this side is not ready.
pub const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// Mask bit for the sequence number (PSN) of this side's first packet.
pub const IBV_QP_SQ_PSN: c_int = 1 << 16;
/// Mask bit for the number of the peer's reads and atomics under way.
pub const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
/// Mask bit for the number of the peer's queue pair.
pub const IBV_QP_DEST_QPN: c_int = 1 << 20;

/// Code of a packet length: 1 is 256 bytes, each step doubles the length, and 5 is 4096 bytes.
pub type ibv_mtu = c_uint;
/// Code of the shortest packets.
pub const IBV_MTU_256: ibv_mtu = 1;
/// Code of the longest packets.
pub const IBV_MTU_4096: ibv_mtu = 5;

/// State of a port.
pub type ibv_port_state = c_uint;
/// State of a port without a link.
pub const IBV_PORT_DOWN: ibv_port_state = 1;
/// State of a port whose link is not configured yet.
pub const IBV_PORT_INIT: ibv_port_state = 2;
/// State of a port that is almost active.
pub const IBV_PORT_ARMED: ibv_port_state = 3;
/// State of a port that works.
pub const IBV_PORT_ACTIVE: ibv_port_state = 4;

/// Value for a port whose link layer the library does not report.
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// Link layer of InfiniBand.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// Link layer of Ethernet (RoCE).
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// Flag of [`ibv_port_attr::flags`](crate::ibv_port_attr::flags): every path needs a global route
/// header (GRH).
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

/// Type of an InfiniBand address.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// Type of an address of RoCE without IP (version 1).
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// Type of an address of RoCE over UDP and IP (version 2).
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Kind of an asynchronous event of a device, a port or a queue pair.
pub type ibv_event_type = c_uint;
/// Event for a completion queue that overflowed.
pub const IBV_EVENT_CQ_ERR: ibv_event_type = 0;
/// Event for a queue pair that failed.
pub const IBV_EVENT_QP_FATAL: ibv_event_type = 1;
/// Event for a queue pair that received something that it could not understand.
pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = 2;
/// Event for a queue pair that received something that is not allowed.
pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = 3;
/// Event for a first packet that came before the connection was reported as established.
pub const IBV_EVENT_COMM_EST: ibv_event_type = 4;
/// Event for a device that failed.
pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = 8;
/// Event for a port that works again.
pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = 9;
/// Event for a port that lost its link.
pub const IBV_EVENT_PORT_ERR: ibv_event_type = 10;
/// Event for a port whose InfiniBand address (LID) changed.
pub const IBV_EVENT_LID_CHANGE: ibv_event_type = 11;
/// Event for a port whose partitions changed.
pub const IBV_EVENT_PKEY_CHANGE: ibv_event_type = 12;
/// Event for a port whose addresses changed.
pub const IBV_EVENT_GID_CHANGE: ibv_event_type = 18;
