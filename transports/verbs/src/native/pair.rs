//! Queue pairs.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::transport::TransportError;
use rdma_sys::*;

use super::context::Domain;
use super::memory::Sge;
use super::queue::Queue;
use super::{check, forget_errors, last};

/// Capacity of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Number of writes that may be under way.
    pub(crate) writes: u32,
    /// Number of immediates that may come before receive requests are renewed.
    pub(crate) immediates: u32,
    /// Length of the longest write whose bytes are taken when it is posted.
    pub(crate) inline_bytes: u32,
}

/// Path from one queue pair to another, with its timeout and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// Number of this side's port, from 1.
    pub(crate) port: u8,
    /// Index into the port's partition key (P_Key) table.
    pub(crate) partition: u16,
    /// Row of the port's GID table; none if the path is not routed.
    pub(crate) gid_index: Option<u8>,
    /// The peer's address.
    pub(crate) peer_gid: [u8; 16],
    /// The peer's address in its InfiniBand subnet.
    pub(crate) peer_lid: u16,
    /// Number of the peer's queue pair.
    pub(crate) peer_number: u32,
    /// Sequence number of the first packet (PSN), the same on both sides.
    pub(crate) first_psn: u32,
    /// Code of the longest packet: `IBV_MTU_...`.
    pub(crate) mtu: ibv_mtu,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    /// Label that tells packets of this queue pair apart from those of others.
    pub(crate) flow_label: u32,
    /// Exponent of the acknowledgement timeout: 4.096 µs times two to this power.
    pub(crate) timeout: u8,
    /// Number of times that a packet is sent again.
    pub(crate) retries: u8,
    /// Number of retries when the receiver is not ready; the value 7 means no limit.
    pub(crate) rnr_retries: u8,
}

/// One write to a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    /// Id that comes back with the completion.
    pub(crate) id: u64,
    pub(crate) from: Option<Sge>,
    /// Bytes that follow `from`.
    pub(crate) then: Option<Sge>,
    /// Address of the peer's memory, and its key.
    pub(crate) to: (u64, u32),
    pub(crate) immediate: Option<u32>,
    /// True if a completion is reported even if the write succeeds.
    pub(crate) signaled: bool,
    /// True if the bytes are taken when the write is posted.
    pub(crate) inline: bool,
}

impl Write {
    fn sge_pairs(&self) -> [ibv_sge; 2] {
        let mut sge_pairs = [ibv_sge::default(); 2];
        let sges = [self.from, self.then].into_iter().flatten();
        sge_pairs.iter_mut().zip(sges).for_each(|(entry, Sge(sge))| *entry = sge);
        sge_pairs
    }
}

/// A queue pair, reliable and connected.
pub(crate) struct Pair {
    domain: Arc<Domain>,
    /// Completion queue, kept until the pair has ended.
    _queue: Arc<Queue>,
    pair: NonNull<ibv_qp>,
    room: Room,
    /// Memory that each of `requests` reads: up to two ranges.
    sge_pairs: Vec<[ibv_sge; 2]>,
    /// Prepared writes in the form of libibverbs; cleared by each post.
    requests: Vec<ibv_send_wr>,
    /// Receive requests in the form of libibverbs, made anew for each post.
    receives: Vec<ibv_recv_wr>,
}

// SAFETY: libibverbs may be called from several threads, and locks what they share. The pointers in
// the lists lead only to elements of the lists.
unsafe impl Send for Pair {}

