//! Waiting for a device: between two polls, a rank peeks at the device's completion queue
//! (`Lane::peek`, which is cheaper than a poll) and then sleeps until the device signals an event.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use ccl_core::registry::{NO_TUNABLES, TransportKind};
use ccl_core::transport::{
    Device, DeviceId, DeviceInfo, Faults, FaultyDevice, Transport, TransportError,
};
use ccl_harness::{config_with, ranks_with};
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_verbs::{KIND, Options, VerbsTransport};
use ferroccl::transports;

static PEEKS: AtomicUsize = AtomicUsize::new(0);
/// Longest duration that a call of `Lane::sleep` allowed, in microseconds.
static LONGEST_US: AtomicU64 = AtomicU64::new(0);

/// Observer of a lane that counts the peeks and records the longest sleep that was allowed.
#[derive(Debug)]
struct Counting;

impl Faults for Counting {
    fn peeked(&mut self) {
        PEEKS.fetch_add(1, Ordering::Relaxed);
    }

    fn sleeps(&mut self, longest: Duration) {
        LONGEST_US.fetch_max(longest.as_micros() as u64, Ordering::Relaxed);
    }
}

/// RDMA over a software device with [`Counting`] lanes.
#[derive(Debug)]
struct Counted(VerbsTransport);

impl Transport for Counted {
    fn name(&self) -> &'static str {
        COUNTED.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.0.devices()
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        Ok(Arc::new(FaultyDevice::new(self.0.open(id)?).with_lanes(|| Counting)))
    }
}

static COUNTED: TransportKind = TransportKind {
    name: "counted",
    id: 252,
    // The lowest preference: other tests of this process let the library choose a transport, and it
    // must not choose this one.
    preference: 0,
    adapters: false,
    tunables: NO_TUNABLES,
    make: |_, setup| {
        let (interfaces, acknowledged) = ("127.0.0.1".to_owned(), setup.acknowledged);
        let options = Options { interfaces, acknowledged, ..Options::default() };
        Ok(Box::new(Counted(VerbsTransport::over(functions(), options))))
    },
    ..KIND
};

/// Sends a value back and forth `times` times. Rank 0 pauses for `pause` before each of its sends.
fn ping_pong(times: usize, pause: Duration) {
    static ADDED: Once = Once::new();
    static DEVICE: Mutex<()> = Mutex::new(());
    let _alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let _device = SoftDevice::new(Limits::default());
    ADDED.call_once(|| assert!(transports::add(&COUNTED)));
    let config = config_with(|config| config.transport = COUNTED.name.to_owned());
    ranks_with(2, config, move |communicator| {
        let peer = 1 - communicator.rank();
        let mut value = [0u8; 8];
        for _ in 0..times {
            if communicator.rank() == 0 {
                std::thread::sleep(pause);
            }
            if communicator.rank() == 0 {
                communicator.send(&value, peer).unwrap();
            }
            communicator.recv(&mut value, peer).unwrap();
            if communicator.rank() == 1 {
                communicator.send(&value, peer).unwrap();
            }
        }
    });
}

#[test]
fn a_rank_that_waits_for_a_device_peeks_at_it() {
    ping_pong(100, Duration::ZERO);
    assert!(PEEKS.load(Ordering::Relaxed) > 0, "the waiting rank never peeks at its device");
}

#[test]
fn a_rank_with_no_peer_in_shared_memory_sleeps_until_the_device_signals() {
    ping_pong(3, Duration::from_millis(20));
    let longest = LONGEST_US.load(Ordering::Relaxed);
    assert!(longest >= 1000, "the longest allowed sleep is only {longest} µs");
}
