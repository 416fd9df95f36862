//! Trees of files that imitate the root directory of a machine, for `ferroccl doctor --root`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Root ports of [`Machine::healthy`]: each path without the suffix `:01.0`, and the NUMA node.
const ROOTS: [(&str, u32); 2] = [("pci0000:10/0000:10", 0), ("pci0000:80/0000:80", 1)];

/// A directory with files of a machine; it is removed when the `Machine` is dropped.
pub(super) struct Machine(pub(super) PathBuf);

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

impl Machine {
    /// Makes a machine with no files at all.
    pub(super) fn empty() -> Machine {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferroccl-doctor-{}-{count}", std::process::id());
        // Each machine has hundreds of small files, which a disk writes slowly.
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let root = place.join(name);
        fs::create_dir_all(&root).unwrap();
        Machine(root)
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    pub(super) fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub(super) fn link(&self, from: &str, to: &str) {
        let (from, to) = (self.path(from), self.path(to));
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&from);
        // The links are relative, as in sysfs, so a copied tree keeps them.
        let up = from.strip_prefix(&self.0).unwrap().components().count() - 1;
        let way = Path::new(&"../".repeat(up)).join(to.strip_prefix(&self.0).unwrap());
        symlink(way, from).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.path(path);
        match path.symlink_metadata().unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    /// Makes a machine without faults. It has two NUMA nodes; each has a GPU and a RoCE port below
    /// one PCIe switch.
    pub(super) fn healthy() -> Machine {
        let machine = Machine::empty();
        machine.plant_system();
        for (index, (root, node)) in ROOTS.iter().enumerate() {
            machine.plant_bus(root, *node, index);
        }
        for (name, version) in [("libcuda.so", "550.54.15"), ("libnvidia-ml.so", "550.54.15")] {
            machine.plant_library(name, "1", version);
        }
        machine.plant_library("libibverbs.so", "1", "1.14.50.0");
        machine.plant_library("libnccl.so", "2", "2.27.5");
        machine
    }

    pub(super) fn plant_library(&self, name: &str, major: &str, version: &str) {
        let directory = "usr/lib/x86_64-linux-gnu";
        self.write(&format!("{directory}/{name}.{version}"), "");
        self.link(&format!("{directory}/{name}.{major}"), &format!("{directory}/{name}.{version}"));
    }

    fn plant_system(&self) {
        self.write(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1048576              1048576              files     \n\
             Max locked memory         unlimited            unlimited            bytes     \n",
        );
        self.write(
            "proc/self/status",
            "Name:\tpython\nCapEff:\t0000000000000000\nSeccomp:\t0\nCpus_allowed_list:\t0-31\n",
        );
        self.write("proc/self/uid_map", "         0          0 4294967295\n");
        self.write(
            "proc/self/mountinfo",
            "25 24 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=1056780404k\n",
        );
        self.write("proc/meminfo", "MemTotal:       2113560808 kB\n");
        self.write(
            "proc/cmdline",
            "BOOT_IMAGE=/vmlinuz root=/dev/sda2 ro intel_iommu=on iommu=pt\n",
        );
        self.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
        self.write("proc/sys/kernel/numa_balancing", "0\n");
        self.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC\n",
        );
        for module in ["nvidia", "nvidia_uvm", "nvidia_peermem"] {
            self.write(&format!("sys/module/{module}/version"), "550.54.15\n");
        }
        for node in ["dev/nvidiactl", "dev/nvidia0", "dev/infiniband/uverbs0"] {
            self.write(node, "");
        }
        self.write("sys/devices/system/cpu/online", "0-63\n");
        self.write("sys/devices/system/node/node0/cpulist", "0-31\n");
        self.write("sys/devices/system/node/node1/cpulist", "32-63\n");
        self.write("sys/class/iommu/dmar0/name", "");
        self.write("sys/devices/virtual/net/lo/mtu", "65536\n");
        self.write("sys/devices/virtual/net/lo/operstate", "unknown\n");
        self.link("sys/class/net/lo", "sys/devices/virtual/net/lo");
    }

