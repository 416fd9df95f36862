//! The suite over software providers, which deliver out of order and complete early or late.

use std::sync::Arc;
use std::time::Duration;

use ccl_clock::now;
use ccl_conformance::{Fixture, first_location, join, run};
use ccl_core::admission::{Config, MessageLinks, Placement};
use ccl_core::execution::Link;
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, DeviceId, Transport};
use ccl_soft_ofi::sys::{FI_MR_HMEM, fi_pci_attr};
use ccl_soft_ofi::{Condition, Limits, SoftProvider, functions};
use ccl_transport_ofi::{OfiTransport, Options};

use crate::conformance::knock;

/// Returns the number of seeds with which each test runs the suite.
fn seeds() -> u64 {
    if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 10 } else { 1 }
}

/// Two devices, of one software provider or of two.
pub(crate) struct Soft {
    devices: [Arc<dyn Device>; 2],
    providers: Vec<SoftProvider>,
    buffered_bytes_max: usize,
}

impl Soft {
    pub(crate) fn new(limits: Limits, options: &Options) -> Soft {
        let name = limits.name;
        // A longer put is several messages, each with a head.
        let buffered_bytes_max = limits.message_bytes - 100;
        let provider = SoftProvider::new(limits);
        let devices = [(); 2].map(|()| open(name, &provider, options));
        Soft { devices, providers: vec![provider], buffered_bytes_max }
    }

    /// Returns devices of two providers.
    pub(crate) fn unlike(sides: [(Limits, Options); 2]) -> Soft {
        let opened = sides.map(|(limits, options)| {
            let (name, provider) = (limits.name, SoftProvider::new(limits));
            (open(name, &provider, &options), provider)
        });
        let [(one, first), (other, second)] = opened;
        let (devices, providers) = ([one, other], vec![first, second]);
        Soft { devices, providers, buffered_bytes_max: usize::MAX }
    }
}

fn open(name: &str, provider: &SoftProvider, options: &Options) -> Arc<dyn Device> {
    let options = Options { interfaces: "lo".to_owned(), ..options.clone() };
    let transport = OfiTransport::over(functions(), name, options);
    transport.open(&DeviceId(provider.device())).unwrap()
}

impl Fixture for Soft {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.devices[side])
    }

    fn now(&self) -> Instant {
        ccl_clock::now()
    }

    fn idle(&self) {
        std::thread::sleep(std::time::Duration::from_micros(20));
    }

    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        knock(first_location(address).unwrap(), bytes);
        true
    }

    fn buffered_bytes_max(&self) -> usize {
        self.buffered_bytes_max
    }
}

fn passes(limits: impl Fn(u64) -> Limits, options: &Options) {
    for seed in 0..seeds() {
        let report = run(|| Box::new(Soft::new(limits(seed), options)) as Box<dyn Fixture>);
        assert!(report.passed(), "seed {seed}: {report}");
    }
}

#[test]
fn puts_as_writes_pass_the_suite() {
    passes(Limits::efa, &Options::default());
}

#[test]
fn writes_that_are_acknowledged_pass_the_suite() {
    passes(Limits::efa, &Options { acknowledged: true, ..Options::default() });
}

#[test]
fn puts_as_messages_pass_the_suite() {
    passes(Limits::sockets, &Options::default());
}

/// Puts are messages if the provider cannot write at all.
#[test]
fn messages_of_a_provider_without_writes_pass_the_suite() {
    passes(
        |seed| Limits { name: "mute", data_bytes: 0, ..Limits::sockets(seed) },
        &Options::default(),
    );
}

/// `ofi_rxm` gets no message that it would divide, or that it would first ask the receiver about.
#[test]
fn messages_within_the_limit_of_ofi_rxm_pass_the_suite() {
    for (version, limit, message_bytes) in
        [(117, "", 16 << 10), (117, "524288", 512 << 10), (118, "524288", 16 << 10)]
    {
        let name = "tcp;ofi_rxm";
        let limits = |seed| Limits { name, version, message_bytes, ..Limits::sockets(seed) };
        passes(limits, &Options { eager_limit: limit.to_owned(), ..Options::default() });
    }
}

/// Over an adapter of AWS that cannot write, puts are messages. Both the memory that a message is
/// sent from and the memory of the message's head must be registered.
#[test]
fn messages_of_an_adapter_without_writes_pass_the_suite() {
    for acknowledged in [false, true] {
        let limits = |seed| Limits {
            emulates_writes: true,
            // Messages that are not acknowledged can complete early.
            is_done_early: true,
            ..Limits::efa(seed)
        };
        passes(limits, &Options { acknowledged, ..Options::default() });
    }
}

