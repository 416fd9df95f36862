//! The transport: the devices of one provider.

use std::sync::Arc;

use ccl_core::transport::{
    Device, DeviceId, DeviceInfo, Fabric, Locality, Transport, TransportError,
};
use libfabric_sys::Functions;

use crate::device::{OfiDevice, Options, caps, writes};
use crate::native::{Info, OfiError, functions, transport_error};

/// A provider of libfabric as a transport.
#[derive(Clone, Debug)]
pub struct OfiTransport {
    /// Functions to use instead of the installed library; none for the installed library.
    functions: Option<&'static Functions>,
    provider: String,
    options: Options,
}

impl OfiTransport {
    /// Returns the transport over the named provider; libfabric is loaded only when it is needed.
    #[must_use]
    pub fn new(provider: &str, options: Options) -> OfiTransport {
        OfiTransport { functions: None, provider: provider.to_owned(), options }
    }

    /// Returns the transport over a provider of `functions` instead of the installed library, for
    /// tests.
    #[must_use]
    pub fn over(functions: &'static Functions, provider: &str, options: Options) -> OfiTransport {
        OfiTransport { functions: Some(functions), ..OfiTransport::new(provider, options) }
    }

    /// Returns the provider's offers (`fi_info`) that can carry puts, one per device.
    fn offers(&self) -> Result<Vec<Info>, OfiError> {
        let functions = self.functions.map_or_else(functions, Ok)?;
        let mut offers = Info::offers(functions, &self.provider, self.options.device_memory)?;
        // A provider without reliable datagram endpoints of its own is used with a layer above it,
        // as with FI_PROVIDER: the name `verbs` then stands for `verbs;ofi_rxm`.
        let is_exact = |info: &Info| info.provider() == self.provider;
        let layered = format!("{};", self.provider);
        match offers.iter().any(is_exact) {
            true => offers.retain(is_exact),
            false => offers.retain(|info| info.provider().starts_with(&layered)),
        }
        // Later offers repeat the device with other address formats.
        let mut seen = Vec::new();
        offers.retain(|info| {
            let device = info.device();
            let is_new = !seen.contains(&device);
            seen.push(device);
            is_new
        });
        Ok(offers)
    }
}

/// Returns the position of a device in the host; it is unknown for a software device.
fn locality(info: &Info) -> Locality {
    let function = info.pci_address().map(|address| format!("/sys/bus/pci/devices/{address}"));
    let pci_path = function.and_then(|link| std::fs::canonicalize(link).ok());
    let numa_node = pci_path.as_ref().and_then(|path| {
        // The file says -1 where the node is not known.
        std::fs::read_to_string(path.join("numa_node")).ok()?.trim().parse().ok()
    });
    Locality {
        numa_node,
        pci_path: pci_path.and_then(|path| path.into_os_string().into_string().ok()),
    }
}

impl Transport for OfiTransport {
    fn name(&self) -> &'static str {
        crate::KIND.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let describe = |info: &Info| {
            let Locality { numa_node, pci_path } = locality(info);
            DeviceInfo {
                id: DeviceId(info.device()),
                description: format!(
                    "{} over libfabric's provider {}",
                    info.device(),
                    info.provider()
                ),
                caps: caps(info, &self.options, writes(info, &self.options)),
                numa_node,
                pci_path,
                fabric: Fabric::default(),
            }
        };
        let mut all: Vec<_> = self.offers().unwrap_or_default().iter().map(describe).collect();
        if all.iter().any(|device| device.pci_path.is_some()) {
            all.retain(|device| device.pci_path.is_some());
            return all;
        }
        // A software provider needs only one interface, since that interface reaches all hosts. So
        // the interfaces are not divided among ranks as adapters are.
        let interfaces = ccl_socket::interfaces(&self.options.interfaces).unwrap_or_default();
        let rank = |device: &DeviceInfo| {
            let at = interfaces.iter().position(|name| *name == device.id.0);
            at.unwrap_or(interfaces.len())
        };
        all.sort_by_key(rank);
        all.truncate(1);
        all
    }

    fn why_none(&self) -> String {
        match self.offers() {
            Err(error) => error.to_string(),
            Ok(_) => format!(
                "libfabric has no provider {} with reliable datagram endpoints; `ferroccl doctor \
                 --ofi` lists the providers",
                self.provider
            ),
        }
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        let offers = self.offers().map_err(transport_error)?;
        let there = Vec::from_iter(offers.iter().map(Info::device)).join(", ");
        let found = offers.into_iter().find(|info| info.device() == id.0);
        let info = found.ok_or_else(|| {
            let advice = format!("libfabric's provider {} has the devices: {there}", self.provider);
            TransportError::NoDevice { device: id.0.clone(), advice }
        })?;
        Ok(Arc::new(OfiDevice::open(info, self.options.clone())?))
    }
}
