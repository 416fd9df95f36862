//! Two sides with several simulated devices each: the `r`th device of side `s` is rank `2 r + s` of
//! the world.

use std::sync::Arc;

use ccl_core::encoding::decode;
use ccl_core::transport::{Address, Device};
use ccl_transport_multirail::RailsDevice;
use ccl_transport_sim::{Conditions, World};

/// Two sides, each with one device that is made of several simulated devices. `counts` has the
/// number of simulated devices of each side.
#[derive(Clone)]
pub(crate) struct TwoSides {
    pub(crate) world: World,
    pub(crate) devices: [Arc<dyn Device>; 2],
    counts: [u32; 2],
}

impl TwoSides {
    pub(crate) fn new(counts: [u32; 2], conditions: Conditions, seed: u64) -> TwoSides {
        let ranks = 2 * counts[0].max(counts[1]);
        let world = World::new(ranks, conditions, seed);
        let device = |side: u32| -> Arc<dyn Device> {
            let devices = (0..counts[side as usize])
                .map(|at| (format!("sim{at}"), world.device(2 * at + side)));
            Arc::new(RailsDevice::new(devices.collect()).unwrap())
        };
        let devices = [device(0), device(1)];
        TwoSides { world, devices, counts }
    }

    /// Kills all devices of a side.
    pub(crate) fn crash(&self, side: usize) {
        for at in 0..self.counts[side] {
            self.world.crash_at(2 * at + side as u32, self.world.now());
        }
    }
}

/// Returns the first device's part of an address.
pub(crate) fn first(Address(bytes): &Address) -> Address {
    let (_, known): (usize, Vec<Address>) = decode(bytes).unwrap();
    known[0].clone()
}