/// Requests of the provider make progress even if nobody reads its queues, as over verbs.
#[test]
fn providers_that_make_progress_by_themselves_pass_the_suite() {
    for limits in [Limits::efa, Limits::sockets] {
        passes(|seed| Limits { is_automatic: true, ..limits(seed) }, &Options::default());
    }
}

#[test]
fn small_queues_and_queues_that_wake_nobody_pass_the_suite() {
    for limits in [Limits::efa, Limits::sockets] {
        let small = |seed| Limits { requests: 3, wakes: false, packet_bytes: 999, ..limits(seed) };
        passes(small, &Options::default());
    }
}

/// Over a provider that moves the memory of accelerators, a device that asks for this feature
/// registers its memory. A device that does not ask registers nothing.
#[test]
fn endpoints_that_move_the_memory_of_accelerators_pass_the_suite() {
    let asks = Options { device_memory: true, ..Options::default() };
    for limits in [Limits::efa, Limits::sockets] {
        let with_hmem = |seed| {
            let limits = limits(seed);
            Limits { mr_mode: limits.mr_mode | FI_MR_HMEM, ..limits }
        };
        passes(with_hmem, &asks);
    }
    for (options, count) in [(&asks, 1), (&Options::default(), 0)] {
        let limits = Limits { mr_mode: FI_MR_HMEM, ..Limits::sockets(1) };
        let (name, provider) = (limits.name, SoftProvider::new(limits));
        let device = open(name, &provider, options);
        let allocated = device.allocate(64).unwrap();
        assert_eq!(provider.in_use().1, count, "{options:?}");
        drop(allocated);
    }
}

/// Returns the PCI functions of this machine, in the format of sysfs.
fn pci_functions() -> Vec<String> {
    let all = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    all.filter_map(|function| function.file_name().into_string().ok()).collect()
}

/// Parses the address of a PCI function, such as `0000:31:00.0`. Returns none if libfabric has no
/// room for the address.
fn pci(address: &str) -> Option<fi_pci_attr> {
    let number = |part| u16::from_str_radix(part, 16).ok();
    let numbers: Vec<u16> = address.split([':', '.']).map(number).collect::<Option<_>>()?;
    let [domain_id, bus, device, function] = numbers.try_into().ok()?;
    let [bus_id, device_id, function_id] = [bus, device, function].map(|number| number as u8);
    Some(fi_pci_attr { domain_id, bus_id, device_id, function_id })
}

/// A rank takes the adapters that are near its accelerator, so each adapter must say where it is.
/// If some devices are on the PCI bus, the others are left out.
#[test]
fn all_adapters_are_listed_with_their_positions() {
    let mut here = pci_functions();
    here.retain(|address| pci(address).is_some());
    let [first, second, ..] = &here[..] else {
        println!("\nSKIPPED: this machine has fewer than two PCI functions");
        return;
    };
    let make = |pci| SoftProvider::new(Limits { name: "soft-pci", pci, ..Limits::efa(1) });
    let adapters = [first, second].map(|address| (make(pci(address)), address));
    let elsewhere = make(None);
    let transport = OfiTransport::over(functions(), "soft-pci", Options::default());
    let devices = transport.devices();
    assert_eq!(devices.len(), 2, "{devices:?}");
    for (adapter, address) in &adapters {
        let found = devices.iter().find(|device| device.id.0 == adapter.device()).unwrap();
        let path = std::fs::canonicalize(format!("/sys/bus/pci/devices/{address}")).unwrap();
        assert_eq!(found.pci_path.as_deref(), path.to_str());
    }
    assert!(transport.open(&DeviceId(elsewhere.device())).is_ok());
}

const CONFIG: Config = Config {
    channels: 1,
    slots: 3,
    slots_min: 1,
    slot_bytes: 200,
    budget_bytes: 100_000,
    zero_copy_bytes_min: 100,
    registered_bytes_max: 0,
};

