//! The suite that every transport passes, over providers that run anywhere.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ccl_conformance::{Fixture, first_location, run_only};
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, Transport};
use ccl_transport_ofi::{OfiTransport, Options, providers};

/// Two devices of this process.
struct Ofi([Arc<dyn Device>; 2]);

impl Ofi {
    fn new(provider: &str, always_writes: bool) -> Ofi {
        let options = Options { interfaces: "lo".to_owned(), always_writes };
        let transport = OfiTransport::new(provider, options);
        let devices = transport.devices();
        let device = devices.iter().find(|device| device.id.0 == "lo").or(devices.first());
        let id = &device.unwrap().id;
        Ofi([(), ()].map(|()| transport.open(id).unwrap()))
    }
}

impl Fixture for Ofi {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.0[side])
    }

    fn now(&self) -> Instant {
        ccl_socket::now()
    }

    fn idle(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        let at = first_location(address).unwrap();
        let mut socket = TcpStream::connect_timeout(&at, Duration::from_secs(5)).unwrap();
        // It may be hung up on at once.
        let _ = socket.write_all(bytes);
        true
    }
}

/// Point that writes over a provider in software do not keep to where they are received in parts:
/// the key is checked at the beginning only. Puts are messages there, unless writes are asked for.
const WITHDRAWN: &str = "what is on its way to memory that is given back goes nowhere";

fn passes(provider: &str, always_writes: bool) {
    let all = providers().unwrap_or_default();
    if !all.iter().any(|found| found.name == provider) {
        println!("\nSKIPPED: libfabric has no provider {provider}");
        return;
    }
    let make = || Box::new(Ofi::new(provider, always_writes)) as Box<dyn Fixture>;
    let report = run_only(make, |name| !always_writes || name != WITHDRAWN);
    assert!(report.passed(), "{report}");
}

#[test]
fn tcp_passes_the_suite() {
    passes("tcp", false);
}

#[test]
fn tcp_as_messages_passes_the_suite() {
    passes("tcp;ofi_rxm", false);
}

#[test]
fn writes_over_tcp_pass_the_suite() {
    passes("tcp", true);
}

#[test]
fn writes_over_tcp_as_messages_pass_the_suite() {
    passes("tcp;ofi_rxm", true);
}
