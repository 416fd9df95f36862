//! Network devices and GPUs of a machine, as sysfs describes them.

use ccl_core::transport::{Locality, pci_address};

use super::Files;

/// A device of the PCI bus, or one in software.
#[derive(Clone, Debug)]
pub struct Device {
    /// Name as people know it: `mlx5_0`, `eth0`, `GPU 0000:17:00.0`.
    pub name: String,
    /// Path of its directory in sysfs, with all symbolic links resolved. A software device, such as
    /// `rxe0` over `eth0`, has the path of the hardware that its network interface uses. Without
    /// such hardware, its path names no PCI function.
    pub path: String,
    /// Locality of the device: its NUMA node and PCI path.
    pub locality: Locality,
}

impl Device {
    fn new(host: &Files, name: String, link: &str) -> Option<Device> {
        let path = host.real(link)?;
        // If the firmware does not report the node, the file holds -1, which is not parsed.
        let numa_node = host.number(&format!("{path}/numa_node"));
        let locality = Locality { numa_node, pci_path: Some(path.clone()) };
        Some(Device { name, path, locality })
    }

    /// Creates a device from its name and its locality, as far as the locality is known.
    pub fn known(name: &str, locality: &Locality) -> Device {
        let path = locality.pci_path.clone().unwrap_or_default();
        Device { name: name.to_owned(), path, locality: locality.clone() }
    }

    /// Returns the PCI device of this address.
    pub fn at(host: &Files, address: &str) -> Option<Device> {
        Device::new(host, address.to_owned(), &format!("/sys/bus/pci/devices/{address}"))
    }

    /// Returns the device's PCI address, if it has one.
    pub fn address(&self) -> Option<&str> {
        function(&self.path)?.rsplit('/').next()
    }

    /// Returns the directory of the device's PCI function, or of the nearest function above it.
    pub fn function(&self) -> Option<&str> {
        function(&self.path)
    }

    /// Returns the directory of the card's outermost PCI function. If the card has a switch of its
    /// own, this is the function of the switch; else it is the device's function.
    pub fn card(&self) -> Option<&str> {
        self.locality.pci_path.as_deref().and_then(function)
    }

    /// Returns the addresses of the bridges above the device's card, the nearest last.
    pub fn bridges(&self) -> Vec<&str> {
        let parts = self.card().unwrap_or_default().split('/');
        let functions = parts.filter(|part| pci_address(part).is_some());
        let mut functions: Vec<&str> = functions.collect();
        functions.pop();
        functions
    }
}

/// Returns the beginning of a path, up to and including its last PCI function.
fn function(path: &str) -> Option<&str> {
    let address = path.rsplit('/').find(|part| pci_address(part).is_some())?;
    path.get(..path.rfind(address)? + address.len())
}

/// Returns the directory of the outermost PCI function of an AMD GPU's card. If the card has a
/// switch, this function is a bridge of the switch, above the GPU; else it is the GPU's own
/// function. Root ports of AMD are not taken for such bridges: they have another vendor number.
fn card(host: &Files, gpu: &str) -> String {
    let mut top = gpu;
    while let Some((above, _)) = top.rsplit_once('/') {
        let is = |file: &str, text: &str| {
            host.text(&format!("{above}/{file}")).is_some_and(|found| found.starts_with(text))
        };
        if !is("vendor", "0x1002") || !is("class", BRIDGE) {
            break;
        }
        top = above;
    }
    top.to_owned()
}

/// Class of bridges between PCI buses.
pub const BRIDGE: &str = "0x0604";

/// Manufacturer of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
}

/// Returns the GPUs: display controllers and accelerators of the makers in `Maker`.
pub fn gpus(host: &Files) -> Vec<(Device, Maker)> {
    let gpu = |address: String| {
        let link = format!("/sys/bus/pci/devices/{address}");
        let class = host.text(&format!("{link}/class"))?;
        let maker = match host.text(&format!("{link}/vendor"))?.as_str() {
            "0x10de" => Maker::Nvidia,
            "0x1002" => Maker::Amd,
            _ => return None,
        };
        let computes = ["0x0300", "0x0302", "0x0380", "0x1200"];
        let known = computes.iter().any(|known| class.starts_with(known));
        let mut device = Device::new(host, format!("GPU {address}"), &link)?;
        if maker == Maker::Amd {
            device.locality.pci_path = Some(card(host, &device.path));
        }
        known.then_some((device, maker))
    };
    host.names("/sys/bus/pci/devices").into_iter().filter_map(gpu).collect()
}

/// Returns the RDMA devices. A device in software has the PCI path of its interface, or none.
pub fn rdma(host: &Files) -> Vec<Device> {
    let device = |name: String| {
        let link = format!("/sys/class/infiniband/{name}/device");
        let known = Device::new(host, name.clone(), &link);
        known.or_else(|| Device::new(host, name.clone(), &format!("/sys/class/infiniband/{name}")))
    };
    host.names("/sys/class/infiniband").into_iter().filter_map(device).collect()
}

