//! The suite that every transport passes, over providers that run anywhere.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ccl_conformance::{Fixture, Verdict, first_location, join, run, run_only};
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, Event, LocalSlice, Transport, WorkRequest};
use ccl_memory::Region;
use ccl_remote_device::{RemoteProcess, serve};
use ccl_transport_ofi::{OfiTransport, Options, providers};

/// Two devices. The second device belongs to the process `other`, if there is one.
struct Ofi {
    devices: [Arc<dyn Device>; 2],
    other: Option<RemoteProcess>,
    buffered_bytes_max: usize,
}

/// Returns the limit that `tcp;ofi_rxm` reads before libfabric 1.18.
fn eager_limit() -> String {
    std::env::var("FI_OFI_RXM_EAGER_LIMIT").unwrap_or_default()
}

/// Opens a device of a provider that runs anywhere.
fn open(provider: &str, options: &Options) -> Arc<dyn Device> {
    let (interfaces, eager_limit) = ("lo".to_owned(), eager_limit());
    let options = Options { interfaces, eager_limit, ..options.clone() };
    let transport = OfiTransport::new(provider, options);
    let devices = transport.devices();
    let device = devices.iter().find(|device| device.id.0 == "lo").or(devices.first());
    transport.open(&device.unwrap().id).unwrap()
}

impl Ofi {
    fn new(provider: &str, options: &Options) -> Ofi {
        let devices = [(), ()].map(|()| open(provider, options));
        let all = providers().unwrap();
        let found = all.iter().find(|one| one.name == provider);
        let found = found.unwrap_or_else(|| panic!("no provider has the full name {provider}"));
        // A longer put is several messages, each with a head.
        let buffered_bytes_max = found.eager_bytes(&eager_limit()) - 100;
        Ofi { devices, other: None, buffered_bytes_max }
    }

    /// Opens devices of the provider `shm` in two processes. In a single process, libfabric crashes
    /// at a put to an endpoint that the process has closed. Version 2.5 also crashes at long
    /// messages in both directions.
    ///
    /// `other` is the name of the test that opens the second device, with the same options.
    fn shm(options: &Options, other: &str) -> Ofi {
        let own = open("shm", options);
        let other = RemoteProcess::start(other, own.caps());
        let devices: [Arc<dyn Device>; 2] = [own, Arc::new(other.device())];
        Ofi { devices, other: Some(other), buffered_bytes_max: usize::MAX }
    }
}

impl Fixture for Ofi {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.devices[side])
    }

    fn now(&self) -> Instant {
        ccl_clock::now()
    }

    fn idle(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        knock(first_location(address).unwrap(), bytes);
        true
    }

    fn buffered_bytes_max(&self) -> usize {
        self.buffered_bytes_max
    }

    fn kill(&self, side: usize) -> bool {
        let Some(other) = self.other.as_ref().filter(|_| side == 1) else { return false };
        other.kill();
        true
    }
}

/// Connects as a stranger, sends these bytes and hangs up.
pub(crate) fn knock(at: SocketAddr, bytes: &[u8]) {
    let mut socket = TcpStream::connect_timeout(&at, Duration::from_secs(5)).unwrap();
    // The listener may hang up at once.
    let _ = socket.write_all(bytes);
}

/// Name of the one test of the suite that fails for writes over libfabric's own software providers.
/// Such a provider receives a write in parts, and checks the key only at the beginning. Over such a
/// provider, puts are messages unless the options ask for writes.
const WITHDRAWN: &str = "a put under way writes nothing to deregistered memory";

/// Returns the installed providers that run anywhere.
pub(crate) fn present() -> impl Iterator<Item = &'static str> {
    let all = providers().unwrap_or_default();
    ["tcp", "tcp;ofi_rxm"].into_iter().filter(move |name| all.iter().any(|one| one.name == *name))
}

/// Returns whether libfabric has this provider, and the provider moves the memory of accelerators.
fn moves_device_memory(provider: &str) -> bool {
    let all = providers().unwrap_or_default();
    all.iter().any(|found| found.name == provider && found.device_memory)
}

/// Returns whether libfabric has this provider; prints SKIPPED if it has not.
fn has(provider: &str) -> bool {
    let all = providers().unwrap_or_default();
    let found = all.iter().any(|found| found.name == provider);
    if !found {
        println!("\nSKIPPED: libfabric has no provider {provider}");
    }
    found
}

fn passes(provider: &str, options: &Options) {
    if !has(provider) {
        return;
    }
    let make = || Box::new(Ofi::new(provider, options)) as Box<dyn Fixture>;
    let report = run_only(make, |name| !options.always_writes || name != WITHDRAWN);
    assert!(report.passed(), "{report}");
    // Over a provider in software, puts are messages unless the options ask for writes. Only
    // messages have receive buffers.
    if present().any(|name| name == provider) {
        let of_buffers = report.points.iter().find(|(name, _)| name.contains("receive buffer"));
        let has_buffers = of_buffers.is_some_and(|(_, verdict)| *verdict == Verdict::Passed);
        assert_eq!(has_buffers, !options.always_writes, "{report}");
    }
}

#[test]
fn tcp_passes_the_suite() {
    passes("tcp", &Options::default());
}

#[test]
fn tcp_with_ofi_rxm_passes_the_suite() {
    passes("tcp;ofi_rxm", &Options::default());
}

