//! Tests of connections that break while the peer lives.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ccl_clock::now;
use ccl_conformance::{Proxy, first_location};
use ccl_core::transport::{
    Device, DeviceId, EndpointId, Event, Lane, LocalSlice, MrKey, RemoteMr, Secret, Transport,
    WorkRequest,
};
use ccl_memory::Region;
use ccl_transport_tcp::{DEVICE, Options, TcpTransport};

const SECRET: Secret = Secret([3; 32]);
const SLOT_BYTES: usize = 70_000;
const SLOTS: usize = 16;
/// Number of bytes at the start of a message that are never redirected.
const HEAD: usize = 16;

struct Side {
    lane: Box<dyn Lane>,
    endpoint: EndpointId,
    inbox: Region,
    inbox_key: MrKey,
    source: Region,
    source_key: MrKey,
    /// Memory from which tails are posted; overwritten after each post.
    reused: Region,
    reused_key: MrKey,
    /// Memory that messages are redirected to, with one range per slot.
    target: Region,
    target_key: MrKey,
    lands: [bool; SLOTS],
    remote: RemoteMr,
    events: Vec<Event>,
}

/// Two lanes with a proxy between them; side 0 has dialled.
pub(crate) struct Pair {
    sides: [Side; 2],
    pub(crate) proxy: Proxy,
    /// Port on which side 1 listens, and later accepts the connections that replace broken ones.
    port: u16,
}

/// Values of the encryption option to test: both, if the feature is on.
const TLS: &[bool] = if cfg!(feature = "tls") { &[false, true] } else { &[false] };

pub(crate) fn device(sockets: u32, resume_within: Duration, tls: bool) -> Arc<dyn Device> {
    patient(sockets, [resume_within; 2], tls)
}

/// Makes a device with two limits: for a peer that cannot be reached, and for a silent peer.
fn patient(
    sockets: u32,
    [resume_within, silent_within]: [Duration; 2],
    tls: bool,
) -> Arc<dyn Device> {
    let options = Options {
        interfaces: "127.0.0.1".to_owned(),
        sockets,
        resume_within,
        silent_within,
        tls,
        ..Options::default()
    };
    TcpTransport::new(options).open(&DeviceId(DEVICE.to_owned())).unwrap()
}

impl Pair {
    pub(crate) fn new(sockets: u32, resume_within: Duration, tls: bool) -> Pair {
        Pair::over([(), ()].map(|()| device(sockets, resume_within, tls)))
    }

    fn over(devices: [Arc<dyn Device>; 2]) -> Pair {
        let mut listener = devices[1].listen(&SECRET).unwrap();
        let address = listener.address();
        let proxy = Proxy::new(first_location(&address).unwrap());
        let by = now() + Duration::from_secs(10);
        let way = proxy.instead_of(&address).unwrap();
        let mut connecting = devices[0].connect(&way, &SECRET, b"", by).unwrap();
        let (mut near, mut far) = (None, None);
        while near.is_none() || far.is_none() {
            near = near.or_else(|| connecting.poll(now()).unwrap());
            far = far.or_else(|| listener.poll(now()).unwrap());
        }
        let mut sides =
            [near, far].map(Option::unwrap).into_iter().zip(&devices).map(|(connected, device)| {
                let mut lane = device.lane().unwrap();
                let endpoint = lane.attach(connected).unwrap();
                let (inbox, inbox_key) = device.allocate(SLOTS * SLOT_BYTES).unwrap();
                let (source, source_key) = device.allocate(SLOTS * SLOT_BYTES).unwrap();
                let (reused, reused_key) = device.allocate(SLOT_BYTES).unwrap();
                let (target, target_key) = device.allocate(SLOTS * SLOT_BYTES).unwrap();
                let key = lane.share(endpoint, inbox_key).unwrap();
                let side = Side {
                    lane,
                    endpoint,
                    inbox,
                    inbox_key,
                    source,
                    source_key,
                    reused,
                    reused_key,
                    target,
                    target_key,
                    lands: [false; SLOTS],
                    remote: RemoteMr(0),
                    events: Vec::new(),
                };
                (key, side)
            });
        let (mut one, mut other) = (sides.next().unwrap(), sides.next().unwrap());
        one.1.remote = one.1.lane.import(one.1.endpoint, &other.0).unwrap();
        other.1.remote = other.1.lane.import(other.1.endpoint, &one.0).unwrap();
        Pair { sides: [one.1, other.1], proxy, port: first_location(&address).unwrap().port() }
    }

    fn poll(&mut self) {
        for side in &mut self.sides {
            side.lane.poll(now(), &mut side.events).unwrap();
        }
    }
}

