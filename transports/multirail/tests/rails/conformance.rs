//! The suite that every transport passes.

use std::sync::Arc;
use std::time::Duration;

use ccl_conformance::{Fixture, run};
use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device};
use ccl_transport_sim::Conditions;

use crate::sides::{TwoSides, first};

impl Fixture for TwoSides {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.devices[side])
    }

    fn now(&self) -> Instant {
        self.world.now()
    }

    fn idle(&self) {
        self.world.step();
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        self.world.stranger(&first(address), bytes);
        true
    }

    fn awaits_farewells(&self) -> bool {
        false
    }

    fn kill(&self, side: usize) -> bool {
        self.crash(side);
        true
    }
}

#[test]
fn any_number_of_rails_passes_the_suite() {
    for (seed, counts) in [[1, 1], [2, 2], [1, 3], [4, 2], [5, 5]].into_iter().enumerate() {
        for calm in [Conditions::default(), Conditions::hostile()] {
            let conditions = Conditions { message_bytes_max: 70_000, ..calm };
            let report = run(|| Box::new(TwoSides::new(counts, conditions.clone(), seed as u64)));
            assert!(report.passed(), "{counts:?}, {conditions:?}\n{report}");
        }
    }
}
