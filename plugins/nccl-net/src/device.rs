//! Devices that the plugin offers to NCCL.

use std::ffi::{CStr, CString};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::config::Config;
use ccl_core::registry::{Reach, Setup, TransportKind};
use ccl_core::transport::{Address, Device, DeviceId, DeviceInfo, LinkLayer, Transport};
use ccl_transport_multirail::{RailsDevice, shorten as rails_address};
use ferroccl::transports::{self, AUTO};
use nccl_net_abi::{NcclResult, UNDEFINED};
use sha2::{Digest, Sha256};

use crate::error::NetError;
use crate::handle::HostTag;

/// Longest time that a port's link may be down before its connections count as lost.
const LINK_WITHIN: Duration = Duration::from_secs(3);
/// Value of [`LINK_WITHIN`] for a port of a merged device: shorter, because other ports carry on.
const LINK_WITHIN_OF_SEVERAL: Duration = Duration::from_millis(500);
/// Speed that is assumed for a card of unknown speed, as in NCCL.
const SPEED_MBPS: i32 = 10_000;
/// Largest number of devices that can be merged into one.
const PARTS_MAX: usize = 8;

/// Returns a shorter form of a listener's address that keeps at least `least` devices, or `None`
/// if the address has no such form.
pub(crate) fn shorten(kind: &TransportKind, address: &Address, least: usize) -> Option<Address> {
    match kind.adapters {
        true => rails_address(address, least, kind.fewer_locations)
            .or_else(|| (kind.fewer_locations)(address)),
        false => (kind.fewer_locations)(address),
    }
}

/// An open device, and its name.
type Named = (String, Arc<dyn Device>);

/// A device for NCCL: one device of a transport, or several that NCCL has merged into one.
#[derive(Debug)]
pub(crate) struct NetDevice {
    pub(crate) kind: &'static TransportKind,
    pub(crate) name: CString,
    pub(crate) pci_path: Option<CString>,
    /// Identifier of the card, the same for all its ports.
    pub(crate) guid: u64,
    pub(crate) port: i32,
    pub(crate) speed_mbps: i32,
    pub(crate) latency_us: f32,
    /// Number of the [rail of the fabric](ccl_core::transport::Fabric::rail); [`UNDEFINED`] unless
    /// it is known.
    pub(crate) rail: i16,
    /// Number of the [plane](ccl_core::transport::Fabric::plane); [`UNDEFINED`] unless it is known.
    pub(crate) plane: i16,
    layer: Option<LinkLayer>,
    /// Numbers of the devices that this one is made of; only its own number unless it is merged.
    pub(crate) parts: Vec<i32>,
    ids: Vec<DeviceId>,
    /// True if the device may be merged with others, as a rail (one of several NICs) of the merged
    /// device.
    may_be_rail: bool,
    description: String,
    transport: Arc<dyn Transport>,
    opened: Mutex<Option<Arc<dyn Device>>>,
    /// Identifier of this host, and the device for connections within the host, if there is one.
    pub(crate) near: Option<(HostTag, Arc<dyn Device>)>,
}

impl NetDevice {
    /// Returns the device; the first call opens it.
    pub(crate) fn open(&self) -> Result<Arc<dyn Device>, NetError> {
        let mut opened = lock(&self.opened);
        if let Some(device) = &*opened {
            return Ok(Arc::clone(device));
        }
        let device = match &self.ids[..] {
            [id] if !self.may_be_rail => self.transport.open(id)?,
            // A single device is also opened as rails, so that it can connect to a merged one.
            ids => Arc::new(RailsDevice::new(self.open_parts(ids)?)?),
        };
        *opened = Some(Arc::clone(&device));
        Ok(device)
    }

