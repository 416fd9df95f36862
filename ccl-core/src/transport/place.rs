//! Where on its host something is, and how far two places are apart.

use std::ops::RangeInclusive;

/// The longest path that ranks tell each other.
const PCI_PATH_BYTES_MAX: usize = 512;

/// Where on its host a device is, or an accelerator, or a process; by default, nobody knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The memory that is nearest to it.
    pub numa_node: Option<u32>,
    /// The canonical path of its PCI function in sysfs, such as
    /// `/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0`.
    pub pci_path: Option<String>,
}

/// What lies between two places, nearest first, by the legend of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// PIX: nothing, or at most one PCIe switch.
    Pix,
    /// PXB: several PCIe switches, and no host bridge.
    Pxb,
    /// PHB: a PCIe host bridge, which is the CPU's.
    Phb,
    /// NODE: what joins the host bridges of one NUMA node.
    Node,
    /// SYS: what joins NUMA nodes; or nothing is known.
    Sys,
}

impl Place {
    /// How far it is from another place of the same host.
    ///
    /// In a path, the component `pciDDDD:BB` is a root complex (the last one, if there are
    /// several), what follows are PCI functions, and all of them but the last are bridges: a root
    /// port, and two for each switch, its own and that of one of its ports. So by how much two
    /// paths have in common:
    ///
    /// * `Pix` if they part at most two functions before their ends: below one switch, or below
    ///   one port. Functions of one card, whose addresses differ after the dot alone, are as near;
    /// * `Pxb` if they part earlier, but have a bridge in common;
    /// * `Phb` if they have no more than the root complex in common, unless their NUMA nodes are
    ///   known to differ;
    /// * `Node` if their NUMA nodes are known to be the same, `Sys` otherwise.
    ///
    /// What has no path, such as a device in software, is as near as NUMA nodes tell.
    #[must_use]
    pub fn distance(&self, other: &Place) -> Distance {
        let same_node = self.numa_node.zip(other.numa_node).map(|(one, two)| one == two);
        let ways = self.way().zip(other.way());
        let ways = ways.filter(|((one, _), (two, _))| one == two);
        let bridged = ways.as_ref().and_then(|((_, one), (_, two))| below_bridge(one, two));
        match (bridged, same_node) {
            (Some(distance), _) => distance,
            (None, None | Some(true)) if ways.is_some() => Distance::Phb,
            (None, Some(true)) => Distance::Node,
            (None, _) => Distance::Sys,
        }
    }

    /// The root complex, with what is before it, and the PCI functions from there on. What follows
    /// them, such as `virtio0`, is a part of the last one.
    fn way(&self) -> Option<(Vec<&str>, Vec<&str>)> {
        let mut root: Vec<&str> = self.pci_path.as_deref()?.split('/').collect();
        let last = root.iter().rposition(|part| is_root_complex(part))?;
        let functions = root.split_off(last + 1);
        let functions: Vec<&str> =
            functions.into_iter().take_while(|part| pci_address(part).is_some()).collect();
        (!functions.is_empty()).then_some((root, functions))
    }

    /// For other ranks: whether the NUMA node is known, the node if so, the path. One that is too
    /// long is left out.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.numa_node.is_some())];
        bytes.extend(self.numa_node.into_iter().flat_map(u32::to_le_bytes));
        let path = self.pci_path.as_deref().filter(|path| path.len() <= PCI_PATH_BYTES_MAX);
        bytes.extend(path.unwrap_or_default().as_bytes());
        bytes
    }

    /// Reads what [`Place::to_bytes`] wrote; none if it is anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Place> {
        let (known, rest) = bytes.split_first()?;
        let (numa_node, path) = match *known {
            0 => (None, rest),
            1 => {
                let (node, path) = rest.split_first_chunk::<4>()?;
                (Some(u32::from_le_bytes(*node)), path)
            }
            _ => return None,
        };
        let path = std::str::from_utf8(path).ok()?;
        let pci_path = match path {
            "" => None,
            _ if path.len() <= PCI_PATH_BYTES_MAX && path.starts_with('/') => Some(path.to_owned()),
            _ => return None,
        };
        Some(Place { numa_node, pci_path })
    }
}

