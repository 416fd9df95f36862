//! NCCL's topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`): one machine.
//!
//! The format has no host bridges, and one NVSwitch stands for all NVSwitches of a machine. When a
//! machine is written, the attributes in [`Part::nccl`] are written as they were read, and all
//! others are computed from the model. NVLinks to processors, and unknown elements, are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::topology::fabric::Fabric;
use crate::topology::{At, HostRun, Topology};
use ccl_core::topology::machine::{GpuLink, GpuLinkKind, Kind, LinkSpeed, Machine, Part};
use ccl_core::transport::pci_address;
use roxmltree::{Document, Node};

/// PCI class by which NCCL marks a switch of NVLink.
const NVSWITCH_CLASS: &str = "0x068000";
/// Largest number of levels of a PCIe tree.
const DEPTH_MAX: usize = 32;
/// Rates of a PCIe lane: in GT/s, and in bytes per second after encoding.
const LANES: [(f64, f64); 6] = [
    (2.5, 0.25e9),
    (5.0, 0.5e9),
    (8.0, 0.985e9),
    (16.0, 1.969e9),
    (32.0, 3.938e9),
    (64.0, 7.563e9),
];
/// Assumed link between processors: the XML does not have its speed.
const SMP: LinkSpeed = LinkSpeed { bytes_per_s: 10e9, latency_ns: 0.0 };

/// Parses NCCL's topology; `file` names it in errors.
///
/// # Errors
///
/// When the text is invalid; the error names the file and the line.
pub(super) fn parse(file: &str, text: &str) -> Result<Topology, String> {
    let document = Document::parse(text).map_err(|error| format!("{file}: {error}"))?;
    let root = document.root_element();
    let at = |node: Node<'_, '_>, problem: &str| {
        format!("{file}:{}: {problem}", document.text_pos_at(node.range().start).row)
    };
    if root.tag_name().name() != "system" {
        return Err(at(
            root,
            "this is not NCCL's topology, which begins with <system version=\"1\">",
        ));
    }
    let hashes = root.children().filter_map(|cpu| cpu.attribute("host_hash"));
    if let Some(other) = hashes.collect::<BTreeSet<_>>().iter().nth(1) {
        let problem = format!(
            "the file describes several hosts (a second host_hash is {other}); keep only the <cpu> \
             elements of one host"
        );
        return Err(at(root, &problem));
    }
    let mut reading = Reading::default();
    for cpu in root.children().filter(|node| node.has_tag_name("cpu")) {
        reading.cpu(cpu).map_err(|(node, problem)| at(node, &problem))?;
    }
    reading.links().map_err(|(node, problem)| at(node, &problem))?;
    let starts = reading.nodes;
    let topology = Topology {
        name: root.attribute("name").unwrap_or("NCCL's topology file").to_owned(),
        machines: vec![Machine {
            name: "host".to_owned(),
            smp: SMP,
            parts: reading.parts,
            gpu_links: reading.gpu_links,
        }],
        hosts: vec![HostRun { machine: 0, count: 1 }],
        fabric: Fabric::default(),
        placed: Vec::new(),
    };
    let node = |place: At| match place {
        At::Part(_, part) => starts.get(part).copied().unwrap_or(root),
        At::GpuLink(_, link) => reading.links.get(link).map_or(root, |link| link.node),
        _ => root,
    };
    topology.check().map_err(|error| at(node(error.at), &error.problem))?;
    Ok(topology)
}

/// Element and description of a problem.
type Problem<'d> = (Node<'d, 'd>, String);

#[derive(Default)]
struct Reading<'d> {
    parts: Vec<Part>,
    /// Element of each part.
    nodes: Vec<Node<'d, 'd>>,
    gpu_links: Vec<GpuLink>,
    links: Vec<Link<'d>>,
}

/// Element that describes links of the GPU `from`. Its target is looked up when all GPUs are known.
#[derive(Clone, Copy)]
struct Link<'d> {
    from: usize,
    node: Node<'d, 'd>,
}

