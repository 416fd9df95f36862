//! Conformance suite, run for shared memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ccl_clock::now;
use ccl_conformance::Fixture;
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, DeviceId, Transport};
use ccl_transport_shm::{DEVICE, ShmTransport};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Two devices of this process.
struct Shm([Arc<dyn Device>; 2]);

impl Shm {
    fn new() -> Shm {
        let open = || ShmTransport::new().open(&DeviceId(DEVICE.into())).unwrap();
        Shm([open(), open()])
    }
}

impl Fixture for Shm {
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
        let digits: String = address.0[4..20].iter().map(|byte| format!("{byte:02x}")).collect();
        let name = SocketAddrUnix::new_abstract_name(format!("ferroccl-shm-{digits}").as_bytes());
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket: OwnedFd =
            rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::connect(&socket, &name.unwrap()).unwrap();
        rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        true
    }
}

#[test]
fn shared_memory_passes_the_suite() {
    let report = ccl_conformance::run(|| Box::new(Shm::new()));
    println!("{report}");
    assert!(report.passed(), "{report}");
}