/// The distance of two PCI functions of one root complex, each given with the bridges above it, if
/// they need not go through the host bridge.
fn below_bridge(one: &[&str], two: &[&str]) -> Option<Distance> {
    let common = one.iter().zip(two).take_while(|(one, two)| one == two).count();
    match (common, one.len().max(two.len()) - common) {
        (_, 0) => Some(Distance::Pix),
        // Beside each other on the bus of the root complex.
        (0, 1) => (card(one) == card(two)).then_some(Distance::Pix),
        (0, _) => None,
        (_, 1 | 2) => Some(Distance::Pix),
        _ => Some(Distance::Pxb),
    }
}

/// The address of the last function without the function's own digit.
fn card<'a>(functions: &[&'a str]) -> Option<&'a str> {
    Some(functions.last()?.rsplit_once('.')?.0)
}

/// A PCI address as sysfs writes it, `0000:17:00.0`, from one with its domain, as sysfs,
/// `lspci -D` or `nvidia-smi` (with eight digits of the domain) write it.
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

/// Whether a component of a path is `pciDDDD:BB`.
fn is_root_complex(part: &str) -> bool {
    let numbers = part.strip_prefix("pci").and_then(|numbers| numbers.split_once(':'));
    numbers.is_some_and(|(domain, bus)| {
        hexadecimal(domain, 4..=8).is_some() && hexadecimal(bus, 2..=2).is_some()
    })
}

