//! Discovery of a machine: NUMA nodes, PCIe trees, GPUs and NICs, from sysfs and, for this machine,
//! from libraries.

use std::collections::BTreeMap;

use crate::topology::fabric::Fabric;
use crate::topology::{HostRun, Topology};
use ccl_core::topology::machine::{Kind, LinkSpeed, Machine, Part};
use ccl_core::topology::plugs::Plugs;
use ccl_core::transport::pci_address;
use ccl_transport_verbs::{Options, PortInfo, VerbsTransport};

use super::{gpu_links, nccl};
use ccl_machine::Files;
use ccl_machine::devices::{self, Device};

/// Assumed link between processors, of the usual order of magnitude: sysfs does not show its speed.
const SMP: LinkSpeed = LinkSpeed { bytes_per_s: 40e9, latency_ns: 130.0 };

/// Discovers a machine from its sysfs; for this machine also from NVML and verbs, if available.
///
/// # Errors
///
/// When the parts that were found contradict each other.
pub fn discover(files: &Files) -> Result<Topology, String> {
    let told =
        if files.is_live() { VerbsTransport::new(Options::default()).list() } else { vec![] };
    discover_with(files, &told)
}

/// Discovers a machine by sysfs and by the ports that verbs have listed.
fn discover_with(files: &Files, told: &[PortInfo]) -> Result<Topology, String> {
    let mut found = Found { files, told, plugs: Plugs::default(), nodes: BTreeMap::new() };
    found.numa_nodes();
    found.gpus();
    found.nics();
    let name = files.text("/proc/sys/kernel/hostname");
    let name = name.unwrap_or_else(|| "this host".to_owned());
    let mut machine = Machine {
        name: "host".to_owned(),
        smp: SMP,
        parts: found.plugs.parts,
        gpu_links: Vec::new(),
    };
    if files.is_live() {
        gpu_links::add(&mut machine);
    }
    let topology = Topology {
        name,
        machines: vec![machine],
        hosts: vec![HostRun { machine: 0, count: 1 }],
        fabric: Fabric::default(),
        placed: Vec::new(),
    };
    topology.check().map_err(|error| format!("the discovered topology is invalid: {error}"))?;
    Ok(topology)
}

struct Found<'f> {
    files: &'f Files,
    /// Ports that verbs have listed.
    told: &'f [PortInfo],
    plugs: Plugs,
    /// Index of each NUMA node's part, by the number of the node.
    nodes: BTreeMap<u32, usize>,
}