impl Side {
    fn take_done(&mut self, done: &mut [bool]) {
        self.events.retain(|event| {
            let Event::Done { id } = event else { return true };
            assert!(!std::mem::replace(&mut done[*id as usize], true), "put {id} was done twice");
            false
        });
    }

    /// Sends message `number` through its slot. Every odd message has a tail, which is relocated in
    /// flight.
    fn send(&mut self, number: usize, bytes: usize) {
        let (offset, text) = (number % SLOTS * SLOT_BYTES, text(number, bytes));
        let head = if number.is_multiple_of(2) { bytes } else { bytes.min(HEAD) };
        let rest = bytes - head;
        self.source.write(offset, &text[..head]).unwrap();
        self.reused.write(0, &text[head..]).unwrap();
        let tail = LocalSlice { key: self.reused_key, offset: 0, bytes: rest };
        let put = WorkRequest::Put {
            endpoint: self.endpoint,
            local: LocalSlice { key: self.source_key, offset, bytes: head },
            tail: (number % 2 == 1).then_some(tail),
            is_control: false,
            remote: self.remote,
            remote_offset: offset,
            immediate: Some(number as u32),
            id: number as u64,
        };
        assert_eq!(self.lane.post(now(), &[put]), Ok(1));
        self.source.write(offset + head, &text[head..]).unwrap();
        let tail = LocalSlice { key: self.source_key, offset: offset + head, bytes: rest };
        self.lane.relocate(self.endpoint, number as u64, tail).unwrap();
        self.reused.write(0, &vec![0xee; rest]).unwrap();
    }

    /// Redirects message `number` if it is a multiple of 3.
    fn redirect(&mut self, number: usize, bytes: usize) {
        let slot = number % SLOTS;
        let (offset, bytes) = (slot * SLOT_BYTES + HEAD, bytes.saturating_sub(HEAD));
        self.lands[slot] = false;
        if number.is_multiple_of(3) && bytes > 0 {
            let from = LocalSlice { key: self.inbox_key, offset, bytes };
            let into = LocalSlice { key: self.target_key, offset, bytes };
            self.lands[slot] = self.lane.redirect(self.endpoint, from, Some(into)).unwrap();
        }
    }

    /// Checks the messages that have arrived.
    fn check(&mut self, seen: &mut [bool], bytes: impl Fn(usize) -> usize) {
        self.events.retain(|event| {
            let Event::Arrived { immediate, bytes: length, .. } = event else { return true };
            let number = *immediate as usize;
            assert!(!std::mem::replace(&mut seen[number], true), "message {number} arrived twice");
            assert_eq!(*length, bytes(number));
            let mut said = vec![0; *length];
            let (slot, head) = (number % SLOTS, HEAD.min(*length));
            self.inbox.read(slot * SLOT_BYTES, &mut said).unwrap();
            if self.lands[slot] {
                self.target.read(slot * SLOT_BYTES + HEAD, &mut said[head..]).unwrap();
            }
            assert!(said == text(number, *length), "message {number} has wrong bytes");
            false
        });
    }
}

/// Returns the text of message `number`.
pub(crate) fn text(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number * 31 + at * 7) as u8).collect()
}

/// Sends messages both ways; each slot is used again only when its message is done and was seen.
pub(crate) fn exchange(pair: &mut Pair, messages: usize, mut each: impl FnMut(&Pair, usize)) {
    let bytes = |number: usize| [0, 8, 40_000, 1000, 69_999][number % 5];
    let none = || [vec![false; messages], vec![false; messages]];
    let (mut seen, mut done, mut sent) = (none(), none(), [0; 2]);
    // Messages on several sockets overtake each other: only those before the first gap count.
    let all_below = |flags: &[bool]| flags.iter().take_while(|flag| **flag).count();
    let begun = Instant::now();
    while seen.iter().chain(&done).any(|flags| all_below(flags) < messages) {
        let now = [&seen, &done].map(|both| [all_below(&both[0]), all_below(&both[1])]);
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "not all messages arrived and were done in 60 s; sent: {sent:?}, seen and done: {now:?}"
        );
        for side in 0..2 {
            let window = all_below(&seen[1 - side]).min(all_below(&done[side])) + SLOTS;
            while sent[side] < messages.min(window) {
                // Redirect an even message before it is sent, and an odd one afterwards, when part
                // of it may have arrived.
                if sent[side] % 2 == 0 {
                    pair.sides[1 - side].redirect(sent[side], bytes(sent[side]));
                }
                pair.sides[side].send(sent[side], bytes(sent[side]));
                if sent[side] % 2 == 1 {
                    pair.sides[1 - side].redirect(sent[side], bytes(sent[side]));
                }
                sent[side] += 1;
                each(pair, sent[side]);
            }
        }
        pair.poll();
        for side in 0..2 {
            pair.sides[side].take_done(&mut done[side]);
            pair.sides[side].check(&mut seen[side], bytes);
            let lost = pair.sides[side].events.first();
            assert_eq!(
                lost, None,
                "unexpected event of side {side}; sent: {sent:?}, seen and done: {now:?}"
            );
        }
    }
}

