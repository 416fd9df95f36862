//! Functions with the signatures of libibverbs.

use std::collections::VecDeque;
use std::ptr::null_mut;

use libc::{EINVAL, ENODATA, ENODEV, ENOMEM, c_char, c_int, c_uint, c_void};
use rdma_sys::*;

use crate::network::{Network, Pair, Payload, Queue, Send, Traffic, lock};
use crate::objects::{
    self, Context, Memory, bell, hand_out, hear, load, opened, places, refuse, take_back,
};

/// Number of the only port.
const PORT: u8 = 1;
/// Partition keys: only the default one.
const PARTITIONS: [u16; 1] = [0xffff];

/// Returns the function table for all soft devices.
#[must_use]
pub fn functions() -> &'static Functions {
    static FUNCTIONS: Functions = Functions {
        fork_init,
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid,
        query_gid_ex: Some(query_gid_ex),
        query_pkey,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        reg_mr_iova2: Some(reg_mr_iova2),
        reg_dmabuf_mr: None,
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        get_async_event,
        ack_async_event,
    };
    &FUNCTIONS
}

/// Returns the device's number. The pointer encodes that number and must not be dereferenced.
fn device_of(device: *mut ibv_device) -> u32 {
    device.addr() as u32
}

unsafe extern "C" fn fork_init() -> c_int {
    0
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let network = lock();
    let listed = network.devices.iter().filter(|(_, device)| device.listed);
    let mut list: Vec<*mut ibv_device> =
        listed.map(|(id, _)| std::ptr::without_provenance_mut(*id as usize)).collect();
    if !count.is_null() {
        // SAFETY: the caller has room for the number.
        unsafe { *count = list.len() as c_int };
    }
    list.push(null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list was handed out with a null at its end.
    let is_last = |at: &usize| unsafe { list.wrapping_add(*at).read() }.is_null();
    let devices = (0..).take_while(|at| !is_last(at)).count();
    let list = std::ptr::slice_from_raw_parts_mut(list, devices + 1);
    // SAFETY: the list was a boxed slice of `devices + 1` pointers.
    drop(unsafe { Box::from_raw(list) });
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    let network = lock();
    network.devices.get(&device_of(device)).map_or(std::ptr::null(), |device| device.name.as_ptr())
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let (mut network, device_id) = (lock(), device_of(device));
    let id = network.next_id();
    let Some(found) = network.devices.get_mut(&device_id) else { return refuse(ENODEV) };
    let async_fd = bell();
    found.opened.insert(id, (async_fd, VecDeque::new()));
    let mut ops = ibv_context_ops::default();
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    let base = ibv_context { device, ops, cmd_fd: -1, async_fd, num_comp_vectors: 1 };
    hand_out(Context { base, device: device_id, id }).cast()
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller has opened this context.
    let (device, id) = unsafe { opened(context) };
    let mut network = lock();
    let found = network.devices.get_mut(&device);
    if let Some((bell, _)) = found.and_then(|device| device.opened.remove(&id)) {
        objects::close(bell);
    }
    network.forget(device);
    // SAFETY: the context was handed out, and is closed once.
    unsafe { take_back(context.cast::<Context>()) };
    0
}

unsafe extern "C" fn query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller has opened this context.
    let (device, _) = unsafe { opened(context) };
    let network = lock();
    let Some(device) = network.devices.get(&device) else { return ENODEV };
    let limits = &device.limits;
    // SAFETY: all fields are numbers, which may be zero, and the caller has room for them.
    unsafe { into.write_bytes(0, 1) };
    // SAFETY: the attributes have just been written.
    let attr = unsafe { &mut *into };
    attr.max_mr_size = limits.memory_bytes as u64;
    attr.max_qp = limits.pairs as c_int;
    attr.max_qp_wr = limits.requests as c_int;
    attr.max_cqe = limits.completions as c_int;
    (attr.max_sge, attr.phys_port_cnt) = (30, 1);
    (attr.max_mr, attr.max_cq, attr.max_pkeys) = (1 << 20, 1 << 16, PARTITIONS.len() as u16);
    0
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller has opened this context.
    let (device, _) = unsafe { opened(context) };
    let network = lock();
    let Some(device) = network.devices.get(&device).filter(|_| port == PORT) else {
        return EINVAL;
    };
    let attr = ibv_port_attr {
        state: if device.link { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: device.limits.gids.len() as c_int,
        max_msg_sz: 1 << 30,
        pkey_tbl_len: PARTITIONS.len() as u16,
        lid: u16::from(device.limits.link_layer == IBV_LINK_LAYER_INFINIBAND),
        active_width: 2,
        active_speed: 32,
        link_layer: device.limits.link_layer,
        ..ibv_port_attr::default()
    };
    // SAFETY: the caller has room for the attributes.
    unsafe { into.write(attr) };
    0
}

/// Returns a row of the GID table; `None` if the table is shorter, `Some(None)` for a gap.
fn gid(network: &Network, device: u32, row: u32) -> Option<Option<([u8; 16], u32)>> {
    network.devices.get(&device)?.limits.gids.get(row as usize).copied()
}

unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    row: c_int,
    into: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller has opened this context.
    let (device, _) = unsafe { opened(context) };
    match gid(&lock(), device, row as u32).filter(|_| port == PORT) {
        Some(row) => {
            let raw = row.map_or([0; 16], |(raw, _)| raw);
            // SAFETY: the caller has room for the GID.
            unsafe { into.write(ibv_gid { raw }) };
            0
        }
        None => -1,
    }
}

unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    row: u32,
    into: *mut ibv_gid_entry,
    _flags: u32,
    _entry_bytes: usize,
) -> c_int {
    // SAFETY: the caller has opened this context.
    let (device, _) = unsafe { opened(context) };
    match gid(&lock(), device, row).filter(|_| port == u32::from(PORT)) {
        Some(Some((raw, gid_type))) => {
            let gid = ibv_gid { raw };
            let entry =
                ibv_gid_entry { gid, gid_index: row, port_num: port, gid_type, ndev_ifindex: 0 };
            // SAFETY: the caller has room for the entry.
            unsafe { into.write(entry) };
            0
        }
        Some(None) => ENODATA,
        None => EINVAL,
    }
}

unsafe extern "C" fn query_pkey(
    _context: *mut ibv_context,
    port: u8,
    row: c_int,
    into: *mut u16,
) -> c_int {
    match PARTITIONS.get(row as usize).filter(|_| port == PORT) {
        Some(key) => {
            // SAFETY: the caller has room for the key.
            unsafe { into.write(key.to_be()) };
            0
        }
        None => -1,
    }
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let handle = lock().next_id();
    hand_out(ibv_pd { context, handle })
}

unsafe extern "C" fn dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's domain exists.
    let handle = unsafe { (*domain).handle };
    let network = lock();
    let used = network.memory.values().any(|memory| memory.domain == handle)
        || network.pairs.values().any(|pair| pair.domain == handle);
    if used {
        return libc::EBUSY;
    }
    // SAFETY: the domain was handed out, and is freed only once.
    unsafe { take_back(domain) };
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's domain exists.
    let &ibv_pd { context, handle: domain } = unsafe { &*pd };
    // SAFETY: the caller has opened this context.
    let (device, _) = unsafe { opened(context) };
    let mut network = lock();
    let Some(found) = network.devices.get(&device) else { return refuse(ENODEV) };
    let most = found.limits.memory_bytes;
    let used = network.memory.values().filter(|memory| memory.device == device);
    if used.map(|memory| memory.bytes).sum::<usize>() + length > most {
        return refuse(ENOMEM);
    }
    let key = network.next_id();
    let address = addr.expose_provenance();
    network.memory.insert(key, Memory { device, domain, address, bytes: length, access });
    hand_out(ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key })
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if iova != addr.addr() as u64 {
        return refuse(EINVAL);
    }
    // SAFETY: the caller keeps the contract, which is the same as for `reg_mr`.
    unsafe { reg_mr(pd, addr, length, access as c_int & !IBV_ACCESS_RELAXED_ORDERING) }
}

