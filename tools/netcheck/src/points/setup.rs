//! Demands of NCCL that are tested before any connection: load, init, properties, attributes.

use std::path::Path;

use nccl_net_abi::{
    Attributes, CUDA, DEVICE_HOST, DEVICE_UNPACK, DEVICE_UNPACK_VERSION, DMA_BUF, Fan, HOST,
    NcclResult,
};

use super::{LOADS, Point};
use crate::library::Api;
use crate::properties::Properties;
use crate::side::Side;
use crate::stop::{Outcome, Stop, demand, skipped};

pub(super) const LOADS_AND_NAMES: Point = Point::alone(
    LOADS,
    "dlopen finds a table of functions that has a name and all mandatory functions; init succeeds. \
     If the plugin's devices function reports 0, no other point is tried.",
    loads_and_names,
)
.depending_on(None);

fn loads_and_names(side: &Side) -> Outcome {
    let plugin = side.plugin()?;
    side.step("reading the name, before init");
    let name = plugin.calls.name();
    let name = name.ok_or_else(|| {
        Stop::Failed("the name in the plugin's table is NULL, but NCCL reads it before init".into())
    })?;
    demand(!name.is_empty() && name.chars().all(|c| c.is_ascii_graphic()), || {
        format!("the name {name:?} cannot be given in NCCL_NET: expected visible ASCII")
    })?;
    let exported: Vec<&str> = plugin.exported.iter().map(|api| api.name()).collect();
    side.note(format!("{name} {}, exports {}", plugin.api, exported.join(" ")));
    let net = side.init(&plugin)?;
    let count = net.devices()?;
    side.note(if count == 1 { "1 device".to_owned() } else { format!("{count} devices") });
    std::mem::forget(plugin);
    Ok(())
}

pub(super) const PROPERTIES: Point = Point::alone(
    "properties",
    "getProperties fills every field of each device with a value that NCCL accepts.",
    |side| {
        let net = side.net()?;
        let mut seen: Vec<Properties> = Vec::new();
        for device in 0..net.devices()? {
            side.step(&format!("getProperties of device {device}"));
            let properties = net.on(device).properties()?;
            let wrong = wrong_fields(device, &properties);
            demand(wrong.is_empty(), || format!("device {device}: {}", wrong.join("; ")))?;
            let is_plain = |properties: &Properties| properties.parts.0 == 1;
            for (other, earlier) in seen.iter().enumerate() {
                demand(earlier.name != properties.name, || {
                    let name = properties.name.as_deref().unwrap_or_default();
                    format!("devices {other} and {device} have the same name, {name}")
                })?;
                let same = (earlier.guid, earlier.port) == (properties.guid, properties.port);
                demand(!(same && is_plain(earlier) && is_plain(&properties)), || {
                    format!(
                        "devices {other} and {device} have the same guid and port, so NCCL takes \
                         them for one"
                    )
                })?;
            }
            seen.push(properties);
        }
        if let Some(first) = seen.first() {
            let Properties { receives_max, speed_mbps, .. } = first;
            side.note(format!("groups of up to {receives_max}, {speed_mbps} Mb/s"));
        }
        Ok(())
    },
);

/// Returns a text about each wrong field.
pub(super) fn wrong_fields(device: i32, properties: &Properties) -> Vec<String> {
    let Properties { memory_kinds, device_type, device_version, latency_us, .. } = *properties;
    let (parts, first) = (properties.parts.0, properties.parts.1[0]);
    let parts_max = properties.parts.1.len() as i32;
    let transfer = properties.transfer_bytes_max;
    let is_flag = |value: i32| value == 0 || value == 1;
    let fields: [(bool, String); 14] = [
        (
            properties.name.as_deref().is_some_and(|name| !name.is_empty()),
            "name is NULL or empty, expected one that no other device has".to_owned(),
        ),
        (
            memory_kinds & HOST != 0 && memory_kinds & !(HOST | CUDA | DMA_BUF) == 0,
            format!(
                "ptrSupport is {memory_kinds:#x}, expected HOST (1), alone or with CUDA (2), \
                 DMABUF (4) or both"
            ),
        ),
        (
            is_flag(properties.registration_is_global),
            format!("regIsGlobal is {}, expected 0 or 1", properties.registration_is_global),
        ),
        (
            is_flag(properties.force_flush),
            format!("forceFlush is {}, expected 0 or 1", properties.force_flush),
        ),
        (
            properties.speed_mbps > 0,
            format!("speed is {} Mb/s, expected 1 or more", properties.speed_mbps),
        ),
        (properties.port >= 0, format!("port is {}, expected 0 or more", properties.port)),
        (
            latency_us.is_finite() && latency_us >= 0.0,
            format!("latency is {latency_us} us, expected 0 or more"),
        ),
        (
            properties.comms_max > 0,
            format!("maxComms is {}, expected 1 or more", properties.comms_max),
        ),
        (
            properties.receives_max > 0,
            format!("maxRecvs is {}, expected 1 or more", properties.receives_max),
        ),
        (
            (device_type, device_version) == (DEVICE_HOST, 0)
                || (device_type, device_version) == (DEVICE_UNPACK, DEVICE_UNPACK_VERSION),
            format!(
                "netDeviceType is {device_type} of version {device_version}, expected 0 (HOST) of \
                 version 0, or {DEVICE_UNPACK} (UNPACK) of version {DEVICE_UNPACK_VERSION}"
            ),
        ),
        (
            (1..=parts_max).contains(&parts) && (parts > 1 || first == device),
            format!(
                "vProps has ndevs {parts}, devs[0] {first}; expected ndevs 1 with device {device}, \
                 or ndevs 2 to {parts_max}"
            ),
        ),
        (
            (1..=nccl_net_abi::TRANSFER_BYTES_MAX).contains(&transfer),
            format!("maxP2pBytes is {transfer}, expected 1 B to 1 TiB: connecting would fail"),
        ),
        (properties.rail >= -1, format!("railId is {}, expected -1 or more", properties.rail)),
        (properties.plane >= -1, format!("planeId is {}, expected -1 or more", properties.plane)),
    ];
    let wrong = fields.into_iter().filter(|(holds, _)| !holds).map(|(_, wrong)| wrong);
    wrong.chain(wrong_pci_path(properties.pci_path.as_deref())).collect()
}