impl<'d> Reading<'d> {
    fn add(&mut self, node: Node<'d, 'd>, part: Part) -> usize {
        self.parts.push(part);
        self.nodes.push(node);
        self.parts.len() - 1
    }

    fn cpu(&mut self, cpu: Node<'d, 'd>) -> Result<(), Problem<'d>> {
        let number = cpu.attribute("numaid").unwrap_or("0");
        let part = Part {
            name: format!("numa{number}"),
            kind: Kind::Numa,
            under: None,
            speed: LinkSpeed::NONE,
            network: None,
            pci: None,
            nccl: facts("", cpu, &["numaid"]),
        };
        let numa = self.add(cpu, part);
        for child in cpu.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => self.pci(child, numa, 0)?,
                "nic" => self.nic(child, numa, None)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn pci(&mut self, pci: Node<'d, 'd>, under: usize, depth: usize) -> Result<(), Problem<'d>> {
        if depth > DEPTH_MAX {
            let problem = "the PCIe tree has more than 32 levels; is it the right file?";
            return Err((pci, problem.to_owned()));
        }
        let address = pci.attribute("busid");
        let address = address.ok_or_else(|| (pci, "a <pci> needs a busid".to_owned()))?;
        let child = |name| pci.children().find(|node| node.has_tag_name(name));
        let class = pci.attribute("class").unwrap_or_default();
        let address = pci_address(address).unwrap_or_else(|| address.to_owned());
        let mut part = Part {
            name: address.clone(),
            kind: Kind::PcieSwitch,
            under: Some(under),
            speed: pci_speed(pci),
            network: None,
            pci: Some(address),
            nccl: facts("", pci, &["busid", "link_speed", "link_width"]),
        };
        if let Some(nic) = child("nic") {
            return self.nic(nic, under, Some(part));
        }
        if child("gpu").is_some() || class.starts_with("0x03") {
            part.kind = Kind::Gpu;
            let gpu = child("gpu");
            part.nccl.extend(gpu.map(|gpu| facts("gpu.", gpu, &[])).unwrap_or_default());
            let number = gpu.and_then(|gpu| gpu.attribute("dev"));
            part.name = number.map_or(part.name, |number| format!("gpu{number}"));
            let from = self.add(pci, part);
            let links = gpu.into_iter().flat_map(|gpu| gpu.children());
            let links =
                links.filter(|node| node.has_tag_name("nvlink") || node.has_tag_name("xgmi"));
            self.links.extend(links.map(|node| Link { from, node }));
            return Ok(());
        }
        if class.starts_with("0x02") {
            part.kind = Kind::Nic;
            part.network = Some(LinkSpeed { latency_ns: 0.0, ..part.speed });
            self.add(pci, part);
            return Ok(());
        }
        let switch = self.add(pci, part);
        for below in pci.children().filter(|node| node.has_tag_name("pci")) {
            self.pci(below, switch, depth + 1)?;
        }
        Ok(())
    }

    /// Adds the ports of a NIC. If the NIC is a PCIe card, the first port stands for the card in
    /// the tree, and the others are under the first; else all ports are under `under`.
    fn nic(
        &mut self,
        nic: Node<'d, 'd>,
        under: usize,
        card: Option<Part>,
    ) -> Result<(), Problem<'d>> {
        let mut under = under;
        let mut card = card;
        for net in nic.children().filter(|node| node.has_tag_name("net")) {
            let name = net.attribute("name");
            let name = name.ok_or_else(|| (net, "a <net> needs a name".to_owned()))?;
            let part = card.take().unwrap_or_else(|| Part::new(name, Kind::Nic));
            let number = |attribute: &str| net.attribute(attribute)?.parse::<f64>().ok();
            let network = LinkSpeed {
                // The unit of the speed is 10⁶ bits per second.
                bytes_per_s: number("speed").filter(|speed| *speed > 0.0).unwrap_or(10_000.0)
                    * 125e3,
                latency_ns: number("latency").unwrap_or(0.0) * 1e3,
            };
            let mut nccl = part.nccl;
            nccl.extend(facts("net.", net, &["name", "speed", "latency"]));
            let part = Part {
                name: name.to_owned(),
                kind: Kind::Nic,
                under: Some(under),
                network: Some(network),
                nccl,
                ..part
            };
            let added = self.add(net, part);
            if self.parts[added].pci.is_some() {
                under = added;
            }
        }
        Ok(())
    }

    /// Adds the links of accelerators. A link between two GPUs is listed at both, and added once.
    /// Links to any switch lead to the part that stands for all switches. Several entries of one
    /// accelerator for the same target are added up.
    fn links(&mut self) -> Result<(), Problem<'d>> {
        let mut kept: Vec<Link<'d>> = Vec::new();
        for link in std::mem::take(&mut self.links) {
            let Link { from, node } = link;
            let links: Option<u32> = node.attribute("count").and_then(|count| count.parse().ok());
            let links = links.unwrap_or(1);
            let sm = self.parts[from].nccl.get("gpu.sm").and_then(|sm| sm.parse().ok());
            let class = node.attribute("tclass").unwrap_or_default();
            let target = node.attribute("target").and_then(pci_address);
            let gpu = self.parts.iter().position(|part| {
                part.kind == Kind::Gpu && part.pci.is_some() && part.pci == target
            });
            let to = if let Some(gpu) = gpu {
                gpu
            } else if class == NVSWITCH_CLASS {
                self.nvswitch(node)
            } else if class.starts_with("0x03") || node.has_tag_name("xgmi") {
                // The target is a GPU that the file does not describe. Any target of an <xgmi>
                // counts as a GPU: not all classes of AMD's GPUs begin with 0x03.
                return Err((node, "no GPU has the busid of this target".to_owned()));
            } else {
                // An NVLink to a processor is left out: the GPU is under the processor in the tree.
                continue;
            };
            let same = |link: &GpuLink| link.ends == [from, to] || link.ends == [to, from];
            if let Some(known) = self.gpu_links.iter_mut().find(|link| same(link)) {
                let is_listed_here = known.ends[0] == from;
                known.links = known.links.saturating_add(if is_listed_here { links } else { 0 });
            } else {
                let kind = match node.has_tag_name("xgmi") {
                    true => GpuLinkKind::Xgmi,
                    false => GpuLinkKind::NvLink,
                };
                let speed = gpu_link_speed(kind, sm);
                self.gpu_links.push(GpuLink { ends: [from, to], links, speed, kind });
                kept.push(link);
            }
        }
        self.links = kept;
        Ok(())
    }

    fn nvswitch(&mut self, node: Node<'d, 'd>) -> usize {
        let found = self.parts.iter().position(|part| part.kind == Kind::NvSwitch);
        found.unwrap_or_else(|| {
            let part = Part::new("nvswitch", Kind::NvSwitch);
            self.add(node, part)
        })
    }
}

