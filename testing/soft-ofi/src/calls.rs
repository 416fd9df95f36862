//! Functions with the signatures of libfabric's functions, and the function tables of the objects
//! that these functions hand out.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::OnceLock;

use libc::{EAGAIN, EBUSY, EINVAL, EMSGSIZE, c_char, c_int, c_void, size_t, ssize_t};
use libfabric_sys::*;

use crate::network::{
    ADDRESS_BYTES, Completion, Endpoint, Memory, Network, Payload, Provider, Queue, Request,
    Target, lock,
};
use crate::objects::{self, Range, give, id_of, pointer_of, range, take_back};
use crate::{Condition, offers};

/// First bytes of every address.
const ADDRESS_HEAD: &[u8; 12] = b"soft-address";

/// Returns the function table for all software providers.
#[must_use]
pub fn functions() -> &'static Functions {
    static FUNCTIONS: Functions = Functions {
        version,
        getinfo: offers::getinfo,
        freeinfo: offers::freeinfo,
        dupinfo: offers::dupinfo,
        fabric,
        strerror: offers::strerror,
    };
    &FUNCTIONS
}

/// Tables of all objects.
struct Tables {
    fabric: (fi_ops, fi_ops_fabric),
    domain: (fi_ops, fi_ops_domain, fi_ops_mr),
    memory: fi_ops,
    queue: (fi_ops, fi_ops_cq),
    vector: (fi_ops, fi_ops_av),
    events: (fi_ops, fi_ops_eq),
    endpoint: (fi_ops, fi_ops_cm, fi_ops_msg, fi_ops_rma, fi_ops_ep),
}

// SAFETY: nobody writes the tables, and their pointers are null or functions.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

/// Base functions, all absent; each object sets its own.
const BASE: fi_ops =
    fi_ops { size: size_of::<fi_ops>(), close: None, bind: None, control: None, ops_open: None };

/// Returns the tables, which nobody writes although objects have mutable pointers to them.
fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| Tables {
        fabric: fabric_table(),
        domain: domain_table(),
        memory: fi_ops {
            close: Some(close_memory),
            bind: Some(bind_memory),
            control: Some(enable_memory),
            ..BASE
        },
        queue: queue_table(),
        vector: vector_table(),
        events: (
            fi_ops { close: Some(close_events), ..BASE },
            fi_ops_eq {
                size: size_of::<fi_ops_eq>(),
                read: null_mut(),
                readerr: Some(read_event),
                write: null_mut(),
                sread: null_mut(),
                strerror: null_mut(),
            },
        ),
        endpoint: endpoint_table(),
    })
}

fn fabric_table() -> (fi_ops, fi_ops_fabric) {
    let of_fabric = fi_ops_fabric {
        size: size_of::<fi_ops_fabric>(),
        domain,
        passive_ep: null_mut(),
        eq_open: Some(eq_open),
        wait_open: null_mut(),
        trywait: Some(trywait),
    };
    (fi_ops { close: Some(close_fabric), ..BASE }, of_fabric)
}

fn domain_table() -> (fi_ops, fi_ops_domain, fi_ops_mr) {
    let (of_domain, of_memory) = (size_of::<fi_ops_domain>(), size_of::<fi_ops_mr>());
    (
        fi_ops { close: Some(close_domain), ..BASE },
        fi_ops_domain { size: of_domain, av_open, cq_open, endpoint },
        fi_ops_mr { size: of_memory, reg: null_mut(), regv: null_mut(), regattr: Some(regattr) },
    )
}

fn queue_table() -> (fi_ops, fi_ops_cq) {
    let of_queue = fi_ops_cq {
        size: size_of::<fi_ops_cq>(),
        read,
        readfrom: null_mut(),
        readerr,
        sread: null_mut(),
        sreadfrom: null_mut(),
        signal: null_mut(),
        strerror: Some(describe),
    };
    (fi_ops { close: Some(close_queue), control: Some(control_queue), ..BASE }, of_queue)
}

