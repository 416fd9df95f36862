//! Tests with two devices of one process as peers, and with access to the sockets and rings between
//! them.

mod strangers;

use std::os::fd::AsFd;
use std::time::Duration;

use ccl_core::transport::{
    Connected, Device, DeviceId, EndpointId, Event, HELLO_BYTES_MAX, Lane, LocalSlice, MrKey,
    RemoteKey, RemoteMr, Secret, Transport, TransportError, WorkRequest,
};
use ccl_memory::Region;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::device::ShmDevice;
use crate::handshake::{CONTROL_SLOTS, Link, RING};
use crate::wire::{self, Offer};
use ccl_clock::now;

use crate::lane::WAITING_MAX;
use crate::{DEVICE, ShmTransport};

const SECRET: Secret = Secret([5; 32]);

/// Returns both sides of a connection: the listener's and the connector's.
fn connect(listening: &dyn Device, connecting: &dyn Device) -> [Connected; 2] {
    let mut listener = listening.listen(&SECRET).unwrap();
    let until = now() + Duration::from_secs(10);
    let mut coming = connecting.connect(&listener.address(), &SECRET, b"it is me", until).unwrap();
    let (mut here, mut there) = (None, None);
    while here.is_none() || there.is_none() {
        if here.is_none() {
            here = listener.poll(now()).unwrap();
        }
        if there.is_none() {
            there = coming.poll(now()).unwrap();
        }
    }
    assert_eq!(listener.rejected(), 0);
    assert!(coming.poll(now()).is_err(), "the connection was handed out twice");
    [here.unwrap(), there.unwrap()]
}

/// One side: a lane with one endpoint, and memory.
struct Side {
    device: ShmDevice,
    lane: Box<dyn Lane>,
    endpoint: EndpointId,
    memory: Region,
    key: MrKey,
}

impl Side {
    fn put(&self, remote: RemoteMr, bytes: usize, immediate: Option<u32>, id: u64) -> WorkRequest {
        WorkRequest::Put {
            endpoint: self.endpoint,
            local: LocalSlice { key: self.key, offset: 0, bytes },
            tail: None,
            is_control: false,
            remote,
            remote_offset: 0,
            immediate,
            id,
        }
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.lane.poll(now(), &mut events).unwrap();
        events
    }
}

fn sides(bytes: usize) -> [Side; 2] {
    let devices = [ShmDevice::open().unwrap(), ShmDevice::open().unwrap()];
    let mut connections = connect(&devices[0], &devices[1]).into_iter();
    devices.map(|device| {
        let mut lane = device.lane().unwrap();
        let endpoint = lane.attach(connections.next().unwrap()).unwrap();
        let (memory, key) = device.allocate(bytes).unwrap();
        Side { device, lane, endpoint, memory, key }
    })
}

/// Lets `to` reach the memory of `from`.
fn share(from: &mut Side, to: &mut Side) -> (RemoteKey, RemoteMr) {
    let key = from.lane.share(from.endpoint, from.key).unwrap();
    let remote = to.lane.import(to.endpoint, &key).unwrap();
    (key, remote)
}