/// Returns the bandwidth of one link of an accelerator. `sm` is the compute capability of the GPU,
/// such as 90; the bandwidth of an NVLink depends on it.
pub(super) fn gpu_link_speed(kind: GpuLinkKind, sm: Option<u32>) -> LinkSpeed {
    let bytes_per_s = match (kind, sm) {
        (GpuLinkKind::Xgmi, _) => 64e9,
        (_, Some(100..)) => 50e9,
        (_, Some(..=69)) => 20e9,
        _ => 25e9,
    };
    LinkSpeed { bytes_per_s, latency_ns: 0.0 }
}

/// Returns the attributes of an element, except those that `but` names.
fn facts(prefix: &str, node: Node<'_, '_>, but: &[&str]) -> BTreeMap<String, String> {
    let attributes = node.attributes().filter(|attribute| !but.contains(&attribute.name()));
    let fact = |attribute: roxmltree::Attribute<'_, '_>| {
        (format!("{prefix}{}", attribute.name()), attribute.value().to_owned())
    };
    attributes.map(fact).collect()
}

/// Returns the PCIe link of an element; by default, as in NCCL, 16 lanes of the third generation.
fn pci_speed(pci: Node<'_, '_>) -> LinkSpeed {
    let transfers = pci.attribute("link_speed").unwrap_or_default();
    let lanes = pci.attribute("link_width").and_then(|width| width.parse().ok());
    LinkSpeed {
        bytes_per_s: pcie_bytes_per_s(transfers, lanes).unwrap_or(LANES[2].1 * 16.0),
        latency_ns: 0.0,
    }
}