fn vector_table() -> (fi_ops, fi_ops_av) {
    let of_vector = fi_ops_av {
        size: size_of::<fi_ops_av>(),
        insert,
        insertsvc: null_mut(),
        insertsym: null_mut(),
        remove: None,
    };
    (fi_ops { close: Some(close_vector), ..BASE }, of_vector)
}

fn endpoint_table() -> (fi_ops, fi_ops_cm, fi_ops_msg, fi_ops_rma, fi_ops_ep) {
    let none = null_mut();
    (
        fi_ops {
            close: Some(close_endpoint),
            bind: Some(bind_endpoint),
            control: Some(enable_endpoint),
            ..BASE
        },
        fi_ops_cm { size: size_of::<fi_ops_cm>(), setname: Some(setname), getname: Some(getname) },
        fi_ops_msg {
            size: size_of::<fi_ops_msg>(),
            recv,
            recvv: none,
            recvmsg: none,
            send,
            sendv: none,
            sendmsg: Some(sendmsg),
            inject: none,
            senddata: Some(senddata),
        },
        fi_ops_rma {
            size: size_of::<fi_ops_rma>(),
            read: none,
            readv: none,
            readmsg: none,
            write: Some(write),
            writev: none,
            writemsg: Some(writemsg),
            inject: none,
            writedata: Some(writedata),
        },
        fi_ops_ep { size: size_of::<fi_ops_ep>(), cancel: none, getopt: Some(getopt) },
    )
}

/// Returns the first field of an object.
fn first(id: u32, ops: &'static fi_ops) -> fid {
    fid { fclass: 0, context: pointer_of(id), ops: (&raw const *ops).cast_mut() }
}

unsafe extern "C" fn version() -> u32 {
    FI_API_VERSION
}

unsafe extern "C" fn fabric(
    attributes: *mut fi_fabric_attr,
    into: *mut *mut fid_fabric,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the attributes are those of an offer (`fi_info`).
    let api_version = unsafe { (*attributes).api_version };
    let (id, table) = (lock().next_id(), &tables().fabric);
    let made =
        fid_fabric { fid: first(id, &table.0), ops: (&raw const table.1).cast_mut(), api_version };
    // SAFETY: the caller has room for a pointer.
    unsafe { give(into, made) }
}

unsafe extern "C" fn close_fabric(fabric: *mut fid) -> c_int {
    // SAFETY: the fabric was handed out, and is closed once.
    unsafe { take_back(fabric.cast::<fid_fabric>()) };
    0
}

unsafe extern "C" fn eq_open(
    _fabric: *mut fid_fabric,
    _attributes: *mut fi_eq_attr,
    into: *mut *mut fid_eq,
    _context: *mut c_void,
) -> c_int {
    let mut network = lock();
    let id = network.next_id();
    network.events.insert(id, VecDeque::new());
    let table = &tables().events;
    let made = fid_eq { fid: first(id, &table.0), ops: (&raw const table.1).cast_mut() };
    // SAFETY: the caller has room for a pointer.
    unsafe { give(into, made) }
}

unsafe extern "C" fn close_events(events: *mut fid) -> c_int {
    // SAFETY: the caller has the event queue open.
    let id = unsafe { id_of(events) };
    let mut network = lock();
    if network.endpoints.values().any(|endpoint| endpoint.events == Some(id)) {
        return -EBUSY;
    }
    network.events.remove(&id);
    // SAFETY: the event queue was handed out, and is closed once.
    unsafe { take_back(events.cast::<fid_eq>()) };
    0
}

unsafe extern "C" fn read_event(
    events: *mut fid_eq,
    into: *mut fi_eq_err_entry,
    _flags: u64,
) -> ssize_t {
    // SAFETY: the caller has the event queue open.
    let id = unsafe { id_of(events) };
    let error = lock().events.get_mut(&id).and_then(VecDeque::pop_front);
    let Some(error) = error else { return -(EAGAIN as ssize_t) };
    // SAFETY: the caller has room for an entry.
    unsafe { (*into).err = error };
    size_of::<fi_eq_err_entry>() as ssize_t
}

