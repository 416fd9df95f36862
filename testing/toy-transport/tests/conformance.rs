//! Conformance of the toy transport.

use std::sync::Arc;

use ccl_conformance::{Fixture, WallClock, run};
use ccl_core::time::Instant;
use ccl_core::transport::{Device, Transport};
use ccl_toy_transport::ToyTransport;

struct Toys(WallClock, [Arc<dyn Device>; 2]);

impl Fixture for Toys {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.1[side])
    }

    fn now(&self) -> Instant {
        self.0.now()
    }

    fn idle(&self) {
        self.0.idle();
    }
}

#[test]
fn a_toy_passes_the_suite() {
    let open = || ToyTransport.open(&ToyTransport.devices()[0].id).unwrap();
    let report = run(|| Box::new(Toys(WallClock::start(), [open(), open()])));
    assert!(report.passed(), "{report}");
}