impl Found<'_> {
    fn numa_nodes(&mut self) {
        for name in self.files.names("/sys/devices/system/node") {
            let number = name.strip_prefix("node").and_then(|number| number.parse().ok());
            if let Some(number) = number.filter(|number| !self.nodes.contains_key(number)) {
                let part = Part::new(&format!("numa{number}"), Kind::Numa);
                let node = self.plugs.add(part);
                self.nodes.insert(number, node);
            }
        }
        // A kernel without NUMA has one node and does not say so.
        if self.nodes.is_empty() {
            let node = self.plugs.add(Part::new("numa0", Kind::Numa));
            self.nodes.insert(0, node);
        }
    }

    fn only_node(&self) -> Option<usize> {
        self.nodes.values().next().copied().filter(|_| self.nodes.len() == 1)
    }

    fn gpus(&mut self) {
        for (number, (gpu, _)) in devices::gpus(self.files).iter().enumerate() {
            self.place(gpu, format!("gpu{number}"), Kind::Gpu);
        }
    }

    /// Adds the ports of RDMA devices. Adds a hardware interface only if no RDMA device has the
    /// same PCI function.
    fn nics(&mut self) {
        let mut rdma = devices::rdma(self.files);
        for PortInfo { device, locality, .. } in self.told {
            if !rdma.iter().any(|known| known.name == *device) {
                rdma.push(Device::known(device, locality));
            }
        }
        for device in &rdma {
            let ports = self.ports(device);
            let several = ports.len() > 1;
            for (number, network) in ports {
                let name = &device.name;
                let name = if several { format!("{name}:{number}") } else { name.clone() };
                self.nic(device, name, network);
            }
        }
        for interface in devices::interfaces(self.files) {
            let Some(device) = &interface.device else { continue };
            let is_used = |rdma: &Device| rdma.function() == device.function();
            if !rdma.iter().any(is_used) {
                let rate = interface.megabits.map(|megabits| f64::from(megabits) * 125e3);
                self.nic(device, interface.name, Some(network(rate)));
            }
        }
    }

    /// Returns the ports of a device by number, each with its link to the network; None for a port
    /// that is down. The answer of verbs overrides sysfs, because verbs ask the device. If verbs
    /// know only a lower bound of the rate, the higher of the two rates counts.
    fn ports(&self, device: &Device) -> BTreeMap<u8, Option<LinkSpeed>> {
        let by_files = devices::ports(self.files, device).into_iter().map(|port| {
            let rate = port.gigabits(self.files).map(|gigabits| gigabits * 0.125e9);
            (port.number, (!port.is_down(self.files)).then(|| network(rate)))
        });
        let mut ports: BTreeMap<u8, Option<LinkSpeed>> = by_files.collect();
        for port in self.told.iter().filter(|port| port.device == device.name) {
            let by_files =
                ports.get(&port.number).copied().flatten().map(|speed| speed.bytes_per_s);
            let by_files = by_files.filter(|rate| rate.is_finite());
            let rate = match (port.bytes_per_s, by_files) {
                (Some(told), Some(rate)) if port.is_at_least => Some(told.max(rate)),
                (told, rate) => told.or(rate),
            };
            ports.insert(port.number, port.is_active.then(|| network(rate)));
        }
        ports
    }

    fn nic(&mut self, device: &Device, name: String, network: Option<LinkSpeed>) {
        let part = self.place(device, name, Kind::Nic);
        self.plugs.parts[part].network = network;
    }

    /// Puts a device into the PCIe tree that its path describes; a software device goes under a
    /// NUMA node.
    fn place(&mut self, device: &Device, name: String, kind: Kind) -> usize {
        // The NUMA node that the device names, or else the machine's only node.
        let named = device.locality.numa_node.and_then(|node| self.nodes.get(&node).copied());
        let node = named.or_else(|| self.only_node());
        // A software device that names no known node goes under the machine's first node.
        let first = || self.nodes.values().next().copied().filter(|_| device.card().is_none());
        let node = node.or_else(first);
        let pci = device.address().and_then(pci_address);
        let part = Part { pci, ..Part::new(&name, kind) };
        let files = self.files;
        self.plugs.plug(&device.locality, node, part, &|function| link(files, function))
    }
}

/// Returns the link to a network of this rate; an unknown rate counts as infinite.
fn network(bytes_per_s: Option<f64>) -> LinkSpeed {
    LinkSpeed { bytes_per_s: bytes_per_s.unwrap_or(f64::INFINITY), latency_ns: 0.0 }
}