    /// Opens the parts that can be opened now (a port may have no link); fails if none can.
    fn open_parts(&self, ids: &[DeviceId]) -> Result<Vec<Named>, NetError> {
        let (mut opened, mut failed) = (Vec::new(), None);
        for id in ids {
            match self.transport.open(id) {
                Ok(device) => opened.push((id.0.clone(), device)),
                Err(error) => {
                    tracing::warn!("{} is opened without its part {}: {error}", self.name(), id.0);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if opened.is_empty() => Err(error.into()),
            _ => Ok(opened),
        }
    }

    /// Returns the name of the device and its description, for people.
    pub(crate) fn title(&self) -> String {
        format!("{} ({})", self.name(), self.description)
    }

    pub(crate) fn name(&self) -> &str {
        self.name.to_str().unwrap_or("?")
    }
}

/// All devices: the found ones, followed by the merged ones, which NCCL has made from found ones.
#[derive(Debug)]
pub(crate) struct Devices {
    found: Vec<Arc<NetDevice>>,
    /// Transport that opens the parts of a merged device.
    together: Option<Arc<dyn Transport>>,
    made: Mutex<Made>,
}

/// Merged devices: NCCL has made each of them from several found devices.
#[derive(Debug, Default)]
struct Made {
    /// Devices that NCCL knows of now.
    known: Vec<Arc<NetDevice>>,
    /// All merged devices that were ever made: NCCL may keep pointers to their names.
    all: Vec<Arc<NetDevice>>,
}

impl Devices {
    pub(crate) fn count(&self) -> usize {
        self.found.len() + lock(&self.made).known.len()
    }

    /// Forgets the merged devices: when NCCL initialises the plugin anew, it expects only the found
    /// ones, and merges devices again.
    pub(crate) fn forget_made(&self) {
        lock(&self.made).known.clear();
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.found.iter().map(|device| device.name()).collect()
    }

    /// Returns the device of that number.
    pub(crate) fn get(&self, number: i32) -> Result<Arc<NetDevice>, NetError> {
        let made = lock(&self.made);
        let at = usize::try_from(number).ok();
        let found = at.and_then(|at| self.found.iter().chain(&made.known).nth(at));
        found.cloned().ok_or_else(|| {
            let count = self.found.len() + made.known.len();
            let text = format!("there is no device {number}; the number of devices is {count}");
            NetError::argument(text)
        })
    }

    /// Merges the devices with these numbers into one, which sends each put over one of its parts.
    /// Returns the number of the merged device. The same list gives the same device.
    pub(crate) fn make(&self, parts: &[i32]) -> Result<i32, NetError> {
        let usage = |text: String| Err(NetError::new(NcclResult::INVALID_USAGE, text));
        if !(1..=PARTS_MAX).contains(&parts.len()) {
            let count = parts.len();
            return usage(format!("cannot merge {count} devices into one; merge 1 to {PARTS_MAX}"));
        }
        let twice = |(at, part): (usize, &i32)| parts[..at].contains(part);
        if parts.iter().enumerate().any(twice) {
            return usage(format!("{parts:?} names a device twice"));
        }
        let found = |part: &i32| usize::try_from(*part).ok().and_then(|at| self.found.get(at));
        let Some(found) = parts.iter().map(found).collect::<Option<Vec<_>>>() else {
            let count = self.found.len();
            return usage(format!(
                "{parts:?} names a device that is not among the {count} found devices"
            ));
        };
        if let [only] = parts {
            return Ok(*only);
        }
        let Some(transport) = &self.together else {
            return usage(format!("devices of {} cannot be merged into one", found[0].kind.name));
        };
        if found.iter().any(|part| !part.may_be_rail) {
            return usage(format!("{} cannot be merged with other devices", found[0].name()));
        }
        if found.iter().any(|part| part.layer != found[0].layer) {
            return usage("ports of Ethernet and of InfiniBand do not reach each other".to_owned());
        }
        let Made { known, all } = &mut *lock(&self.made);
        let same = |device: &Arc<NetDevice>| device.parts == parts;
        let at = known.iter().position(same).unwrap_or_else(|| {
            let before = all.iter().find(|device| same(device)).cloned();
            known.push(before.unwrap_or_else(|| {
                let made = Arc::new(several(&found, parts, transport));
                tracing::info!("devices were merged into {}", made.name());
                all.push(Arc::clone(&made));
                made
            }));
            known.len() - 1
        });
        Ok((self.found.len() + at) as i32)
    }
}

/// Locks data that a panic cannot leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Merges one or more devices into one.
fn several(parts: &[&Arc<NetDevice>], numbers: &[i32], with: &Arc<dyn Transport>) -> NetDevice {
    let first = parts[0];
    let joined = |of: fn(&NetDevice) -> &str, between: &str| {
        parts.iter().map(|part| of(part)).collect::<Vec<_>>().join(between)
    };
    // A value that differs between the parts becomes undefined.
    let alike = |of: fn(&NetDevice) -> i16| {
        let same = parts.iter().all(|part| of(part) == of(first));
        if same { of(first) } else { UNDEFINED as i16 }
    };
    NetDevice {
        kind: first.kind,
        // Names contain no NUL bytes, so this cannot fail.
        name: CString::new(joined(NetDevice::name, "+")).unwrap_or_default(),
        pci_path: first.pci_path.clone(),
        guid: first.guid,
        port: first.port,
        speed_mbps: parts.iter().fold(0, |sum, part| part.speed_mbps.saturating_add(sum)),
        latency_us: parts.iter().map(|part| part.latency_us).fold(0.0, f32::max),
        rail: alike(|device| device.rail),
        plane: alike(|device| device.plane),
        layer: first.layer,
        parts: numbers.to_vec(),
        ids: parts.iter().flat_map(|part| part.ids.clone()).collect(),
        may_be_rail: true,
        description: joined(|device| &device.description, " and "),
        transport: Arc::clone(with),
        opened: Mutex::new(None),
        near: first.near.clone(),
    }
}

/// Returns the devices of the transport in `FERROCCL_TRANSPORT`; by default, of the best one. The
/// text is the reason for the choice. An empty list is no error.
pub(crate) fn find(config: &Config) -> Result<(Devices, String), NetError> {
    let asked = config.transport.as_str();
    if asked != AUTO {
        let Some(kind) = transports::all().into_iter().find(|kind| kind.name == asked) else {
            let names = Vec::from_iter(transports::all().iter().map(|kind| kind.name));
            return Err(NetError::new(
                NcclResult::INVALID_USAGE,
                format!(
                    "FERROCCL_TRANSPORT={asked} cannot be used in NCCL; choose one of {AUTO}, {}",
                    names.join(", ")
                ),
            ));
        };
        let (devices, lacks) = of(kind, config)?;
        let colon = if lacks.is_empty() { "" } else { ": " };
        return Ok((devices, format!("FERROCCL_TRANSPORT={asked}{colon}{lacks}")));
    }
    let mut reasons = Vec::new();
    for kind in transports::of_reach(Reach::Network) {
        if config.tls && !kind.encrypts {
            reasons.push(format!("{} cannot encrypt (FERROCCL_TLS=1)", kind.name));
            continue;
        }
        let (devices, lacks) = match of(kind, config) {
            // The search goes on: other transports may need no adapter.
            Err(error) if kind.adapters => {
                reasons.push(format!("{} is not available: {error}", kind.name));
                continue;
            }
            found => found?,
        };
        if devices.count() > 0 {
            reasons.push(format!("{} is the best transport that is available", kind.name));
            return Ok((devices, reasons.join("; ")));
        }
        reasons.push(format!("there is no device for {}: {lacks}", kind.name));
    }
    let none = Devices { found: Vec::new(), together: None, made: Mutex::default() };
    Ok((none, reasons.join("; ")))
}

/// Returns the devices of a transport, and the reason if there are none.
fn of(kind: &'static TransportKind, config: &Config) -> Result<(Devices, String), NetError> {
    let make = |link_within| -> Result<Arc<dyn Transport>, NetError> {
        let setup = Setup {
            // Multi-rail needs this.
            acknowledged: true,
            // Sends complete sooner. In exchange, a connection that loses written bytes when it
            // breaks is not resumed; NCCL's own sockets never resume a broken connection.
            done_when_written: true,
            one_connection: true,
            // The plugin does not know whether the host has a core for each of its ranks.
            has_core: false,
            link_within,
            // Each process has a progress thread, which polls connections while NCCL does not call.
            // So a peer is not silent while it computes.
            silent_within: link_within,
        };
        Ok(Arc::from((kind.make)(config, &setup)?))
    };
    let transport = make(LINK_WITHIN)?;
    let together = if kind.adapters { Some(make(LINK_WITHIN_OF_SEVERAL)?) } else { None };
    let mut found: Vec<Arc<NetDevice>> = Vec::new();
    let infos = transport.devices();
    let lacks = if infos.is_empty() { transport.why_none() } else { String::new() };
    let cards: Vec<String> = infos.iter().map(|info| card(&info.id).0.to_owned()).collect();
    for info in infos {
        // A card with one port is named without the port, as NCCL expects.
        let (name, _) = card(&info.id);
        let is_alone = cards.iter().filter(|other| *other == name).count() == 1;
        let name = if is_alone { name.to_owned() } else { info.id.0.clone() };
        let Some(mut device) = describe(&transport, kind, info, &name, config) else { continue };
        device.parts = vec![found.len() as i32];
        // Ports of one card that are separate devices all report port 1: they are renumbered here.
        let taken = |device: &NetDevice| {
            found.iter().any(|other| (other.guid, other.port) == (device.guid, device.port))
        };
        while taken(&device) {
            device.port += 1;
        }
        found.push(Arc::new(device));
    }
    Ok((Devices { found, together, made: Mutex::default() }, lacks))
}

/// Returns a device's name without its port, and the port.
fn card(DeviceId(id): &DeviceId) -> (&str, &str) {
    id.rsplit_once(':').unwrap_or((id, "1"))
}

fn describe(
    transport: &Arc<dyn Transport>,
    kind: &'static TransportKind,
    info: DeviceInfo,
    name: &str,
    config: &Config,
) -> Option<NetDevice> {
    let (card, port) = card(&info.id);
    let (mut pci_path, mut speed_mbps) = (info.pci_path, None);
    if kind.reach == Reach::Network && !kind.adapters {
        (pci_path, speed_mbps) = interface(&config.socket_interfaces);
    } else {
        speed_mbps = speed_mbps.or(Some((info.caps.bandwidth_bytes_per_s * 8e-6) as i32));
    }
    let identity = pci_path.as_deref().unwrap_or(card);
    let digest: [u8; 32] = Sha256::digest(identity.as_bytes()).into();
    let digest = digest.first_chunk().copied().map_or(0, u64::from_le_bytes);
    let told = |number: Option<u16>| number.and_then(|number| i16::try_from(number).ok());
    Some(NetDevice {
        kind,
        name: CString::new(name).ok()?,
        guid: info.fabric.card.unwrap_or(digest),
        pci_path: pci_path.and_then(|path| CString::new(path).ok()),
        port: port.parse().unwrap_or(1),
        speed_mbps: speed_mbps.filter(|speed| *speed > 0).unwrap_or(SPEED_MBPS),
        latency_us: info.caps.latency_ns as f32 / 1e3,
        rail: told(info.fabric.rail).unwrap_or(UNDEFINED as i16),
        plane: told(info.fabric.plane).unwrap_or(UNDEFINED as i16),
        layer: info.fabric.layer,
        parts: Vec::new(),
        may_be_rail: kind.adapters && info.caps.acknowledged,
        ids: vec![info.id],
        description: info.description,
        transport: Arc::clone(transport),
        opened: Mutex::new(None),
        near: near(config),
    })
}

/// Returns the device for connections within this host, unless `FERROCCL_TRANSPORT` forces one
/// transport.
fn near(config: &Config) -> Option<(HostTag, Arc<dyn Device>)> {
    let kind = transports::of_reach(Reach::Host).into_iter().next()?;
    if config.transport != AUTO {
        return None;
    }
    let transport = (kind.make)(config, &Setup::new(LINK_WITHIN, LINK_WITHIN)).ok()?;
    let device = transport.open(&transport.devices().first()?.id).ok()?;
    let digest: [u8; 32] = Sha256::digest(config.host_id.as_bytes()).into();
    Some((*digest.first_chunk()?, device))
}

/// Returns the PCI function and the speed (Mb/s) of the fastest interface that TCP announces to
/// peers; either is none if it is unknown.
fn interface(filter: &str) -> (Option<String>, Option<i32>) {
    let names = ccl_socket::interfaces(filter).unwrap_or_default();
    let speed = |name: &String| {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
        text.trim().parse::<i32>().ok().filter(|speed| *speed > 0)
    };
    let fastest = names.iter().max_by_key(|name| speed(name));
    let path = fastest.and_then(|name| {
        let path = fs::canonicalize(format!("/sys/class/net/{name}/device")).ok()?;
        Some(path.to_string_lossy().into_owned())
    });
    // The path of an interface that a hypervisor provides may lead to no PCI function.
    let path = path.filter(|path| path.starts_with("/sys/devices/pci"));
    (path, fastest.and_then(speed))
}

/// Returns a pointer to a text for C, or null.
pub(crate) fn pointer(text: Option<&CStr>) -> *const std::ffi::c_char {
    text.map_or(std::ptr::null(), CStr::as_ptr)
}