unsafe extern "C" fn dereg_mr(memory: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's memory region exists.
    let key = unsafe { (*memory).lkey };
    lock().memory.remove(&key);
    // SAFETY: the memory region was handed out, and is freed only once.
    unsafe { take_back(memory) };
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    hand_out(ibv_comp_channel { context, fd: bell(), refcnt: 0 })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's channel exists.
    let bell = unsafe { (*channel).fd };
    lock().rung.remove(&bell);
    objects::close(bell);
    // SAFETY: the channel was handed out, and is freed only once.
    unsafe { take_back(channel) };
    0
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the caller has opened this context.
    let (device, _) = unsafe { opened(context) };
    let mut network = lock();
    let most = network.devices.get(&device).map_or(0, |device| device.limits.completions);
    if cqe < 1 || cqe as u32 > most {
        return refuse(EINVAL);
    }
    let handle = network.next_id();
    let queue = hand_out(ibv_cq { context, channel, cq_context, handle, cqe });
    // SAFETY: a channel that the caller passes exists.
    let bell = (!channel.is_null()).then(|| (unsafe { (*channel).fd }, queue.expose_provenance()));
    let completions = VecDeque::new();
    let made = Queue { device, room: cqe as usize, completions, armed: false, channel: bell };
    network.queues.insert(handle, made);
    queue
}

unsafe extern "C" fn destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's completion queue exists.
    let handle = unsafe { (*queue).handle };
    let mut network = lock();
    if network.pairs.values().any(|pair| pair.send_queue == handle || pair.recv_queue == handle) {
        return libc::EBUSY;
    }
    network.queues.remove(&handle);
    // SAFETY: the completion queue was handed out, and is freed only once.
    unsafe { take_back(queue) };
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's channel exists.
    let bell = unsafe { (*channel).fd };
    if !hear(bell) {
        return -1;
    }
    let rung = lock().rung.get_mut(&bell).and_then(VecDeque::pop_front);
    let Some(rung) = rung else { return -1 };
    let rung = std::ptr::with_exposed_provenance_mut::<ibv_cq>(rung);
    // SAFETY: a queue is not destroyed before its events were acknowledged.
    let own = unsafe { (*rung).cq_context };
    // SAFETY: the caller has room for the queue's pointer.
    unsafe { queue.write(rung) };
    // SAFETY: the caller has room for the context's pointer.
    unsafe { context.write(own) };
    0
}

unsafe extern "C" fn ack_cq_events(_queue: *mut ibv_cq, _count: c_uint) {}

unsafe extern "C" fn create_qp(domain: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's domain exists.
    let pd = unsafe { &*domain };
    // SAFETY: only this call uses the attributes.
    let init = unsafe { &mut *init };
    // SAFETY: the caller has opened this context.
    let (device, context) = unsafe { opened(pd.context) };
    let mut network = lock();
    let pairs = network.in_use(device).0;
    let Some(found) = network.devices.get(&device) else { return refuse(ENODEV) };
    let (limits, cap) = (&found.limits, init.cap);
    if pairs >= limits.pairs {
        return refuse(ENOMEM);
    }
    let most = cap.max_send_wr.max(cap.max_recv_wr);
    if most > limits.requests || cap.max_inline_data > limits.inline_bytes {
        return refuse(EINVAL);
    }
    let number = network.next_id();
    let (send_cq, recv_cq, qp_type) = (init.send_cq, init.recv_cq, init.qp_type);
    // SAFETY: the caller's send queue exists.
    let send_queue = unsafe { (*send_cq).handle };
    // SAFETY: the caller's receive queue exists.
    let recv_queue = unsafe { (*recv_cq).handle };
    let traffic = Traffic { number, ..Traffic::default() };
    let made = hand_out(ibv_qp {
        context: pd.context,
        qp_context: init.qp_context,
        pd: domain,
        send_cq,
        recv_cq,
        srq: null_mut(),
        handle: number,
        qp_num: number,
        state: IBV_QPS_RESET,
        qp_type,
    });
    let pair = Pair {
        device,
        context,
        domain: pd.handle,
        number,
        address: made.expose_provenance(),
        send_queue,
        recv_queue,
        cap,
        attr: ibv_qp_attr::default(),
        sends: VecDeque::new(),
        taken: 0,
        done: 0,
        recvs: VecDeque::new(),
        tries: 0,
        traffic,
    };
    network.pairs.insert(number, pair);
    made
}

