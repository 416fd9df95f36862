//! Conformance suite, run for TCP.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ccl_clock::now;
use ccl_conformance::{Fixture, first_location};
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, DeviceId, Transport};
use ccl_transport_tcp::{DEVICE, Options, TcpTransport};

/// Two devices of this process.
struct Tcp([Arc<dyn Device>; 2]);

impl Tcp {
    fn new(options: Options) -> Tcp {
        let open = || TcpTransport::new(options.clone()).open(&DeviceId(DEVICE.into())).unwrap();
        Tcp([open(), open()])
    }
}

impl Fixture for Tcp {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.0[side])
    }

    fn now(&self) -> Instant {
        now()
    }

    fn idle(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        let at = first_location(address).unwrap();
        // The listener may drop the stranger while the stranger still writes.
        let _ = TcpStream::connect_timeout(&at, Duration::from_secs(5)).unwrap().write_all(bytes);
        true
    }
}

fn options(interfaces: &str, sockets: u32, tls: bool) -> Options {
    let (interfaces, resume_within) = (interfaces.to_owned(), Duration::from_secs(1));
    Options { interfaces, sockets, resume_within, tls, ..Options::default() }
}

fn passes(interfaces: &str, sockets: u32, tls: bool) {
    passes_with(&options(interfaces, sockets, tls));
}

fn passes_with(options: &Options) {
    let report = ccl_conformance::run(|| Box::new(Tcp::new(options.clone())));
    println!("{report}");
    assert!(report.passed(), "{report}");
}

#[test]
fn tcp_passes_the_suite() {
    passes("127.0.0.1", 1, false);
}

#[test]
fn tcp_with_several_sockets_passes_the_suite() {
    passes("127.0.0.1", 3, false);
}

#[test]
fn tcp_whose_puts_are_done_when_they_are_written_passes_the_suite() {
    let options = options("127.0.0.1", 2, false);
    passes_with(&Options { done_when_written: true, ..options });
}

#[test]
fn tcp_over_detected_interfaces_passes_the_suite() {
    passes("", 1, false);
}

#[cfg(feature = "tls")]
#[test]
fn tcp_with_tls_passes_the_suite() {
    passes("127.0.0.1", 1, true);
}

#[cfg(feature = "tls")]
#[test]
fn tcp_with_tls_on_several_sockets_passes_the_suite() {
    passes("127.0.0.1", 3, true);
}