/// A number of so many digits.
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

    /// Below a switch, as accelerators are in servers for them.
    const ACCELERATOR: &str =
        "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0";

    fn place(numa_node: Option<u32>, path: &str) -> Place {
        Place { numa_node, pci_path: Some(path.to_owned()) }
    }

    /// Between places on these nodes; both ways, which must be the same.
    fn between(one: (Option<u32>, &str), two: (Option<u32>, &str)) -> Distance {
        let (one, two) = (place(one.0, one.1), place(two.0, two.1));
        assert_eq!(one.distance(&two), two.distance(&one), "{one:?} {two:?}");
        one.distance(&two)
    }

    /// Of two places of which nothing but the paths is known.
    fn apart(one: &str, two: &str) -> Distance {
        between((None, one), (None, two))
    }

    #[test]
    fn distances_below_one_root_complex() {
        for (path, expected) in [
            (ACCELERATOR, Distance::Pix),
            // Another function of the same card, and other ports of the switch.
            ("/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.1", Distance::Pix),
            ("/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", Distance::Pix),
            ("/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/mlx5_core.sf.4", Distance::Pix),
            ("/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:08.7", Distance::Pix),
            // A switch below that one.
            (
                "/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1c:00.0",
                Distance::Pxb,
            ),
            // Other root ports, and what is on the bus of the root complex.
            ("/0000:15:01.1/0000:28:00.0/0000:29:02.0/0000:2a:00.0", Distance::Phb),
            ("/0000:15:03.0/0000:20:00.0", Distance::Phb),
            ("/0000:15:00.4", Distance::Phb),
        ] {
            let path = match path.starts_with("/sys") {
                true => path.to_owned(),
                false => format!("/sys/devices/pci0000:15{path}"),
            };
            assert_eq!(apart(ACCELERATOR, &path), expected, "{path}");
            let there = (Some(0), path.as_str());
            assert_eq!(between((Some(0), ACCELERATOR), there), expected, "{path}");
        }
        let far = "/sys/devices/pci0000:15/0000:15:03.0/0000:20:00.0";
        assert_eq!(between((Some(0), ACCELERATOR), (Some(1), far)), Distance::Sys);
    }

    #[test]
    fn distances_on_the_bus_of_a_root_complex() {
        let (one, root) = ("/sys/devices/pci0000:10/0000:10:1c.0", "/sys/devices/pci0000:10");
        assert_eq!(apart(one, one), Distance::Pix);
        assert_eq!(apart(one, &format!("{root}/0000:10:1c.1")), Distance::Pix);
        assert_eq!(apart(one, &format!("{root}/0000:10:1b.0")), Distance::Phb);
        // Functions of one device, but root ports with a bus each.
        let port = |port: &str, bus: &str| format!("{root}/0000:10:{port}/0000:{bus}:00.0");
        assert_eq!(apart(&port("1.0", "11"), &port("1.0", "11")), Distance::Sys, "no address");
        assert_eq!(apart(&port("01.0", "11"), &port("01.1", "12")), Distance::Phb);
    }

    #[test]
    fn elsewhere_numa_nodes_tell() {
        let paths = [
            "/sys/devices/pci0000:36/0000:36:01.0/0000:37:00.0/0000:38:00.0/0000:39:00.0",
            // Behind a controller that is a root complex itself, and in a virtual machine.
            "/sys/devices/pci0000:15/0000:15:00.5/pci10000:00/10000:00:02.0/10000:01:00.0",
            "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/\
             47505500-0001-0000-3130-444531303244/pci0001:00/0001:00:00.0",
            // Of no bus.
            "/sys/devices/virtual/infiniband/rxe0",
            "/sys/devices/pci0000:15",
            "",
        ];
        for path in paths {
            let from = |one, two| between((one, ACCELERATOR), (two, path));
            assert_eq!(from(Some(1), Some(1)), Distance::Node, "{path}");
            assert_eq!(from(Some(0), Some(1)), Distance::Sys, "{path}");
            assert_eq!(from(None, Some(0)), Distance::Sys, "{path}");
            assert_eq!(from(None, None), Distance::Sys, "{path}");
        }
        let process = Place { numa_node: Some(0), pci_path: None };
        let near = [Some(0), Some(1), None].map(|node| process.distance(&place(node, ACCELERATOR)));
        assert_eq!(near, [Distance::Node, Distance::Sys, Distance::Sys]);
        assert_eq!(Place::default().distance(&Place::default()), Distance::Sys);
    }

    #[test]
    fn nearer_is_less() {
        let order = [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys];
        assert!(order.is_sorted());
    }

    #[test]
    fn addresses_as_tools_write_them() {
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

    #[test]
    fn places_survive_the_exchange() {
        let places = [
            Place::default(),
            Place { numa_node: Some(3), pci_path: None },
            place(None, ACCELERATOR),
            place(Some(u32::MAX), ACCELERATOR),
        ];
        for known in places {
            assert_eq!(Place::from_bytes(&known.to_bytes()), Some(known));
        }
        let long = "/".repeat(PCI_PATH_BYTES_MAX);
        let known = place(Some(1), &long);
        assert_eq!(Place::from_bytes(&known.to_bytes()), Some(known));
        let longer = place(Some(1), &format!("{long}/"));
        let rest = Place { numa_node: Some(1), pci_path: None };
        assert_eq!(Place::from_bytes(&longer.to_bytes()), Some(rest));
    }

    #[test]
    fn what_is_no_place_is_none() {
        let long = [&[0][..], &[b'/'; PCI_PATH_BYTES_MAX + 1]].concat();
        for bytes in [&b""[..], b"\x02", b"\x01\0\0\0", b"\0x", b"\0/\xff", &long[..]] {
            assert_eq!(Place::from_bytes(bytes), None, "{bytes:02x?}");
        }
        let whole = place(Some(1), ACCELERATOR).to_bytes();
        for end in 0..5 {
            assert_eq!(Place::from_bytes(&whole[..end]), None, "{end}");
        }
    }
}