/// Drives links until `done` returns true of the last of them; panics after 20 s.
fn until(all: &mut [&mut MessageLinks], done: impl Fn(&mut MessageLinks) -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !all.last_mut().is_some_and(|last| done(last)) {
        assert!(std::time::Instant::now() < end, "what is awaited does not happen");
        for links in all.iter_mut() {
            links.flush(now()).unwrap();
            links.poll(now()).unwrap();
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn send(links: &mut MessageLinks, peer: u32) {
    let link = Link { peer, channel: 0 };
    assert!(links.writable(link), "there is no room for a message to rank {peer}");
    links.publish(link, 8, 0);
}

/// Links of three ranks: of rank 0 (`own`) to the others, and of ranks 1 (`near`) and 2 (`far`) to
/// rank 0.
struct Three {
    soft: Soft,
    own: MessageLinks,
    near: MessageLinks,
    far: MessageLinks,
}

/// Link of ranks 1 and 2 to rank 0.
const TO_OWN: Link = Link { peer: 0, channel: 0 };

impl Three {
    /// Connects the ranks. One message has gone from rank 0 to each of the others.
    fn connect() -> Three {
        let soft = Soft::new(Limits::efa(19), &Options::default());
        let links = |side: usize, peers| {
            let device = soft.device(side);
            let lane = device.lane().unwrap();
            MessageLinks::new(device, lane, CONFIG, peers).unwrap()
        };
        let (mut own, mut near, mut far) = (links(0, 2), links(1, 1), links(1, 1));
        for (rank, peer) in [(1, &mut near), (2, &mut far)] {
            let [accepted, connected] = join(&soft, b"links").unwrap();
            let own_offer = own.attach(rank, accepted).unwrap();
            let offer = peer.attach(0, connected).unwrap();
            own.import(rank, &offer).unwrap();
            peer.import(0, &own_offer).unwrap();
            send(&mut own, rank);
        }
        until(&mut [&mut own, &mut far, &mut near], |near| near.readable(TO_OWN));
        until(&mut [&mut own, &mut near, &mut far], |far| far.readable(TO_OWN));
        [&mut near, &mut far].into_iter().for_each(|peer| peer.release(TO_OWN));
        let provider = &soft.providers[0];
        let is_quiet = |own: &mut MessageLinks| own.is_idle() && provider.under_way() == 0;
        until(&mut [&mut near, &mut far, &mut own], is_quiet);
        Three { soft, own, near, far }
    }
}

/// A rank leaves while one of its puts to a lost peer is not done. When the memory of that put is
/// deregistered, all endpoints close, so this must not happen before the last puts to other peers
/// have arrived.
#[test]
fn the_last_puts_to_a_peer_arrive_even_if_another_peer_is_lost() {
    let Three { soft, mut own, near, mut far } = Three::connect();
    let provider = &soft.providers[0];
    provider.set(Condition::Still);
    send(&mut own, 1);
    own.flush(now()).unwrap();
    drop(near);
    until(&mut [&mut own], |own| own.lost(1).is_some());
    send(&mut own, 2);
    own.flush(now()).unwrap();
    assert_eq!(provider.under_way(), 2);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(move || drop(own));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!leaving.is_finished(), "the rank has left before its last message has arrived");
        provider.set(Condition::Good);
        until(&mut [&mut far], |far| far.readable(TO_OWN) || far.lost(0).is_some());
        assert!(far.readable(TO_OWN), "the last message has not arrived: {:?}", far.lost(0));
    });
}

/// A call ends while a lost peer may still write to the call's memory, and while a put to this peer
/// is not done. The connection to the peer closes, and the connections to other peers stay.
#[test]
fn links_to_other_peers_stay_after_a_failed_call_has_closed_one() {
    let Three { soft, mut own, near, mut far } = Three::connect();
    let provider = &soft.providers[0];
    let memory = soft.device(0).allocate(256 << 10).unwrap().0;
    own.open(std::iter::once(memory.clone()));
    until(&mut [&mut own], |own| own.preposts());
    let placement = Placement { address: memory.start().addr(), bytes: 100, tag: 0 };
    own.prepost(Link { peer: 1, channel: 0 }, Some(placement));
    assert_eq!(own.counters().cts_sent, 1);
    let is_quiet = |own: &mut MessageLinks| own.is_drained() && provider.under_way() == 0;
    until(&mut [&mut own], is_quiet);
    provider.set(Condition::Still);
    send(&mut own, 1);
    own.flush(now()).unwrap();
    drop(near);
    until(&mut [&mut own], |own| own.lost(1).is_some());
    own.close();
    assert!(!own.is_connected(1), "the peer can still write to the memory of the call");
    provider.set(Condition::Good);
    send(&mut own, 2);
    until(&mut [&mut own, &mut far], |far| far.readable(TO_OWN) || far.lost(0).is_some());
    assert!(far.readable(TO_OWN), "the link has ended: {:?}", far.lost(0));
}