#[test]
fn messages_lost_in_a_break_are_sent_again_and_arrive_once() {
    for (sockets, tls) in [1, 3, 6].into_iter().flat_map(|n| TLS.iter().map(move |tls| (n, *tls))) {
        let mut pair = Pair::new(sockets, Duration::from_secs(20), tls);
        exchange(&mut pair, 1000, |pair, sent| {
            if sent % 97 == 0 {
                pair.proxy.cut();
            }
        });
        assert!(pair.proxy.made() > 10, "only {} connections", pair.proxy.made());
    }
}

#[test]
fn messages_arrive_once_although_breaks_cut_their_frames() {
    let locations = [1_500_000, 400_033, 137_777];
    for (cut_after, tls) in locations.iter().flat_map(|at| TLS.iter().map(move |tls| (*at, *tls))) {
        let mut pair = Pair::new(1, Duration::from_secs(20), tls);
        pair.proxy.cut_after(cut_after);
        exchange(&mut pair, 300, |_, _| {});
        assert!(pair.proxy.made() > 3, "only {} connections", pair.proxy.made());
    }
}

/// A connection comes back although the connected strangers exceed the listener's limit on
/// connections that have not proved the secret.
#[test]
fn a_connection_comes_back_while_many_silent_strangers_are_connected() {
    let mut pair = Pair::new(1, Duration::from_secs(3), false);
    let location = SocketAddr::from(([127, 0, 0, 1], pair.port));
    let stranger = |_| TcpStream::connect_timeout(&location, Duration::from_secs(5)).unwrap();
    let strangers: Vec<TcpStream> = (0..300).map(stranger).collect();
    exchange(&mut pair, 300, |pair, sent| {
        if sent == 100 {
            pair.proxy.cut();
        }
    });
    assert!(pair.proxy.made() > 1);
    drop(strangers);
}

#[test]
fn a_connection_that_does_not_come_back_is_given_up_in_time() {
    for tls in TLS {
        is_given_up_in_time(*tls);
    }
}

fn is_given_up_in_time(tls: bool) {
    let mut pair = Pair::new(1, Duration::from_millis(300), tls);
    exchange(&mut pair, 20, |_, _| {});
    pair.proxy.refuse(true);
    pair.proxy.cut();
    let begun = Instant::now();
    while pair.sides.iter().any(|side| side.events.is_empty()) {
        pair.poll();
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    assert!(begun.elapsed() >= Duration::from_millis(250));
    for side in &pair.sides {
        let [Event::Lost { reason, .. }] = &side.events[..] else { panic!("{:?}", side.events) };
        assert!(reason.contains("did not come back within 300ms"), "{reason}");
    }
}

/// One side computes: it does not poll at all, for a time longer than the limit for a peer that
/// cannot be reached. The other side does not report the computing side as lost.
#[test]
fn a_peer_that_computes_is_waited_for() {
    // The first limit is for a peer that cannot be reached. This limit is longer than `AWAY` of
    // `ccl_socket`, and is measured anew after a pause of `AWAY` or longer between two polls of the
    // connecting side. So no pause can use up the limit.
    let limits = [Duration::from_millis(600), Duration::from_secs(60)];
    for waiting in [0, 1] {
        let mut pair = Pair::over([(), ()].map(|()| patient(1, limits, false)));
        exchange(&mut pair, 20, |_, _| {});
        pair.sides[waiting].send(20, 40_000);
        // The connection that is to replace the first one breaks, too.
        for _ in 0..2 {
            pair.proxy.cut();
            let begun = Instant::now();
            let Side { lane, events, .. } = &mut pair.sides[waiting];
            while begun.elapsed() < Duration::from_millis(1200) || !lane.is_drained() {
                lane.poll(now(), events).unwrap();
                assert_eq!(events[..], [], "side {waiting}");
                let is_late = begun.elapsed() > Duration::from_secs(10);
                assert!(!is_late, "side {waiting} does not drain in time");
            }
        }
        let begun = Instant::now();
        let has_come = |event: &Event| matches!(event, Event::Arrived { immediate: 20, .. });
        while !pair.sides[1 - waiting].events.iter().any(has_come) {
            pair.poll();
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "the put of side {waiting} did not arrive"
            );
        }
    }
}

