//! NUMA nodes: where ranks run, and where their devices are.

use std::collections::BTreeSet;

use ccl_core::transport::pci_address;

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices::{self, Device, Kind};
use ferroccl::tools::{node_of, processors};

const BIND: &str = "start each rank on the processors of its device's node: `numactl \
                    --cpunodebind=N --membind=N`, Slurm's `--cpu-bind`, Open MPI's `--bind-to \
                    numa`; containers: `--cpuset-cpus`";

/// Returns the NUMA nodes, each with its list of processors as text.
fn nodes(host: &Host) -> Vec<(u32, String)> {
    let root = "/sys/devices/system/node";
    let node = |name: String| {
        let number = name.strip_prefix("node")?.parse().ok()?;
        let cpus = host.text(&format!("{root}/{name}/cpulist"))?;
        // A node with only memory has no processors and is left out.
        Some((number, cpus))
    };
    host.names(root).into_iter().filter_map(node).collect()
}

/// Checks whether the process runs near the devices it uses.
pub(super) fn affinity(host: &Host) -> Vec<Finding> {
    let status = host.text("/proc/self/status");
    let list = status.as_deref().and_then(|status| super::field(status, "Cpus_allowed_list:"));
    let Some(list) = list else {
        let evidence = "/proc/self/status does not show which processors this process may use";
        return vec![Finding::unknown("this process", evidence, "look at `taskset -p` of a rank")];
    };
    let allowed: BTreeSet<usize> = processors(list);
    let nodes = nodes(host);
    let online = host.text("/sys/devices/system/cpu/online");
    let online = online.map_or(0, |online| processors(&online).len());
    let mut found = Vec::new();
    if allowed.len() == 1 && online > 1 {
        let evidence = format!("it may use only one of {online} processors: processor {list}");
        let remedy = "give each rank several processors: a rank has further threads (torch, NCCL, \
                      a control thread), and ranks that share a processor delay each other";
        found.push(Finding::advice("this process", evidence, remedy));
    }
    let own = node_of(&allowed, nodes.iter().cloned());
    found.push(match nodes.len() {
        0 => Finding::unknown(
            "NUMA",
            "sysfs shows no NUMA nodes",
            "containers: mount the host's /sys; a kernel without NUMA needs nothing",
        ),
        1 => Finding::ok("this process", format!("processors {list}; there is one NUMA node")),
        _ => near(host, own, list),
    });
    found
}

/// Judges a host with several nodes; `own` is the node that the process is bound to, if any.
fn near(host: &Host, own: Option<u32>, list: &str) -> Finding {
    let asked = &host.job.config.near_pci;
    let devices = match asked.is_empty() {
        true => used(host),
        false => match named(host, asked) {
            Some(device) => vec![device],
            None => {
                let evidence = format!("FERROCCL_NEAR_PCI={asked}: there is no such PCI device");
                return Finding::fault(asked, evidence, "`lspci -D` lists the devices");
            }
        },
    };
    let known: BTreeSet<u32> =
        devices.iter().filter_map(|device| device.locality.numa_node).collect();
    let shown: Vec<String> = known.iter().map(u32::to_string).collect();
    let shown = shown.join(", ");
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let names = names.join(", ");
    let subject = "this process";
    match own {
        _ if devices.is_empty() => {
            Finding::ok(subject, "there is no GPU and no network device on the PCI bus")
        }
        _ if known.is_empty() => {
            let evidence = format!("the firmware does not name the NUMA node of {names}");
            let remedy = "look whether the BIOS has an option for NUMA nodes (NPS, SNC), \
                          or ask the provider; virtual machines often hide the nodes";
            Finding::unknown(subject, evidence, remedy)
        }
        Some(node) if known.contains(&node) => {
            let evidence =
                format!("bound to NUMA node {node}; devices are on node {shown}: {names}");
            Finding::ok(subject, evidence)
        }
        Some(node) => {
            let evidence = format!(
                "bound to NUMA node {node} (processors {list}), but the devices that it would use \
                 are on node {shown}: {names}"
            );
            Finding::warning(subject, evidence, BIND)
        }
        None => {
            let evidence = format!(
                "it may run on several NUMA nodes (processors {list}); devices are on node \
                 {shown}: {names}"
            );
            Finding::advice(subject, evidence, BIND)
        }
    }
}

/// Returns the devices that a rank would use: GPUs if there are any, else RDMA devices, else other
/// network devices.
fn used(host: &Host) -> Vec<Device> {
    let all = devices::on_bus(host);
    let of = |kind| {
        let alike = all.iter().filter(|(_, other)| *other == kind);
        Vec::from_iter(alike.map(|(device, _)| device.clone()))
    };
    let kinds = [Kind::Gpu, Kind::Rdma, Kind::Ethernet];
    kinds.into_iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

fn named(host: &Host, asked: &str) -> Option<Device> {
    let address = pci_address(asked)?;
    Device::at(host, &address)
}

/// Checks whether the kernel migrates pages between nodes. To see which node uses a page, such a
/// kernel unmaps pages again and again, which costs time. Registered pages gain nothing from the
/// unmapping, because they cannot migrate.
pub(super) fn balancing(host: &Host) -> Vec<Finding> {
    let file = "/proc/sys/kernel/numa_balancing";
    let several = nodes(host).len() > 1;
    vec![match host.text(file).as_deref() {
        None => Finding::ok("", "this kernel does not move pages between NUMA nodes"),
        Some("0") => Finding::ok("", format!("off ({file})")),
        Some(_) if !several => Finding::ok("", "there is one NUMA node"),
        Some(value) => Finding::advice(
            "",
            format!("on ({file} is {value}): the kernel unmaps pages to see which node uses them"),
            "`sysctl kernel.numa_balancing=0`, where processes are bound to nodes",
        ),
    }]
}