    /// Plants a switch with a GPU and an RDMA device below it.
    fn plant_bus(&self, root: &str, node: u32, index: usize) {
        let bus = |offset: u32| {
            let first = u32::from_str_radix(&root[root.len() - 2..], 16).unwrap();
            format!("0000:{:02x}", first + offset)
        };
        let port = format!("sys/devices/{root}:01.0");
        let upstream = format!("{port}/{}:00.0", bus(1));
        let below_gpu = format!("{upstream}/{}:00.0", bus(2));
        let below_nic = format!("{upstream}/{}:01.0", bus(2));
        for bridge in [&port, &upstream, &below_gpu, &below_nic] {
            self.plant_function(bridge, "0x060400", "0x1000", node);
            self.write(&format!("{bridge}/config"), configuration(0));
        }
        let gpu = format!("{below_gpu}/{}:00.0", bus(3));
        self.plant_function(&gpu, "0x030200", "0x10de", node);
        self.link(&format!("{gpu}/driver"), "sys/bus/pci/drivers/nvidia");
        let nic = format!("{below_nic}/{}:00.0", bus(4));
        self.plant_function(&nic, "0x020000", "0x15b3", node);
        self.link(&format!("{nic}/driver"), "sys/bus/pci/drivers/mlx5_core");
        for driver in ["nvidia", "mlx5_core", "vfio-pci"] {
            self.write(&format!("sys/bus/pci/drivers/{driver}/module"), "");
        }
        for function in [&gpu, &nic] {
            self.link(
                &format!("{function}/iommu_group"),
                &format!("sys/kernel/iommu_groups/{node}"),
            );
        }
        self.write(&format!("sys/kernel/iommu_groups/{node}/type"), "identity\n");
        self.plant_interface(&nic, &format!("eth{}", index + 2));
        self.plant_rdma(&nic, index);
    }

    fn plant_function(&self, path: &str, class: &str, vendor: &str, node: u32) {
        for (file, text) in [
            ("class", class),
            ("vendor", vendor),
            ("numa_node", &node.to_string()),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
        ] {
            self.write(&format!("{path}/{file}"), format!("{text}\n"));
        }
        let address = path.rsplit('/').next().unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), path);
    }

    fn plant_interface(&self, function: &str, name: &str) {
        let path = format!("{function}/net/{name}");
        for (file, text) in
            [("mtu", "9000"), ("operstate", "up"), ("carrier", "1"), ("speed", "400000")]
        {
            self.write(&format!("{path}/{file}"), format!("{text}\n"));
        }
        self.link(&format!("{path}/device"), function);
        self.link(&format!("sys/class/net/{name}"), &path);
    }

    fn plant_rdma(&self, function: &str, index: usize) {
        let path = format!("{function}/infiniband/mlx5_{index}");
        self.link(&format!("{path}/device"), function);
        self.link(&format!("sys/class/infiniband/mlx5_{index}"), &path);
        let port = format!("{path}/ports/1");
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000";
        let local = "fe80:0000:0000:0000:0000:00ff:fe00:0001";
        let routed = "0000:0000:0000:0000:0000:ffff:0a01:0001";
        let rows = [local, local, routed, routed, zero];
        for (row, gid) in rows.iter().enumerate() {
            self.write(&format!("{port}/gids/{row}"), format!("{gid}\n"));
            let kind = if row % 2 == 0 { "IB/RoCE v1" } else { "RoCE v2" };
            self.write(&format!("{port}/gid_attrs/types/{row}"), format!("{kind}\n"));
        }
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Ethernet"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("gid_attrs/ndevs/0", &format!("eth{}", index + 2)),
            ("counters/port_rcv_packets", "1000000000"),
            ("counters/symbol_error", "0"),
            ("counters/link_downed", "0"),
            ("hw_counters/out_of_sequence", "0"),
            ("hw_counters/local_ack_timeout_err", "0"),
            ("hw_counters/np_ecn_marked_roce_packets", "512"),
            ("hw_counters/rp_cnp_handled", "87"),
        ] {
            self.write(&format!("{port}/{file}"), format!("{text}\n"));
        }
    }
}

/// Returns the configuration of a bridge whose ACS control register has the value `acs`.
pub(super) fn configuration(acs: u16) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
    bytes[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    bytes[0x14e..0x150].copy_from_slice(&acs.to_le_bytes());
    bytes
}
