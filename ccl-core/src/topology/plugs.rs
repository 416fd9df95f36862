//! Conversion of sysfs paths to the tree of a machine's parts, and of that tree to distances.

use super::machine::{Class, Kind, LinkSpeed, Machine, Part};
use crate::transport::{Locality, pci_address};

/// Tree of parts, made by plugging in one part after the other.
#[derive(Clone, Debug, Default)]
pub struct Plugs {
    /// Parts, in the order of their arrival.
    pub parts: Vec<Part>,
    /// Path and index in `parts` of each host bridge and switch.
    bridges: Vec<(String, usize)>,
    /// Bus, address on the bus (without the function number) and index in `parts` of each device.
    devices: Vec<(String, String, usize)>,
}

impl Plugs {
    /// Adds a device to the tree, below the host bridge and the switches that its path names. A
    /// device without a PCI function in its path is put under `node`, the index of a NUMA node's
    /// part. Returns the index of the device's part.
    ///
    /// In a path, the component `pciDDDD:BB` is a root complex (the last one, if there are
    /// several). The components after it are PCI functions, and all of them but the last are
    /// bridges: a root port, and two for each switch, its upstream and a downstream port. The call
    /// that first names a root complex puts its host bridge under `node`, or under nothing if
    /// `node` is `None`. Devices that share a bus behind a root port or a port of a switch are one
    /// card. On the bus of a root complex, devices are one card only if their addresses differ in
    /// nothing but the function number. The first device of a card is plugged into the lowest
    /// switch above it, or into the host bridge if there is no switch. The other devices of the
    /// card are plugged into the first one.
    ///
    /// `speed` takes the path of a PCI function, and returns the speed of the function's link.
    pub fn plug(
        &mut self,
        locality: &Locality,
        node: Option<usize>,
        part: Part,
        speed: &dyn Fn(&str) -> LinkSpeed,
    ) -> usize {
        let Some((root, functions)) = locality.path_parts() else {
            return self.add(Part { under: node, ..part });
        };
        let path = |functions: &[&str]| [&root, functions].concat().join("/");
        let mut above = self.bridge(&path(&[]), Kind::HostBridge, node, &|_| LinkSpeed::NONE);
        let (last, bridges) = functions.split_last().unwrap_or((&"", &[]));
        for switch in (1..bridges.len()).step_by(2) {
            let name = path(&bridges[..=switch]);
            above = self.bridge(&name, Kind::PcieSwitch, Some(above), speed);
        }
        let bus = path(bridges);
        let address = last.rsplit_once('.').map_or(*last, |(address, _)| address);
        let beside = self
            .devices
            .iter()
            .find(|(on, at, _)| *on == bus && (!bridges.is_empty() || at == address));
        let above = beside.map_or(above, |(_, _, part)| *part);
        let speed = speed(&path(&functions));
        let number = self.add(Part { under: Some(above), speed, ..part });
        self.devices.push((bus, address.to_owned(), number));
        number
    }