fn usage(result: Result<impl std::fmt::Debug, TransportError>) -> String {
    match result {
        Err(error) if error.is_usage() => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_only_device_opens_and_no_other() {
    let transport = ShmTransport::new();
    let devices = transport.devices();
    assert_eq!(devices.len(), 1);
    assert!(transport.open(&devices[0].id).unwrap().caps() == &devices[0].caps);
    assert!(usage(transport.open(&DeviceId("shm1".into()))).contains(DEVICE));
}

#[test]
fn the_listener_gets_the_hello_of_its_peer() {
    let device = ShmDevice::open().unwrap();
    let [here, there] = connect(&device, &device);
    assert_eq!(here.hello, b"it is me");
    assert!(there.hello.is_empty());
    let other = ShmDevice::open().unwrap();
    assert!(usage(other.lane().unwrap().attach(here)).contains("another device"));
    let until = now() + Duration::from_secs(1);
    let address = device.listen(&SECRET).unwrap().address();
    let long = [0; HELLO_BYTES_MAX + 1];
    assert!(usage(device.connect(&address, &SECRET, &long, until)).contains("96"));
}

#[test]
fn ten_thousand_puts_arrive_in_order_around_the_ring() {
    let [mut sender, mut receiver] = sides(4096);
    let (_, remote) = share(&mut receiver, &mut sender);
    let (mut posted, mut done, mut arrived) = (0u64, 0u64, 0u64);
    let mut pushed_back = 0;
    while arrived < 10_000 {
        sender.memory.write(0, &posted.to_le_bytes()).unwrap();
        let batch: Vec<WorkRequest> = (posted..(posted + 700).min(10_000))
            .map(|id| sender.put(remote, 8 + id as usize % 8, Some(id as u32), id))
            .collect();
        let taken = sender.lane.post(now(), &batch).unwrap();
        pushed_back += usize::from(taken < batch.len());
        posted += taken as u64;
        for event in sender.events() {
            assert_eq!(event, Event::Done { id: done });
            done += 1;
        }
        if posted < 10_000 && taken > 0 {
            continue;
        }
        for event in receiver.events() {
            let Event::Arrived { endpoint, immediate, bytes } = event else { panic!("{event:?}") };
            assert_eq!((endpoint, u64::from(immediate)), (receiver.endpoint, arrived));
            assert_eq!(bytes, 8 + arrived as usize % 8);
            arrived += 1;
        }
        let mut last = [0; 8];
        receiver.memory.read(0, &mut last).unwrap();
        assert!(u64::from_le_bytes(last) < posted);
    }
    assert_eq!((posted, done), (10_000, 10_000));
    assert!(pushed_back > 0, "the ring was never full");
    assert!(sender.events().is_empty() && receiver.events().is_empty());
}

#[test]
fn outstanding_puts_are_limited_as_the_capabilities_say() {
    let [mut sender, mut receiver] = sides(64);
    let (_, remote) = share(&mut receiver, &mut sender);
    let depth = sender.device.caps().depth_max;
    for immediate in [None, Some(1)] {
        let work = vec![sender.put(remote, 1, immediate, 3); depth + 1];
        assert_eq!(sender.lane.post(now(), &work).unwrap(), depth, "{immediate:?}");
        assert_eq!(sender.lane.post(now(), &work).unwrap(), 0);
        assert_eq!(sender.lane.poll_timeout(), Some(ccl_core::time::Instant::ZERO));
        assert_eq!(sender.events().len(), depth);
    }
    // Puts that were reported done may still be in the ring, so fewer than `depth` puts fit. Some
    // slots of the ring are kept for credits and CTS.
    let work = vec![sender.put(remote, 1, Some(1), 3); depth];
    let more = sender.lane.post(now(), &work).unwrap();
    assert_eq!(depth + more, (RING.slots - CONTROL_SLOTS) as usize);
    assert_eq!(sender.lane.post(now(), &work).unwrap(), 0);
    assert_eq!(receiver.events().len(), depth + more);
    assert!(sender.lane.post(now(), &work).unwrap() > 0);
}

#[test]
fn requests_are_checked_before_any_byte_moves() {
    let [mut sender, mut receiver] = sides(100);
    let (_, remote) = share(&mut receiver, &mut sender);
    let good = sender.put(remote, 100, Some(1), 1);
    let WorkRequest::Put { endpoint, local, remote_offset, immediate, id, .. } = good;
    let put = |endpoint, local, remote, remote_offset| WorkRequest::Put {
        endpoint,
        local,
        tail: None,
        is_control: false,
        remote,
        remote_offset,
        immediate,
        id,
    };
    let long = LocalSlice { bytes: 101, ..local };
    let beyond = LocalSlice { offset: usize::MAX, ..local };
    let unknown = LocalSlice { key: MrKey(99), ..local };
    let huge = LocalSlice { bytes: 1 << 40, ..local };
    for bad in [
        put(endpoint, long, remote, 0),
        put(endpoint, beyond, remote, 0),
        put(endpoint, unknown, remote, 0),
        put(endpoint, huge, remote, 0),
        put(endpoint, local, remote, 1),
        put(endpoint, local, remote, usize::MAX),
        put(endpoint, local, RemoteMr(1), remote_offset),
        put(endpoint, local, RemoteMr(u64::MAX), remote_offset),
        put(EndpointId(7), local, remote, remote_offset),
    ] {
        usage(sender.lane.post(now(), &[bad]));
        assert_eq!(sender.lane.post(now(), &[good, bad]).unwrap(), 1, "{bad:?}");
        assert_eq!(sender.events(), [Event::Done { id: 1 }]);
    }
    assert_eq!(receiver.events().len(), 9, "only the valid puts may arrive");
}

#[test]
fn a_mapping_is_the_same_memory() {
    let [mut a, mut b] = sides(8192);
    let (key, remote) = share(&mut a, &mut b);
    let mapped = b.lane.map(b.endpoint, &key).unwrap();
    assert_eq!(mapped.bytes(), 8192);
    mapped.write(8000, b"directly").unwrap();
    let mut back = [0; 8];
    a.memory.read(8000, &mut back).unwrap();
    assert_eq!(&back, b"directly");
    // A second call sends nothing, and returns the same key or the same memory.
    assert_eq!(a.lane.share(a.endpoint, a.key).unwrap(), key);
    assert_eq!(b.lane.import(b.endpoint, &key).unwrap(), remote);
    assert_eq!(b.lane.map(b.endpoint, &key).unwrap().start(), mapped.start());
}

/// Returns the number of this process's descriptors, and of its mappings of shared memory.
fn held() -> [usize; 2] {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    [descriptors, maps.lines().filter(|line| line.contains("memfd:ferroccl")).count()]
}

#[test]
fn memory_that_both_sides_have_dropped_is_gone() {
    let [mut a, mut b] = sides(64);
    let before = held();
    for round in 0..400 {
        let (memory, key) = a.device.allocate(4096).unwrap();
        let remote = a.lane.share(a.endpoint, key).unwrap();
        // So far the peer has neither read its socket nor mapped the memory. It must be able to map
        // the memory after the deregistration.
        a.device.deregister(key).unwrap();
        usage(a.lane.share(a.endpoint, key));
        let mapped = b.lane.map(b.endpoint, &remote).unwrap();
        mapped.write(8, &[round as u8]).unwrap();
        let mut back = [0];
        memory.read(8, &mut back).unwrap();
        assert_eq!(back, [round as u8]);
        let error = b.lane.map(b.endpoint, &remote).unwrap_err();
        assert!(error.to_string().contains("mapped the memory before"), "{error}");
    }
    // Other tests of this process allocate memory too, but far fewer than 400 regions.
    let after = held();
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + 200, "{before} descriptors or mappings became {after}");
    }
}

