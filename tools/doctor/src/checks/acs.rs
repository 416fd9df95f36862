//! ACS (access control services): if ACS redirection is on, traffic between two devices below a
//! bridge does not turn around at the bridge, but goes through the processor.

use std::collections::{BTreeMap, BTreeSet};

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices::{self, BRIDGE, Device};

/// Bytes of a PCIe function's whole configuration.
const CONFIG_BYTES: usize = 4096;
/// Offset of the extended capabilities.
const EXTENDED: usize = 0x100;
const ACS: u16 = 0x000d;
/// Bits of the control register, as lspci names them.
const BITS: [(u16, &str); 7] = [
    (1, "SrcValid"),
    (2, "TransBlk"),
    (4, "ReqRedir"),
    (8, "CmpltRedir"),
    (16, "UpstreamFwd"),
    (32, "EgressCtrl"),
    (64, "DirectTrans"),
];
/// Bits that redirect traffic between the devices below a bridge: with any of these bits set, this
/// traffic goes through the processor.
const REDIRECTS: u16 = 4 | 8 | 32;

/// ACS state that a bridge's configuration shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    /// The bridge has no ACS.
    None,
    /// Value of the control register.
    Set(u16),
    /// ACS cannot be seen: only this many bytes of the configuration are shown.
    Hidden(usize),
}

fn control(config: &[u8]) -> Control {
    if config.len() < EXTENDED + 4 {
        return Control::Hidden(config.len());
    }
    let word = |at: usize| {
        let bytes = config.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = EXTENDED;
    // The number of steps is limited, since the chain of capabilities can be a loop.
    for _ in 0..CONFIG_BYTES / 8 {
        let Some(header) = word(at).filter(|header| *header != 0 && *header != u32::MAX) else {
            return Control::None;
        };
        if header as u16 == ACS {
            // The lower half is the capability register, the upper half the control register.
            return word(at + 4).map_or(Control::None, |both| Control::Set((both >> 16) as u16));
        }
        at = (header >> 20) as usize & !3;
        if at < EXTENDED {
            return Control::None;
        }
    }
    Control::None
}

/// Returns whether there is only one card below a root port. The traffic between such a card and
/// other cards goes through the processor in any case.
fn is_alone(host: &Host, root: &str) -> bool {
    let bus = "/sys/bus/pci/devices";
    let mut cards = BTreeSet::new();
    for address in host.names(bus) {
        let Some(device) = Device::at(host, &address) else { continue };
        let class = host.text(&format!("{}/class", device.path)).unwrap_or_default();
        let is_below = device.path.split('/').any(|part| part == root);
        if is_below && address != root && !class.starts_with(BRIDGE) {
            cards.insert(address.rsplit_once('.').map_or("", |card| card.0).to_owned());
        }
    }
    cards.len() == 1
}

/// Checks whether bridges above GPUs redirect the traffic between devices.
pub(super) fn bridges(host: &Host) -> Vec<Finding> {
    let gpus = devices::gpus(host);
    if gpus.is_empty() {
        return vec![Finding::ok("", "there is no GPU whose traffic a bridge could redirect")];
    }
    let mut bridges: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (gpu, _) in &gpus {
        let above = gpu.bridges();
        if above.first().is_some_and(|root| is_alone(host, root)) {
            continue;
        }
        for bridge in above {
            bridges.entry(bridge.to_owned()).or_default().push(&gpu.name);
        }
    }
    if bridges.is_empty() {
        let evidence = "no GPU shares a bridge with another card, so ACS has nothing to redirect";
        return vec![Finding::ok("", evidence)];
    }
    let (mut found, mut hidden, mut quiet) = (Vec::new(), Vec::new(), 0);
    for (bridge, below) in &bridges {
        let config = host.bytes(&format!("/sys/bus/pci/devices/{bridge}/config"), CONFIG_BYTES);
        match config.map(|config| control(&config)) {
            Ok(Control::Set(bits)) if bits & REDIRECTS != 0 => {
                found.push(redirects(bridge, below, bits));
            }
            Ok(Control::None | Control::Set(_)) => quiet += 1,
            Ok(Control::Hidden(bytes)) => hidden.push(format!("{bridge} ({bytes} bytes)")),
            Err(error) => hidden.push(format!("{bridge} ({error})")),
        }
    }
    if !hidden.is_empty() {
        let evidence = format!(
            "the extended configuration of bridges above GPUs is not shown: {}",
            hidden.join(", ")
        );
        let remedy = "run this as root on the machine itself, or look at ACSCtl in the output of \
                      `sudo lspci -vvv`";
        found.push(Finding::unknown("", evidence, remedy));
    }
    if found.is_empty() {
        let evidence = format!(
            "no bridge above a GPU redirects traffic between devices (bridges checked: {quiet})"
        );
        found.push(Finding::ok("", evidence));
    }
    found
}

fn redirects(bridge: &str, below: &[&str], bits: u16) -> Finding {
    let names = BITS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name);
    let names: Vec<&str> = names.collect();
    let evidence = format!(
        "its ACS control is {bits:#06x} ({}): traffic between devices below it goes up \
         through the processor; below it: {}",
        names.join(", "),
        below.join(", ")
    );
    let remedy = format!(
        "switch ACS off in the BIOS, or with `setpci -s {bridge} ECAP_ACS+6.w=0000` at each boot. \
         If virtual machines need ACS, switch on ATS of network devices and GPUs instead"
    );
    Finding::warning(format!("bridge {bridge}"), evidence, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(capabilities: &[(usize, u32, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; CONFIG_BYTES];
        for (at, header, next) in capabilities {
            bytes[*at..at + 4].copy_from_slice(&header.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&next.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn the_control_register_is_found_after_other_capabilities() {
        let bytes = config(&[(0x100, 0x1480_0001, 7), (0x148, 0x0001_000d, 0x001d_00ff)]);
        assert_eq!(control(&bytes), Control::Set(0x1d));
        assert_eq!(control(&config(&[(0x100, 0x0001_0001, 7)])), Control::None);
        assert_eq!(control(&config(&[])), Control::None);
        assert_eq!(control(&bytes[..64]), Control::Hidden(64));
        assert_eq!(control(&bytes[..256]), Control::Hidden(256));
    }

    #[test]
    fn broken_capability_chains_are_not_followed_forever() {
        for header in [0x1000_0001, 0x0400_0001, 0xfff0_0001, 0x1010_0001] {
            assert_eq!(control(&config(&[(0x100, header, 0)])), Control::None, "{header:x}");
        }
        assert_eq!(control(&[0xff; CONFIG_BYTES]), Control::None);
        let end = config(&[(0x100, 0xffc0_0001, 0)]);
        assert_eq!(control(&end), Control::None);
        let mut last = end;
        last[0xffc..].copy_from_slice(&0x0000_000d_u32.to_le_bytes());
        assert_eq!(control(&last), Control::None);
    }
}