/// Returns the bandwidth of a PCIe link from the values that sysfs has for it: the rate, such as
/// `32.0 GT/s PCIe`, and the number of lanes.
pub(super) fn pcie_bytes_per_s(transfers: &str, lanes: Option<u32>) -> Option<f64> {
    let transfers: f64 = transfers.split_whitespace().next()?.parse().ok()?;
    let lane = LANES.iter().find(|(rate, _)| (rate - transfers).abs() < 0.1)?.1;
    let lanes = lanes.filter(|lanes| (1..=64).contains(lanes)).unwrap_or(16);
    Some(lane * f64::from(lanes))
}

/// Returns rate and lanes of the PCIe link with the nearest bandwidth.
fn as_pcie(bytes_per_s: f64) -> (f64, u32) {
    let all = LANES.iter().flat_map(|lane| [16, 8, 4, 2, 1].map(|lanes| (*lane, lanes)));
    let off =
        |((_, lane), lanes): &((f64, f64), u32)| (lane * f64::from(*lanes) - bytes_per_s).abs();
    let nearest = all.min_by(|one, other| off(one).total_cmp(&off(other)));
    nearest.map_or((8.0, 16), |((rate, _), lanes)| (rate, lanes))
}

/// Writes a machine as NCCL's topology XML.
///
/// NCCL knows no host bridges: in the XML, the parts under a bridge are under the bridge's NUMA
/// node. If an attribute such as `sm` is missing, NCCL looks it up itself.
#[must_use]
pub fn write(machine: &Machine) -> String {
    let mut xml = "<system version=\"1\">\n".to_owned();
    let own = |numa: usize| machine.parts[numa].name.strip_prefix("numa")?.parse::<u32>().ok();
    let are_numbered = machine.of(Kind::Numa).all(|numa| own(numa).is_some());
    for (number, numa) in machine.of(Kind::Numa).enumerate() {
        let part = &machine.parts[numa];
        let id = own(numa).filter(|_| are_numbered).map_or(number.to_string(), |id| id.to_string());
        let mut said = vec![("numaid".to_owned(), id)];
        said.extend(plain(part));
        element(&mut xml, 1, "cpu", &said, |xml| {
            below(xml, machine, numa, 2);
            // The parts of host bridges whose NUMA node is unknown go under the first node.
            let lost = |part: &usize| machine.parts[*part].under.is_none();
            let bridges = machine.of(Kind::HostBridge).filter(lost);
            bridges.filter(|_| number == 0).for_each(|bridge| below(xml, machine, bridge, 2));
        });
    }
    xml + "</system>\n"
}

/// Writes an element with its contents.
fn element(
    xml: &mut String,
    depth: usize,
    name: &str,
    attributes: &[(String, String)],
    inside: impl FnOnce(&mut String),
) {
    let indent = "  ".repeat(depth);
    let _ = write!(xml, "{indent}<{name}");
    for (name, value) in attributes {
        let _ = write!(xml, " {name}=\"{}\"", escaped(value));
    }
    let mut within = String::new();
    inside(&mut within);
    let _ = match within.is_empty() {
        true => writeln!(xml, "/>"),
        false => write!(xml, ">\n{within}{indent}</{name}>\n"),
    };
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the attributes that were read from the element of a part (`prefix` is empty), or from an
/// element inside it (`prefix` is `gpu.` or `net.`).
fn facts_of(part: &Part, prefix: &str) -> Vec<(String, String)> {
    let facts = part
        .nccl
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone())));
    facts.filter(|(name, _)| !name.contains('.')).collect()
}

