//! Locality (NUMA node and PCI path) of this process, or of the accelerator whose data it sends.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use ccl_core::config::Config;
use ccl_core::transport::{DeviceInfo, LinkLayer, Locality, pci_address};
use serde::{Deserialize, Serialize};

use super::super::error::{Error, SetupError};
use super::super::exchange::{Topic, exchange};
use super::{Candidate, nearest};
use crate::bootstrap::ControlPlane;

/// Highest processor number in Linux, which numbers processors from 0.
const CPU_MAX: usize = 8191;

/// Greatest length of a reason that a rank tells the others, in characters.
const REASON_CHARS_MAX: usize = 160;

/// A rank's report on its RDMA devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DeviceReport {
    /// The rank has devices. `nearest` has a bit for each device of the host, set for the nearest
    /// ones. `is_infiniband` is true if all devices are InfiniBand devices.
    Has { nearest: u64, is_infiniband: bool },
    /// The rank has no devices. Holds the reason.
    Lacks(String),
}

impl DeviceReport {
    /// Returns a report of no devices, with a reason that is fit to be shown on another host.
    fn lacks(reason: &str) -> DeviceReport {
        let reason = reason.chars().take(REASON_CHARS_MAX);
        DeviceReport::Lacks(reason.map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}

/// The reports of all ranks, by rank; empty until the ranks have exchanged them.
#[derive(Debug, Default)]
pub(crate) struct DeviceReports {
    pub(super) ranks: Vec<DeviceReport>,
}

impl DeviceReports {
    /// Iterates over the ranks: each rank's nearest devices, as a bit set.
    pub(super) fn nearest(&self) -> impl Iterator<Item = u64> {
        self.ranks.iter().map(|own| match own {
            DeviceReport::Has { nearest, .. } => *nearest,
            DeviceReport::Lacks(_) => 0,
        })
    }

    /// Iterates over the ranks that have devices: true if the rank has InfiniBand devices only.
    pub(super) fn layers(&self) -> impl Iterator<Item = bool> {
        self.ranks.iter().filter_map(|own| match own {
            DeviceReport::Has { is_infiniband, .. } => Some(*is_infiniband),
            DeviceReport::Lacks(_) => None,
        })
    }

    /// Returns whether all devices of all ranks are InfiniBand devices.
    pub(crate) fn is_infiniband(&self) -> bool {
        !self.ranks.is_empty() && self.layers().all(|is_infiniband| is_infiniband)
    }

    /// Returns the reason why the ranks cannot all use their devices together; none if they can.
    pub(super) fn lacks(&self) -> Option<String> {
        let lacking = self.ranks.iter().enumerate().find_map(|(rank, own)| match own {
            DeviceReport::Lacks(why) => Some((rank, why)),
            DeviceReport::Has { .. } => None,
        });
        if let Some((rank, why)) = lacking {
            return Some(format!(
                "rank {rank} has no adapter that FERROCCL_TRANSPORT=auto takes: {why}"
            ));
        }
        let first = self.layers().next();
        let is_mixed = self.layers().any(|layer| Some(layer) != first);
        is_mixed.then(|| "the adapters of only some ranks are InfiniBand".to_owned())
    }
}

/// Exchanges the ranks' reports on their nearest RDMA devices, once for each candidate transport,
/// and stores the reports in the candidates. All ranks call it.
pub(in crate::communicator) fn survey(
    control: &ControlPlane,
    config: &Config,
    candidates: &mut [Candidate],
) -> Result<(), Error> {
    let is = |device: &DeviceInfo| device.fabric.layer == Some(LinkLayer::InfiniBand);
    for Candidate { devices, lacks, survey, .. } in candidates {
        let own = match &devices[..] {
            [] => DeviceReport::lacks(lacks),
            devices => {
                let nearest = nearest(&locality(&config.near_pci)?, devices);
                DeviceReport::Has { nearest, is_infiniband: devices.iter().all(is) }
            }
        };
        survey.ranks = exchange(control, Topic::Devices, &own, config.join_timeout)?;
    }
    Ok(())
}

/// Returns the locality of the accelerator with the PCI address `near`, or of the process if `near`
/// is empty.
fn locality(near: &str) -> Result<Locality, Error> {
    if near.is_empty() {
        return Ok(Locality { numa_node: numa_node(), pci_path: None });
    }
    let path = pci_function(near)?;
    let node = fs::read_to_string(path.join("numa_node")).ok();
    // The file says -1 if the node is unknown. Then the process's own node is used: launchers place
    // ranks near their accelerators.
    let node = node.and_then(|text| text.trim().parse().ok());
    Ok(Locality { numa_node: node.or_else(numa_node), pci_path: path.to_str().map(str::to_owned) })
}

/// Returns the canonical path of a PCI function in sysfs.
fn pci_function(near: &str) -> Result<PathBuf, Error> {
    let Some(address) = pci_address(near) else {
        return Err(SetupError::PciAddress { near: near.to_owned() }.into());
    };
    let path = fs::canonicalize(format!("/sys/bus/pci/devices/{address}"));
    Ok(path.map_err(|error| SetupError::NoPciDevice { near: near.to_owned(), error })?)
}

/// Returns the NUMA node of all processors that this process may run on, if they share one.
fn numa_node() -> Option<u32> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let allowed: BTreeSet<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let nodes = fs::read_dir("/sys/devices/system/node").ok()?.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, fs::read_to_string(entry.path().join("cpulist")).ok()?))
    });
    node_of(&allowed, nodes)
}