fn shm_passes(options: &Options, other: &str) {
    if !has("shm") {
        return;
    }
    let report = run(|| Box::new(Ofi::shm(options, other)));
    assert!(report.passed(), "{report}");
}

#[test]
fn shm_between_processes_passes_the_suite() {
    shm_passes(&Options::default(), "conformance::shm_of_the_other_process");
}

/// Serves a device in the process that [`Ofi::shm`] starts. In an ordinary run, does nothing.
#[test]
fn shm_of_the_other_process() {
    serve(|| open("shm", &Options::default()));
}

/// Options of endpoints that move the memory of accelerators. Of the software providers, only `shm`
/// has the feature, and it needs no accelerator.
fn for_accelerators() -> Options {
    Options { device_memory: true, ..Options::default() }
}

#[test]
fn shm_that_moves_the_memory_of_accelerators_passes_the_suite() {
    assert!(!has("shm") || moves_device_memory("shm"), "shm moves no memory of accelerators");
    shm_passes(&for_accelerators(), "conformance::shm_for_accelerators_of_the_other_process");
}

/// Serves a device as [`shm_of_the_other_process`] does.
#[test]
fn shm_for_accelerators_of_the_other_process() {
    serve(|| open("shm", &for_accelerators()));
}

/// A provider that cannot move the memory of accelerators is used without this feature.
#[test]
fn a_provider_that_is_asked_for_the_memory_of_accelerators_in_vain_passes_the_suite() {
    let provider = present().next().unwrap_or("tcp");
    assert!(!moves_device_memory(provider), "{provider} moves the memory of accelerators");
    passes(provider, &for_accelerators());
}

#[test]
fn writes_over_tcp_pass_the_suite() {
    passes("tcp", &Options { always_writes: true, ..Options::default() });
}

#[test]
fn writes_over_tcp_with_ofi_rxm_pass_the_suite() {
    passes("tcp;ofi_rxm", &Options { always_writes: true, ..Options::default() });
}

#[test]
fn writes_with_the_options_for_efa_pass_the_suite() {
    for provider in ["tcp", "tcp;ofi_rxm"] {
        // With `short_data`, the remote CQ data of a write has no room for the length of the put,
        // so the completion must have the length. Over ofi_rxm of libfabric 1.17, completions of
        // writes lack the length.
        let short_data = provider == "tcp";
        passes(
            provider,
            &Options { acknowledged: true, always_writes: true, short_data, ..Options::default() },
        );
    }
}

/// Tests the provider that an environment variable names, such as EFA on a machine with EFA.
#[test]
fn the_named_provider_passes_the_suite() {
    match std::env::var("FERROCCL_TEST_OFI_PROVIDER") {
        Ok(provider) => passes(&provider, &Options::default()),
        Err(_) => println!("\nSKIPPED: FERROCCL_TEST_OFI_PROVIDER names no provider"),
    }
}

/// A peer changes the key of shared memory into the key of memory that was not shared. A put with
/// this forged key writes nothing.
#[test]
fn memory_that_was_not_shared_is_not_written() {
    let Some(name) = present().next() else {
        println!("\nSKIPPED: libfabric has no provider tcp");
        return;
    };
    let fixture = Ofi::new(name, &Options::default());
    let [accepted, connected] = join(&fixture, b"keys").unwrap();
    let mut lanes = [0, 1].map(|side| fixture.device(side).lane().unwrap());
    let at = [lanes[0].attach(accepted).unwrap(), lanes[1].attach(connected).unwrap()];
    let (shared, key) = fixture.device(0).allocate(64).unwrap();
    let (own, other) = fixture.device(0).allocate(64).unwrap();
    let (source, local) = fixture.device(1).allocate(64).unwrap();
    source.write(0, &[7; 64]).unwrap();
    let named = lanes[0].share(at[0], key).unwrap();
    // The last byte of an encoded key is the key's number, as long as the number is small.
    let mut forged = named.clone();
    assert_eq!(forged.0.last().map(|last| u64::from(*last)), Some(key.0));
    *forged.0.last_mut().unwrap() = u8::try_from(other.0).unwrap();
    for (id, key) in [(1, &named), (2, &forged)] {
        let put = WorkRequest::Put {
            endpoint: at[1],
            local: LocalSlice { key: local, offset: 0, bytes: 64 },
            tail: None,
            is_control: false,
            remote: lanes[1].import(at[1], key).unwrap(),
            remote_offset: 0,
            immediate: Some(id),
            id: id.into(),
        };
        assert_eq!(lanes[1].post(fixture.now(), &[put]), Ok(1));
    }
    let mut told = Vec::new();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while told.len() < 2 {
        assert!(std::time::Instant::now() < until, "only these events came: {told:?}");
        for lane in &mut lanes {
            let mut events = Vec::new();
            lane.poll(fixture.now(), &mut events).unwrap();
            told.extend(events.iter().filter_map(|event| match event {
                Event::Arrived { immediate, .. } => Some(immediate.to_string()),
                Event::Lost { reason, .. } => Some(reason.clone()),
                _ => None,
            }));
        }
    }
    assert!(told[1].contains("memory that is not shared with its sender"), "{told:?}");
    assert_eq!(told[0], "1");
    let read = |region: &Region| {
        let mut bytes = [0; 64];
        region.read(0, &mut bytes).unwrap();
        bytes
    };
    assert_eq!((read(&shared), read(&own)), ([7; 64], [0; 64]));
}
