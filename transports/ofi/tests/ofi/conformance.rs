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
    fn new(provider: &str) -> Ofi {
        let options = Options { interfaces: "lo".to_owned() };
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

/// Point that providers in software do not keep to where they receive a write in parts: they check
/// its key at its beginning only.
const WITHDRAWN: &str = "what is on its way to memory that is given back goes nowhere";

fn passes(provider: &str) {
    let all = providers().unwrap_or_default();
    if !all.iter().any(|found| found.name == provider) {
        println!("\nSKIPPED: libfabric has no provider {provider}");
        return;
    }
    let make = || Box::new(Ofi::new(provider)) as Box<dyn Fixture>;
    let report = run_only(make, |name| name != WITHDRAWN);
    assert!(report.passed(), "{report}");
}

#[test]
fn tcp_passes_the_suite() {
    passes("tcp");
}

#[test]
fn tcp_as_messages_passes_the_suite() {
    passes("tcp;ofi_rxm");
}