/// Returns the node whose list of processors, such as `0-3,8-11`, has all of `cpus`.
pub fn node_of(cpus: &BTreeSet<usize>, nodes: impl Iterator<Item = (u32, String)>) -> Option<u32> {
    let mut nodes = nodes.filter(|(_, list)| {
        let there = processors(list);
        !cpus.is_empty() && cpus.iter().all(|cpu| there.contains(cpu))
    });
    nodes.next().map(|(number, _)| number)
}

/// Returns the processors of a list; those whose numbers are too high for Linux are left out.
pub fn processors(list: &str) -> BTreeSet<usize> {
    let range = |text: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let last: usize = last.trim().parse().ok()?;
        Some(first.trim().parse().ok()?..=last.min(CPU_MAX))
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_shortened_and_has_no_control_characters() {
        let DeviceReport::Lacks(reason) = DeviceReport::lacks(&"a\x1b[1m".repeat(500)) else {
            panic!()
        };
        assert_eq!(reason.len(), REASON_CHARS_MAX);
        assert!(reason.starts_with("a [1m"), "{reason}");
    }

    #[test]
    fn a_process_is_on_the_node_that_has_all_its_processors() {
        let nodes = || [(0, "0-3,8-11\n".to_owned()), (1, "4-7,12-15\n".to_owned())].into_iter();
        let of = |cpus: &[usize]| node_of(&cpus.iter().copied().collect(), nodes());
        assert_eq!(of(&[0, 9, 11]), Some(0));
        assert_eq!(of(&[4]), Some(1));
        assert_eq!(of(&[3, 4]), None);
        assert_eq!(of(&[16]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(processors("\n"), BTreeSet::new());
        assert_eq!(processors("8190-18446744073709551615,7-3").len(), 2);
    }

    #[test]
    fn a_missing_accelerator_is_an_error_with_advice() {
        for (near, problem) in [
            ("17:00.0", "is no PCI address such as 0000:17:00.0"),
            ("mlx5_0", "is no PCI address such as 0000:17:00.0"),
            ("ffff:ff:1f.7", "this host has no such PCI device"),
        ] {
            let error = locality(near).unwrap_err();
            assert!(error.is_harmless());
            let error = error.to_string();
            assert!(error.contains(&format!("FERROCCL_NEAR_PCI={near}")), "{error}");
            assert!(error.contains(problem) && error.contains("`lspci -D`"), "{error}");
        }
    }

    #[test]
    fn every_pci_device_of_this_host_has_a_path() {
        let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
        for name in devices.filter_map(|device| device.file_name().into_string().ok()) {
            let path = locality(&name).unwrap().pci_path.unwrap();
            assert!(path.starts_with("/sys/devices/") && path.ends_with(&name), "{path}");
        }
        assert_eq!(locality("").unwrap().pci_path, None);
    }
}
