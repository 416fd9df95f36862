//! RDMA devices: their ports, GIDs and MTUs.

use ccl_core::transport::TransportError;
use ccl_transport_verbs::{Options, VerbsTransport};

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices::{self, Port};

/// Bytes that the kernel subtracts from an interface's MTU: room for the headers and the checksum
/// that RoCE adds to a payload.
const ROCE_HEADER_BYTES: u32 = 96;
const PAYLOAD_BYTES_MAX: u32 = 4096;
/// Largest number of rows of a port's GID table that are read.
const ROWS_MAX: usize = 1024;

const NONE: &str = "there is no RDMA device here; ranks on different hosts talk over TCP";

/// Returns all ports.
pub(super) fn all(host: &Host) -> Vec<Port> {
    devices::rdma(host).iter().flat_map(|device| devices::ports(host, device)).collect()
}

/// Returns the ports that FERROCCL_IB_HCA selects.
pub(super) fn asked(host: &Host) -> Vec<Port> {
    let mut ports = all(host);
    if let Ok(options) = options(host) {
        ports.retain(|port| options.takes(&port.device.name, port.number));
    }
    ports
}

fn options(host: &Host) -> Result<Options, TransportError> {
    let config = &host.job.config;
    Options::from_config(config, config.dead_after)
}

/// Checks whether ports are active, and whether this user may use them.
pub(super) fn ports(host: &Host) -> Vec<Finding> {
    let (there, ports) = (all(host), asked(host));
    let mut found = lost(host);
    if there.is_empty() && found.is_empty() {
        return vec![Finding::ok("", NONE)];
    }
    if !there.is_empty() && ports.is_empty() {
        let names: Vec<&str> = there.iter().map(|port| port.name.as_str()).collect();
        let asked = host.job.config.transport_settings.get("FERROCCL_IB_HCA").unwrap_or_default();
        let evidence = format!("selects no port; the ports are {}", names.join(", "));
        let subject = format!("FERROCCL_IB_HCA={asked}");
        found.push(Finding::fault(subject, evidence, "name one of these, or a prefix of several"));
    }
    if !ports.is_empty() && host.names("/dev/infiniband").is_empty() {
        let evidence = "there are RDMA devices, but /dev/infiniband is empty";
        let remedy = "containers: `--device /dev/infiniband`; Kubernetes: a device plugin for \
                      RDMA; else `modprobe ib_uverbs`";
        found.push(Finding::fault("/dev/infiniband", evidence, remedy));
    }
    let usable = usable(host);
    for port in &ports {
        let told = |name| port.text(host, name).unwrap_or_else(|| "unknown".to_owned());
        let shown = format!(
            "{}, {}, {}, {}",
            told("state"),
            told("phys_state"),
            told("link_layer"),
            told("rate")
        );
        found.push(if port.is_active(host) {
            match usable.iter().find(|(name, _)| *name == port.name) {
                // The error names the port and says that it cannot be used.
                Some((name, Err(problem @ TransportError::Unusable { .. }))) => Finding::fault(
                    name.clone(),
                    format!("{shown}; {problem}"),
                    "remove the cause that the error names, or exclude the port by FERROCCL_IB_HCA",
                ),
                Some((name, Err(problem))) => Finding::fault(
                    name.clone(),
                    format!("{shown}; ferroccl cannot use the port: {problem}"),
                    "remove the cause that the error names, or exclude the port by FERROCCL_IB_HCA",
                ),
                Some((name, Ok(description))) => Finding::ok(name.clone(), description.clone()),
                None => Finding::ok(port.name.clone(), shown),
            }
        } else if told("phys_state").starts_with('3') {
            let remedy = "if the port is to be used, bring its interface up";
            Finding::advice(port.name.clone(), format!("{shown}: the port is switched off"), remedy)
        } else {
            let remedy = match told("link_layer").as_str() {
                "InfiniBand" => {
                    "look at the cable; a port that stays at INIT waits for a subnet manager \
                     (`ibstat`, opensm)"
                }
                _ => "look at the cable and the switch's port, and bring this port's interface up",
            };
            let evidence = format!("{shown}: the port carries no data");
            Finding::warning(port.name.clone(), evidence, remedy)
        });
    }
    found
}

/// Opens the devices. Returns each selected port with its description, or the error if the port
/// cannot be used.
fn usable(host: &Host) -> Vec<(String, Result<String, TransportError>)> {
    match options(host) {
        Ok(options) if host.is_live() => VerbsTransport::new(options).survey(),
        _ => Vec::new(),
    }
}

/// Reports adapters on the PCI bus that are capable of RDMA but have no RDMA device: their driver
/// is not loaded, or this container is not given the device.
fn lost(host: &Host) -> Vec<Finding> {
    let known = devices::rdma(host);
    let adapter = |address: &String| {
        let path = format!("/sys/bus/pci/devices/{address}");
        let class = host.text(&format!("{path}/class"))?;
        let vendor = host.text(&format!("{path}/vendor"))?;
        // Devices of InfiniBand's class, and all network devices of Mellanox, are capable of RDMA.
        let can =
            class.starts_with("0x0207") || (vendor == "0x15b3" && class.starts_with("0x0200"));
        let has = known.iter().any(|device| device.address() == Some(address.as_str()));
        (can && !has).then(|| {
            let evidence = "is an RDMA adapter, but /sys/class/infiniband has no device for it";
            let remedy = "`modprobe mlx5_ib` (or the adapter's driver), and `modprobe ib_uverbs`; \
                          containers see only the devices that they are given";
            // A container may have only some of the host's devices.
            match known.is_empty() {
                true => Finding::warning(address.clone(), evidence, remedy),
                false => Finding::advice(address.clone(), evidence, remedy),
            }
        })
    };
    host.names("/sys/bus/pci/devices").iter().filter_map(adapter).collect()
}

