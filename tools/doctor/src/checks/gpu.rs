//! GPUs: their driver, how network devices reach their memory, and which network devices are near.

use std::collections::BTreeSet;

use ccl_core::topology::machine::Class;

use super::super::finding::Finding;
use super::super::host::Host;
use super::{libraries, rdma};
use ccl_machine::devices::{self, Device, Maker};

/// Returns the name of the kernel module for a maker's GPUs.
fn module(maker: Maker) -> &'static str {
    match maker {
        Maker::Nvidia => "nvidia",
        Maker::Amd => "amdgpu",
    }
}

/// Checks whether GPUs have their driver, and whether parts of NVIDIA's driver differ in version.
pub(super) fn driver(host: &Host) -> Vec<Finding> {
    let gpus = devices::gpus(host);
    if gpus.is_empty() {
        return vec![Finding::ok("", "there is no GPU here")];
    }
    let mut found: Vec<Finding> = gpus
        .iter()
        .filter_map(|(gpu, maker)| {
            let driver = host.real(&format!("{}/driver", gpu.path));
            let driver = driver.as_deref().and_then(|path| path.rsplit('/').next());
            unbound(&gpu.name, driver, module(*maker))
        })
        .collect();
    let has_nvidia = gpus.iter().any(|(_, maker)| *maker == Maker::Nvidia);
    if has_nvidia && host.has("/sys/module/nvidia") && !host.has("/dev/nvidiactl") {
        let evidence = "NVIDIA's driver is loaded, but there is no /dev/nvidiactl";
        let remedy = "containers: pass the GPUs in (`--gpus all`); else: `nvidia-modprobe`";
        found.push(Finding::warning("/dev", evidence, remedy));
    }
    found.extend(versions(host));
    if found.is_empty() {
        found.push(Finding::ok(
            "",
            match gpus.len() {
                1 => "one GPU, with its driver".to_owned(),
                count => format!("{count} GPUs, each with its driver"),
            },
        ));
    }
    found
}

fn unbound(name: &str, driver: Option<&str>, wanted: &str) -> Option<Finding> {
    match driver {
        Some(driver) if driver == wanted => None,
        Some("vfio-pci") => Some(Finding::advice(
            name,
            "is kept for virtual machines (its driver is vfio-pci)",
            format!("bind it to {wanted} to use it here"),
        )),
        other => Some(Finding::warning(
            name,
            format!("its driver is {}, not {wanted}", other.unwrap_or("none")),
            format!("`modprobe {wanted}`; if it does not bind to the GPU, see `dmesg`"),
        )),
    }
}

/// Checks that the kernel modules and the libraries of NVIDIA's driver are of one version.
fn versions(host: &Host) -> Option<Finding> {
    let modules = ["nvidia", "nvidia_uvm", "nvidia_peermem", "nvidia_drm", "nvidia_modeset"];
    let module = |name: &str| {
        let version = host.text(&format!("/sys/module/{name}/version"))?;
        Some((format!("module {name}"), version))
    };
    let library = |name: &str| {
        let version = libraries::versions(host, name).into_iter().next()?;
        // A stub, or a file without a version in its name, has no version to compare.
        version.contains('.').then(|| (name.to_owned(), version))
    };
    let modules = modules.iter().filter_map(|name| module(name));
    let all =
        modules.chain(["libcuda.so.1", "libnvidia-ml.so.1"].iter().filter_map(|n| library(n)));
    let all: Vec<(String, String)> = all.collect();
    let distinct: BTreeSet<&String> = all.iter().map(|(_, version)| version).collect();
    if distinct.len() < 2 {
        return None;
    }
    let shown: Vec<String> = all.iter().map(|(name, of)| format!("{name} {of}")).collect();
    let evidence = format!("parts of NVIDIA's driver differ in version: {}", shown.join(", "));
    let remedy = "the driver was updated and not reloaded, or a container has libraries of another \
                  version: reboot or reload the modules, and use the host's libraries in \
                  containers (NVIDIA's container toolkit)";
    Some(Finding::fault("versions", evidence, remedy))
}

