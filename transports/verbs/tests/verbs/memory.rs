//! Registered memory of links that could not be made.

use std::sync::Arc;

use ccl_core::admission::{Config, MessageLinks};
use ccl_core::transport::{Device, DeviceId, FaultInjector, Faults, Transport};
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_verbs::{Options, VerbsTransport};

use crate::pair::meet;

const CONFIG: Config = Config {
    channels: 1,
    slots: 2,
    slots_min: 1,
    slot_bytes: 64,
    budget_bytes: 1000,
    zero_copy_bytes_min: 0,
    registered_bytes_max: 0,
};

/// Faults of a lane whose calls of `Lane::share` fail.
#[derive(Debug)]
struct Mean;

impl Faults for Mean {
    fn shares(&self) -> bool {
        false
    }
}

#[test]
fn a_link_that_cannot_be_made_leaves_nothing_registered() {
    let options = Options { interfaces: "127.0.0.1".to_owned(), ..Options::default() };
    let transport = VerbsTransport::over(functions(), options);
    // The second device has too few queue pairs for a link, or its lane fails to share memory.
    for (pairs, shares) in [(0, true), (100, false)] {
        let softs =
            [100, pairs].map(|pairs| SoftDevice::new(Limits { pairs, ..Limits::default() }));
        let open = |soft: &SoftDevice| transport.open(&DeviceId(format!("{}:1", soft.name())));
        let devices: [Arc<dyn Device>; 2] = softs.each_ref().map(|soft| open(soft).unwrap());
        let [_, connected] = meet(&devices);
        let lane = devices[1].lane().unwrap();
        let lane = if shares { lane } else { Box::new(FaultInjector::new(lane, Mean)) };
        let mut links = MessageLinks::new(Arc::clone(&devices[1]), lane, CONFIG, 1).unwrap();
        links.attach(0, connected).unwrap_err();
        assert_eq!(softs[1].in_use(), (0, 0), "no queue pair or registration may be left");
    }
}