#[test]
fn a_lane_is_not_drained_while_a_break_may_have_lost_a_put() {
    let mut pair = Pair::new(1, Duration::from_secs(20), false);
    exchange(&mut pair, 20, |_, _| {});
    let begun = Instant::now();
    pair.sides[0].send(20, 40_000);
    while !pair.sides[0].lane.is_drained() {
        let Side { lane, events, .. } = &mut pair.sides[0];
        lane.poll(now(), events).unwrap();
    }
    // The other side is busy: it neither reads nor takes the new connection.
    pair.proxy.cut();
    while pair.sides[0].lane.is_drained() {
        let Side { lane, events, .. } = &mut pair.sides[0];
        lane.poll(now(), events).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "the lane counts the put as sent");
    }
    let has_come = |pair: &Pair| {
        let is_it = |event: &Event| matches!(event, Event::Arrived { immediate: 20, .. });
        pair.sides[0].lane.is_drained() && pair.sides[1].events.iter().any(is_it)
    };
    while !has_come(&pair) {
        pair.poll();
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

/// The accepting side gives up the first of two links while that link's connection is broken. Polls
/// of the second link still accept the new connection, but the first link does not come back.
#[test]
fn a_link_that_the_other_side_has_given_up_does_not_come_back() {
    let within = Duration::from_millis(500);
    let devices = [(), ()].map(|()| device(1, within, false));
    let mut listener = devices[1].listen(&SECRET).unwrap();
    let address = listener.address();
    let proxy = Proxy::new(first_location(&address).unwrap());
    let mut lanes = devices.each_ref().map(|device| device.lane().unwrap());
    let mut given_up = Vec::new();
    for way in [proxy.instead_of(&address).unwrap(), address.clone()] {
        let by = now() + Duration::from_secs(10);
        let mut connecting = devices[0].connect(&way, &SECRET, b"", by).unwrap();
        let (mut near, mut far) = (None, None);
        while near.is_none() || far.is_none() {
            near = near.or_else(|| connecting.poll(now()).unwrap());
            far = far.or_else(|| listener.poll(now()).unwrap());
        }
        lanes[0].attach(near.unwrap()).unwrap();
        given_up.push(lanes[1].attach(far.unwrap()).unwrap());
    }
    proxy.cut();
    lanes[1].abort(given_up[0]);
    let (begun, mut events) = (Instant::now(), Vec::new());
    while events.is_empty() {
        for lane in &mut lanes {
            lane.poll(now(), &mut events).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "the dialling side waits for ever");
    }
    let [Event::Lost { reason, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(reason.contains("did not come back"), "{reason}");
}

/// A child of this process also has the sockets, as after a fork without exec: links still end.
#[test]
fn a_link_ends_though_a_child_has_its_socket() {
    let mut pair = Pair::new(1, Duration::from_secs(60), false);
    exchange(&mut pair, 20, |_, _| {});
    /// Child that is killed at the end of the test.
    struct Child(libc::pid_t);
    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: the child is this process's own.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            // SAFETY: as above; the call writes no status.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        }
    }
    // SAFETY: the child does nothing but wait for a signal, which is safe after a fork of a process
    // with several threads.
    let child = Child(unsafe { libc::fork() });
    if child.0 == 0 {
        loop {
            // SAFETY: `pause` has no arguments.
            unsafe { libc::pause() };
        }
    }
    let [near, far] = &mut pair.sides;
    // Nobody acknowledges this put. Once the far lane knows that the connection has ended, it no
    // longer counts the put as sent, so the lane is not drained.
    far.send(20, 8);
    near.lane.abort(near.endpoint);
    let begun = Instant::now();
    let has_left = |far: &mut Side| {
        far.lane.poll(now(), &mut far.events).unwrap();
        far.lane.is_drained()
    };
    while has_left(far) && begun.elapsed() < Duration::from_secs(10) {}
    let is_told = begun.elapsed() < Duration::from_secs(10);
    drop(child);
    assert!(is_told, "the other side does not see that the connection has ended");
}

#[test]
fn a_peer_without_a_listening_process_is_lost_at_once() {
    let mut pair = Pair::new(1, Duration::from_secs(60), false);
    exchange(&mut pair, 20, |_, _| {});
    let [near, far] = &mut pair.sides;
    // Like a killed process, the far side sends no farewell and has no listener.
    static SILENT: Mutex<Vec<Box<dyn Lane>>> = Mutex::new(Vec::new());
    let unused = std::mem::replace(&mut far.lane, device(1, Duration::ZERO, false).lane().unwrap());
    SILENT.lock().unwrap().push(unused);
    pair.proxy = Proxy::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    let begun = Instant::now();
    while near.events.is_empty() {
        near.lane.poll(now(), &mut near.events).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    let Event::Lost { reason, .. } = &near.events[0] else { panic!("{:?}", near.events) };
    assert!(reason.contains("no process listens there any more"), "{reason}");
}