unsafe extern "C" fn trywait(_fabric: *mut fid_fabric, list: *mut *mut fid, count: c_int) -> c_int {
    let mut network = lock();
    for at in 0..count as usize {
        // SAFETY: the list has `count` queues.
        let queue = unsafe { list.wrapping_add(at).read() };
        // SAFETY: the queues are open.
        let queue = unsafe { id_of(queue) };
        let Some(Queue { ready, late, bell, .. }) = network.queues.get(&queue) else { continue };
        if !ready.is_empty() || !late.is_empty() {
            return -EAGAIN;
        }
        bell.iter().for_each(|bell| objects::quiet(*bell));
        // The caller must not sleep if the network still has a request that moves only when a queue
        // is read: the completion of such a request would not wake the caller.
        if network.may_travel(queue) {
            return -EAGAIN;
        }
    }
    0
}

unsafe extern "C" fn domain(
    _fabric: *mut fid_fabric,
    info: *mut fi_info,
    into: *mut *mut fid_domain,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: `info` is an offer of this library.
    let Some(provider) = (unsafe { offers::provider_of(info) }) else { return -EINVAL };
    let mut network = lock();
    let (id, table) = (network.next_id(), &tables().domain);
    network.domains.insert(id, provider);
    let made = fid_domain {
        fid: first(id, &table.0),
        ops: (&raw const table.1).cast_mut(),
        mr: (&raw const table.2).cast_mut(),
    };
    // SAFETY: the caller has room for a pointer.
    unsafe { give(into, made) }
}

unsafe extern "C" fn close_domain(domain: *mut fid) -> c_int {
    // SAFETY: the caller has the domain open.
    let id = unsafe { id_of(domain) };
    let mut network = lock();
    let is_used = network.memory.values().any(|memory| memory.domain == id)
        || network.queues.values().any(|queue| queue.domain == id)
        || network.endpoints.values().any(|endpoint| endpoint.domain == id);
    if is_used {
        return -EBUSY;
    }
    let provider = network.domains.remove(&id);
    provider.into_iter().for_each(|provider| network.forget(provider));
    // SAFETY: the domain was handed out, and is closed once.
    unsafe { take_back(domain.cast::<fid_domain>()) };
    0
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attributes: *const fi_mr_attr,
    _flags: u64,
    into: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the caller has the domain open.
    let domain = unsafe { id_of(domain) };
    // SAFETY: the attributes are whole.
    let attributes = unsafe { &*attributes };
    // SAFETY: the attributes have one range.
    let range = unsafe { attributes.mr_iov.read() };
    let mut network = lock();
    let id = network.next_id();
    let Some(provider) = network.provider_of(domain) else { return -EINVAL };
    let chooses = provider.limits.mr_mode & FI_MR_PROV_KEY != 0;
    // Keys that providers choose use more than 32 bits.
    let key = match chooses {
        true => u64::from(id) << 32 | provider.draw(1 << 31) as u64,
        false => attributes.requested_key,
    };
    if network.memory.values().any(|it| (it.domain, it.key) == (domain, key)) {
        return -libc::ENOKEY;
    }
    let memory = Memory {
        domain,
        key,
        start: range.iov_base.expose_provenance(),
        bytes: range.iov_len,
        access: attributes.access,
        bound: None,
    };
    network.memory.insert(id, memory);
    let made = fid_mr { fid: first(id, &tables().memory), mem_desc: pointer_of(id), key };
    // SAFETY: the caller has room for a pointer.
    unsafe { give(into, made) }
}

unsafe extern "C" fn close_memory(memory: *mut fid) -> c_int {
    // SAFETY: the caller has the registration open.
    lock().memory.remove(&unsafe { id_of(memory) });
    // SAFETY: the registration was handed out, and is closed once.
    unsafe { take_back(memory.cast::<fid_mr>()) };
    0
}