/// Offers beyond the limit wait in the socket until others are imported.
#[test]
fn offers_beyond_the_limit_wait_in_the_socket() {
    let [mut a, mut b] = sides(64);
    let keys: Vec<RemoteKey> = (0..WAITING_MAX + 8)
        .map(|_| {
            let (_, key) = a.device.allocate(64).unwrap();
            a.lane.share(a.endpoint, key).unwrap()
        })
        .collect();
    b.lane.import(b.endpoint, &keys[0]).unwrap();
    let last = b.lane.import(b.endpoint, &keys[WAITING_MAX + 7]).unwrap_err();
    assert!(last.to_string().contains("more memory regions than the limit"), "{last}");
    for key in &keys {
        b.lane.import(b.endpoint, key).unwrap();
    }
    assert_eq!(b.events(), []);
}

#[test]
fn memory_that_a_peer_shared_before_it_closed_can_still_be_mapped() {
    for unread in [false, true] {
        let [mut a, mut b] = sides(64);
        let key = a.lane.share(a.endpoint, a.key).unwrap();
        if unread {
            // Closing with an unread message resets the connection.
            b.lane.share(b.endpoint, b.key).unwrap();
        }
        a.memory.write(0, b"left").unwrap();
        drop(a);
        let mapped = b.lane.map(b.endpoint, &key).unwrap();
        let mut text = [0; 4];
        mapped.read(0, &mut text).unwrap();
        assert_eq!(&text, b"left", "with an unread message: {unread}");
        let error = b.lane.map(b.endpoint, &key).unwrap_err();
        assert!(matches!(error, TransportError::Lost { .. }), "{error}");
    }
}