/// Returns the PCIe link of a function, at its current speed and width.
fn link(files: &Files, function: &str) -> LinkSpeed {
    let speed = files.text(&format!("{function}/current_link_speed")).unwrap_or_default();
    let width = files.number(&format!("{function}/current_link_width"));
    let bytes_per_s = nccl::pcie_bytes_per_s(&speed, width).unwrap_or(f64::INFINITY);
    LinkSpeed { bytes_per_s, latency_ns: 0.0 }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use ccl_core::transport::Locality;

    /// Sysfs files of a test, removed on drop.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new() -> Sysfs {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("ferroccl-sysfs-{}-{number}", std::process::id());
            let root = std::env::temp_dir().join(name);
            fs::create_dir_all(&root).unwrap();
            Sysfs(root)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join("sys").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Adds a PCI function with its attributes.
        fn function(&self, path: &str, attributes: &[(&str, &str)]) {
            for (name, value) in attributes {
                self.write(&format!("devices/{path}/{name}"), &format!("{value}\n"));
            }
            let bus = self.0.join("sys/bus/pci/devices");
            fs::create_dir_all(&bus).unwrap();
            let name = path.rsplit('/').next().unwrap();
            symlink(self.0.join("sys/devices").join(path), bus.join(name)).unwrap();
        }

        fn link(&self, from: &str, to: &str) {
            let from = self.0.join("sys").join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(self.0.join("sys").join(to), from).unwrap();
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const GPU: &[(&str, &str)] = &[
        ("class", "0x030200"),
        ("vendor", "0x10de"),
        ("numa_node", "0"),
        ("current_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
    ];

    /// Returns a server with two sockets. The first has a switch with a GPU and a card of two
    /// ports, and a GPU beside the switch; the second has an interface that is not an RDMA device.
    fn server() -> Sysfs {
        let sysfs = Sysfs::new();
        sysfs.write("devices/system/node/node0/cpulist", "0-3");
        sysfs.write("devices/system/node/node1/cpulist", "4-7");
        sysfs.write("devices/system/node/possible", "0-1");
        let below = "pci0000:15/0000:15:01.0/0000:16:00.0";
        sysfs.function(&format!("{below}/0000:17:02.0/0000:1b:00.0"), GPU);
        sysfs.function("pci0000:15/0000:15:03.0/0000:20:00.0", GPU);
        for port in 0..2 {
            let card = format!("{below}/0000:17:00.0/0000:18:00.{port}");
            sysfs.function(&card, &[("class", "0x020700"), ("numa_node", "0")]);
            sysfs.write(&format!("devices/{card}/infiniband/mlx5_{port}/x"), "");
            sysfs.link(&format!("class/infiniband/mlx5_{port}/device"), &format!("devices/{card}"));
            let rate = format!("class/infiniband/mlx5_{port}/ports/1/rate");
            sysfs.write(&rate, "400 Gb/sec (4X NDR)\n");
            sysfs.link(&format!("class/net/ib{port}/device"), &format!("devices/{card}"));
            sysfs.write(&format!("class/net/ib{port}/mtu"), "2044\n");
        }
        let plain = "pci0000:80/0000:80:00.0/0000:81:00.0";
        sysfs.function(plain, &[("class", "0x020000"), ("numa_node", "1")]);
        sysfs.link("class/net/eth0/device", &format!("devices/{plain}"));
        sysfs.write("class/net/eth0/speed", "25000\n");
        sysfs.write("class/net/eth0/mtu", "1500\n");
        sysfs.write("class/net/lo/mtu", "65536\n");
        let screen = "pci0000:80/0000:80:02.0/0000:82:00.0";
        sysfs.function(screen, &[("class", "0x030000"), ("vendor", "0x1a03")]);
        sysfs
    }

    #[test]
    fn each_device_is_found_where_it_is_plugged_in() {
        let sysfs = server();
        let topology = discover(&Files::new(&sysfs.0).unwrap()).unwrap();
        let machine = &topology.machines[0];
        let named = |name: &str| machine.parts.iter().position(|part| part.name == name).unwrap();
        for (from, to, class) in [
            ("gpu0", "mlx5_0", "PIX"),
            ("gpu0", "mlx5_1", "PIX"),
            ("mlx5_0", "mlx5_1", "PIX"),
            ("gpu1", "mlx5_0", "PHB"),
            ("gpu0", "gpu1", "PHB"),
            ("gpu0", "eth0", "SYS"),
            ("numa1", "eth0", "PHB"),
            ("numa0", "numa1", "SHM"),
        ] {
            let seen = machine.path(named(from), named(to)).class.to_string();
            assert_eq!(seen, class, "{from} {to}");
        }
        assert_eq!(machine.of(Kind::Gpu).count(), 2);
        assert_eq!(machine.of(Kind::Nic).count(), 3);
        assert_eq!(machine.network_bytes_per_s(), 100e9 + 3.125e9);
        let path = machine.path(named("gpu0"), named("numa0"));
        assert_eq!(path.speed.bytes_per_s, 16.0 * 3.938e9);
    }

    #[test]
    fn invalid_values_in_sysfs_count_as_unknown() {
        let sysfs = server();
        sysfs.write("class/net/eth0/speed", "-1\n");
        sysfs.write("devices/pci0000:80/0000:80:00.0/0000:81:00.0/numa_node", "99\n");
        let gpu = "devices/pci0000:15/0000:15:03.0/0000:20:00.0";
        sysfs.write(&format!("{gpu}/current_link_speed"), "\u{fffd} Unknown\n");
        sysfs.write("class/infiniband/mlx5_0/ports/1/rate", "\n");
        sysfs.write("devices/system/node/node7000000000000000000000/x", "");
        let topology = discover(&Files::new(&sysfs.0).unwrap()).unwrap();
        assert_eq!(topology.machines[0].network_bytes_per_s(), f64::INFINITY);
        // A device that names a missing node is near no node.
        let machine = &topology.machines[0];
        let eth0 = machine.parts.iter().position(|part| part.name == "eth0").unwrap();
        assert_eq!(machine.numa(eth0), None);
        let empty = Sysfs::new();
        let topology = discover(&Files::new(&empty.0).unwrap()).unwrap();
        assert_eq!(topology.machines[0].parts.len(), 1);
    }

    /// Checks that verbs override sysfs for a port, and add devices that no file shows.
    #[test]
    fn verbs_override_sysfs_and_add_devices() {
        let sysfs = server();
        for (port, state) in [(0, "4: ACTIVE\n"), (1, "1: DOWN\n")] {
            sysfs.write(&format!("class/infiniband/mlx5_{port}/ports/1/state"), state);
        }
        let files = Files::new(&sysfs.0).unwrap();
        let told = |device: &str, number, is_active, gigabits: f64| PortInfo {
            device: device.to_owned(),
            number,
            is_active,
            layer: None,
            bytes_per_s: Some(gigabits * 0.125e9),
            is_at_least: false,
            locality: Locality::default(),
        };
        let networks = |told: &[PortInfo]| {
            let topology = discover_with(&files, told).unwrap();
            let nics = topology.machines[0].parts.iter().filter(|part| part.kind == Kind::Nic);
            let gigabits = |speed: LinkSpeed| speed.bytes_per_s / 0.125e9;
            let nics = nics.map(|part| (part.name.clone(), part.network.map(gigabits)));
            nics.collect::<BTreeMap<String, Option<f64>>>()
        };
        let by_files = networks(&[]);
        assert_eq!(by_files["mlx5_0"], Some(400.0));
        assert_eq!(by_files["mlx5_1"], None, "mlx5_1 is down in sysfs");
        assert_eq!(by_files["eth0"], Some(25.0));
        let both = networks(&[told("mlx5_0", 1, false, 400.0), told("mlx5_1", 1, true, 200.0)]);
        assert_eq!((both["mlx5_0"], both["mlx5_1"]), (None, Some(200.0)));
        assert_eq!(both.len(), by_files.len(), "no NIC is listed twice");
        let mut fast = told("mlx5_0", 1, true, 100.0);
        assert_eq!(networks(std::slice::from_ref(&fast))["mlx5_0"], Some(100.0));
        fast.is_at_least = true;
        assert_eq!(networks(&[fast])["mlx5_0"], Some(400.0));
        let unknown = PortInfo { bytes_per_s: None, ..told("mlx5_0", 1, true, 0.0) };
        assert_eq!(networks(&[unknown])["mlx5_0"], Some(400.0));
        let more = networks(&[told("soft0", 1, true, 10.0), told("soft0", 2, true, 40.0)]);
        assert_eq!((more["soft0:1"], more["soft0:2"]), (Some(10.0), Some(40.0)));
        assert_eq!(more.len(), by_files.len() + 2);
    }

    #[test]
    fn this_machine_is_found() {
        let topology = discover(&Files::new(Path::new("/")).unwrap()).unwrap();
        assert!(topology.machines[0].of(Kind::Numa).count() >= 1);
    }
}