unsafe extern "C" fn bind_memory(memory: *mut fid, to: *mut fid, _flags: u64) -> c_int {
    // SAFETY: the caller has the registration open.
    let memory = unsafe { id_of(memory) };
    // SAFETY: as above.
    let endpoint = unsafe { id_of(to) };
    match lock().memory.get_mut(&memory) {
        Some(memory) => memory.bound = Some(endpoint),
        None => return -EINVAL,
    }
    0
}

unsafe extern "C" fn enable_memory(_memory: *mut fid, command: c_int, _what: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -libc::ENOSYS }
}

unsafe extern "C" fn cq_open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    into: *mut *mut fid_cq,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the caller has the domain open.
    let domain = unsafe { id_of(domain) };
    // SAFETY: the attributes are whole.
    let &fi_cq_attr { wait_obj: wait, format, .. } = unsafe { &*attributes };
    let mut network = lock();
    let id = network.next_id();
    let Some(provider) = network.provider_of(domain) else { return -EINVAL };
    let wakes = provider.limits.wakes;
    if format != FI_CQ_FORMAT_DATA || (wait != FI_WAIT_NONE && !wakes) {
        return -libc::ENOSYS;
    }
    let bell = (wait == FI_WAIT_FD).then(objects::bell);
    network.queues.insert(id, Queue { domain, bell, ..Queue::default() });
    let table = &tables().queue;
    let made = fid_cq { fid: first(id, &table.0), ops: (&raw const table.1).cast_mut() };
    // SAFETY: the caller has room for a pointer.
    unsafe { give(into, made) }
}

unsafe extern "C" fn close_queue(queue: *mut fid) -> c_int {
    // SAFETY: the caller has the queue open.
    let id = unsafe { id_of(queue) };
    let mut network = lock();
    if network.endpoints.values().any(|endpoint| endpoint.queue == Some(id)) {
        return -EBUSY;
    }
    let bell = network.queues.remove(&id).and_then(|queue| queue.bell);
    bell.into_iter().for_each(objects::close);
    // SAFETY: the queue was handed out, and is closed once.
    unsafe { take_back(queue.cast::<fid_cq>()) };
    0
}