fn plain(part: &Part) -> Vec<(String, String)> {
    facts_of(part, "")
}

/// Returns whether a part is a NIC without a PCIe function of its own: a further port of a card, or
/// a NIC that is directly under a NUMA node.
fn is_port(part: &Part) -> bool {
    part.kind == Kind::Nic && part.pci.is_none() && part.speed == LinkSpeed::NONE
}

/// Writes the other PCIe functions of a card as siblings of the card's first function.
fn functions(xml: &mut String, machine: &Machine, card: usize, depth: usize) {
    let is_function = |part: &usize| {
        let function = &machine.parts[*part];
        function.under == Some(card) && !is_port(function)
    };
    for function in (0..machine.parts.len()).filter(is_function) {
        whole(xml, machine, function, depth);
    }
}

/// Writes all parts under a part.
fn below(xml: &mut String, machine: &Machine, above: usize, depth: usize) {
    for number in (0..machine.parts.len()).filter(|part| machine.parts[*part].under == Some(above))
    {
        whole(xml, machine, number, depth);
    }
}

/// Writes a part with its contents.
fn whole(xml: &mut String, machine: &Machine, number: usize, depth: usize) {
    let part = &machine.parts[number];
    match part.kind {
        Kind::HostBridge => below(xml, machine, number, depth),
        Kind::Nic if part.pci.is_none() && part.speed == LinkSpeed::NONE => {
            element(xml, depth, "nic", &[], |xml| net(xml, part, depth + 1));
        }
        Kind::Nic => {
            pci(xml, machine, number, depth, |xml| {
                element(xml, depth + 1, "nic", &[], |xml| {
                    let of_it = |port: &&Part| port.under == Some(number) && is_port(port);
                    let ports = machine.parts.iter().filter(of_it);
                    for port in [part].into_iter().chain(ports) {
                        net(xml, port, depth + 2);
                    }
                });
            });
            functions(xml, machine, number, depth);
        }
        Kind::Gpu => {
            pci(xml, machine, number, depth, |xml| {
                element(xml, depth + 1, "gpu", &facts_of(part, "gpu."), |xml| {
                    own_links(xml, machine, number, depth + 2);
                });
            });
            functions(xml, machine, number, depth);
        }
        _ => pci(xml, machine, number, depth, |xml| below(xml, machine, number, depth + 1)),
    }
}

/// Writes a PCIe function. A function of unknown address gets a made-up address, as in NCCL's own
/// examples.
fn pci(
    xml: &mut String,
    machine: &Machine,
    number: usize,
    depth: usize,
    inside: impl FnOnce(&mut String),
) {
    let part = &machine.parts[number];
    let mut said = vec![("busid".to_owned(), address(machine, number))];
    let mut known: BTreeMap<String, String> = plain(part).into_iter().collect();
    let class = match part.kind {
        Kind::Gpu => "0x030200",
        Kind::Nic => "0x020000",
        _ => "0x060400",
    };
    if part.speed.bytes_per_s.is_finite() {
        let (rate, lanes) = as_pcie(part.speed.bytes_per_s);
        known.insert("link_speed".to_owned(), format!("{rate:.1} GT/s PCIe"));
        known.insert("link_width".to_owned(), lanes.to_string());
    }
    known.entry("class".to_owned()).or_insert_with(|| class.to_owned());
    said.extend(known);
    element(xml, depth, "pci", &said, inside);
}