/// Returns the state from which the transition to `to` starts, and the attributes that this
/// transition requires.
fn step(to: ibv_qp_state) -> (ibv_qp_state, c_int) {
    match to {
        IBV_QPS_INIT => (IBV_QPS_RESET, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        IBV_QPS_RTR => {
            let way = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            (IBV_QPS_INIT, way | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
        }
        _ => {
            let patience = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
            (IBV_QPS_RTR, patience | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
        }
    }
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's queue pair exists, and the caller changes it from one thread.
    let qp = unsafe { &mut *qp };
    // SAFETY: the caller's attributes exist and are initialised.
    let attr = unsafe { &*attr };
    let mut network = lock();
    let Some(mut pair) = network.pairs.remove(&qp.qp_num) else { return EINVAL };
    let result = network.change(&mut pair, attr, mask);
    qp.state = pair.attr.qp_state;
    network.pairs.insert(pair.number, pair);
    result
}

impl Network {
    fn change(&mut self, pair: &mut Pair, attr: &ibv_qp_attr, mask: c_int) -> c_int {
        let to = attr.qp_state;
        if mask & IBV_QP_STATE == 0 {
            return EINVAL;
        }
        if to == IBV_QPS_ERR {
            self.fail(pair);
            return 0;
        }
        let (from, needed) = step(to);
        if ![IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS].contains(&to)
            || pair.attr.qp_state != from
            || mask != needed | IBV_QP_STATE
        {
            return EINVAL;
        }
        let row = u32::from(attr.ah_attr.grh.sgid_index);
        let routed = attr.ah_attr.is_global == 1;
        if to == IBV_QPS_RTR && routed && !matches!(gid(self, pair.device, row), Some(Some(_))) {
            return EINVAL;
        }
        let known = pair.attr;
        pair.attr = *attr;
        if to == IBV_QPS_RTR {
            pair.traffic.traffic_class = attr.ah_attr.grh.traffic_class;
            pair.traffic.flow_label = attr.ah_attr.grh.flow_label;
            pair.traffic.mtu = attr.path_mtu;
        } else if to == IBV_QPS_RTS {
            pair.attr.ah_attr = known.ah_attr;
            pair.attr.dest_qp_num = known.dest_qp_num;
            pair.traffic.rnr_retries = attr.rnr_retry;
        }
        0
    }
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's queue pair exists.
    let number = unsafe { (*qp).qp_num };
    match lock().pairs.get(&number) {
        Some(pair) => {
            // SAFETY: the caller has room for the attributes.
            unsafe { attr.write(ibv_qp_attr { cap: pair.cap, ..pair.attr }) };
            0
        }
        None => EINVAL,
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's queue pair exists.
    let number = unsafe { (*qp).qp_num };
    lock().remove_pair(number);
    // SAFETY: the queue pair was handed out, and is freed only once.
    unsafe { take_back(qp) };
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller has opened this context.
    let (device, id) = unsafe { opened(context) };
    // SAFETY: as above.
    let bell = unsafe { (*context).async_fd };
    if !hear(bell) {
        return -1;
    }
    let mut network = lock();
    let found = network.devices.get_mut(&device).and_then(|device| device.opened.get_mut(&id));
    let Some(raised) = found.and_then(|(_, events)| events.pop_front()) else {
        return -1;
    };
    let element = match raised.pair {
        Some((_, address)) => {
            ibv_async_event_element { qp: std::ptr::with_exposed_provenance_mut(address) }
        }
        None => ibv_async_event_element { port_num: c_int::from(PORT) },
    };
    let event_type = raised.event;
    // SAFETY: the caller has room for the event.
    unsafe { event.write(ibv_async_event { element, event_type }) };
    0
}

unsafe extern "C" fn ack_async_event(_event: *mut ibv_async_event) {}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair exists.
    let number = unsafe { (*qp).qp_num };
    let mut network = lock();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: all requests in the caller's list exist.
        let request = unsafe { &*next };
        // SAFETY: the request's list of ranges has as many entries as the request says.
        let result = match unsafe { send(request) } {
            Some(send) => network.take(number, request.send_flags, send),
            None => EINVAL,
        };
        if result != 0 {
            // SAFETY: the caller has room for the bad request's pointer.
            unsafe { bad.write(next) };
            return result;
        }
        next = request.next;
    }
    0
}

/// Decodes a send request.
///
/// # Safety
///
/// The request's list has as many entries as the request says.
unsafe fn send(request: &ibv_send_wr) -> Option<Send> {
    let immediate = match request.opcode {
        IBV_WR_RDMA_WRITE => None,
        IBV_WR_RDMA_WRITE_WITH_IMM => Some(request.imm_data),
        _ => return None,
    };
    // SAFETY: the caller keeps the contract.
    let places = unsafe { places(request.sg_list, request.num_sge) };
    let what = if request.send_flags & IBV_SEND_INLINE == 0 {
        Payload::At(places)
    } else {
        let mut taken = Vec::new();
        places.iter().for_each(|place| load(place.addr, place.length as usize, &mut taken));
        Payload::Taken(taken)
    };
    let signaled = request.send_flags & IBV_SEND_SIGNALED != 0;
    let (to, key) = (request.rdma.remote_addr, request.rdma.rkey);
    Some(Send { id: request.wr_id, signaled, immediate, to, key, what })
}

impl Network {
    fn take(&mut self, number: u32, flags: c_uint, send: Send) -> c_int {
        let Some(mut pair) = self.pairs.remove(&number) else { return EINVAL };
        let too_long = matches!(&send.what, Payload::Taken(bytes)
            if bytes.len() > pair.cap.max_inline_data as usize);
        let result = if flags & !(IBV_SEND_SIGNALED | IBV_SEND_INLINE) != 0 || too_long {
            EINVAL
        } else if pair.taken >= pair.cap.max_send_wr as usize {
            ENOMEM
        } else if pair.attr.qp_state == IBV_QPS_ERR {
            pair.taken += 1;
            pair.sends.push_back(send);
            self.fail(&mut pair);
            0
        } else if pair.attr.qp_state != IBV_QPS_RTS {
            EINVAL
        } else {
            pair.taken += 1;
            pair.sends.push_back(send);
            0
        };
        self.pairs.insert(number, pair);
        result
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue pair exists.
    let number = unsafe { (*qp).qp_num };
    let mut network = lock();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: all requests in the caller's list exist.
        let request = unsafe { &*next };
        let result = match network.pairs.get_mut(&number) {
            Some(pair) if pair.attr.qp_state == IBV_QPS_RESET => EINVAL,
            Some(pair) if pair.recvs.len() >= pair.cap.max_recv_wr as usize => ENOMEM,
            Some(pair) => {
                pair.recvs.push_back(request.wr_id);
                0
            }
            None => EINVAL,
        };
        if result != 0 {
            // SAFETY: the caller has room for the bad request's pointer.
            unsafe { bad.write(next) };
            return result;
        }
        next = request.next;
    }
    0
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, count: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's completion queue exists.
    let handle = unsafe { (*queue).handle };
    let mut network = lock();
    network.travel();
    let mut taken = 0;
    while taken < count {
        let Some(queue) = network.queues.get_mut(&handle) else { return -1 };
        let Some((completion, pair, frees)) = queue.completions.pop_front() else { break };
        if let Some(pair) = network.pairs.get_mut(&pair) {
            pair.taken -= frees;
        }
        // SAFETY: the caller has room for `count` completions.
        unsafe { into.wrapping_add(taken as usize).write(completion) };
        taken += 1;
    }
    taken
}

unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    // SAFETY: the caller's completion queue exists.
    let handle = unsafe { (*queue).handle };
    match lock().queues.get_mut(&handle) {
        Some(queue) => {
            queue.armed = true;
            0
        }
        None => EINVAL,
    }
}
