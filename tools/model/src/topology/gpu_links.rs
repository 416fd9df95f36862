//! NVLinks of GPUs, read from NVML if NVML can be opened: sysfs does not show NVLinks.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use ccl_core::topology::machine::{GpuLink, GpuLinkKind, Kind, LinkSpeed, Machine, Part};
use ccl_core::transport::pci_address;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::nccl::gpu_link_speed;

/// Largest number of links of a GPU.
const LINKS_MAX: u32 = 36;

/// Adds the links that are up, and the compute capability of each GPU. A machine without NVML stays
/// as it is.
pub(super) fn add(machine: &mut Machine) {
    if machine.of(Kind::Gpu).next().is_none() {
        return;
    }
    let added = Nvml::builder()
        .lib_path(OsStr::new("libnvidia-ml.so.1"))
        .init()
        .and_then(|nvml| add_links(machine, &nvml));
    if let Err(error) = added {
        tracing::debug!("cannot read NVLinks from NVML: {error}");
    }
}

fn add_links(machine: &mut Machine, nvml: &Nvml) -> Result<(), NvmlError> {
    let mut ends: BTreeMap<[usize; 2], (u32, LinkSpeed)> = BTreeMap::new();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        let Some(gpu) = part(machine, &device.pci_info()?.bus_id) else { continue };
        let capability = device.cuda_compute_capability()?;
        let sm = u32::try_from(capability.major * 10 + capability.minor).ok();
        let speed = gpu_link_speed(GpuLinkKind::NvLink, sm);
        if let Some(sm) = sm {
            machine.parts[gpu].nccl.insert("gpu.sm".to_owned(), sm.to_string());
        }
        for other in up(&device) {
            let other = part(machine, &other).unwrap_or_else(|| nvswitch(machine));
            // Both GPUs of a link report the link, so it is counted at the first GPU only.
            if machine.parts[other].kind == Kind::NvSwitch || gpu < other {
                ends.entry([gpu, other]).or_insert((0, speed)).0 += 1;
            }
        }
    }
    let link = |(ends, (links, speed))| GpuLink { ends, links, speed, kind: GpuLinkKind::NvLink };
    machine.gpu_links = ends.into_iter().map(link).collect();
    Ok(())
}

/// Returns, for each link that is up, the PCI address of the device at the other end.
fn up(device: &Device<'_>) -> Vec<String> {
    let links = (0..LINKS_MAX).map(|link| device.link_wrapper_for(link));
    let links = links.filter(|link| link.is_active().unwrap_or(false));
    links.filter_map(|link| Some(link.remote_pci_info().ok()?.bus_id)).collect()
}

fn part(machine: &Machine, bus_id: &str) -> Option<usize> {
    let address = pci_address(bus_id)?;
    let found = |gpu: &usize| machine.parts[*gpu].pci.as_deref() == Some(&address);
    machine.of(Kind::Gpu).find(found)
}

/// Returns the NVSwitch, and adds it if there is none. One switch stands for all: a GPU reaches the
/// same GPUs over each switch.
fn nvswitch(machine: &mut Machine) -> usize {
    if let Some(switch) = machine.of(Kind::NvSwitch).next() {
        return switch;
    }
    machine.parts.push(Part::new("nvswitch", Kind::NvSwitch));
    machine.parts.len() - 1
}
