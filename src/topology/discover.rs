//! What sysfs tells of this machine: NUMA nodes, the PCIe trees, GPUs, NICs.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ccl_core::topology::fabric::Fabric;
use ccl_core::topology::machine::{Kind, Machine, Part, Wire};
use ccl_core::topology::{HostRun, Topology};
use ccl_core::transport::pci_address;

use super::{gpu_links, nccl};

/// Attributes of sysfs are a page at most.
const ATTRIBUTE_BYTES_MAX: u64 = 4096;
/// Between processors: sysfs does not tell, this is of the order of what they have.
const SMP: Wire = Wire { bytes_per_s: 40e9, latency_ns: 130.0 };
const NVIDIA: &str = "0x10de";
const AMD: &str = "0x1002";

/// This machine, by the sysfs below `root` (`/` in earnest), and by NVML where it is.
///
/// # Errors
///
/// When what is there contradicts itself.
pub fn discover(root: &Path) -> Result<Topology, String> {
    let mut found = Found { sys: root.join("sys"), ..Found::default() };
    found.numa_nodes();
    found.gpus();
    found.rdma();
    found.interfaces();
    let name = attribute(&root.join("proc/sys/kernel/hostname"));
    let name = name.unwrap_or_else(|| "this host".to_owned());
    let mut machine =
        Machine { name: "host".to_owned(), smp: SMP, parts: found.parts, gpu_links: Vec::new() };
    if root == Path::new("/") {
        gpu_links::add(&mut machine);
    }
    let topology = Topology {
        name,
        machines: vec![machine],
        hosts: vec![HostRun { machine: 0, count: 1 }],
        fabric: Fabric::default(),
    };
    topology.check().map_err(|error| format!("what sysfs tells of this machine: {error}"))?;
    Ok(topology)
}