/// Checks whether network devices can read and write the memory of GPUs: by a dma-buf, or by a
/// kernel module that knows the pages of that memory.
pub(super) fn memory(host: &Host) -> Vec<Finding> {
    let gpus = devices::gpus(host);
    if gpus.is_empty() || devices::rdma(host).is_empty() {
        let evidence = "there are no GPUs, or no RDMA devices that could reach their memory";
        return vec![Finding::ok("", evidence)];
    }
    let makers: BTreeSet<bool> = gpus.iter().map(|(_, maker)| *maker == Maker::Nvidia).collect();
    makers.into_iter().map(|nvidia| if nvidia { of_nvidia(host) } else { of_amd(host) }).collect()
}

fn of_nvidia(host: &Host) -> Finding {
    let peers = [
        "/sys/module/nvidia_peermem",
        "/sys/module/nv_peer_mem",
        "/sys/kernel/mm/memory_peers/nv_mem",
        "/sys/kernel/mm/memory_peers/nv_mem_nc",
    ];
    if let Some(peer) = peers.into_iter().find(|peer| host.has(peer)) {
        return Finding::ok("NVIDIA", format!("peer memory: {peer}"));
    }
    let remedy = "`modprobe nvidia_peermem` (and name it in /etc/modules-load.d), or use NVIDIA's \
                  open kernel modules (515 or later), which export dma-bufs on a kernel of version \
                  5.12 or later";
    match dma_buf(host) {
        Ok(evidence) => Finding::ok("NVIDIA", evidence),
        Err((true, evidence)) => Finding::unknown("NVIDIA", evidence, remedy),
        Err((false, evidence)) => {
            let evidence = format!(
                "no module for peer memory is loaded, and no dma-bufs can be exported: {evidence}. \
                 Data of GPUs is copied through the host's memory"
            );
            Finding::warning("NVIDIA", evidence, remedy)
        }
    }
}

/// Returns the evidence that NVIDIA's driver and the kernel provide dma-bufs. An error has a flag
/// and a reason. The flag is `false` if no dma-bufs are provided, and `true` if that is unknown.
fn dma_buf(host: &Host) -> Result<String, (bool, String)> {
    let release = host.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    if version(&release).is_some_and(|kernel| kernel < (5, 12)) {
        return Err((false, format!("kernel {release} is older than 5.12")));
    }
    let Some(about) = host.text("/proc/driver/nvidia/version") else {
        return Err((false, "NVIDIA's driver is not loaded (/proc/driver/nvidia)".to_owned()));
    };
    if !about.contains("Open Kernel Module") {
        return Err((false, "NVIDIA's modules are not the open ones".to_owned()));
    }
    let driver = host.text("/sys/module/nvidia/version").unwrap_or_default();
    if version(&driver).is_some_and(|driver| driver < (515, 0)) {
        return Err((false, format!("driver {driver} is older than 515")));
    }
    match kernel_options(host) {
        Some(options) if !options.contains("CONFIG_PCI_P2PDMA=y") => {
            Err((false, format!("kernel {release} was built without CONFIG_PCI_P2PDMA")))
        }
        Some(_) => Ok(format!("dma-buf: open modules {driver}, kernel {release}")),
        None => Err((
            true,
            format!(
                "no module for peer memory is loaded; driver {driver} and kernel {release} can \
                 export dma-bufs if the kernel was built with CONFIG_PCI_P2PDMA, which is unknown: \
                 there is neither /boot/config-{release} nor /lib/modules/{release}/config"
            ),
        )),
    }
}

/// Returns the kernel's build configuration, from a file of the kernel's package.
fn kernel_options(host: &Host) -> Option<String> {
    let release = host.text("/proc/sys/kernel/osrelease")?;
    let inside = format!("/lib/modules/{release}/config");
    host.text(&format!("/boot/config-{release}")).or_else(|| host.text(&inside))
}

fn of_amd(host: &Host) -> Finding {
    let peers = ["/sys/kernel/mm/memory_peers/amdkfd", "/sys/kernel/memory_peers/amdkfd"];
    if let Some(peer) = peers.into_iter().find(|peer| host.has(peer)) {
        return Finding::ok("AMD", format!("peer memory: {peer}"));
    }
    let wanted = ["CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY"];
    let remedy = "use a kernel that was built with CONFIG_PCI_P2PDMA and \
                  CONFIG_DMABUF_MOVE_NOTIFY, or a version of AMD's driver that provides peer \
                  memory to the network device's driver";
    let Some(options) = kernel_options(host) else {
        let evidence = format!(
            "amdkfd provides no peer memory; whether the kernel was built with {} is unknown: its \
             configuration is neither in /boot nor in /lib/modules",
            wanted.join(" and ")
        );
        return Finding::unknown("AMD", evidence, remedy);
    };
    let missing = wanted.into_iter().filter(|name| !options.contains(&format!("{name}=y")));
    let missing: Vec<&str> = missing.collect();
    match missing.is_empty() {
        true => Finding::ok("AMD", "dma-buf: the kernel was built for it"),
        false => Finding::warning(
            "AMD",
            format!(
                "amdkfd provides no peer memory, and the kernel was built without {}",
                missing.join(" and ")
            ),
            remedy,
        ),
    }
}