#[test]
fn only_allocated_memory_can_be_shared_but_any_registered_memory_can_be_sent() {
    let [mut a, mut b] = sides(64);
    let (_, remote) = share(&mut a, &mut b);
    let own = Region::private(64);
    own.write(0, b"mine").unwrap();
    b.key = b.device.register(&own).unwrap();
    assert!(usage(b.lane.share(b.endpoint, b.key)).contains("allocate()"));
    assert_eq!(b.lane.post(now(), &[b.put(remote, 4, Some(6), 2)]).unwrap(), 1);
    let event = Event::Arrived { endpoint: a.endpoint, immediate: 6, bytes: 4 };
    assert_eq!(a.events(), [event]);
    let mut back = [0; 4];
    a.memory.read(0, &mut back).unwrap();
    assert_eq!(&back, b"mine");
    b.device.deregister(b.key).unwrap();
    usage(b.device.deregister(b.key));
    usage(b.lane.post(now(), &[b.put(remote, 4, Some(6), 2)]));
}

#[test]
fn a_key_of_another_connection_and_a_forged_key_are_refused() {
    let [mut a, mut b] = sides(64);
    let (key, _) = share(&mut a, &mut b);
    let [mut c, _d] = sides(64);
    let error = c.lane.import(c.endpoint, &key).unwrap_err();
    assert!(matches!(error, TransportError::Refused { .. }), "{error}");
    // Each forged key differs from the valid one in one byte: of the number, of the memory's
    // length, or (twice) of the nonce.
    for at in [5, 6, 7, key.0.len() - 1] {
        let mut forged = key.clone();
        forged.0[at] ^= 1;
        let error = b.lane.import(b.endpoint, &forged).unwrap_err();
        assert!(matches!(error, TransportError::Refused { .. }), "{at}: {error}");
    }
    usage(b.lane.import(b.endpoint, &RemoteKey(b"offer".to_vec())));
}

#[test]
fn memory_of_one_endpoint_is_not_reached_through_another() {
    let [mut a, mut b] = sides(64);
    let other = ShmDevice::open().unwrap();
    let (_, of_a) = share(&mut a, &mut b);
    // A second endpoint on the same lane, to another peer.
    let [here, _there] = connect(&b.device, &other);
    let second = b.lane.attach(here).unwrap();
    let WorkRequest::Put { local, .. } = b.put(of_a, 4, None, 0);
    let through = |endpoint| WorkRequest::Put {
        endpoint,
        local,
        tail: None,
        is_control: false,
        remote: of_a,
        remote_offset: 0,
        immediate: None,
        id: 0,
    };
    assert!(usage(b.lane.post(now(), &[through(second)])).contains("(or no longer) imported"));
    assert_eq!(b.lane.post(now(), &[through(b.endpoint)]).unwrap(), 1);
}

