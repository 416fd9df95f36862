//! The suite over software providers, which deliver out of order and complete early or late.

use std::sync::Arc;

use ccl_conformance::{Fixture, first_location, run};
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, DeviceId, Transport};
use ccl_soft_ofi::sys::FI_MR_HMEM;
use ccl_soft_ofi::{Limits, SoftProvider, functions};
use ccl_transport_ofi::{OfiTransport, Options};

use crate::conformance::knock;

/// Returns the number of seeds with which each test runs the suite.
fn seeds() -> u64 {
    if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 10 } else { 1 }
}

/// Two devices, of one software provider or of two.
pub(crate) struct Soft {
    devices: [Arc<dyn Device>; 2],
    _providers: Vec<SoftProvider>,
}

impl Soft {
    pub(crate) fn new(limits: Limits, options: &Options) -> Soft {
        let name = limits.name;
        let provider = SoftProvider::new(limits);
        let devices = [(); 2].map(|()| open(name, &provider, options));
        Soft { devices, _providers: vec![provider] }
    }

    /// Returns devices of two providers.
    pub(crate) fn unlike(sides: [(Limits, Options); 2]) -> Soft {
        let opened = sides.map(|(limits, options)| {
            let (name, provider) = (limits.name, SoftProvider::new(limits));
            (open(name, &provider, &options), provider)
        });
        let [(one, first), (other, second)] = opened;
        Soft { devices: [one, other], _providers: vec![first, second] }
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

/// Over an adapter of AWS that cannot write, puts are messages. Both the memory that a message is
/// sent from and the memory of the message's head must be registered.
#[test]
fn messages_of_an_adapter_without_writes_pass_the_suite() {
    passes(|seed| Limits { emulates_writes: true, ..Limits::efa(seed) }, &Options::default());
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