fn address(machine: &Machine, number: usize) -> String {
    let known = machine.parts[number].pci.clone();
    known.unwrap_or_else(|| format!("ffff:{:02x}:{:02x}.0", number / 32 % 256, number % 32))
}

fn net(xml: &mut String, part: &Part, depth: usize) {
    let mut said = vec![("name".to_owned(), part.name.clone())];
    let mut known: BTreeMap<String, String> = facts_of(part, "net.").into_iter().collect();
    if let Some(network) = part.network.filter(|network| network.bytes_per_s.is_finite()) {
        let speed = format!("{:.0}", network.bytes_per_s / 125e3);
        known.insert("speed".to_owned(), speed);
        if network.latency_ns > 0.0 {
            let latency_us = || format!("{}", network.latency_ns / 1e3);
            known.insert("latency".to_owned(), latency_us());
        }
    }
    said.extend(known);
    element(xml, depth, "net", &said, |_| {});
}

/// Writes the links of a GPU. All links to switches become one element.
fn own_links(xml: &mut String, machine: &Machine, gpu: usize, depth: usize) {
    let mut to_switches = 0;
    for link in machine.gpu_links.iter().filter(|link| link.ends.contains(&gpu)) {
        let other = if link.ends[0] == gpu { link.ends[1] } else { link.ends[0] };
        if machine.parts[other].kind == Kind::NvSwitch {
            to_switches += link.links;
            continue;
        }
        let name = if link.kind == GpuLinkKind::Xgmi { "xgmi" } else { "nvlink" };
        link_element(xml, depth, name, &address(machine, other), link.links, "0x030200");
    }
    if to_switches > 0 {
        link_element(xml, depth, "nvlink", "fffffff:ffff:ff", to_switches, NVSWITCH_CLASS);
    }
}

fn link_element(xml: &mut String, depth: usize, name: &str, target: &str, links: u32, class: &str) {
    let said = [("target", target), ("count", &links.to_string()), ("tclass", class)];
    let said = said.map(|(name, value)| (name.to_owned(), value.to_owned()));
    element(xml, depth, name, &said, |_| {});
}

#[cfg(test)]
mod tests {
    use crate::topology::presets;

    use super::*;

    /// Dump of NCCL 2.30: two GPUs with NVLink, a switch, a NIC with two ports.
    const DUMP: &str = r#"<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="00ff" arch="x86_64" modelid="143">
    <pci busid="0000:15:00.0" class="0x060400" vendor="0x1000" device="0xc030"
         subsystem_vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:19:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:5d:00.0" count="4" tclass="0x030200"/>
          <nvlink target="fffffff:ffff:ff" count="14" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:1a:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="8">
        <nic>
          <net name="mlx5_0" dev="0" latency="0.5" speed="200000" port="1" guid="0x7" gdr="1"/>
          <net name="mlx5_1" dev="1" latency="0" speed="200000" port="2" guid="0x7" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <nic>
      <net name="eth0" dev="2" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
  <cpu numaid="1" affinity="ff00" arch="x86_64" vendor="GenuineIntel" modelid="143">
    <pci busid="0000:5d:00.0" class="0x030200" link_speed="" link_width="0">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="0000:19:00.0" count="4" tclass="0x030200"/>
        <nvlink target="fffffff:ffff:ff" count="14" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"#;

    fn path(machine: &Machine, from: &str, to: &str) -> (String, f64) {
        let named = |name: &str| machine.parts.iter().position(|part| part.name == name).unwrap();
        let path = machine.path(named(from), named(to));
        (path.class.to_string(), path.speed.bytes_per_s / 1e9)
    }

