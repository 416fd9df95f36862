//! Tests of the verbs objects over software devices.

use std::sync::Arc;
use std::time::Instant;

use ccl_core::transport::{LinkLayer, TransportError};
use ccl_memory::Region;
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use rdma_sys::*;

use crate::listing::bytes_per_s;
use crate::native::{Context, Domain, Memory, Pair, Path, Queue, Room, Write};
use crate::{Options, PortInfo, VerbsTransport, status};

/// A device with memory, and a queue pair, which [`joined`] connects.
struct End {
    pair: Pair,
    queue: Arc<Queue>,
    memory: Arc<Memory>,
    region: Region,
    gid: [u8; 16],
    device: SoftDevice,
}

const BYTES: usize = 4096;
const ROOM: Room = Room { writes: 8, immediates: 8, inline_bytes: 64 };

fn end(limits: Limits) -> End {
    let device = SoftDevice::new(limits);
    let context = Context::open(functions(), &device.name()).unwrap();
    let gid = context.gids(1, 4)[0].gid;
    let domain = Domain::new(Arc::clone(&context)).unwrap();
    let queue = Queue::new(&context, 64).unwrap();
    let region = Region::private(BYTES);
    let memory = Arc::new(Memory::register(&domain, &region, true).unwrap());
    let mut pair = Pair::new(&domain, &queue, ROOM).unwrap();
    pair.prepare(1, 0).unwrap();
    End { pair, queue, memory, region, gid, device }
}

fn path(to: &End) -> Path {
    Path {
        port: 1,
        partition: 0,
        gid_index: Some(0),
        peer_gid: to.gid,
        peer_lid: 0,
        peer_number: to.pair.number(),
        first_psn: 7,
        mtu: IBV_MTU_4096,
        service_level: 0,
        traffic_class: 104,
        flow_label: 5,
        timeout: 14,
        retries: 6,
        rnr_retries: 7,
    }
}

fn joined() -> (End, End, Arc<Memory>) {
    let (mut one, mut other) = (end(Limits::default()), end(Limits::default()));
    let (there, back) = (path(&other), path(&one));
    one.pair.connect(&there).unwrap();
    other.pair.connect(&back).unwrap();
    let memory = Arc::clone(&one.memory);
    (one, other, memory)
}

/// Returns the next completions, at least `count` of them.
fn completions(end: &End, count: usize) -> Vec<ibv_wc> {
    let (mut all, since) = (Vec::new(), Instant::now());
    while all.len() < count {
        let mut some = [ibv_wc::default(); 4];
        let got = end.queue.poll(&mut some).unwrap();
        all.extend_from_slice(&some[..got]);
        assert!(since.elapsed().as_secs() < 10, "only these completions came: {all:?}");
    }
    all
}

fn write(from: &Memory, to: &End, id: u64, bytes: usize) -> Write {
    let (address, key) = to.memory.remote();
    let from = from.sge(0, bytes);
    let to = (address + 100, key);
    Write { id, from, then: None, to, immediate: None, signaled: true, inline: false }
}

fn post(end: &mut End, writes: &[Write]) -> Result<(), TransportError> {
    writes.iter().for_each(|write| end.pair.stage(write));
    end.pair.post_staged()
}

#[test]
fn a_write_with_immediate_arrives_and_completes_on_both_sides() {
    let (mut one, mut other, memory) = joined();
    other.pair.receive(1, 0).unwrap();
    one.region.write(0, b"head").unwrap();
    one.region.write(2000, b"and tail").unwrap();
    let then = memory.sge(2000, 8);
    let immediate = Some(0x1234_5678);
    let write = Write { then, immediate, ..write(&memory, &other, 9, 4) };
    post(&mut one, &[write]).unwrap();
    let sent = completions(&one, 1)[0];
    assert_eq!((sent.wr_id, sent.status), (9, IBV_WC_SUCCESS));
    let come = completions(&other, 1)[0];
    assert_eq!((come.status, come.opcode), (IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM));
    assert_eq!((u32::from_be(come.imm_data), come.byte_len), (0x1234_5678, 12));
    assert_eq!(come.qp_num, other.pair.number());
    let mut text = [0; 12];
    other.region.read(100, &mut text).unwrap();
    assert_eq!(&text, b"headand tail");
    let traffic = one.device.traffic();
    assert_eq!((traffic[0].writes, traffic[0].bytes, traffic[0].traffic_class), (1, 12, 104));
}