    /// Adds a part unchanged. Returns its index.
    pub fn add(&mut self, part: Part) -> usize {
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// Returns a host bridge or a switch, and adds it at its first use.
    fn bridge(
        &mut self,
        path: &str,
        kind: Kind,
        under: Option<usize>,
        speed: &dyn Fn(&str) -> LinkSpeed,
    ) -> usize {
        if let Some((_, part)) = self.bridges.iter().find(|(known, _)| known == path) {
            return *part;
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let (pci, speed) = (pci_address(name), speed(path));
        let part = self.add(Part { under, speed, pci, ..Part::new(name, kind) });
        self.bridges.push((path.to_owned(), part));
        part
    }
}

impl Locality {
    /// Returns the distance to another device of the same host, by the tree of parts that the paths
    /// of both devices describe ([`Plugs::plug`]). For devices on one root complex without a common
    /// bridge, the result is [`Class::Sys`] if their NUMA nodes are known to differ. If a device
    /// has no path (a device in software, for example), the result is [`Class::Node`] if both NUMA
    /// nodes are known and equal, otherwise [`Class::Sys`].
    #[must_use]
    pub fn distance(&self, other: &Locality) -> Class {
        let same_node = self.numa_node.zip(other.numa_node).map(|(one, two)| one == two);
        if self.path_parts().is_none() || other.path_parts().is_none() {
            return if same_node == Some(true) { Class::Node } else { Class::Sys };
        }
        let mut plugs = Plugs::default();
        let node = |plugs: &mut Plugs, name: &str| plugs.add(Part::new(name, Kind::Numa));
        let here = self.numa_node.map(|_| node(&mut plugs, "one"));
        let there = match same_node {
            Some(true) => here,
            _ => other.numa_node.map(|_| node(&mut plugs, "other")),
        };
        let mut plug = |locality: &Locality, node| {
            plugs.plug(locality, node, Part::new("", Kind::Nic), &|_| LinkSpeed::NONE)
        };
        let (from, to) = (plug(self, here), plug(other, there));
        let (name, gpu_links) = (String::new(), Vec::new());
        let machine = Machine { name, smp: LinkSpeed::NONE, parts: plugs.parts, gpu_links };
        match machine.plugged(from, to).class {
            Class::Phb if same_node == Some(false) => Class::Sys,
            class => class,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device below a switch, as in servers for accelerators.
    const ACCELERATOR: &str =
        "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0";

    fn locality(numa_node: Option<u32>, path: &str) -> Locality {
        Locality { numa_node, pci_path: Some(path.to_owned()) }
    }

    /// Returns the distance between devices on these nodes; it must be the same in both directions.
    fn between(one: (Option<u32>, &str), two: (Option<u32>, &str)) -> Class {
        let (one, two) = (locality(one.0, one.1), locality(two.0, two.1));
        assert_eq!(one.distance(&two), two.distance(&one), "{one:?} {two:?}");
        one.distance(&two)
    }

    /// Returns the distance between two devices whose NUMA nodes are unknown.
    fn apart(one: &str, two: &str) -> Class {
        between((None, one), (None, two))
    }

    #[test]
    fn below_one_root_complex_the_common_switches_decide_the_distance() {
        for (path, expected) in [
            (ACCELERATOR, Class::Pix),
            // Another function of the same card, and other ports of the switch.
            ("/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.1", Class::Pix),
            ("/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", Class::Pix),
            ("/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/mlx5_core.sf.4", Class::Pix),
            ("/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:08.7", Class::Pix),
            // A device below another switch, which is itself below the accelerator's switch.
            (
                "/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1c:00.0",
                Class::Pxb,
            ),
            // Other root ports, and a device on the bus of the root complex.
            ("/0000:15:01.1/0000:28:00.0/0000:29:02.0/0000:2a:00.0", Class::Phb),
            ("/0000:15:03.0/0000:20:00.0", Class::Phb),
            ("/0000:15:00.4", Class::Phb),
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
        assert_eq!(between((Some(0), ACCELERATOR), (Some(1), far)), Class::Sys);
    }

    #[test]
    fn on_the_bus_of_a_root_complex_only_functions_of_one_device_are_near() {
        let (one, root) = ("/sys/devices/pci0000:10/0000:10:1c.0", "/sys/devices/pci0000:10");
        assert_eq!(apart(one, one), Class::Pix);
        assert_eq!(apart(one, &format!("{root}/0000:10:1c.1")), Class::Pix);
        assert_eq!(apart(one, &format!("{root}/0000:10:1b.0")), Class::Phb);
        let port = |port: &str, bus: &str| format!("{root}/0000:10:{port}/0000:{bus}:00.0");
        // `0000:10:1.0` is no PCI address, so nothing is known about the path.
        assert_eq!(apart(&port("1.0", "11"), &port("1.0", "11")), Class::Sys);
        // Two root ports that are functions of one device; each has its own bus.
        assert_eq!(apart(&port("01.0", "11"), &port("01.1", "12")), Class::Phb);
    }

    #[test]
    fn without_a_common_root_complex_the_numa_nodes_decide_the_distance() {
        let paths = [
            "/sys/devices/pci0000:36/0000:36:01.0/0000:37:00.0/0000:38:00.0/0000:39:00.0",
            // The next device is behind a controller that is a root complex itself. The device
            // after it is in a virtual machine.
            "/sys/devices/pci0000:15/0000:15:00.5/pci10000:00/10000:00:02.0/10000:01:00.0",
            "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/\
             47505500-0001-0000-3130-444531303244/pci0001:00/0001:00:00.0",
            // Paths without a PCI function.
            "/sys/devices/virtual/infiniband/rxe0",
            "/sys/devices/pci0000:15",
            "",
        ];
        for path in paths {
            let from = |one, two| between((one, ACCELERATOR), (two, path));
            assert_eq!(from(Some(1), Some(1)), Class::Node, "{path}");
            assert_eq!(from(Some(0), Some(1)), Class::Sys, "{path}");
            assert_eq!(from(None, Some(0)), Class::Sys, "{path}");
            assert_eq!(from(None, None), Class::Sys, "{path}");
        }
        let process = Locality { numa_node: Some(0), pci_path: None };
        let near =
            [Some(0), Some(1), None].map(|node| process.distance(&locality(node, ACCELERATOR)));
        assert_eq!(near, [Class::Node, Class::Sys, Class::Sys]);
        assert_eq!(Locality::default().distance(&Locality::default()), Class::Sys);
    }

    #[test]
    fn functions_behind_one_port_are_one_card_in_the_tree() {
        let mut plugs = Plugs::default();
        let below = "/sys/devices/pci0000:15/0000:15:01.0";
        let mut plug = |path: &str, name: &str| {
            let locality = locality(None, &format!("{below}/{path}"));
            plugs.plug(&locality, None, Part::new(name, Kind::Nic), &|_| LinkSpeed::NONE)
        };
        // The address of a virtual function differs from that of its card.
        let (card, virtual_function) = (plug("0000:18:00.0", "a"), plug("0000:18:08.7", "b"));
        assert_eq!(plugs.parts[virtual_function].under, Some(card));
        let parts = plugs.parts;
        let machine =
            Machine { name: String::new(), smp: LinkSpeed::NONE, parts, gpu_links: Vec::new() };
        assert_eq!(machine.path(card, virtual_function).class, Class::Pix);
    }
}
