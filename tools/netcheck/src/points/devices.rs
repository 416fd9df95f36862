//! Several devices as one.

use super::Point;
use super::connect::exchange;
use super::setup::wrong_fields;
use crate::link::Link;
use crate::messages::Role;
use crate::net::Net;
use crate::side::Side;
use crate::stop::{Outcome, demand, skipped};
use crate::stream::Stream;

pub(super) const SEVERAL_AS_ONE: Point = Point::pair(
    "several_devices_as_one",
    "makeVDevice merges two devices. The merged device is counted, has properties, carries \
     messages, and connects to any other device.",
    several_as_one,
    several_as_one,
);

/// Devices that the point merges.
const PARTS: [i32; 2] = [0, 1];

fn several_as_one(side: &Side) -> Outcome {
    let net = side.net()?;
    let count = net.devices()?;
    if count < 2 {
        return skipped("there is only one device");
    }
    side.step("makeVDevice of devices 0 and 1");
    let made = match net.make_device(&PARTS) {
        None => return skipped("the plugin has no makeVDevice: NCCL uses devices one by one"),
        Some(Err(refusal)) => {
            return skipped(format!("{refusal}: NCCL uses these devices one by one"));
        }
        Some(Ok(made)) => made,
    };
    let now = net.devices()?;
    demand(made >= PARTS.len() as i32 && now > made, || {
        format!(
            "makeVDevice returned device {made}, and the device count went from {count} to {now}: \
             expected a device number above those of its parts, and a count above that number"
        )
    })?;
    describes(&net, made)?;
    // First both sides use the merged device, then only the receiver does, then only the sender.
    // A side that does not use the merged device uses one of its parts.
    let ways = [(made, made), (made, 0), (1, made)];
    for (receiver, sender) in ways {
        let device = if side.role == Role::Receiver { receiver } else { sender };
        side.step(&format!("connecting device {sender} to device {receiver}"));
        let link = Link::open(side, &net.on(device))?;
        // If both sides use the merged device, one message is longer than all slots of ferroccl's
        // plugin together, at its default settings.
        let long = usize::from(receiver == sender);
        for (messages, bytes) in [(40, 100), (8, 200_000), (long, 9_000_001)] {
            let stream = Stream::of(messages, bytes);
            match side.role {
                Role::Receiver => stream.receive(&link)?,
                Role::Sender => stream.send(&link)?,
            }
        }
        exchange(&link)?;
    }
    Ok(())
}

fn describes(net: &Net, made: i32) -> Outcome {
    let properties = net.on(made).properties()?;
    let wrong = wrong_fields(made, &properties);
    demand(wrong.is_empty(), || format!("device {made}: {}", wrong.join("; ")))?;
    let (parts, named) = (properties.parts.0, &properties.parts.1);
    demand(parts == 2 && named.starts_with(&PARTS), || {
        format!("device {made} is made of {PARTS:?}, but vProps has ndevs {parts}, devs {named:?}")
    })?;
    for part in PARTS {
        let other = net.on(part).properties()?;
        demand(other.name != properties.name, || {
            let name = other.name.unwrap_or_default();
            format!("device {made} and its part, device {part}, have the same name, {name}")
        })?;
    }
    Ok(())
}

pub(super) const NO_SUCH_PARTS: Point = Point::alone(
    "no_such_parts",
    "makeVDevice returns an error for an empty list, an unknown device, or a repeated device.",
    |side| {
        let net = side.net()?;
        let count = net.devices()?;
        for parts in [&[][..], &[0, count], &[-1, 0], &[0, 0]] {
            side.step(&format!("makeVDevice of {parts:?}"));
            let Some(made) = net.make_device(parts) else {
                return skipped("the plugin has no makeVDevice");
            };
            demand(made.is_err(), || format!("makeVDevice of {parts:?} returned ncclSuccess"))?;
        }
        demand(net.devices()? == count, || "the number of devices has changed".to_owned())
    },
)
.robustness();