impl Pair {
    /// Makes a queue pair whose completions go to `queue`. The queue pair may take fewer bytes
    /// inline than requested: a device does not report its limit, so smaller numbers are tried.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        queue: &Arc<Queue>,
        room: Room,
    ) -> Result<Pair, TransportError> {
        match Pair::try_new(domain, queue, room) {
            Err(_) if room.inline_bytes > 0 => {
                let inline_bytes = room.inline_bytes / 2;
                Pair::new(domain, queue, Room { inline_bytes, ..room })
            }
            made => made,
        }
    }

    fn try_new(
        domain: &Arc<Domain>,
        queue: &Arc<Queue>,
        room: Room,
    ) -> Result<Pair, TransportError> {
        let mut init = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: std::ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: room.writes,
                max_recv_wr: room.immediates,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: room.inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        forget_errors();
        // SAFETY: the domain and the completion queue are alive.
        let pair = unsafe { (domain.context.functions.create_qp)(domain.raw(), &raw mut init) };
        let pair = NonNull::new(pair).ok_or_else(|| last("ibv_create_qp", PAIRS))?;
        // A device may grant more writes and immediates than were requested. The surplus is not
        // used: room in the completion queue is reserved only for the requested numbers.
        let writes = room.writes.min(init.cap.max_send_wr);
        let immediates = room.immediates.min(init.cap.max_recv_wr);
        let inline_bytes = init.cap.max_inline_data;
        let many = writes as usize;
        Ok(Pair {
            domain: Arc::clone(domain),
            _queue: Arc::clone(queue),
            pair,
            room: Room { writes, immediates, inline_bytes },
            sge_pairs: Vec::with_capacity(many),
            requests: Vec::with_capacity(many),
            receives: Vec::with_capacity(immediates as usize),
        })
    }

    /// Returns the room that the queue pair was granted.
    pub(crate) fn room(&self) -> Room {
        self.room
    }

    /// Returns the number that peers know the queue pair by.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.pair.as_ref() }.qp_num
    }

    /// Makes the queue pair take receive requests.
    pub(crate) fn prepare(&mut self, port: u8, partition: u16) -> Result<(), TransportError> {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: partition,
            port_num: port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE as u32,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp(INIT)", attr, mask, PORT)
    }

    /// Connects the queue pair with its peer, which must do the same before anything is sent.
    pub(crate) fn connect(&mut self, path: &Path) -> Result<(), TransportError> {
        let grh = ibv_global_route {
            dgid: ibv_gid { raw: path.peer_gid },
            flow_label: path.flow_label,
            sgid_index: path.gid_index.unwrap_or(0),
            hop_limit: u8::MAX,
            traffic_class: path.traffic_class,
        };
        let ah_attr = ibv_ah_attr {
            grh: if path.gid_index.is_some() { grh } else { ibv_global_route::default() },
            dlid: path.peer_lid,
            sl: path.service_level,
            is_global: path.gid_index.is_some().into(),
            port_num: path.port,
            ..ibv_ah_attr::default()
        };
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: path.mtu,
            dest_qp_num: path.peer_number,
            rq_psn: path.first_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: NOT_READY_TIMER,
            ah_attr,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp(RTR)", attr, mask, PATH)?;
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: path.timeout,
            retry_cnt: path.retries,
            rnr_retry: path.rnr_retries,
            sq_psn: path.first_psn,
            max_rd_atomic: 1,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp(RTS)", attr, mask, PATH)
    }

    /// Stops the queue pair: its pending requests complete as flushed, after the completions of
    /// earlier requests.
    pub(crate) fn stop(&mut self) -> Result<(), TransportError> {
        let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify("ibv_modify_qp(ERR)", attr, IBV_QP_STATE, PORT)
    }

    fn modify(
        &mut self,
        call: &'static str,
        mut attr: ibv_qp_attr,
        mask: i32,
        advice: &'static str,
    ) -> Result<(), TransportError> {
        let modify = self.domain.context.functions.modify_qp;
        // SAFETY: the queue pair is alive, and the attributes are valid.
        check(call, unsafe { modify(self.pair.as_ptr(), &raw mut attr, mask) }, advice)
    }

    /// Prepares a write, for which there must be room. The write's memory must stay registered
    /// until the write is done; the device checks this. Inline bytes must stay valid until the
    /// write is posted.
    pub(crate) fn stage(&mut self, write: &Write) {
        self.sge_pairs.push(write.sge_pairs());
        self.requests.push(request(write));
    }

    /// Returns whether a write is prepared and not handed to the device.
    pub(crate) fn is_staged(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Requests a completion of the last prepared write. Returns false if no write is prepared.
    pub(crate) fn signal_last(&mut self) -> bool {
        let last = self.requests.last_mut();
        last.is_some_and(|request| {
            request.send_flags |= IBV_SEND_SIGNALED;
            true
        })
    }

    /// Hands all prepared writes to the device, ringing the doorbell once.
    ///
    /// # Errors
    ///
    /// When the device does not take them all.
    pub(crate) fn post_staged(&mut self) -> Result<(), TransportError> {
        if self.requests.is_empty() {
            return Ok(());
        }
        link(&mut self.requests, &mut self.sge_pairs);
        let (list, mut bad) = (self.requests.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the pair is alive, and so is everything that the lists point to.
        let result = unsafe { ibv_post_send(self.pair.as_ptr(), list, &raw mut bad) };
        self.sge_pairs.clear();
        self.requests.clear();
        check("ibv_post_send", result, "this is a defect of ferroccl, please report it")
    }

    /// Posts receive requests, which take only immediates. Their completions have the id `name`.
    pub(crate) fn receive(&mut self, count: usize, name: u64) -> Result<(), TransportError> {
        if count == 0 {
            return Ok(());
        }
        let receives = &mut self.receives;
        receives.clear();
        receives.extend((0..count).map(|_| ibv_recv_wr { wr_id: name, ..ibv_recv_wr::default() }));
        let start = receives.as_mut_ptr();
        for at in 1..count {
            receives[at - 1].next = start.wrapping_add(at);
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is alive, and so is every element of the list.
        let result = unsafe { ibv_post_recv(self.pair.as_ptr(), start, &raw mut bad) };
        check("ibv_post_recv", result, "this is a defect of ferroccl, please report it")
    }
}

/// Returns a write in the form of libibverbs; `link` adds the memory.
fn request(write: &Write) -> ibv_send_wr {
    let (opcode, imm_data) = match write.immediate {
        Some(immediate) => (IBV_WR_RDMA_WRITE_WITH_IMM, immediate.to_be()),
        None => (IBV_WR_RDMA_WRITE, 0),
    };
    let signaled = if write.signaled { IBV_SEND_SIGNALED } else { 0 };
    let inline = if write.inline { IBV_SEND_INLINE } else { 0 };
    let mut request = ibv_send_wr::default();
    (request.wr_id, request.opcode, request.imm_data) = (write.id, opcode, imm_data);
    request.send_flags = signaled | inline;
    request.num_sge = i32::from(write.from.is_some()) + i32::from(write.then.is_some());
    (request.rdma.remote_addr, request.rdma.rkey) = write.to;
    request
}

/// Makes each request point to its memory and to the next request.
fn link(requests: &mut [ibv_send_wr], sge_pairs: &mut [[ibv_sge; 2]]) {
    let start = requests.as_mut_ptr();
    let last = requests.len().saturating_sub(1);
    for (at, (request, sge_pairs)) in requests.iter_mut().zip(sge_pairs).enumerate() {
        request.sg_list = sge_pairs.as_mut_ptr();
        request.next = if at < last { start.wrapping_add(at + 1) } else { std::ptr::null_mut() };
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.domain.context.is_ours() {
            return;
        }
        // SAFETY: the queue pair is alive, and ends once. After this returns, nothing is read or
        // written through it any more.
        unsafe { (self.domain.context.functions.destroy_qp)(self.pair.as_ptr()) };
    }
}

/// Code of the time that a sender waits before a retry when the receiver is not ready: 0.64 ms, by
/// the InfiniBand specification (table 45, "RNR NAK timer").
const NOT_READY_TIMER: u8 = 12;

const PAIRS: &str = "if the device has no queue pair left, use fewer per peer, such as \
                     FERROCCL_IB_POLICY=2; if memory is short, raise the limit of locked memory: \
                     `ulimit -l unlimited`";
const PORT: &str = "see whether the port and the partition exist: `ibv_devinfo -v`";
const PATH: &str = "see whether this device's address reaches the peer's address, and whether the \
                    chosen row of the GID table has the RoCE version and the IP family \
                    of the peer's row";
