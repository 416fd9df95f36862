//! Helpers that connect two lanes.

use std::sync::Arc;
use std::time::Duration;

use ccl_conformance::Proxy;
use ccl_core::transport::{
    Address, Connected, Device, DeviceId, EndpointId, Event, Lane, LocalSlice, MrKey, RemoteMr,
    Secret, Transport, WorkRequest,
};
use ccl_memory::Region;
use ccl_socket::Location;
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_verbs::{Options, VerbsTransport};

/// Number of bytes of memory that each side shares with the other side.
pub(crate) const BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// One side of a link.
pub(crate) struct End {
    pub(crate) soft: SoftDevice,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) lane: Box<dyn Lane>,
    pub(crate) endpoint: EndpointId,
    pub(crate) region: Region,
    key: MrKey,
    /// Memory of the other side.
    remote: RemoteMr,
    pub(crate) events: Vec<Event>,
}

impl End {
    /// Returns a put of `bytes` bytes from `offset` to the same offset of the other side.
    pub(crate) fn put(&self, offset: usize, bytes: usize, immediate: Option<u32>) -> WorkRequest {
        WorkRequest::Put {
            endpoint: self.endpoint,
            local: LocalSlice { key: self.key, offset, bytes },
            tail: None,
            is_control: false,
            remote: self.remote,
            remote_offset: offset,
            immediate,
            id: 7,
        }
    }

    pub(crate) fn poll(&mut self) {
        self.lane.poll(ccl_clock::now(), &mut self.events).unwrap();
    }
}

/// Connects two devices; returns the connection's end at each device.
pub(crate) fn meet(devices: &[Arc<dyn Device>; 2]) -> [Connected; 2] {
    meet_at(devices, |address| address)
}

/// Does what `meet` does, but the second device connects to the address that `detour` returns.
fn meet_at(
    devices: &[Arc<dyn Device>; 2],
    detour: impl FnOnce(Address) -> Address,
) -> [Connected; 2] {
    let secret = Secret([5; 32]);
    let deadline = ccl_clock::now() + PATIENCE;
    let mut listener = devices[0].listen(&secret).unwrap();
    let address = detour(listener.address());
    let mut connecting = devices[1].connect(&address, &secret, b"hello", deadline).unwrap();
    let (mut accepted, mut connected) = (None, None);
    while accepted.is_none() || connected.is_none() {
        let now = ccl_clock::now();
        assert!(now < deadline);
        accepted = accepted.or_else(|| listener.poll(now).unwrap());
        connected = connected.or_else(|| connecting.poll(now).unwrap());
    }
    [accepted.unwrap(), connected.unwrap()]
}

/// Returns the two sides of a link, over devices of their own.
pub(crate) fn joined(options: &Options) -> [End; 2] {
    joined_in(options, None)
}

/// Does what `joined` does, and sets `traffic_class`, if given, on both lanes.
pub(crate) fn joined_in(options: &Options, traffic_class: Option<u8>) -> [End; 2] {
    joined_after(options, traffic_class, |_| ())
}

/// Does what `joined_in` does, but calls `change` on the opened devices before they connect.
pub(crate) fn joined_after(
    options: &Options,
    traffic_class: Option<u8>,
    change: impl FnOnce(&[SoftDevice; 2]),
) -> [End; 2] {
    joined_by(options, traffic_class, [vec![], vec![]], change, |address| address)
}

/// Entries of a device's GID table, each with its type; `None` is a gap.
pub(crate) type Gids = Vec<Option<([u8; 16], u32)>>;

/// Does what `joined_after` does, over devices whose GID tables are `gids` when they are opened.
pub(crate) fn joined_at(gids: [Gids; 2], change: impl FnOnce(&[SoftDevice; 2])) -> [End; 2] {
    joined_by(&Options::default(), None, gids, change, |address| address)
}

/// Does what `joined` does, through a proxy; returns the two sides and the proxy.
pub(crate) fn joined_through_proxy(options: &Options) -> ([End; 2], Proxy) {
    let mut proxy = None;
    let ends = joined_by(
        options,
        None,
        [vec![], vec![]],
        |_| (),
        |address| {
            let behind = Location::decode(&address).unwrap().addresses[0];
            proxy.insert(Proxy::new(behind)).instead_of(&address).unwrap()
        },
    );
    (ends, proxy.unwrap())
}

fn joined_by(
    options: &Options,
    traffic_class: Option<u8>,
    gids: [Gids; 2],
    change: impl FnOnce(&[SoftDevice; 2]),
    detour: impl FnOnce(Address) -> Address,
) -> [End; 2] {
    let options = Options { interfaces: "127.0.0.1".to_owned(), ..options.clone() };
    let transport = VerbsTransport::over(functions(), options);
    let mut seed = 0;
    let softs = gids.map(|gids| {
        seed += 1;
        SoftDevice::new(Limits { seed, gids, ..Limits::default() })
    });
    let open = |soft: &SoftDevice| transport.open(&DeviceId(format!("{}:1", soft.name())));
    let devices: [Arc<dyn Device>; 2] = softs.each_ref().map(|soft| open(soft).unwrap());
    change(&softs);
    let mut links = meet_at(&devices, detour).into_iter();
    let mut parts = devices.each_ref().map(|device| {
        let mut lane = device.lane().unwrap();
        traffic_class.into_iter().for_each(|class| lane.set_traffic_class(class));
        let endpoint = lane.attach(links.next().unwrap()).unwrap();
        let (region, key) = device.allocate(BYTES).unwrap();
        let shared = lane.share(endpoint, key).unwrap();
        (lane, endpoint, region, key, shared)
    });
    let keys = parts.each_ref().map(|part| part.4.clone());
    let remotes = [0, 1].map(|side| {
        let (lane, endpoint, ..) = &mut parts[side];
        lane.import(*endpoint, &keys[1 - side]).unwrap()
    });
    let mut sides = softs.into_iter().zip(devices).zip(parts).zip(remotes);
    [(); 2].map(|()| {
        let (((soft, device), (lane, endpoint, region, key, _)), remote) = sides.next().unwrap();
        End { soft, device, lane, endpoint, region, key, remote, events: Vec::new() }
    })
}

/// Polls both sides until `done`.
pub(crate) fn go_on(ends: &mut [End; 2], mut done: impl FnMut(&mut [End; 2]) -> bool) {
    let deadline = ccl_clock::now() + PATIENCE;
    while !done(ends) {
        ends.iter_mut().for_each(End::poll);
        let events = ends.each_ref().map(|end| end.events.len());
        assert!(ccl_clock::now() < deadline, "not done in time; numbers of events: {events:?}");
    }
}
