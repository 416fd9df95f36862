//! The IOMMU: whether it translates traffic between devices, and from devices to memory.

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices::{self, Kind};

/// Checks whether GPUs and network devices are behind an IOMMU that translates.
pub(super) fn translation(host: &Host) -> Vec<Finding> {
    let units = host.names("/sys/class/iommu");
    let line = host.text("/proc/cmdline").unwrap_or_default();
    let words = line.split_whitespace().filter(|word| word.contains("iommu"));
    let words = words.collect::<Vec<_>>().join(" ");
    let given = match words.is_empty() {
        true => "the kernel's command line sets no IOMMU option".to_owned(),
        false => format!("the kernel was started with {words}"),
    };
    let mut translated = [Vec::new(), Vec::new()];
    for (device, kind) in devices::on_bus(host) {
        let Some(function) = device.function() else { continue };
        let Some(domain) = host.text(&format!("{function}/iommu_group/type")) else { continue };
        if domain.starts_with("DMA") {
            translated[usize::from(kind == Kind::Ethernet)].push(device.name);
        }
    }
    let [fast, wired] = translated;
    let remedy = "start the kernel with iommu=pt (on Intel and AMD alike), or switch the IOMMU off \
                  where no virtual machine and no untrusted device needs it";
    vec![if !fast.is_empty() {
        let evidence = format!(
            "the IOMMU translates every access of {} ({given}): these devices reach each other \
             only through the processor, and each access looks up a mapping",
            fast.join(", ")
        );
        Finding::warning("", evidence, remedy)
    } else if !wired.is_empty() {
        let evidence =
            format!("the IOMMU translates every access of {} ({given})", wired.join(", "));
        Finding::advice("", evidence, remedy)
    } else if units.is_empty() {
        Finding::ok("", format!("there is no IOMMU, or it is off (/sys/class/iommu; {given})"))
    } else {
        let evidence = format!(
            "the IOMMU is on ({}), but translates nothing for GPUs and network devices ({given})",
            units.join(", ")
        );
        Finding::ok("", evidence)
    }]
}