/// Reports which GID of each port would be used.
pub(super) fn gids(host: &Host) -> Vec<Finding> {
    let ports = asked(host);
    let rule = match options(host) {
        Ok(options) => options.gid,
        Err(error) if !ports.is_empty() => {
            let remedy = "correct the variable, or unset it";
            return vec![Finding::fault("", error.to_string(), remedy)];
        }
        Err(_) => return vec![Finding::ok("", NONE)],
    };
    let active: Vec<&Port> = ports.iter().filter(|port| port.is_active(host)).collect();
    if active.is_empty() {
        return vec![Finding::ok("", "no active RDMA port is selected")];
    }
    let give = "give the port's interface an IP address, of the same family on all hosts; for \
                the GIDs, see `show_gids` or /sys/class/infiniband/*/ports/*/gids";
    let judge = |port: &&Port| {
        let ethernet = port.is_ethernet(host);
        match rule.pick(&rows(host, port), ethernet) {
            Err(problem) => Finding::fault(port.name.clone(), problem.to_string(), give),
            Ok(picked) => {
                let evidence = format!("row {}: {} ({})", picked.index, picked.ip, picked.why);
                if ethernet && !picked.is_v2 {
                    let remedy = "choose a row of RoCE v2, or leave FERROCCL_IB_GID_INDEX unset";
                    let evidence = format!("{evidence}; this GID is RoCE v1, which is not routed");
                    Finding::warning(port.name.clone(), evidence, remedy)
                } else if ethernet && picked.is_link_local {
                    Finding::warning(port.name.clone(), evidence, give)
                } else {
                    Finding::ok(port.name.clone(), evidence)
                }
            }
        }
    };
    active.iter().map(judge).collect()
}

fn rows(host: &Host, port: &Port) -> Vec<(u32, String, String)> {
    let row = |name: String| {
        let gid = port.text(host, &format!("gids/{name}"))?;
        // Most rows are empty, and have no type.
        if !gid.contains(|c: char| c.is_ascii_hexdigit() && c != '0') {
            return None;
        }
        let kind = port.text(host, &format!("gid_attrs/types/{name}")).unwrap_or_default();
        Some((name.parse().ok()?, gid, kind))
    };
    let names = host.names(&format!("{}/gids", port.path));
    names.into_iter().take(ROWS_MAX).filter_map(row).collect()
}

/// Checks whether packets are as long as possible. An interface's MTU limits its RoCE packets, too.
pub(super) fn mtu(host: &Host) -> Vec<Finding> {
    let interfaces = devices::interfaces(host);
    let ports = asked(host);
    let roce = ports.iter().filter(|port| port.is_active(host) && port.is_ethernet(host));
    let mut found = Vec::new();
    // MTUs of the interfaces behind RoCE ports.
    let mut lengths: Vec<(String, u32)> = Vec::new();
    for port in roce {
        let name = port.interface(host).unwrap_or_default();
        match interfaces.iter().find(|one| one.name == name).and_then(|one| one.mtu) {
            None => found.push(Finding::unknown(
                port.name.clone(),
                "sysfs does not show the MTU of the port's interface",
                "compare `ibv_devinfo` (active_mtu) with `ip link`",
            )),
            Some(mtu) => {
                found.push(of_roce(port, &name, mtu));
                lengths.push((name, mtu));
            }
        }
    }
    if lengths.iter().any(|(_, mtu)| lengths.first().is_some_and(|(_, first)| first != mtu)) {
        let shown: Vec<String> =
            lengths.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect();
        let evidence = format!("the MTUs of RoCE interfaces differ: {}", shown.join(", "));
        let remedy = "set the same MTU on all: the two ends of a connection use the smaller MTU, \
                      and switches drop packets longer than their own MTU";
        found.push(Finding::warning("ports", evidence, remedy));
    }
    for one in interfaces.iter().filter(|one| one.is_up && one.device.is_some()) {
        let behind = lengths.iter().any(|(name, _)| *name == one.name);
        if let Some(mtu) = one.mtu.filter(|_| !behind) {
            let fast = one.is_ethernet && one.megabits.is_some_and(|speed| speed >= 10_000);
            found.push(of_interface(&one.name, mtu, fast));
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("", "there is no interface in use whose MTU could be checked"));
    }
    found
}

fn of_roce(port: &Port, interface: &str, mtu: u32) -> Finding {
    let room = mtu.saturating_sub(ROCE_HEADER_BYTES).min(PAYLOAD_BYTES_MAX);
    let payload = room.checked_ilog2().map_or(0, |bits| 1_u32 << bits);
    let evidence = format!("{interface} has an MTU of {mtu}: RoCE's packets carry {payload} bytes");
    match payload < PAYLOAD_BYTES_MAX {
        false => Finding::ok(port.name.clone(), evidence),
        true => Finding::warning(
            port.name.clone(),
            format!("{evidence}, but could carry {PAYLOAD_BYTES_MAX}"),
            format!("`ip link set {interface} mtu 9000` on all hosts; set the switches alike"),
        ),
    }
}

fn of_interface(name: &str, mtu: u32, is_fast: bool) -> Finding {
    let evidence = format!("its MTU is {mtu}");
    // Clouds have MTUs of 8,500 to 9,000.
    match is_fast && mtu < 8500 {
        false => Finding::ok(name, evidence),
        true => Finding::advice(
            name,
            format!("{evidence}, low for a fast interface: over TCP, short packets cost CPU time"),
            format!(
                "`ip link set {name} mtu 9000`, if all hosts and the switches between them \
                 support it; in a cloud, ask the provider"
            ),
        ),
    }
}