/// Returns the first two numbers of a version.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Reports which RDMA device in use is nearest to each GPU.
pub(super) fn distance(host: &Host) -> Vec<Finding> {
    let (gpus, nics) = (devices::gpus(host), devices::rdma(host));
    if gpus.is_empty() || nics.is_empty() {
        return vec![Finding::ok("", "there are no GPUs, or no RDMA devices")];
    }
    let (asked, there) = (rdma::asked(host), rdma::all(host));
    let carries = |nic: &Device| {
        let mut own = asked.iter().filter(|port| port.device.name == nic.name);
        own.any(|port| port.is_active(host))
    };
    // If sysfs has no port of any device, all devices count as used.
    let (used, idle): (Vec<Device>, Vec<Device>) =
        nics.into_iter().partition(|nic| there.is_empty() || carries(nic));
    let judge = |(gpu, _): &(Device, Maker)| {
        let (least, near) = nearest(gpu, &used);
        let (idle_least, idle_near) = nearest(gpu, &idle);
        if !idle_near.is_empty() && (used.is_empty() || idle_least < least) {
            let instead = match used.is_empty() {
                true => "no other device has such a port".to_owned(),
                false => format!("the devices in use are farther: {near}, {}", words(least)),
            };
            let evidence = format!(
                "the nearest RDMA devices ({idle_near}, {}) have no active port that \
                 FERROCCL_IB_HCA selects; {instead}",
                words(idle_least)
            );
            let remedy = "if ranks are to use this GPU, bring a port of one of these devices up \
                          (see rdma-ports), or select one with FERROCCL_IB_HCA";
            return Finding::advice(gpu.name.clone(), evidence, remedy);
        }
        let evidence = format!("nearest RDMA devices: {near}, {}", words(least));
        match least {
            Class::Pix | Class::Pxb => Finding::ok(gpu.name.clone(), evidence),
            Class::Phb | Class::Node => Finding::advice(
                gpu.name.clone(),
                evidence,
                "put a network device below the GPU's own PCIe switch, if the board has such a \
                 switch",
            ),
            _ => Finding::warning(
                gpu.name.clone(),
                evidence,
                "give the GPU's NUMA node a network device of its own, or run ranks on GPUs that \
                 are near one (`nvidia-smi topo -m`). If the firmware hides NUMA nodes, name the \
                 device yourself: FERROCCL_IB_HCA",
            ),
        }
    };
    gpus.iter().map(judge).collect()
}

/// Returns the least distance of a GPU to devices, and the devices at that distance.
fn nearest(gpu: &Device, nics: &[Device]) -> (Class, String) {
    let apart = |nic: &Device| gpu.locality.distance(&nic.locality);
    let least = nics.iter().map(apart).min().unwrap_or(Class::Sys);
    let near = nics.iter().filter(|nic| apart(nic) == least);
    let near: Vec<&str> = near.map(|nic| nic.name.as_str()).collect();
    (least, near.join(", "))
}

fn words(distance: Class) -> &'static str {
    match distance {
        Class::Pix => "below the same PCIe switch (PIX)",
        Class::Pxb => "across several PCIe switches (PXB)",
        Class::Phb => "across the host bridge (PHB)",
        Class::Node => "across host bridges of its NUMA node (NODE)",
        _ => "across NUMA nodes, or at an unknown distance (SYS)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_begin_with_two_numbers() {
        assert_eq!(version("6.8.0-45-generic"), Some((6, 8)));
        assert_eq!(version("535.104.05"), Some((535, 104)));
        for odd in ["", "v6", "6", "99999999999.1"] {
            assert_eq!(version(odd), None, "{odd}");
        }
    }
}