    #[test]
    fn a_dump_of_nccl_is_read() {
        let topology = parse("dump.xml", DUMP).unwrap();
        let machine = &topology.machines[0];
        for (from, to, class, rate) in [
            ("gpu0", "gpu1", "NV18", 450.0),
            ("gpu0", "mlx5_0", "PIX", 15.752),
            ("mlx5_0", "mlx5_1", "PIX", f64::INFINITY),
            ("gpu1", "mlx5_1", "SYS", 10.0),
            ("gpu0", "eth0", "PHB", 63.008),
            ("numa1", "gpu1", "PHB", 15.76),
        ] {
            let (seen, speed) = path(machine, from, to);
            assert_eq!(seen, class, "{from} {to}");
            assert!(speed == rate || (speed - rate).abs() < 1e-6, "{from} {to}: {speed}");
        }
        assert_eq!(machine.network_bytes_per_s(), 2.0 * 25e9 + 1.25e9);
    }

    /// A GPU lists its links to each switch, unless the machine hides which switch is which.
    #[test]
    fn links_to_several_switches_are_added_up() {
        let one = "<nvlink target=\"fffffff:ffff:ff\" count=\"14\" tclass=\"0x068000\"/>";
        let some = "<nvlink target=\"0000:c4:00.0\" count=\"8\" tclass=\"0x068000\"/>\
                    <nvlink target=\"0000:c5:00.0\" count=\"6\" tclass=\"0x068000\"/>";
        let dump = parse("dump.xml", DUMP).unwrap();
        assert_eq!(parse("dump.xml", &DUMP.replace(one, some)), Ok(dump));
    }

    #[test]
    fn a_dump_is_unchanged_after_writing_and_reading() {
        let topology = parse("dump.xml", DUMP).unwrap();
        let written = write(&topology.machines[0]);
        assert_eq!(parse("again.xml", &written).unwrap(), topology, "{written}");
        for fact in ["modelid=\"143\"", "sm=\"90\"", "guid=\"0x7\"", "host_hash=\"0x1\""] {
            assert!(written.contains(fact), "{written}");
        }
    }

    #[test]
    fn presets_survive_xml_except_for_host_bridges() {
        for name in ["a100", "h100", "b200", "nvl72", "mi300x", "p5"] {
            let machine = presets::machine(name).unwrap();
            let again = parse("it.xml", &write(&machine)).unwrap();
            let (machine, again) = (&machine, &again.machines[0]);
            for kind in [Kind::Gpu, Kind::Nic, Kind::PcieSwitch, Kind::Numa] {
                assert_eq!(machine.of(kind).count(), again.of(kind).count(), "{name} {kind:?}");
            }
            assert_eq!(machine.network_bytes_per_s(), again.network_bytes_per_s(), "{name}");
            let ends = |machine: &Machine| {
                let gpus: Vec<usize> = machine.of(Kind::Gpu).collect();
                machine.path(gpus[0], gpus[gpus.len() - 1]).class
            };
            assert_eq!(ends(machine), ends(again), "{name}");
        }
    }

    #[test]
    fn an_error_in_a_file_is_reported_with_its_line() {
        for (text, words) in [
            ("<system", "it.xml: "),
            ("<graphs/>", "it.xml:1: this is not NCCL's topology"),
            ("<system>\n</system>", "it.xml:1: the machine has no NUMA node and no GPU"),
            ("<system>\n<cpu>\n<pci/></cpu></system>", "it.xml:3: a <pci> needs a busid"),
            (
                "<system>\n<cpu numaid=\"0\"/>\n<cpu numaid=\"0\"/></system>",
                "it.xml:3: a second part is called \"numa0\"",
            ),
        ] {
            let error = parse("it.xml", text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let lost = DUMP.replace("target=\"0000:5d:00.0\"", "target=\"0000:5e:00.0\"");
        let error = parse("it.xml", &lost).unwrap_err();
        assert!(error.starts_with("it.xml:7: no GPU has the busid"), "{error}");
        let deep = "<pci busid=\"0\">".repeat(40) + &"</pci>".repeat(40);
        let error = parse("it.xml", &format!("<system><cpu>{deep}</cpu></system>")).unwrap_err();
        assert!(error.contains("more than 32 levels"), "{error}");
    }
}
