//! Tests of breaks of the TCP connection that carries a link's addresses and notes: the connection
//! is made anew, or the peer is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_clock::now;
use ccl_conformance::{Proxy, first_location};
use ccl_core::transport::{
    Connected, Device, DeviceId, EndpointId, Event, Lane, LocalSlice, MrKey, RemoteMr, Secret,
    Transport, WorkRequest,
};
use ccl_memory::Region;
use ccl_transport_ofi::{OfiTransport, Options};

use crate::conformance::present;

const SECRET: Secret = Secret([7; 32]);
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time that the connection may be broken.
const WITHIN: Duration = Duration::from_millis(3500);

pub(crate) struct Side {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) lane: Box<dyn Lane>,
    pub(crate) at: EndpointId,
    pub(crate) key: MrKey,
    remote: RemoteMr,
    pub(crate) events: Vec<Event>,
    pub(crate) memory: Region,
}

impl Side {
    pub(crate) fn has(&self, event: &Event) -> bool {
        self.events.contains(event)
    }

    pub(crate) fn lost(&self) -> Option<&str> {
        self.events.iter().find_map(|event| match event {
            Event::Lost { reason, .. } => Some(reason.as_str()),
            _ => None,
        })
    }

    /// Returns the immediates that have arrived.
    pub(crate) fn arrived(&self) -> Vec<u32> {
        let immediates = self.events.iter().filter_map(|event| match event {
            Event::Arrived { immediate, .. } => Some(*immediate),
            _ => None,
        });
        immediates.collect()
    }

    pub(crate) fn put(&mut self, immediate: u32) {
        self.put_bytes(immediate, 64);
    }

    pub(crate) fn put_bytes(&mut self, immediate: u32, bytes: usize) {
        self.put_as(immediate, bytes, false);
    }

    /// Posts a control put without data, such as a credit.
    pub(crate) fn put_control(&mut self, immediate: u32) {
        self.put_as(immediate, 0, true);
    }

    fn put_as(&mut self, immediate: u32, bytes: usize, is_control: bool) {
        let put = WorkRequest::Put {
            endpoint: self.at,
            local: LocalSlice { key: self.key, offset: 0, bytes },
            tail: None,
            is_control,
            remote: self.remote,
            remote_offset: 0,
            immediate: Some(immediate),
            id: immediate.into(),
        };
        assert_eq!(self.lane.post(now(), &[put]), Ok(1));
    }
}

/// Returns two sides with a proxy between them.
pub(crate) fn pair(provider: &str) -> ([Side; 2], Proxy) {
    pair_that_is(provider, true)
}

/// Returns two sides with a proxy between them. If `woken` is false, the provider does not wake
/// their lanes.
pub(crate) fn pair_that_is(provider: &str, woken: bool) -> ([Side; 2], Proxy) {
    let options = Options {
        woken,
        interfaces: "lo".to_owned(),
        link_within: WITHIN,
        silent_within: WITHIN,
        ..Options::default()
    };
    let transport = OfiTransport::new(provider, options);
    let device = transport.devices().remove(0).id.0;
    joined(&transport, &device, 64)
}

/// Returns two sides over a device, with `bytes` bytes of memory each, and a proxy between them.
pub(crate) fn joined(transport: &OfiTransport, device: &str, bytes: usize) -> ([Side; 2], Proxy) {
    let id = DeviceId(device.to_owned());
    joined_over(transport, [&id; 2], bytes)
}

/// Returns two sides over two devices, and a proxy between them.
pub(crate) fn joined_over(
    transport: &OfiTransport,
    ids: [&DeviceId; 2],
    bytes: usize,
) -> ([Side; 2], Proxy) {
    let devices: [Arc<dyn Device>; 2] = ids.map(|id| transport.open(id).unwrap());
    let (joined, proxy) = connect(&devices);
    let mut sides = Vec::new();
    for (device, connected) in devices.into_iter().zip(joined) {
        let lane = device.lane().unwrap();
        let (memory, key) = device.allocate(bytes).unwrap();
        let (at, remote, events) = (EndpointId(0), RemoteMr(0), Vec::new());
        let mut side = Side { device, lane, at, key, remote, events, memory };
        side.at = side.lane.attach(connected).unwrap();
        sides.push(side);
    }
    let mut sides: [Side; 2] = sides.try_into().ok().unwrap();
    share(&mut sides);
    (sides, proxy)
}