#[test]
fn inline_bytes_are_taken_when_they_are_posted() {
    let (mut one, other, memory) = joined();
    one.region.write(0, b"early").unwrap();
    let write = Write { inline: true, ..write(&memory, &other, 1, 5) };
    post(&mut one, &[write]).unwrap();
    one.region.write(0, b"late!").unwrap();
    completions(&one, 1);
    let mut text = [0; 5];
    other.region.read(100, &mut text).unwrap();
    assert_eq!(&text, b"early");
}

#[test]
fn a_full_queue_pair_has_room_again_after_a_completion() {
    let (mut one, other, memory) = joined();
    let quiet = Write { signaled: false, ..write(&memory, &other, 1, 4) };
    let mut writes = vec![quiet; 8];
    writes[7].signaled = true;
    assert_eq!(one.pair.room(), ROOM);
    post(&mut one, &writes).unwrap();
    post(&mut one, &writes[..1]).unwrap_err();
    assert_eq!(completions(&one, 1)[0].wr_id, 1);
    post(&mut one, &writes[1..]).unwrap();
    post(&mut one, &writes[..1]).unwrap();
    post(&mut one, &writes[..1]).unwrap_err();
}

#[test]
fn memory_that_was_not_granted_is_not_written() {
    for case in 0..3 {
        let (mut one, other, memory) = joined();
        let (address, key) = other.memory.remote();
        let to = match case {
            0 => (address + BYTES as u64 - 3, key),
            1 => (address - 1, key),
            _ => (address, key + 1000),
        };
        let write = Write { to, ..write(&memory, &other, 1, 4) };
        one.region.write(0, &[7; 4]).unwrap();
        post(&mut one, &[write, write]).unwrap();
        let told = completions(&one, 2);
        assert_eq!(told[0].status, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(told[1].status, IBV_WC_WR_FLUSH_ERR);
        assert!(status::meaning(told[0].status).1.contains("never granted"));
        let mut all = vec![1; BYTES];
        other.region.read(0, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 0), "case {case}");
    }
}

#[test]
fn writes_wait_for_a_receive_request_and_fail_if_the_peer_is_gone() {
    let (mut one, other, memory) = joined();
    let ready = Write { immediate: Some(1), ..write(&memory, &other, 1, 4) };
    post(&mut one, &[ready]).unwrap();
    let mut none = [ibv_wc::default(); 1];
    for _ in 0..1000 {
        assert_eq!(one.queue.poll(&mut none), Ok(0), "the write must wait for a receive request");
    }
    let (address, key) = other.memory.remote();
    drop(other);
    assert_eq!(completions(&one, 1)[0].status, IBV_WC_RETRY_EXC_ERR);
    let from = memory.sge(0, 4);
    let to = (address, key);
    let late =
        Write { id: 2, from, then: None, to, immediate: None, signaled: false, inline: false };
    post(&mut one, &[late]).unwrap();
    assert_eq!(completions(&one, 1)[0].status, IBV_WC_WR_FLUSH_ERR, "later writes must be flushed");
}

#[test]
fn a_port_that_loses_its_link_raises_an_event_and_delays_writes() {
    let (mut one, other, memory) = joined();
    let context = Context::open(functions(), &other.device.name()).unwrap();
    other.device.set_link(false);
    assert_eq!(context.port(1).unwrap().state, IBV_PORT_DOWN);
    let happened = context.async_event().unwrap();
    assert_eq!(status::event(happened.event), "the port lost its link");
    assert_eq!((happened.pair, happened.port), (None, Some(1)));
    assert_eq!(context.async_event(), None);
    post(&mut one, &[write(&memory, &other, 1, 4)]).unwrap();
    let mut none = [ibv_wc::default(); 1];
    for _ in 0..1000 {
        assert_eq!(one.queue.poll(&mut none), Ok(0));
    }
    other.device.set_link(true);
    assert_eq!(completions(&one, 1)[0].status, IBV_WC_SUCCESS);
}