/// Returns the ports of an RDMA device, numbered from 1.
pub fn ports(host: &Files, device: &Device) -> Vec<Port> {
    let directory = format!("/sys/class/infiniband/{}/ports", device.name);
    let port = |name: String| {
        let number = name.parse().ok()?;
        Some(Port {
            name: format!("{}:{number}", device.name),
            device: device.clone(),
            number,
            path: format!("{directory}/{name}"),
        })
    };
    host.names(&directory).into_iter().filter_map(port).collect()
}

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name, such as `mlx5_0:1`.
    pub name: String,
    /// RDMA device that has the port.
    pub device: Device,
    /// Number of the port, from 1.
    pub number: u8,
    /// Directory of the port in sysfs.
    pub path: String,
}

impl Port {
    /// Returns the text of one of the port's files.
    pub fn text(&self, host: &Files, name: &str) -> Option<String> {
        host.text(&format!("{}/{name}", self.path))
    }

    /// Returns whether the port's link layer is Ethernet.
    pub fn is_ethernet(&self, host: &Files) -> bool {
        self.text(host, "link_layer").as_deref() == Some("Ethernet")
    }

    /// Returns whether the port is active: `4: ACTIVE`.
    pub fn is_active(&self, host: &Files) -> bool {
        self.text(host, "state").is_some_and(|state| state.starts_with('4'))
    }

    /// Returns whether the port is known to be inactive.
    pub fn is_down(&self, host: &Files) -> bool {
        self.text(host, "state").is_some() && !self.is_active(host)
    }

    /// Returns the interface behind a RoCE port.
    pub fn interface(&self, host: &Files) -> Option<String> {
        let rows = host.names(&format!("{}/gid_attrs/ndevs", self.path));
        rows.iter().find_map(|row| self.text(host, &format!("gid_attrs/ndevs/{row}")))
    }

    /// Returns the port's rate in Gbit/s: 400 for `400 Gb/sec (4X NDR)`.
    pub fn gigabits(&self, host: &Files) -> Option<f64> {
        let text = self.text(host, "rate")?;
        let rate: f64 = text.split_whitespace().next()?.parse().ok()?;
        (rate.is_finite() && rate > 0.0 && rate < 1e6).then_some(rate)
    }
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name, such as `eth0`.
    pub name: String,
    /// Device behind the interface; `None` if it is software.
    pub device: Option<Device>,
    /// True if the interface joins interfaces of this host, as bridges of container engines do.
    pub is_bridge: bool,
    /// True if the interface is up.
    pub is_up: bool,
    /// True if its packets are Ethernet, and not InfiniBand.
    pub is_ethernet: bool,
    /// MTU: the longest packet, in bytes, if known.
    pub mtu: Option<u32>,
    /// Speed in Mbit/s, if the driver reports it.
    pub megabits: Option<u32>,
}

impl Interface {
    /// Returns whether the interface leads back to this machine.
    pub fn is_loopback(&self) -> bool {
        self.name == "lo"
    }
}

/// Returns all network interfaces.
pub fn interfaces(host: &Files) -> Vec<Interface> {
    let interface = |name: String| {
        let path = format!("/sys/class/net/{name}");
        let state = host.text(&format!("{path}/operstate"));
        let state = state.as_deref().unwrap_or("unknown");
        let carrier = host.number::<u8>(&format!("{path}/carrier"));
        // Interfaces in software do not report whether they are up: they count as up unless they
        // report that they have no carrier.
        let is_up = state == "up" || (state == "unknown" && carrier != Some(0));
        Interface {
            device: Device::new(host, name.clone(), &format!("{path}/device")),
            is_bridge: host.has(&format!("{path}/bridge")),
            is_up,
            is_ethernet: host.text(&format!("{path}/type")).is_none_or(|kind| kind == "1"),
            mtu: host.number(&format!("{path}/mtu")),
            megabits: host
                .number::<u32>(&format!("{path}/speed"))
                .filter(|speed| (1..10_000_000).contains(speed)),
            name,
        }
    };
    let is_interface = |name: &String| host.has(&format!("/sys/class/net/{name}/mtu"));
    host.names("/sys/class/net").into_iter().filter(is_interface).map(interface).collect()
}

/// Kind of a device on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A GPU.
    Gpu,
    /// An RDMA device.
    Rdma,
    /// A network card.
    Ethernet,
}

/// Returns the GPUs and network devices on the PCI bus, each once: an RDMA device and its interface
/// are one entry, with the name of the RDMA device.
pub fn on_bus(host: &Files) -> Vec<(Device, Kind)> {
    let gpus = gpus(host).into_iter().map(|(gpu, _)| (gpu, Kind::Gpu));
    let rdma = rdma(host).into_iter().map(|device| (device, Kind::Rdma));
    let wired = interfaces(host).into_iter().filter_map(|interface| interface.device);
    let wired = wired.map(|device| (device, Kind::Ethernet));
    let mut all: Vec<(Device, Kind)> = Vec::new();
    for (device, kind) in gpus.chain(rdma).chain(wired) {
        let known = all.iter().any(|(other, _)| other.function() == device.function());
        if device.function().is_some() && !known {
            all.push((device, kind));
        }
    }
    all
}
