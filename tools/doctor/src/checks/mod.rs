//! The checks: each is a line in the table, and a function from a machine to findings.

mod acs;
mod counters;
mod gpu;
mod interfaces;
mod iommu;
mod libraries;
mod limits;
mod memory;
mod numa;
mod pauses;
mod pcie;
mod rdma;

use super::Check;
use super::finding::Finding;
use super::host::Host;

macro_rules! checks {
    ($($name:literal, $run:expr, $looks_at:literal;)*) => {
        /// All checks; findings of equal severity are reported in this order.
        pub const CHECKS: &[Check] =
            &[$(Check { name: $name, looks_at: $looks_at, run: $run },)*];
    };
}

checks! {
    "configuration", configuration,
        "whether every variable of `ferroccl config` can be read";
    "memlock", limits::memlock,
        "the limit of locked memory (/proc/self/limits), CAP_IPC_LOCK, and whether there are RDMA \
         devices, which lock memory";
    "open-files", limits::open_files,
        "the limits of open files (/proc/self/limits), soft and hard";
    "shared-memory", memory::shared,
        "size and free space of /dev/shm";
    "container", memory::container,
        "whether sysfs has no PCI bus, whether a virtual machine hides the switches of GPUs, and \
         whether system calls are filtered where CAP_SYS_NICE is missing";
    "affinity", numa::affinity,
        "the NUMA nodes of the processors that a process may use, and of the devices that it would \
         use: the device that FERROCCL_NEAR_PCI names, else the GPUs, else the RDMA devices, else \
         the interfaces";
    "numa-balancing", numa::balancing,
        "whether the kernel moves pages between NUMA nodes";
    "pcie-link", pcie::links,
        "width and speed of the link of each GPU and network device, compared with what the \
         device, its slot and its ports support";
    "acs", acs::bridges,
        "the ACS control register of the bridges above GPUs (needs root; else reported as unknown)";
    "iommu", iommu::translation,
        "/sys/class/iommu, the kernel's command line, and whether the IOMMU group of a GPU or \
         network device is translated";
    "gpu-driver", gpu::driver,
        "the driver of each GPU, /dev/nvidiactl, and whether NVIDIA's modules and libraries are \
         of one version";
    "gpu-memory", gpu::memory,
        "the peer-memory module (nvidia_peermem, amdkfd), or what dma-bufs need: NVIDIA's open \
         modules from 515, kernel 5.12, CONFIG_PCI_P2PDMA (AMD: CONFIG_DMABUF_MOVE_NOTIFY too)";
    "distance", gpu::distance,
        "the RDMA device nearest to each GPU, by PCI path and NUMA node, and whether it is in use";
    "rdma-ports", rdma::ports,
        "state of each port that FERROCCL_IB_HCA selects, /dev/infiniband, adapters without their \
         driver; on the running machine also whether ferroccl can use each port";
    "gids", rdma::gids,
        "the entry of each port's GID table that would be used: whether it is RoCE v2, and whether \
         its address can be routed";
    "mtu", rdma::mtu,
        "MTU of RoCE interfaces (whether packets carry 4096 bytes, and whether all these MTUs are \
         equal) and of other fast interfaces";
    "rdma-counters", counters::losses,
        "counters and hw_counters of errors, losses and retransmissions, compared with the \
         packets received";
    "pfc-ecn", counters::congestion,
        "counters of ECN and CNP, whether ECN is on (ecn/*/enable), and the interface driver's \
         counters of pause frames";
    "interfaces", interfaces::chosen,
        "the interfaces that FERROCCL_SOCKET_IFNAME selects: whether they are up, whether all are \
         bridges, and whether a much faster interface is unused";
    "bootstrap", interfaces::bootstrap,
        "the addresses under which this host, as rank 0, would be reached";
    "peer", interfaces::peer,
        "with --peer, whether a connection to the peer is made within 5 s";
    "libraries", libraries::found,
        "libibverbs, libcuda, libnvidia-ml, libnccl and libfabric: whether they open, their \
         versions, and whether there are several versions of libnccl or libfabric";
    "nccl-plugin", libraries::plugin,
        "libnccl-net-ferroccl.so in LD_LIBRARY_PATH and the usual directories, and NCCL_NET_PLUGIN";
}

/// Checks whether the tunables of the ranks can be read.
fn configuration(host: &Host) -> Vec<Finding> {
    let problems = &host.job.config_problems;
    if problems.is_empty() {
        return vec![Finding::ok("", "every variable can be read")];
    }
    let fault = |problem: &String| {
        let remedy = "correct or unset the variable: no rank starts with this value. The checks \
                      assume the default";
        Finding::fault("", problem.clone(), remedy)
    };
    problems.iter().map(fault).collect()
}

/// Returns the text after a name in /proc/self/status.
fn field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns whether this process has a capability over the machine, and not only over a user
/// namespace.
fn capable(host: &Host, capability: u32) -> bool {
    let status = host.text("/proc/self/status").unwrap_or_default();
    let set = field(&status, "CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok());
    let ids = host.text("/proc/self/uid_map");
    let all = ids.is_none_or(|ids| ids.split_whitespace().eq(["0", "0", "4294967295"]));
    all && set.is_some_and(|set| set >> capability & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_checks_have_the_same_name() {
        let mut names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn fields_of_a_status_are_found() {
        let status = "Name:\tx\nCapEff:\t000001fffeffffff\nSeccomp:\t2\nSeccomp_filters:\t1";
        assert_eq!(field(status, "Seccomp:"), Some("2"));
        assert_eq!(field(status, "Threads:"), None);
    }
}