/// Replaces the link between two sides by a new one over the same lanes. Returns the new proxy.
pub(crate) fn join_again(sides: &mut [Side; 2]) -> Proxy {
    let devices = sides.each_ref().map(|side| Arc::clone(&side.device));
    let (joined, proxy) = connect(&devices);
    for (side, connected) in sides.iter_mut().zip(joined) {
        side.events.clear();
        side.at = side.lane.attach(connected).unwrap();
    }
    share(sides);
    proxy
}

/// Shares the memory of each side with the other.
fn share(sides: &mut [Side; 2]) {
    for from in [0, 1] {
        let Side { lane, at, key, .. } = &mut sides[from];
        let shared = lane.share(*at, *key).unwrap();
        let to = &mut sides[1 - from];
        to.remote = to.lane.import(to.at, &shared).unwrap();
    }
}

/// Connects two devices through a proxy.
fn connect(devices: &[Arc<dyn Device>; 2]) -> ([Connected; 2], Proxy) {
    let mut listener = devices[0].listen(&SECRET).unwrap();
    let proxy = Proxy::new(first_location(&listener.address()).unwrap());
    let address = proxy.instead_of(&listener.address()).unwrap();
    let mut connecting = devices[1].connect(&address, &SECRET, b"", now() + PATIENCE).unwrap();
    let (mut accepted, mut connected) = (None, None);
    while accepted.is_none() || connected.is_none() {
        accepted = accepted.or_else(|| listener.poll(now()).unwrap());
        connected = connected.or_else(|| connecting.poll(now()).unwrap());
    }
    ([accepted.unwrap(), connected.unwrap()], proxy)
}

pub(crate) fn until(sides: &mut [Side; 2], what: &str, done: impl Fn(&[Side; 2]) -> bool) {
    let begun = Instant::now();
    while !done(sides) {
        let told = sides.each_ref().map(|side| &side.events);
        assert!(begun.elapsed() < PATIENCE, "timed out: {what}; events: {told:?}");
        for side in sides.iter_mut() {
            side.lane.poll(now(), &mut side.events).unwrap();
        }
    }
}

/// Sends a put and a note each way, and waits until all have arrived.
pub(crate) fn exchange(sides: &mut [Side; 2], number: u32) {
    for side in sides.iter_mut() {
        side.put(number);
        side.lane.note(side.at, &number.to_le_bytes()).unwrap();
    }
    until(sides, "the puts and notes arrive", |sides| {
        sides.iter().all(|side| {
            let (endpoint, bytes) = (side.at, number.to_le_bytes().to_vec());
            side.has(&Event::Arrived { endpoint, immediate: number, bytes: 64 })
                && side.has(&Event::Note { endpoint, bytes })
                && side.has(&Event::Done { id: number.into() })
        })
    });
}

#[test]
fn a_connection_that_breaks_is_made_anew() {
    for provider in present() {
        let (mut sides, proxy) = pair(provider);
        exchange(&mut sides, 1);
        for number in 2..5 {
            proxy.cut();
            exchange(&mut sides, number);
        }
        assert!(proxy.made() >= 4, "only {} connections", proxy.made());
        assert!(sides.iter().all(|side| side.lost().is_none()));
    }
}

#[test]
fn a_connection_that_does_not_come_back_loses_the_peer() {
    for provider in present() {
        let (mut sides, proxy) = pair(provider);
        exchange(&mut sides, 1);
        proxy.refuse(true);
        proxy.cut();
        until(&mut sides, "both lose the link", |sides| {
            sides.iter().all(|side| side.lost().is_some())
        });
        for side in &sides {
            let reason = side.lost().unwrap();
            assert!(reason.contains("broke (") && reason.contains("within 3.5s"), "{reason}");
        }
    }
}
