//! The suite that every transport passes.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ccl_conformance::Fixture;
use ccl_conformance::first_location;
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, DeviceId, Transport};
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_verbs::{Options, VerbsTransport};

/// Environment variable that lists this machine's devices for tests, each with its port. The suite
/// uses the first one or two.
const DEVICES: &str = "FERROCCL_TEST_RDMA";

/// Two devices of this process.
struct Verbs {
    devices: [Arc<dyn Device>; 2],
    /// Software devices behind `devices`; empty for devices of this machine.
    soft: Vec<SoftDevice>,
}

impl Verbs {
    fn new(options: &Options, limits: &Limits) -> Verbs {
        let soft = [0, 1].map(|seed| SoftDevice::new(Limits { seed, ..limits.clone() }));
        let transport = VerbsTransport::over(functions(), options.clone());
        let open = |device: &SoftDevice| transport.open(&DeviceId(format!("{}:1", device.name())));
        let devices = soft.each_ref().map(|device| open(device).unwrap());
        Verbs { devices, soft: soft.into() }
    }

    /// Opens devices of this machine.
    fn real(options: &Options, names: &str) -> Verbs {
        let transport = VerbsTransport::new(options.clone());
        // Names after the second are devices on another network, which this suite does not use.
        let mut each = names.split(',');
        let one = each.next().unwrap_or_default();
        let devices = [one, each.next().unwrap_or(one)]
            .map(|name| transport.open(&DeviceId(name.to_owned())).unwrap());
        Verbs { devices, soft: Vec::new() }
    }
}

impl Fixture for Verbs {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.devices[side])
    }

    fn now(&self) -> Instant {
        ccl_clock::now()
    }

    fn idle(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn patience(&self) -> Duration {
        // The devices of this machine may be Soft-RoCE in a guest with emulated, slow processors.
        Duration::from_secs(if self.soft.is_empty() { 60 } else { 10 })
    }

    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        let at = first_location(address).unwrap();
        // The listener may drop the stranger while the stranger still writes.
        let _ = TcpStream::connect_timeout(&at, Duration::from_secs(5)).unwrap().write_all(bytes);
        true
    }
}

fn local(options: Options) -> Options {
    Options { interfaces: "127.0.0.1".to_owned(), ..options }
}

fn passes(make: impl Fn() -> Verbs) {
    let report = ccl_conformance::run(|| Box::new(make()));
    println!("{report}");
    assert!(report.passed(), "{report}");
}

#[test]
fn one_queue_pair_passes_the_suite() {
    let options = local(Options::default());
    passes(|| Verbs::new(&options, &Limits::default()));
}

/// Puts that are done only when the peer has their data: multi-rail needs such puts.
#[test]
fn acknowledged_puts_pass_the_suite() {
    let policy = "3".parse().unwrap();
    let options = local(Options { policy, acknowledged: true, ..Options::default() });
    passes(|| Verbs::new(&options, &Limits::default()));
}

#[test]
fn several_queue_pairs_that_overtake_each_other_pass_the_suite() {
    let options = local(Options { policy: "5".parse().unwrap(), ..Options::default() });
    passes(|| Verbs::new(&options, &Limits::default()));
}

#[test]
fn puts_in_parts_pass_the_suite() {
    for policy in ["qps=4 order=split chunk=1", "qps=7 order=split chunk=100 tc=8"] {
        let policy = policy.parse().unwrap();
        let options = local(Options { policy, ..Options::default() });
        passes(|| Verbs::new(&options, &Limits::default()));
    }
}

#[test]
fn puts_on_the_least_loaded_queue_pair_pass_the_suite() {
    let policy = "qps=5 order=load_aware in_flight=3".parse().unwrap();
    let options = local(Options { policy, ..Options::default() });
    passes(|| Verbs::new(&options, &Limits::default()));
}

#[test]
fn small_queues_pass_the_suite() {
    let options = local(Options {
        policy: "3".parse().unwrap(),
        writes: 1,
        immediates: 4,
        ..Options::default()
    });
    let limits = Limits { inline_bytes: 0, ..Limits::default() };
    passes(|| Verbs::new(&options, &limits));
}

#[test]
fn devices_of_this_machine_pass_the_suite() {
    let Some(names) = std::env::var_os(DEVICES) else {
        println!("\nSKIPPED: {DEVICES} names no RDMA device");
        return;
    };
    let names = names.into_string().unwrap();
    let in_full = std::env::var_os("FERROCCL_TEST_FULL").is_some();
    let policies = ["qps=4 order=split chunk=1", "1", "2", "16", "qps=4 order=load_aware tc=104"];
    // One policy by default: each run of the suite takes long where processors are emulated.
    for policy in if in_full { &policies[..] } else { &["qps=4 order=split chunk=64"] } {
        let policy = policy.parse().unwrap();
        let options = local(Options { policy, ..Options::default() });
        passes(|| Verbs::real(&options, &names));
    }
}
