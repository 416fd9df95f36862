//! The devices that NCCL is told of.

use std::ffi::{CStr, CString};
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ccl_core::config::Config;
use ccl_core::transport::{Device, DeviceId, DeviceInfo, Transport};
use ccl_transport_shm::ShmTransport;
use ccl_transport_tcp::TcpTransport;
use ccl_transport_verbs::VerbsTransport;
use nccl_net_abi::NcclResult;
use sha2::{Digest, Sha256};

use crate::error::NetError;
use crate::handle::HostTag;

/// How long the link of a port may be away.
const LINK_WITHIN: Duration = Duration::from_secs(3);
/// Room of a completion queue: more than a connection can have with any policy.
const COMPLETIONS: u32 = 1 << 13;
/// What NCCL assumes of a card of which nothing is known.
const SPEED_MBPS: i32 = 10_000;

/// Which transport a handle is of.
const TCP: u8 = 1;
const VERBS: u8 = 2;
const SHM: u8 = 3;

/// A device.
#[derive(Debug)]
pub(crate) struct NetDevice {
    /// Which transport its handles are of.
    pub(crate) code: u8,
    pub(crate) name: CString,
    pub(crate) pci_path: Option<CString>,
    /// The same for all ports of a card.
    pub(crate) guid: u64,
    pub(crate) port: i32,
    pub(crate) speed_mbps: i32,
    pub(crate) latency_us: f32,
    pub(crate) info: DeviceInfo,
    transport: Arc<dyn Transport>,
    opened: Mutex<Option<Arc<dyn Device>>>,
    /// What reaches processes of the same host, if that is another one, and how this host is called
    /// among those that are one machine.
    pub(crate) near: Option<(HostTag, Arc<dyn Device>)>,
}

impl NetDevice {
    /// The device, opened when it is first asked for.
    pub(crate) fn open(&self) -> Result<Arc<dyn Device>, NetError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*opened {
            return Ok(Arc::clone(device));
        }
        let device = self.transport.open(&self.info.id)?;
        *opened = Some(Arc::clone(&device));
        Ok(device)
    }

    /// Its name and what it is, for people.
    pub(crate) fn title(&self) -> String {
        format!("{} ({})", self.name(), self.info.description)
    }

    pub(crate) fn name(&self) -> &str {
        self.name.to_str().unwrap_or("?")
    }
}

/// The devices that `FERROCCL_TRANSPORT` asks for; by default, the best that there are. With them,
/// why they are these; none is no error.
pub(crate) fn find(config: &Config) -> Result<(Vec<NetDevice>, String), NetError> {
    let verbs = || -> Result<Arc<dyn Transport>, NetError> {
        let options = ccl_transport_verbs::Options::from_config(config, LINK_WITHIN)?;
        // Each lane has one connection.
        let options = ccl_transport_verbs::Options { completions: COMPLETIONS, ..options };
        Ok(Arc::new(VerbsTransport::new(options)))
    };
    let tcp = || -> Arc<dyn Transport> {
        let options = ccl_transport_tcp::Options::from_config(config);
        // NCCL goes on sooner; what a break may cost, it costs with NCCL's own sockets, too.
        let options = ccl_transport_tcp::Options { done_when_written: true, ..options };
        Arc::new(TcpTransport::new(options))
    };
    let shm = || -> Arc<dyn Transport> { Arc::new(ShmTransport::new()) };
    match config.transport.as_str() {
        "shm" => Ok((of(&shm(), SHM, config), "FERROCCL_TRANSPORT=shm".to_owned())),
        "tcp" => Ok((of(&tcp(), TCP, config), "FERROCCL_TRANSPORT=tcp".to_owned())),
        "verbs" => {
            let transport = verbs()?;
            let devices = of(&transport, VERBS, config);
            let why = if devices.is_empty() { transport.why_none() } else { String::new() };
            Ok((devices, format!("FERROCCL_TRANSPORT=verbs {why}")))
        }
        "auto" if config.tls => {
            let why = "FERROCCL_TLS=1, which only tcp can".to_owned();
            Ok((of(&tcp(), TCP, config), why))
        }
        "auto" => {
            let transport = verbs()?;
            let devices = of(&transport, VERBS, config);
            if devices.is_empty() {
                let why = format!("there is no device for verbs: {}", transport.why_none());
                return Ok((of(&tcp(), TCP, config), why));
            }
            Ok((devices, "verbs is the fastest that there is".to_owned()))
        }
        name => Err(NetError::new(
            NcclResult::INVALID_USAGE,
            format!("FERROCCL_TRANSPORT={name}: within NCCL there are auto, shm, tcp and verbs"),
        )),
    }
}

fn of(transport: &Arc<dyn Transport>, code: u8, config: &Config) -> Vec<NetDevice> {
    let found = transport.devices();
    found.into_iter().filter_map(|info| describe(transport, code, info, config)).collect()
}

fn describe(
    transport: &Arc<dyn Transport>,
    code: u8,
    info: DeviceInfo,
    config: &Config,
) -> Option<NetDevice> {
    let (card, port) = info.id.0.rsplit_once(':').unwrap_or((&info.id.0, "1"));
    let (mut pci_path, mut speed_mbps) = (info.pci_path.clone(), None);
    if code == TCP {
        (pci_path, speed_mbps) = interface(&config.socket_interfaces);
    } else {
        speed_mbps = speed_mbps.or(Some((info.caps.bandwidth_bytes_per_s * 8e-6) as i32));
    }
    let identity = pci_path.as_deref().unwrap_or(card);
    let digest: [u8; 32] = Sha256::digest(identity.as_bytes()).into();
    let guid = digest.first_chunk().copied().map_or(0, u64::from_le_bytes);
    Some(NetDevice {
        code,
        name: CString::new(info.id.0.as_str()).ok()?,
        pci_path: pci_path.and_then(|path| CString::new(path).ok()),
        guid,
        port: port.parse().unwrap_or(1),
        speed_mbps: speed_mbps.filter(|speed| *speed > 0).unwrap_or(SPEED_MBPS),
        latency_us: info.caps.latency_ns as f32 / 1e3,
        info,
        transport: Arc::clone(transport),
        opened: Mutex::new(None),
        near: near(config),
    })
}

/// Shared memory, unless something else is asked for.
fn near(config: &Config) -> Option<(HostTag, Arc<dyn Device>)> {
    if config.transport != "auto" {
        return None;
    }
    let device = ShmTransport::new().open(&DeviceId(ccl_transport_shm::DEVICE.to_owned())).ok()?;
    let digest: [u8; 32] = Sha256::digest(config.host_id.as_bytes()).into();
    Some((*digest.first_chunk()?, device))
}

/// The PCI function of the fastest interface that TCP tells its peers of, and its megabits per
/// second, as far as they are known.
fn interface(filter: &str) -> (Option<String>, Option<i32>) {
    let names = ccl_wire::interfaces(filter).unwrap_or_default();
    let speed = |name: &String| {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
        text.trim().parse::<i32>().ok().filter(|speed| *speed > 0)
    };
    let fastest = names.iter().max_by_key(|name| speed(name));
    let path = fastest.and_then(|name| {
        let path = fs::canonicalize(format!("/sys/class/net/{name}/device")).ok()?;
        Some(path.to_string_lossy().into_owned())
    });
    // What a hypervisor puts there is no PCI function.
    let path = path.filter(|path| path.starts_with("/sys/devices/pci"));
    (path, fastest.and_then(speed))
}

/// A text for C, or none.
pub(crate) fn pointer(text: Option<&CStr>) -> *const std::ffi::c_char {
    text.map_or(std::ptr::null(), CStr::as_ptr)
}
