//! Waiting for a device: between two looks for progress a rank glances at its completion queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ccl_core::registry::{NO_TUNABLES, TransportKind};
use ccl_core::transport::{
    Device, DeviceId, DeviceInfo, Faults, FaultyDevice, Transport, TransportError,
};
use ccl_harness::{config_with, ranks_with};
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_verbs::{KIND, Options, VerbsTransport};
use ferroccl::transports;

static GLANCES: AtomicUsize = AtomicUsize::new(0);

/// A lane that counts how often it is glanced at.
#[derive(Debug)]
struct Counting;

impl Faults for Counting {
    fn glanced(&mut self) {
        GLANCES.fetch_add(1, Ordering::Relaxed);
    }
}

/// RDMA over a device in software, with such lanes.
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
    // Other tests of this process leave the choice of a transport to the library.
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

#[test]
fn a_rank_that_waits_for_a_device_glances_at_it() {
    let _device = SoftDevice::new(Limits::default());
    assert!(transports::add(&COUNTED));
    let config = config_with(|config| config.transport = COUNTED.name.to_owned());
    ranks_with(2, config, |communicator| {
        let peer = 1 - communicator.rank();
        let mut value = [0u8; 8];
        for _ in 0..100 {
            if communicator.rank() == 0 {
                communicator.send(&value, peer).unwrap();
            }
            communicator.recv(&mut value, peer).unwrap();
            if communicator.rank() == 1 {
                communicator.send(&value, peer).unwrap();
            }
        }
    });
    assert!(GLANCES.load(Ordering::Relaxed) > 0, "it only polls");
}