/// Returns the defect of a device's PCI path, if any. The path of a device on the PCI bus must end
/// in a bus id. Other paths need no bus id: NCCL attaches their devices to the first processor.
fn wrong_pci_path(path: Option<&str>) -> Option<String> {
    let path = path?;
    let place = Path::new(path);
    if !(place.is_absolute() && place.is_dir()) {
        return Some(format!(
            "pciPath is {path}, expected NULL or the directory of the device in /sys/devices"
        ));
    }
    let subsystem = place.join("subsystem").canonicalize();
    let is_pci = subsystem.is_ok_and(|subsystem| subsystem.ends_with("pci"));
    let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    (is_pci && !is_bus_id(name)).then(|| {
        format!("pciPath is {path}, but NCCL expects a bus id such as 0000:3b:00.0 at its end")
    })
}

/// Returns whether a name has the form of `0000:3b:00.0`; domains may be longer.
fn is_bus_id(name: &str) -> bool {
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let is_hex = |part: &str| part.chars().all(|c| c.is_ascii_hexdigit());
    parts.iter().all(|part| is_hex(part))
        && matches!(*parts, [domain, bus, device, function]
            if domain.len() >= 4 && (bus.len(), device.len(), function.len()) == (2, 2, 1))
}

pub(super) const DEVICES_STABLE: Point = Point::alone(
    "devices_stable",
    "devices and getProperties return the same at every call.",
    |side| {
        let net = side.net()?;
        let count = net.devices()?;
        let all = || (0..count).map(|device| net.on(device).properties());
        let before: Vec<Properties> = all().collect::<Result<_, _>>()?;
        let (listener, _) = net.listen()?;
        for _ in 0..100 {
            let now = net.devices()?;
            demand(now == count, || format!("the number of devices was {count}, later {now}"))?;
        }
        let after: Vec<Properties> = all().collect::<Result<_, _>>()?;
        let changed = before.iter().zip(&after).position(|(before, after)| before != after);
        if let Some(device) = changed {
            let (before, after) = (&before[device], &after[device]);
            demand(false, || format!("device {device} was {before:?}, later {after:?}"))?;
        }
        Ok(listener.close()?)
    },
);

pub(super) const ATTRIBUTES_ACCEPTED: Point = Point::alone(
    "attributes_accepted",
    "init accepts a traffic class, and setNetAttr accepts hints; the plugin may ignore both.",
    |side| {
        let net = side.net()?;
        if side.plugin()?.api >= Api::V11 {
            side.step("init with traffic class 104");
            let (result, context) = net.calls.init(1, 104, None);
            demand(result == NcclResult::SUCCESS, || {
                format!("init with traffic class 104 returned {}", result.name())
            })?;
            let ended = net.calls.finalize(context);
            demand(ended == NcclResult::SUCCESS, || {
                format!("finalize returned {} for the second of two contexts", ended.name())
            })?;
        }
        side.step("setNetAttr");
        let fan = |most| Fan { peers_max: most, peers_min: 1, flows_max: most, flows_min: 1 };
        for most in [-1, 1, 64] {
            let attributes = Attributes {
                send: fan(most),
                receive: fan(most),
                operations: 1,
                algorithms: 2,
                protocols: 4,
            };
            match net.set_attributes(attributes) {
                None => return skipped("setNetAttr is NULL, which is allowed"),
                Some(NcclResult::SUCCESS) => {}
                Some(result) => demand(false, || {
                    format!("setNetAttr returned {}, but must not refuse hints", result.name())
                })?,
            }
        }
        Ok(())
    },
);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_pci_path_is_a_directory_and_ends_in_a_bus_id_if_the_device_is_on_pci() {
        let root = std::env::temp_dir().join(format!("netcheck-pci-{}", std::process::id()));
        let device = |name: &str, subsystem: &str| {
            let (place, bus) = (root.join(name), root.join("bus").join(subsystem));
            fs::create_dir_all(&place).unwrap();
            fs::create_dir_all(&bus).unwrap();
            symlink(bus, place.join("subsystem")).unwrap();
            wrong_pci_path(place.to_str())
        };
        let (function, other) = (device("0000:3b:00.0", "pci"), device("device", "pci"));
        let is_virtual = device("lo", "net");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((wrong_pci_path(None), function, is_virtual), (None, None, None));
        assert!(other.is_some_and(|wrong| wrong.contains("bus id")));
        assert!(wrong_pci_path(Some("0000:3b:00.0")).is_some());
        assert!(wrong_pci_path(root.to_str()).is_some());
    }

    #[test]
    fn bus_ids_are_recognised() {
        assert!(["0000:3b:00.0", "10000:e1:1f.7"].iter().all(|name| is_bus_id(name)));
        for name in ["", "3b:00.0", "0000:3b:00", "0000:3b:00.00", "0000:3b:0g.0", "device"] {
            assert!(!is_bus_id(name), "{name}");
        }
    }
}
