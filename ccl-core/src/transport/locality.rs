//! Locality: the position of a device, an accelerator or a process on its host. `topology/plugs.rs`
//! computes the distance between two localities from the tree of parts that their paths describe.

use std::ops::RangeInclusive;

/// Position of a device, an accelerator or a process on its host; unknown by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// NUMA node of the nearest memory.
    pub numa_node: Option<u32>,
    /// Canonical path of the PCI function in sysfs, such as
    /// `/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0`.
    pub pci_path: Option<String>,
}

impl Locality {
    /// Returns the path components up to and including the root complex, and the PCI functions
    /// after it. Later components, such as `virtio0`, belong to the last function.
    pub(crate) fn path_parts(&self) -> Option<(Vec<&str>, Vec<&str>)> {
        let mut root: Vec<&str> = self.pci_path.as_deref()?.split('/').collect();
        let last = root.iter().rposition(|part| is_root_complex(part))?;
        let functions = root.split_off(last + 1);
        let functions: Vec<&str> =
            functions.into_iter().take_while(|part| pci_address(part).is_some()).collect();
        (!functions.is_empty()).then_some((root, functions))
    }
}

/// Converts a PCI address with a domain, as in sysfs, `lspci -D` or `nvidia-smi` (eight digits of
/// domain), to the form of sysfs: `0000:17:00.0`.
#[must_use]
pub fn pci_address(text: &str) -> Option<String> {
    let (slot, function) = text.rsplit_once('.')?;
    let (bus, device) = slot.rsplit_once(':')?;
    let (domain, bus) = bus.split_once(':')?;
    let (domain, bus) = (hexadecimal(domain, 4..=8)?, hexadecimal(bus, 2..=2)?);
    let device = hexadecimal(device, 2..=2).filter(|device| *device < 32)?;
    let function = hexadecimal(function, 1..=1).filter(|function| *function < 8)?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

/// Returns whether a component of a path is `pciDDDD:BB`.
fn is_root_complex(part: &str) -> bool {
    let numbers = part.strip_prefix("pci").and_then(|numbers| numbers.split_once(':'));
    numbers.is_some_and(|(domain, bus)| {
        hexadecimal(domain, 4..=8).is_some() && hexadecimal(bus, 2..=2).is_some()
    })
}

/// Reads a hexadecimal number whose count of digits is in `digits`.
fn hexadecimal(text: &str, digits: RangeInclusive<usize>) -> Option<u32> {
    let plain = text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !plain || !digits.contains(&text.len()) {
        return None;
    }
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_in_the_forms_of_tools_are_read_and_other_texts_are_refused() {
        let same = Some("0000:c1:00.0".to_owned());
        for text in ["0000:c1:00.0", "0000:C1:00.0", "00000000:C1:00.0"] {
            assert_eq!(pci_address(text), same, "{text}");
        }
        assert_eq!(pci_address("10000:e1:1f.7"), Some("10000:e1:1f.7".to_owned()));
        let wrong = [
            "",
            "c1:00.0",
            "0000:c1:00",
            "0000:c1:00.8",
            "0000:c1:20.0",
            "0000:c1:0.0",
            "0000:c1:00.0 ",
            "0000:+1:00.0",
            "0:c1:00.0",
            "000000000:c1:00.0",
            "0000:0000:c1:00.0",
            "0000:g1:00.0",
            "0000/c1:00.0",
            "../../../etc",
        ];
        for text in wrong {
            assert_eq!(pci_address(text), None, "{text}");
        }
    }
}