unsafe extern "C" fn control_queue(queue: *mut fid, command: c_int, into: *mut c_void) -> c_int {
    // SAFETY: the caller has the queue open.
    let id = unsafe { id_of(queue) };
    let bell = lock().queues.get(&id).and_then(|queue| queue.bell);
    match bell {
        Some(bell) if command == FI_GETWAIT => {
            // SAFETY: the caller has room for a descriptor.
            unsafe { into.cast::<c_int>().write(bell) };
            0
        }
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn read(queue: *mut fid_cq, into: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller has the queue open.
    let id = unsafe { id_of(queue) };
    let mut network = lock();
    let Some(domain) = network.queues.get(&id).map(|queue| queue.domain) else {
        return -(EINVAL as ssize_t);
    };
    let condition = network.provider_of(domain).map(|provider| provider.condition);
    if let (Some(Condition::Broken(error)), Some(queue)) = (condition, network.queues.get_mut(&id))
    {
        queue.error = error;
    }
    if let Some(queue) = network.queues.get(&id).filter(|queue| queue.error != 0) {
        return -(queue.error as ssize_t);
    }
    let provider = network.domains.get(&domain).copied();
    let is_automatic = network.provider_of(domain).is_some_and(|it| it.limits.is_automatic);
    if !is_automatic {
        provider.into_iter().for_each(|provider| network.travel(provider));
        network.ripen(id);
    }
    let mut taken = 0;
    while taken < count {
        let Some(queue) = network.queues.get_mut(&id) else { break };
        match queue.ready.front() {
            Some(first) if first.error != 0 && taken == 0 => return -(FI_EAVAIL as ssize_t),
            Some(first) if first.error == 0 => {}
            _ => break,
        }
        let Some(completion) = queue.ready.pop_front() else { break };
        ended(&mut network, &completion);
        let entry = fi_cq_data_entry {
            op_context: std::ptr::with_exposed_provenance_mut(completion.context),
            flags: completion.flags,
            len: completion.bytes,
            buf: null_mut(),
            data: completion.data,
        };
        // SAFETY: the caller has room for `count` entries.
        unsafe { into.cast::<fi_cq_data_entry>().wrapping_add(taken).write(entry) };
        taken += 1;
    }
    if taken == 0 { -(EAGAIN as ssize_t) } else { taken as ssize_t }
}

/// Frees a request's room in its endpoint when the request's completion is read.
fn ended(network: &mut Network, completion: &Completion) {
    let endpoint = completion.ends.and_then(|ends| network.endpoints.get_mut(&ends));
    endpoint.into_iter().for_each(|endpoint| endpoint.outstanding -= 1);
}

unsafe extern "C" fn readerr(
    queue: *mut fid_cq,
    into: *mut fi_cq_err_entry,
    _flags: u64,
) -> ssize_t {
    // SAFETY: the caller has the queue open.
    let id = unsafe { id_of(queue) };
    let mut network = lock();
    let failed = network.queues.get_mut(&id).and_then(|queue| {
        let is_failure = queue.ready.front().is_some_and(|first| first.error != 0);
        if is_failure { queue.ready.pop_front() } else { None }
    });
    let Some(completion) = failed else { return -(EAGAIN as ssize_t) };
    ended(&mut network, &completion);
    // SAFETY: the caller has room for an entry.
    let entry = unsafe { &mut *into };
    entry.op_context = std::ptr::with_exposed_provenance_mut(completion.context);
    (entry.flags, entry.len) = (completion.flags, completion.bytes);
    (entry.err, entry.prov_errno) = (completion.error, completion.error);
    1
}

unsafe extern "C" fn describe(
    _queue: *mut fid_cq,
    _error: c_int,
    _data: *const c_void,
    _text: *mut c_char,
    _bytes: size_t,
) -> *const c_char {
    c"the software provider was told to fail".as_ptr()
}

unsafe extern "C" fn av_open(
    _domain: *mut fid_domain,
    _attributes: *mut fi_av_attr,
    into: *mut *mut fid_av,
    _context: *mut c_void,
) -> c_int {
    let mut network = lock();
    let id = network.next_id();
    network.vectors.insert(id, Vec::new());
    let table = &tables().vector;
    let made = fid_av { fid: first(id, &table.0), ops: (&raw const table.1).cast_mut() };
    // SAFETY: the caller has room for a pointer.
    unsafe { give(into, made) }
}

unsafe extern "C" fn close_vector(vector: *mut fid) -> c_int {
    // SAFETY: the caller has the address vector open.
    lock().vectors.remove(&unsafe { id_of(vector) });
    // SAFETY: the address vector was handed out, and is closed once.
    unsafe { take_back(vector.cast::<fid_av>()) };
    0
}

unsafe extern "C" fn insert(
    vector: *mut fid_av,
    addresses: *const c_void,
    count: size_t,
    numbers: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the caller has the address vector open.
    let id = unsafe { id_of(vector) };
    let mut network = lock();
    let Some(vector) = network.vectors.get_mut(&id) else { return -EINVAL };
    let mut inserted = 0;
    for at in 0..count {
        let address = addresses.cast::<[u8; ADDRESS_BYTES]>().wrapping_add(at);
        // SAFETY: the caller passes `count` addresses.
        let address = unsafe { address.read_unaligned() };
        let (head, rest) = address.split_at(ADDRESS_HEAD.len());
        let known = (head == ADDRESS_HEAD).then(|| rest.first_chunk().copied()).flatten();
        let number = known.map(|bytes| {
            vector.push(u32::from_le_bytes(bytes));
            vector.len() as u64 - 1
        });
        inserted += c_int::from(number.is_some());
        // SAFETY: the caller has room for all numbers.
        unsafe { numbers.wrapping_add(at).write(number.unwrap_or(FI_ADDR_UNSPEC)) };
    }
    inserted
}

unsafe extern "C" fn endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    into: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the caller has the domain open.
    let domain = unsafe { id_of(domain) };
    // SAFETY: `info` is an offer of this library.
    let sending = unsafe { (*info).tx_attr };
    // SAFETY: every offer has all attributes.
    let low_latency = unsafe { (*sending).tclass } == FI_TC_LOW_LATENCY;
    let mut network = lock();
    let id = network.next_id();
    network.endpoints.insert(id, Endpoint { domain, low_latency, ..Endpoint::default() });
    let table = &tables().endpoint;
    let made = fid_ep {
        fid: first(id, &table.0),
        ops: (&raw const table.4).cast_mut(),
        cm: (&raw const table.1).cast_mut(),
        msg: (&raw const table.2).cast_mut(),
        rma: (&raw const table.3).cast_mut(),
    };
    // SAFETY: the caller has room for a pointer.
    unsafe { give(into, made) }
}

unsafe extern "C" fn close_endpoint(endpoint: *mut fid) -> c_int {
    // SAFETY: the caller has the endpoint open.
    let id = unsafe { id_of(endpoint) };
    let mut network = lock();
    // Requests that have not arrived are dropped.
    let provider = network.provider_at(id);
    provider.into_iter().for_each(|it| it.requests.retain(|request| request.from != id));
    network.endpoints.remove(&id);
    // SAFETY: the endpoint was handed out, and is closed once.
    unsafe { take_back(endpoint.cast::<fid_ep>()) };
    0
}

unsafe extern "C" fn bind_endpoint(endpoint: *mut fid, to: *mut fid, _flags: u64) -> c_int {
    // SAFETY: the caller has the endpoint open.
    let endpoint = unsafe { id_of(endpoint) };
    // SAFETY: as above.
    let to = unsafe { id_of(to) };
    let mut network = lock();
    let is_events = network.events.contains_key(&to);
    let (is_queue, is_vector) =
        (network.queues.contains_key(&to), network.vectors.contains_key(&to));
    let Some(endpoint) = network.endpoints.get_mut(&endpoint) else { return -EINVAL };
    if is_queue {
        endpoint.queue = Some(to);
    } else if is_vector {
        endpoint.vector = Some(to);
    } else if is_events {
        endpoint.events = Some(to);
    } else {
        return -EINVAL;
    }
    0
}

unsafe extern "C" fn enable_endpoint(
    endpoint: *mut fid,
    command: c_int,
    _what: *mut c_void,
) -> c_int {
    // SAFETY: the caller has the endpoint open.
    let id = unsafe { id_of(endpoint) };
    match lock().endpoints.get_mut(&id) {
        Some(endpoint) if command == FI_ENABLE => match (endpoint.queue, endpoint.vector) {
            (None, _) => -FI_ENOCQ,
            (_, None) => -EINVAL,
            _ => {
                endpoint.is_enabled = true;
                0
            }
        },
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn getopt(
    endpoint: *mut fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    _bytes: *mut size_t,
) -> c_int {
    // SAFETY: the caller has the endpoint open.
    let id = unsafe { id_of(endpoint) };
    let mut network = lock();
    let Some(provider) = network.provider_at(id) else { return -EINVAL };
    if (level, option) != (FI_OPT_ENDPOINT, FI_OPT_EFA_EMULATED_WRITE) {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: the option is a `bool`, and the caller has room for it.
    unsafe { value.cast::<bool>().write(provider.limits.emulates_writes) };
    0
}

/// Takes any name; the endpoint's address stays its number.
unsafe extern "C" fn setname(_endpoint: *mut fid, _name: *mut c_void, _bytes: size_t) -> c_int {
    0
}

unsafe extern "C" fn getname(
    endpoint: *mut fid,
    address: *mut c_void,
    bytes: *mut size_t,
) -> c_int {
    // SAFETY: the caller has the endpoint open.
    let id = unsafe { id_of(endpoint) };
    let mut name = [0; ADDRESS_BYTES];
    name[..ADDRESS_HEAD.len()].copy_from_slice(ADDRESS_HEAD);
    name[ADDRESS_HEAD.len()..][..4].copy_from_slice(&id.to_le_bytes());
    // SAFETY: the caller says how much room there is.
    let room = unsafe { bytes.replace(ADDRESS_BYTES) };
    if room < ADDRESS_BYTES {
        return -FI_ETOOSMALL;
    }
    // SAFETY: there is room for the address.
    unsafe { address.cast::<[u8; ADDRESS_BYTES]>().write_unaligned(name) };
    0
}

unsafe extern "C" fn recv(
    endpoint: *mut fid_ep,
    memory: *mut c_void,
    bytes: size_t,
    descriptor: *mut c_void,
    _from: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the caller has the endpoint open.
    let id = unsafe { id_of(endpoint) };
    let mut network = lock();
    let Some(provider) = network.provider_at(id) else { return -(EINVAL as ssize_t) };
    let (condition, most) = (provider.condition, provider.limits.requests);
    let Some(endpoint) = network.endpoints.get_mut(&id) else { return -(EINVAL as ssize_t) };
    if condition == Condition::Busy || endpoint.receives.len() >= most {
        return -(EAGAIN as ssize_t);
    }
    let range = range(memory, bytes, descriptor);
    endpoint.receives.push_back((range, context.expose_provenance()));
    0
}

/// Message or write that a caller posts.
struct Post {
    ranges: Vec<Range>,
    to: fi_addr_t,
    target: Option<Target>,
    flags: u64,
    context: *mut c_void,
}

/// Posts a request.
///
/// # Safety
///
/// The endpoint is open.
unsafe fn post(endpoint: *mut fid_ep, asked: Post) -> ssize_t {
    // SAFETY: the caller keeps the contract.
    let id = unsafe { id_of(endpoint) };
    let mut network = lock();
    let Some(provider) = network.provider_at(id) else { return -(EINVAL as ssize_t) };
    let Provider { limits, condition, faults, .. } = provider;
    let (most, packet_bytes) = (limits.requests, limits.packet_bytes);
    let bytes = asked.ranges.iter().map(|range| range.bytes).sum();
    if asked.target.is_none() && bytes > limits.message_bytes {
        return -(EMSGSIZE as ssize_t);
    }
    let may_be_early = limits.is_done_early && asked.flags & FI_DELIVERY_COMPLETE == 0;
    let (condition, fault) = (*condition, faults.front().copied());
    let Some(from) = network.endpoints.get_mut(&id) else { return -(EINVAL as ssize_t) };
    let is_busy = match condition {
        Condition::Busy => true,
        Condition::Congested => !from.low_latency,
        Condition::Good | Condition::Still | Condition::Broken(_) => false,
    };
    if is_busy || from.outstanding >= most {
        return -(EAGAIN as ssize_t);
    }
    let vector = from.vector;
    let peers = vector.and_then(|vector| network.vectors.get(&vector));
    let to = peers.and_then(|peers| peers.get(asked.to as usize)).copied();
    let Some(to) = to else { return -(EINVAL as ssize_t) };
    let packets = (0..bytes).step_by(packet_bytes);
    let packets = packets.map(|first| (first, packet_bytes.min(bytes - first))).collect();
    let mut request = Request {
        from: id,
        to,
        flags: asked.flags,
        context: asked.context.expose_provenance(),
        payload: Payload::At(asked.ranges),
        bytes,
        target: asked.target,
        packets,
        is_told: false,
        fault,
    };
    network.endpoints.get_mut(&id).into_iter().for_each(|from| from.outstanding += 1);
    if let Some(provider) = network.provider_at(id) {
        provider.faults.pop_front();
    }
    let draws = network.provider_at(id).is_some_and(|provider| provider.draw(2) == 0);
    let is_early = may_be_early && fault.is_none() && draws;
    if is_early && let Some(all) = network.load(&request, 0, bytes) {
        request.payload = Payload::Taken(all);
        request.is_told = true;
        let Request { from, flags, context, .. } = request;
        let done = Completion { context, flags, bytes: 0, data: 0, error: 0, ends: Some(from) };
        network.complete(id, done);
    }
    if let Some(provider) = network.provider_at(id) {
        provider.requests.push(request);
    }
    0
}

unsafe extern "C" fn send(
    endpoint: *mut fid_ep,
    memory: *const c_void,
    bytes: size_t,
    descriptor: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the caller keeps the contract.
    unsafe { senddata(endpoint, memory, bytes, descriptor, 0, to, context) }
}

unsafe extern "C" fn senddata(
    endpoint: *mut fid_ep,
    memory: *const c_void,
    bytes: size_t,
    descriptor: *mut c_void,
    _data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    let ranges = vec![range(memory, bytes, descriptor)];
    let flags = FI_MSG | FI_SEND;
    // SAFETY: the caller has the endpoint open.
    unsafe { post(endpoint, Post { ranges, to, target: None, flags, context }) }
}

unsafe extern "C" fn sendmsg(endpoint: *mut fid_ep, what: *const fi_msg, flags: u64) -> ssize_t {
    // SAFETY: the caller's message is whole.
    let what = unsafe { &*what };
    // SAFETY: as above.
    let ranges = unsafe { objects::ranges(what.msg_iov, what.desc, what.iov_count) };
    let flags = FI_MSG | FI_SEND | (flags & FI_DELIVERY_COMPLETE);
    let (to, context) = (what.addr, what.context);
    // SAFETY: the caller has the endpoint open.
    unsafe { post(endpoint, Post { ranges, to, target: None, flags, context }) }
}

unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    memory: *const c_void,
    bytes: size_t,
    descriptor: *mut c_void,
    to: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let ranges = vec![range(memory, bytes, descriptor)];
    let (target, flags) = (Some((address, key, None)), FI_RMA | FI_WRITE);
    // SAFETY: the caller has the endpoint open.
    unsafe { post(endpoint, Post { ranges, to, target, flags, context }) }
}

unsafe extern "C" fn writedata(
    endpoint: *mut fid_ep,
    memory: *const c_void,
    bytes: size_t,
    descriptor: *mut c_void,
    data: u64,
    to: fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let ranges = vec![range(memory, bytes, descriptor)];
    let (target, flags) = (Some((address, key, Some(data))), FI_RMA | FI_WRITE);
    // SAFETY: the caller has the endpoint open.
    unsafe { post(endpoint, Post { ranges, to, target, flags, context }) }
}

unsafe extern "C" fn writemsg(
    endpoint: *mut fid_ep,
    what: *const fi_msg_rma,
    flags: u64,
) -> ssize_t {
    // SAFETY: the caller's message is whole.
    let what = unsafe { &*what };
    // SAFETY: as above.
    let ranges = unsafe { objects::ranges(what.msg_iov, what.desc, what.iov_count) };
    // SAFETY: as above; there is one range of the peer's memory.
    let fi_rma_iov { addr, key, .. } = unsafe { what.rma_iov.read() };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(what.data);
    if data.is_some() && ranges.len() > 1 {
        // Devices do not take CQ data with several ranges; a provider would emulate such a write by
        // messages.
        return -(libc::EOPNOTSUPP as ssize_t);
    }
    let flags = FI_RMA | FI_WRITE | (flags & FI_DELIVERY_COMPLETE);
    let (to, context) = (what.addr, what.context);
    // SAFETY: the caller has the endpoint open.
    unsafe { post(endpoint, Post { ranges, to, target: Some((addr, key, data)), flags, context }) }
}