#[test]
fn a_peer_that_detaches_is_lost_after_its_last_put() {
    let [mut a, mut b] = sides(64);
    let (key, remote) = share(&mut a, &mut b);
    let (_, of_b) = share(&mut b, &mut a);
    a.device.deregister(a.key).unwrap();
    (a.memory, a.key) = a.device.allocate(64).unwrap();
    assert_eq!(b.lane.post(now(), &[b.put(remote, 4, Some(6), 2)]).unwrap(), 1);
    b.lane.detach(b.endpoint);
    usage(b.lane.post(now(), &[b.put(remote, 4, Some(6), 2)]));
    usage(b.lane.map(b.endpoint, &key));
    let events = a.events();
    let [Event::Arrived { .. }, Event::Lost { endpoint, reason }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*endpoint, a.endpoint);
    assert!(reason.contains(&format!("process {}", std::process::id())), "{reason}");
    assert!(a.events().is_empty(), "an event came after the loss");
    assert_eq!(a.lane.poll_timeout(), None);
    let put = a.put(of_b, 4, Some(1), 9);
    assert_eq!(a.lane.post(now(), &[put]).unwrap(), 1, "a put to a lost peer must be taken");
    assert!(a.events().is_empty());
    let error = a.lane.share(a.endpoint, a.key).unwrap_err();
    assert!(matches!(error, TransportError::Lost { .. }), "{error}");
    a.lane.detach(a.endpoint);
    a.lane.detach(a.endpoint);
}

/// Returns the raw link of a peer that violates the protocol, and a normal side.
fn rogue() -> (Link, Side) {
    let device = ShmDevice::open().unwrap();
    let [here, there] = connect(&device, &device);
    let link = *there.inner.into_any().downcast::<Link>().unwrap();
    let mut lane = device.lane().unwrap();
    let endpoint = lane.attach(here).unwrap();
    let (memory, key) = device.allocate(64).unwrap();
    (link, Side { device, lane, endpoint, memory, key })
}

#[test]
fn a_peer_that_offers_bad_memory_is_refused() {
    let unsealed = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 64).unwrap();
    let small = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&small, 63).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&small, seals).unwrap();
    for (file, word) in [(&unsealed, "sealed"), (&small, "announced")] {
        let (link, mut side) = rogue();
        let offer = Offer { id: 1, bytes: 64, nonce: [0; 16] };
        wire::send(link.socket.as_fd(), &offer.encode(), Some(file.as_fd())).unwrap();
        let error = side.lane.import(side.endpoint, &RemoteKey(offer.encode())).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        let again = side.lane.map(side.endpoint, &RemoteKey(offer.encode())).unwrap_err();
        assert!(matches!(again, TransportError::Refused { .. }), "{again}");
    }
}

#[test]
fn a_peer_that_sends_other_things_than_offers_is_refused() {
    let offer = Offer { id: 1, bytes: 64, nonce: [0; 16] };
    let key = RemoteKey(offer.encode());
    for message in [&offer.encode()[..], b"nonsense", &[0; wire::MESSAGE_BYTES + 9]] {
        let (link, mut side) = rogue();
        wire::send(link.socket.as_fd(), message, None).unwrap();
        let error = side.lane.import(side.endpoint, &key).unwrap_err();
        assert!(matches!(error, TransportError::Refused { .. }), "{error}");
    }
    let (link, mut side) = rogue();
    drop(link);
    let error = side.lane.import(side.endpoint, &key).unwrap_err();
    assert!(matches!(error, TransportError::Lost { .. }), "{error}");
}

#[test]
fn a_peer_that_writes_nonsense_into_its_ring_is_lost() {
    let (mut link, mut side) = rogue();
    for tag in [7, u64::from(u32::MAX), 1 << 32] {
        assert!(link.outgoing.ready());
        link.outgoing.publish(usize::MAX, tag);
    }
    let events = side.events();
    assert_eq!(events.len(), 3);
    assert!(matches!(&events[2], Event::Lost { reason, .. } if reason.contains("invalid")));
    assert!(side.events().is_empty());
}