#[test]
fn ports_are_listed_whether_they_can_be_used_or_not() {
    let limits = Limits { link_layer: IBV_LINK_LAYER_INFINIBAND, ..Limits::default() };
    let device = SoftDevice::new(limits);
    let options = Options { devices: "=none".to_owned(), ..Options::default() };
    let transport = VerbsTransport::over(functions(), options);
    let port = || {
        let of = |port: &PortInfo| port.device == device.name();
        transport.list().into_iter().find(of).unwrap()
    };
    let up = port();
    assert!(up.is_active && !up.is_at_least);
    assert_eq!((up.number, up.layer), (1, Some(LinkLayer::InfiniBand)));
    // Four lanes of EDR.
    assert_eq!(up.bytes_per_s, Some(12.5e9));
    device.set_link(false);
    assert_eq!(port(), PortInfo { is_active: false, ..up });
}

#[test]
fn the_rate_of_a_port_excludes_the_overhead_of_line_coding() {
    let gigabits = |active_width, active_speed| {
        let attr = ibv_port_attr { active_width, active_speed, ..ibv_port_attr::default() };
        bytes_per_s(&attr).map(|rate| rate * 8e-9)
    };
    let four = [1, 2, 4, 8, 32, 64, 128].map(|speed| gigabits(2, speed));
    assert_eq!(four, [8.0, 16.0, 32.0, 40.0, 100.0, 200.0, 400.0].map(Some));
    assert_eq!(gigabits(1, 8), Some(10.0));
    assert_eq!([gigabits(0, 8), gigabits(2, 0), gigabits(2, 3)], [None; 3]);
}

#[test]
fn the_bell_rings_only_for_completions_after_it_was_armed() {
    let (mut one, mut other, memory) = joined();
    other.pair.receive(2, 0).unwrap();
    let rings = || {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            other.queue.bell(),
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
    };
    let write = Write { immediate: Some(1), ..write(&memory, &other, 1, 4) };
    other.queue.arm().unwrap();
    assert!(!rings());
    post(&mut one, &[write]).unwrap();
    completions(&one, 1);
    assert!(rings());
    completions(&other, 1);
    post(&mut one, &[write]).unwrap();
    completions(&one, 1);
    other.queue.arm().unwrap();
    assert!(!rings(), "the bell rang for an earlier completion");
    completions(&other, 1);
}

#[test]
fn errors_at_the_limits_of_a_device_say_what_to_do() {
    let few = end(Limits { pairs: 1, memory_bytes: BYTES, ..Limits::default() });
    let context = Context::open(functions(), &few.device.name()).unwrap();
    let domain = Domain::new(Arc::clone(&context)).unwrap();
    let error = Pair::new(&domain, &few.queue, ROOM).unwrap_err().to_string();
    assert!(error.contains("use fewer per peer"), "{error}");
    let error = Memory::register(&domain, &few.region, false).unwrap_err().to_string();
    assert!(error.contains("ulimit -l"), "{error}");
    let error = Queue::new(&context, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("no room for this completion queue"), "{error}");
    let error = Context::open(functions(), "mlx5_7").unwrap_err().to_string();
    assert!(error.contains("mlx5_7"), "{error}");
    assert!(context.port(2).is_err() && context.partition(1, 0) == Some(0xffff));
    assert_eq!(context.limits().unwrap().max_qp, 1);
}

#[test]
fn dropped_queue_pairs_and_memory_are_released() {
    let (one, _other, memory) = joined();
    let End { pair, queue, memory: own, device, .. } = one;
    assert_eq!(device.in_use(), (1, 1));
    drop((pair, queue, own, memory));
    assert_eq!(device.in_use(), (0, 0));
}
