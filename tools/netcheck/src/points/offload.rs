//! The device side of a plugin: the handles and registrations that NCCL's kernels use. If a plugin
//! has a device side, these kernels move the data.

use nccl_net_abi::DEVICE_HOST;

use super::connect::exchange;
use super::{CONNECTS, Point};
use crate::calls::device_side;
use crate::link::Link;
use crate::messages::Role;
use crate::side::Side;
use crate::stop::{Outcome, demand, failed, skipped};

pub(super) const DEVICE_HANDLES: Point = Point::pair(
    "device_handles",
    "connect and accept leave the device handle NULL, or return a handle that has the type and \
     version that getProperties reports.",
    device_handles,
    device_handles,
)
.depending_on(Some(CONNECTS));

fn device_handles(side: &Side) -> Outcome {
    let net = side.net()?;
    let properties = net.properties()?;
    let link = Link::open(side, &net)?;
    side.step("reading the device handle");
    let call = match side.role {
        Role::Receiver => "accept",
        Role::Sender => "connect",
    };
    let named = (properties.device_type, properties.device_version);
    match wrong_handle(named, device_side(link.comm.device_handle)) {
        Some(wrong) => failed(format!("{call} {wrong}")),
        None => side.barrier(),
    }
}

/// Returns the defect of a device handle, if any. `named` is the type and version in the
/// properties; `given` is the type and version of the handle, or `None` if there is no handle.
fn wrong_handle(named: (i32, i32), given: Option<(i32, i32)>) -> Option<String> {
    let given = given.filter(|given| named.0 == DEVICE_HOST || *given != named)?;
    Some(format!(
        "gave a device handle of type {} version {}, but netDeviceType is {} of version {}: NCCL \
         would leave the data to a device side that does not exist",
        given.0, given.1, named.0, named.1
    ))
}

pub(super) const DEVICE_REGISTRATION: Point = Point::pair(
    "device_registration",
    "Where netDeviceType is not HOST, getDeviceMr gives a registration in the form that the device \
     side uses.",
    device_registration,
    device_registration,
);

fn device_registration(side: &Side) -> Outcome {
    let net = side.net()?;
    if net.properties()?.device_type == DEVICE_HOST {
        return skipped("netDeviceType is HOST: NCCL does not call getDeviceMr");
    }
    let link = Link::open(side, &net)?;
    let memory = link.memory(1 << 16)?;
    side.step("getDeviceMr");
    match link.comm.device_registration(memory.registration) {
        None => return failed("netDeviceType is not HOST, but getDeviceMr is NULL"),
        Some(device) => {
            demand(device? != 0, || "getDeviceMr returned ncclSuccess but no handle".to_owned())?
        }
    }
    link.comm.deregister(memory.registration)?;
    exchange(&link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_handle_is_absent_or_matches_the_properties() {
        let (host, unpack) = ((DEVICE_HOST, 0), (1, 7));
        assert!([host, unpack].iter().all(|named| wrong_handle(*named, None).is_none()));
        assert_eq!(wrong_handle(unpack, Some(unpack)), None);
        for (named, given) in [(host, unpack), (host, host), (unpack, (1, 6)), (unpack, host)] {
            assert!(wrong_handle(named, Some(given)).is_some(), "{named:?} {given:?}");
        }
    }
}