/// The first line of a file that has one.
fn attribute(path: &Path) -> Option<String> {
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(ATTRIBUTE_BYTES_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// What is in a directory, in order, so that the same machine is described in the same words.
fn list(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_by_key(|path| digits_as_numbers(&name(path)));
    paths
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// So that `mlx5_10` comes after `mlx5_9`.
fn digits_as_numbers(name: &str) -> (String, u64, String) {
    let end = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    let (letters, digits) = name.split_at(end);
    (letters.to_owned(), digits.parse().unwrap_or(0), name.to_owned())
}

#[derive(Default)]
struct Found {
    sys: PathBuf,
    parts: Vec<Part>,
    /// NUMA nodes, by their numbers.
    nodes: BTreeMap<i64, usize>,
    /// What is in the trees, by its path.
    placed: BTreeMap<PathBuf, usize>,
}

impl Found {
    fn add(&mut self, name: String, kind: Kind, under: Option<usize>, wire: Wire) -> usize {
        let (network, pci, nccl) = (None, None, BTreeMap::new());
        self.parts.push(Part { name, kind, under, wire, network, pci, nccl });
        self.parts.len() - 1
    }

    fn numa_nodes(&mut self) {
        for path in list(&self.sys.join("devices/system/node")) {
            let number = name(&path).strip_prefix("node").and_then(|number| number.parse().ok());
            if let Some(number) = number {
                let node = self.add(format!("numa{number}"), Kind::Numa, None, Wire::NONE);
                self.nodes.insert(number, node);
            }
        }
        // A kernel without NUMA has one node and does not say so.
        if self.nodes.is_empty() {
            let node = self.add("numa0".to_owned(), Kind::Numa, None, Wire::NONE);
            self.nodes.insert(0, node);
        }
    }

    /// The node that a device names; the only one, if it names none.
    fn node(&self, device: &Path) -> Option<usize> {
        let named = attribute(&device.join("numa_node")).and_then(|number| number.parse().ok());
        let named = named.and_then(|number: i64| self.nodes.get(&number).copied());
        named.or_else(|| self.nodes.values().next().copied().filter(|_| self.nodes.len() == 1))
    }

    fn gpus(&mut self) {
        let mut number = 0;
        for function in list(&self.sys.join("bus/pci/devices")) {
            let class = attribute(&function.join("class")).unwrap_or_default();
            let vendor = attribute(&function.join("vendor")).unwrap_or_default();
            // Screens of management controllers are 0x0300 too, of other vendors.
            let is_gpu = class.starts_with("0x0302")
                || (class.starts_with("0x03") && [NVIDIA, AMD].contains(&vendor.as_str()))
                || (class.starts_with("0x1200") && vendor == AMD);
            if is_gpu && self.place(&function, format!("gpu{number}"), Kind::Gpu).is_some() {
                number += 1;
            }
        }
    }

    /// The ports of RDMA devices.
    fn rdma(&mut self) {
        for device in list(&self.sys.join("class/infiniband")) {
            let ports = list(&device.join("ports"));
            let several = ports.len() > 1;
            for port in ports {
                let name = match several {
                    true => format!("{}:{}", name(&device), name(&port)),
                    false => name(&device),
                };
                let rate = attribute(&port.join("rate")).and_then(|text| gigabits(&text));
                self.nic(&device.join("device"), name, rate.map(|gigabits| gigabits * 0.125e9));
            }
        }
    }

    /// Network interfaces of hardware that RDMA does not use.
    fn interfaces(&mut self) {
        for interface in list(&self.sys.join("class/net")) {
            let device = interface.join("device");
            if !device.exists() || !list(&device.join("infiniband")).is_empty() {
                continue;
            }
            let megabits = attribute(&interface.join("speed")).and_then(|text| text.parse().ok());
            let megabits = megabits.filter(|megabits: &f64| *megabits > 0.0);
            self.nic(&device, name(&interface), megabits.map(|megabits| megabits * 125e3));
        }
    }

    fn nic(&mut self, device: &Path, name: String, bytes_per_s: Option<f64>) {
        let placed = self.place(device, name.clone(), Kind::Nic);
        let part = placed.unwrap_or_else(|| {
            let node = self.nodes.values().next().copied();
            self.add(name, Kind::Nic, node, Wire::NONE)
        });
        let bytes_per_s = bytes_per_s.unwrap_or(f64::INFINITY);
        self.parts[part].network = Some(Wire { bytes_per_s, latency_ns: 0.0 });
    }

    /// Puts a device into the PCIe tree that its path describes; nothing without such a path.
    fn place(&mut self, device: &Path, name: String, kind: Kind) -> Option<usize> {
        let path = fs::canonicalize(device).ok()?;
        let is_function = |path: &Path| pci_address(&self::name(path)).is_some();
        let mut functions: Vec<&Path> = path.ancestors().filter(|path| is_function(path)).collect();
        functions.reverse();
        let root = functions.first()?.parent()?.to_owned();
        let function = functions.pop()?.to_owned();
        let node = self.node(&function);
        let mut above = self.once(root, Kind::HostBridge, node);
        // Behind the root port, two for each switch: its own, and that of one of its ports.
        let switches: Vec<PathBuf> =
            functions.iter().skip(1).step_by(2).map(|path| (*path).to_owned()).collect();
        for switch in switches {
            above = self.once(switch, Kind::PcieSwitch, Some(above));
        }
        // Another function of a card is plugged into the first, and another port into the port.
        let card =
            |path: &Path| path.to_string_lossy().rsplit_once('.').map(|card| card.0.to_owned());
        let beside = self.placed.iter().find(|(path, _)| card(path) == card(&function));
        let above = beside.map_or(above, |(_, part)| *part);
        let part = self.add(name, kind, Some(above), link(&function));
        self.parts[part].pci = pci_address(&self::name(&function));
        self.placed.entry(function).or_insert(part);
        Some(part)
    }

    /// A bridge or a switch, found again if it has been met.
    fn once(&mut self, path: PathBuf, kind: Kind, under: Option<usize>) -> usize {
        if let Some(part) = self.placed.get(&path) {
            return *part;
        }
        let wire = if kind == Kind::PcieSwitch { link(&path) } else { Wire::NONE };
        let part = self.add(name(&path), kind, under, wire);
        self.parts[part].pci = pci_address(&name(&path));
        self.placed.insert(path, part);
        part
    }
}

/// The PCIe link of a function, as it runs now.
fn link(function: &Path) -> Wire {
    let speed = attribute(&function.join("current_link_speed")).unwrap_or_default();
    let width = attribute(&function.join("current_link_width"));
    let bytes_per_s = nccl::pcie_bytes_per_s(&speed, width.and_then(|width| width.parse().ok()));
    Wire { bytes_per_s: bytes_per_s.unwrap_or(f64::INFINITY), latency_ns: 0.0 }
}

/// From `400 Gb/sec (4X NDR)`.
fn gigabits(rate: &str) -> Option<f64> {
    rate.split_whitespace().next()?.parse().ok().filter(|gigabits: &f64| *gigabits > 0.0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A sysfs of our own, which goes when it is dropped.
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

        /// A PCI function, with its attributes.
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

    /// Two sockets; on the first a switch with a GPU and a card of two ports, and a GPU beside it;
    /// on the second one interface that is no RDMA device.
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
        }
        let plain = "pci0000:80/0000:80:00.0/0000:81:00.0";
        sysfs.function(plain, &[("class", "0x020000"), ("numa_node", "1")]);
        sysfs.link("class/net/eth0/device", &format!("devices/{plain}"));
        sysfs.write("class/net/eth0/speed", "25000\n");
        sysfs.write("class/net/lo/mtu", "65536\n");
        let screen = "pci0000:80/0000:80:02.0/0000:82:00.0";
        sysfs.function(screen, &[("class", "0x030000"), ("vendor", "0x1a03")]);
        sysfs
    }

    #[test]
    fn a_server_is_found_as_it_is_plugged() {
        let sysfs = server();
        let topology = discover(&sysfs.0).unwrap();
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
            let seen = machine.way(named(from), named(to)).class.to_string();
            assert_eq!(seen, class, "{from} {to}");
        }
        assert_eq!(machine.of(Kind::Gpu).count(), 2);
        assert_eq!(machine.of(Kind::Nic).count(), 3);
        assert_eq!(machine.network_bytes_per_s(), 100e9 + 3.125e9);
        let way = machine.way(named("gpu0"), named("numa0"));
        assert_eq!(way.wire.bytes_per_s, 16.0 * 3.938e9);
    }

    #[test]
    fn what_makes_no_sense_is_taken_as_unknown() {
        let sysfs = server();
        sysfs.write("class/net/eth0/speed", "-1\n");
        sysfs.write("devices/pci0000:80/0000:80:00.0/0000:81:00.0/numa_node", "99\n");
        let gpu = "devices/pci0000:15/0000:15:03.0/0000:20:00.0";
        sysfs.write(&format!("{gpu}/current_link_speed"), "\u{fffd} Unknown\n");
        sysfs.write("class/infiniband/mlx5_0/ports/1/rate", "\n");
        sysfs.write("devices/system/node/node7000000000000000000000/x", "");
        let topology = discover(&sysfs.0).unwrap();
        assert_eq!(topology.machines[0].network_bytes_per_s(), f64::INFINITY);
        // On a host of two nodes, a device that names neither is near none.
        let machine = &topology.machines[0];
        let eth0 = machine.parts.iter().position(|part| part.name == "eth0").unwrap();
        assert_eq!(machine.numa(eth0), None);
        let empty = Sysfs::new();
        let topology = discover(&empty.0).unwrap();
        assert_eq!(topology.machines[0].parts.len(), 1);
    }

    #[test]
    fn this_machine_is_found() {
        let topology = discover(Path::new("/")).unwrap();
        assert!(topology.machines[0].of(Kind::Numa).count() >= 1);
    }
}
