//! Text form of a topology: TOML.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::topology::fabric::{Fabric, Tier, Wiring};
use crate::topology::{At, HostRun, Placed, Topology, presets};
use ccl_core::topology::machine::{GpuLink, GpuLinkKind, Kind, LinkSpeed, Machine, Part};
use serde::Deserialize;
use toml::Spanned;

use super::line;
use crate::quantity::{self, Unit};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    name: String,
    fabric: Option<Spanned<FabricText>>,
    #[serde(default)]
    hosts: Vec<Spanned<HostsText>>,
    #[serde(default)]
    machine: Vec<Spanned<MachineText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FabricText {
    nics: Option<u32>,
    #[serde(default)]
    tier: Vec<Spanned<TierText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TierText {
    name: String,
    #[serde(default)]
    group: String,
    children: u32,
    #[serde(default = "one")]
    switches: u32,
    #[serde(default)]
    wiring: WiringText,
    #[serde(default = "one")]
    cables: u32,
    bandwidth: String,
    #[serde(default)]
    latency: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WiringText {
    #[default]
    Mesh,
    Rails,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsText {
    machine: String,
    count: Option<u32>,
    #[serde(default)]
    placed: Vec<Spanned<PlacedText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlacedText {
    id: String,
    nodes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineText {
    name: String,
    smp: Option<WireText>,
    #[serde(default)]
    parts: Vec<Spanned<PartText>>,
    #[serde(default, rename = "gpu-links")]
    gpu_links: Vec<Spanned<GpuLinkText>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireText {
    bandwidth: Option<String>,
    latency: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartText {
    name: String,
    kind: KindText,
    under: Option<String>,
    bandwidth: Option<String>,
    latency: Option<String>,
    network: Option<WireText>,
    pci: Option<String>,
    #[serde(default)]
    nccl: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindText {
    Numa,
    HostBridge,
    PcieSwitch,
    Gpu,
    Nvswitch,
    Nic,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuLinkText {
    between: [String; 2],
    #[serde(default = "one")]
    links: u32,
    bandwidth: String,
    latency: Option<String>,
    #[serde(default)]
    kind: GpuLinkKindText,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GpuLinkKindText {
    #[default]
    Nvlink,
    Xgmi,
}

const fn one() -> u32 {
    1
}

/// Parses a topology; `file` names it in errors.
///
/// # Errors
///
/// When the text is invalid; the error names the file and the line.
pub fn parse(file: &str, text: &str) -> Result<Topology, String> {
    let read: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(String::new(), |span| format!(":{}", line(text, span.start)));
        format!("{file}{at}: {}", error.message().replace('\n', "; "))
    })?;
    let at = |byte: usize, problem: String| format!("{file}:{}: {problem}", line(text, byte));
    let (topology, spans) = topology(&read).map_err(|(byte, problem)| at(byte, problem))?;
    topology.check().map_err(|error| at(spans.of(error.at), error.problem.clone()))?;
    Ok(topology)
}

/// Byte offsets of the descriptions in the text.
#[derive(Default)]
struct Spans {
    /// Offsets for each machine: of the machine itself, of its parts, and of its links.
    machines: Vec<(usize, Vec<usize>, Vec<usize>)>,
    hosts: Vec<usize>,
    placed: Vec<usize>,
    fabric: usize,
    tiers: Vec<usize>,
}

impl Spans {
    fn of(&self, at: At) -> usize {
        let machine = |number: usize| self.machines.get(number);
        let found = match at {
            At::Whole => Some(0),
            At::Machine(number) => machine(number).map(|spans| spans.0),
            At::Part(number, part) => machine(number).and_then(|spans| spans.1.get(part).copied()),
            At::GpuLink(number, link) => {
                machine(number).and_then(|spans| spans.2.get(link).copied())
            }
            At::Hosts(run) => self.hosts.get(run).copied(),
            At::Placed(host) => self.placed.get(host).copied(),
            At::Fabric => Some(self.fabric),
            At::Tier(tier) => self.tiers.get(tier).copied(),
        };
        found.unwrap_or(0)
    }
}

/// Byte offset and description of a problem.
type Problem = (usize, String);

fn topology(read: &File) -> Result<(Topology, Spans), Problem> {
    let mut spans = Spans::default();
    let mut machines = Vec::new();
    for described in &read.machine {
        let text = described.get_ref();
        machines.push(machine(described)?);
        let starts = |start: &mut dyn Iterator<Item = usize>| start.collect();
        spans.machines.push((
            described.span().start,
            starts(&mut text.parts.iter().map(|part| part.span().start)),
            starts(&mut text.gpu_links.iter().map(|link| link.span().start)),
        ));
    }
    let (mut hosts, mut places) = (Vec::new(), Vec::new());
    for run in &read.hosts {
        let (start, HostsText { machine, count, placed }) = (run.span().start, run.get_ref());
        spans.hosts.push(start);
        let told = u32::try_from(placed.len()).unwrap_or(u32::MAX);
        let count = count.unwrap_or(told.max(1));
        if told != 0 && told != count {
            let problem =
                format!("count is {count}, but placed has length {told}; list all hosts, or none");
            return Err((start, problem));
        }
        spans.placed.extend(placed.iter().map(|placed| placed.span().start));
        let placed = placed.iter().map(Spanned::get_ref);
        places.extend(
            placed.map(|PlacedText { id, nodes }| Placed { id: id.clone(), nodes: nodes.clone() }),
        );
        hosts.push(HostRun { machine: kind(&mut machines, machine, start)?, count });
    }
    let fabric = match &read.fabric {
        None => Fabric::default(),
        Some(described) => {
            spans.fabric = described.span().start;
            spans.tiers = described.get_ref().tier.iter().map(|tier| tier.span().start).collect();
            fabric(described.get_ref(), &machines)?
        }
    };
    Ok((Topology { name: read.name.clone(), machines, hosts, fabric, placed: places }, spans))
}

/// Returns the index of the machine with this name in `machines`. Adds the preset of that name if
/// `machines` has none.
fn kind(machines: &mut Vec<Machine>, name: &str, start: usize) -> Result<usize, Problem> {
    if let Some(number) = machines.iter().position(|machine| machine.name == name) {
        return Ok(number);
    }
    let known = presets::machine(name).ok_or_else(|| {
        let known = "a100 h100 h200 b200 nvl72 mi300x p5";
        (start, format!("no [[machine]] is called \"{name}\"; built-in machines: {known}"))
    })?;
    machines.push(known);
    Ok(machines.len() - 1)
}

fn fabric(text: &FabricText, machines: &[Machine]) -> Result<Fabric, Problem> {
    let nics = machines.first().map_or(0, |machine| machine.of(Kind::Nic).count());
    let nics = text.nics.unwrap_or(u32::try_from(nics).unwrap_or(u32::MAX));
    let tiers = text.tier.iter().map(|tier| {
        let (start, tier) = (tier.span().start, tier.get_ref());
        let speed = speed(start, Some(&tier.bandwidth), tier.latency.as_deref())?;
        Ok(Tier {
            name: tier.name.clone(),
            group: tier.group.clone(),
            children: tier.children,
            switches: tier.switches,
            wiring: match tier.wiring {
                WiringText::Mesh => Wiring::Mesh,
                WiringText::Rails => Wiring::Rails,
            },
            cables: tier.cables,
            bytes_per_s: speed.bytes_per_s,
            latency_ns: speed.latency_ns,
        })
    });
    Ok(Fabric { nics, tiers: tiers.collect::<Result<_, Problem>>()? })
}

fn speed(
    start: usize,
    bandwidth: Option<&str>,
    latency: Option<&str>,
) -> Result<LinkSpeed, Problem> {
    let read = |text: Option<&str>, unit, default: f64| match text {
        None => Ok(default),
        Some(text) => quantity::parse(text, unit).map_err(|problem| (start, problem)),
    };
    let bytes_per_s = read(bandwidth, Unit::BytesPerSecond, f64::INFINITY)?;
    // Rounds to a millionth of a nanosecond. Without the rounding, a latency in ns could change a
    // little in the conversion to seconds and back.
    let latency_ns = (read(latency, Unit::Seconds, 0.0)? * 1e15).round() / 1e6;
    Ok(LinkSpeed { bytes_per_s, latency_ns })
}

fn machine(described: &Spanned<MachineText>) -> Result<Machine, Problem> {
    let (start, text) = (described.span().start, described.get_ref());
    let names = text.parts.iter().enumerate().rev();
    let numbers: BTreeMap<&str, usize> =
        names.map(|(number, part)| (part.get_ref().name.as_str(), number)).collect();
    let number = |start: usize, name: &str| {
        let found = numbers.get(name).copied();
        let said = &text.name;
        found.ok_or_else(|| (start, format!("no part of machine \"{said}\" is called \"{name}\"")))
    };
    let mut parts = Vec::new();
    for part in &text.parts {
        let (start, part) = (part.span().start, part.get_ref());
        let network = part.network.as_ref();
        let network =
            network.map(|net| speed(start, net.bandwidth.as_deref(), net.latency.as_deref()));
        parts.push(Part {
            name: part.name.clone(),
            kind: part.kind.into(),
            under: part.under.as_ref().map(|name| number(start, name)).transpose()?,
            speed: speed(start, part.bandwidth.as_deref(), part.latency.as_deref())?,
            network: network.transpose()?,
            pci: part.pci.clone(),
            nccl: part.nccl.clone(),
        });
    }
    let mut gpu_links = Vec::new();
    for link in &text.gpu_links {
        let (start, link) = (link.span().start, link.get_ref());
        let [one, other] = &link.between;
        gpu_links.push(GpuLink {
            ends: [number(start, one)?, number(start, other)?],
            links: link.links,
            speed: speed(start, Some(&link.bandwidth), link.latency.as_deref())?,
            kind: match link.kind {
                GpuLinkKindText::Nvlink => GpuLinkKind::NvLink,
                GpuLinkKindText::Xgmi => GpuLinkKind::Xgmi,
            },
        });
    }
    let smp = text.smp.as_ref();
    let smp = smp.map(|smp| speed(start, smp.bandwidth.as_deref(), smp.latency.as_deref()));
    let smp = smp.transpose()?.unwrap_or(LinkSpeed::NONE);
    Ok(Machine { name: text.name.clone(), smp, parts, gpu_links })
}

impl From<KindText> for Kind {
    fn from(text: KindText) -> Kind {
        match text {
            KindText::Numa => Kind::Numa,
            KindText::HostBridge => Kind::HostBridge,
            KindText::PcieSwitch => Kind::PcieSwitch,
            KindText::Gpu => Kind::Gpu,
            KindText::Nvswitch => Kind::NvSwitch,
            KindText::Nic => Kind::Nic,
        }
    }
}

/// Returns the name of a kind of part in the text form.
pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Numa => "numa",
        Kind::HostBridge => "host-bridge",
        Kind::PcieSwitch => "pcie-switch",
        Kind::Gpu => "gpu",
        Kind::NvSwitch => "nvswitch",
        Kind::Nic => "nic",
    }
}

/// Returns the text form; [`parse`] reads the same topology from it.
#[must_use]
pub fn write(topology: &Topology) -> String {
    let Topology { name, machines, hosts, fabric, placed } = topology;
    let mut placed = placed.iter();
    let mut text = format!("name = {}\n", quoted(name));
    // Writing to a string does not fail.
    for HostRun { machine, count } in hosts {
        let name = machines.get(*machine).map_or("", |machine| &machine.name);
        let _ = write!(text, "\n[[hosts]]\nmachine = {}\ncount = {count}\n", quoted(name));
        let here: Vec<&Placed> = placed.by_ref().take(*count as usize).collect();
        if !here.is_empty() {
            text.push_str("placed = [\n");
            for Placed { id, nodes } in here {
                let nodes: Vec<String> = nodes.iter().map(|node| quoted(node)).collect();
                let (id, nodes) = (quoted(id), nodes.join(", "));
                let _ = writeln!(text, "    {{ id = {id}, nodes = [{nodes}] }},");
            }
            text.push_str("]\n");
        }
    }
    if !fabric.tiers.is_empty() {
        let _ = write!(text, "\n[fabric]\nnics = {}\n", fabric.nics);
    }
    for tier in &fabric.tiers {
        let wiring = match tier.wiring {
            Wiring::Mesh => "mesh",
            Wiring::Rails => "rails",
        };
        let Tier { name, group, children, switches, cables, .. } = tier;
        let _ = write!(
            text,
            "\n[[fabric.tier]]\nname = {}\ngroup = {}\nchildren = {children}\n\
             switches = {switches}\nwiring = \"{wiring}\"\ncables = {cables}\n",
            quoted(name),
            quoted(group)
        );
        let speed = LinkSpeed { bytes_per_s: tier.bytes_per_s, latency_ns: tier.latency_ns };
        let lines = fields(speed).into_iter().map(|field| field + "\n");
        text.extend(lines);
    }
    for machine in machines {
        write_machine(&mut text, machine);
    }
    text
}

fn write_machine(text: &mut String, machine: &Machine) {
    let Machine { name, smp, parts, gpu_links } = machine;
    let _ = write!(text, "\n[[machine]]\nname = {}\n", quoted(name));
    if *smp != LinkSpeed::NONE {
        let _ = writeln!(text, "smp = {{ {} }}", fields(*smp).join(", "));
    }
    let named = |part: usize| quoted(parts.get(part).map_or("", |part| &part.name));
    text.push_str("parts = [\n");
    for part in parts {
        let mut said = vec![
            format!("name = {}", quoted(&part.name)),
            format!("kind = \"{}\"", kind_name(part.kind)),
        ];
        said.extend(part.under.map(|under| format!("under = {}", named(under))));
        said.extend(fields(part.speed));
        let network = |speed| format!("network = {{ {} }}", fields(speed).join(", "));
        said.extend(part.network.map(network));
        said.extend(part.pci.as_ref().map(|pci| format!("pci = {}", quoted(pci))));
        let facts =
            part.nccl.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value)));
        let facts: Vec<String> = facts.collect();
        if !facts.is_empty() {
            said.push(format!("nccl = {{ {} }}", facts.join(", ")));
        }
        let _ = writeln!(text, "    {{ {} }},", said.join(", "));
    }
    text.push_str("]\n");
    if gpu_links.is_empty() {
        return;
    }
    text.push_str("gpu-links = [\n");
    for GpuLink { ends: [one, other], links, speed, kind } in gpu_links {
        let mut said = vec![
            format!("between = [{}, {}]", named(*one), named(*other)),
            format!("links = {links}"),
        ];
        said.extend(fields(*speed));
        if *kind == GpuLinkKind::Xgmi {
            said.push("kind = \"xgmi\"".to_owned());
        }
        let _ = writeln!(text, "    {{ {} }},", said.join(", "));
    }
    text.push_str("]\n");
}

/// Formats a string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Returns the known values of a speed, as fields of TOML.
fn fields(speed: LinkSpeed) -> Vec<String> {
    let LinkSpeed { bytes_per_s, latency_ns } = speed;
    let mut fields = Vec::new();
    if bytes_per_s.is_finite() {
        fields.push(format!(
            "bandwidth = \"{}\"",
            exactly(bytes_per_s, &[("GB/s", 1e9), ("Gb/s", 0.125e9)], "B/s")
        ));
    }
    if latency_ns != 0.0 {
        fields.push(format!("latency = \"{latency_ns}ns\""));
    }
    fields
}

/// Formats a value in the first of `units` in which its text is short and reads back as the same
/// number; if there is no such unit, in the unit `plain`.
fn exactly(value: f64, units: &[(&str, f64)], plain: &str) -> String {
    let written = |(unit, factor): &(&str, f64)| {
        let scaled = value / factor;
        let text = format!("{scaled}{unit}");
        (scaled * factor == value && text.len() <= 12).then_some(text)
    };
    units.iter().find_map(written).unwrap_or_else(|| format!("{value}{plain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_topology_reads_back_unchanged() {
        for preset in presets::ALL {
            let topology = preset.topology();
            let text = write(&topology);
            assert_eq!(parse("it.toml", &text).unwrap(), topology, "{}", preset.name);
        }
        let mut odd = presets::find("superpod-256").unwrap().topology();
        odd.name = "\"quoted\" \\ é".to_owned();
        odd.fabric.tiers[0].bytes_per_s = 1.0 / 3.0 * 1e11;
        odd.fabric.tiers[0].latency_ns = 0.1 + 0.2;
        odd.machines[0].parts[1].nccl.insert("gpu.sm".to_owned(), "90".to_owned());
        odd.machines[0].parts[1].pci = Some("0000:17:00.0".to_owned());
        odd.fabric.tiers[0].latency_ns = 0.3;
        let place = |host: u32| Placed {
            id: format!("i-{host}"),
            nodes: vec!["spine".to_owned(), "\"leaf\"".to_owned()],
        };
        odd.placed = (0..odd.hosts()).map(place).collect();
        assert_eq!(parse("it.toml", &write(&odd)).unwrap(), odd);
    }

    #[test]
    fn a_cluster_is_described_in_a_few_lines() {
        let text = "
            name = \"lab\"
            [[hosts]]
            machine = \"h100\"
            count = 4
            [[hosts]]
            machine = \"a100\"
            [fabric]
            [[fabric.tier]]
            name = \"leaf\"
            children = 5
            wiring = \"rails\"
            switches = 8
            bandwidth = \"400Gb/s\"
            latency = \"0.5us\"";
        let lab = parse("lab.toml", text).unwrap();
        assert_eq!((lab.hosts(), lab.gpus(), lab.fabric.nics), (5, 40, 8));
        assert_eq!(
            (lab.fabric.tiers[0].bytes_per_s, lab.fabric.tiers[0].latency_ns),
            (50e9, 500.0)
        );
        assert_eq!(lab.machine(4).map(|machine| machine.name.as_str()), Some("a100"));
    }

    /// Returns the text of a small machine with these parts and links; `more` has further lines of
    /// `[[hosts]]`.
    fn machine(parts: &str, links: &str, more: &str) -> String {
        format!(
            "[[hosts]]\nmachine = \"m\"\n{more}[[machine]]\nname = \"m\"\nparts = [\n\
             {{ name = \"n\", kind = \"numa\" }},\n{parts}]\ngpu-links = [\n{links}]\n"
        )
    }

    #[test]
    fn an_error_in_a_text_is_reported_with_its_line() {
        let part = |text: &str| machine(text, "", "");
        let gpus = "{ name = \"a\", kind = \"gpu\", under = \"n\" },\n\
                    { name = \"b\", kind = \"gpu\", under = \"n\" },\n";
        let link = |text: &str| machine(gpus, text, "");
        let hosts = |text: &str| machine("", "", text);
        for (text, words) in [
            (String::new(), "it.toml:1: there is no host"),
            ("nam = \"x\"".to_owned(), "it.toml:1: unknown field `nam`"),
            ("name = ".to_owned(), "it.toml:1: "),
            ("[[hosts]]\nmachine = \"x100\"".to_owned(), "it.toml:1: no [[machine]] is called"),
            (hosts("count = 0\n"), "it.toml:1: there are 0 of these hosts"),
            (hosts("count = 99999999\n"), "it.toml:1: 99999999 hosts are more than"),
            (hosts("count = -1\n"), "it.toml:3: "),
            (
                hosts("count = 2\nplaced = [\n{ id = \"a\", nodes = [\"l\"] },\n]\n"),
                "it.toml:1: count is 2, but placed has length 1",
            ),
            (
                hosts(
                    "placed = [\n{ id = \"a\", nodes = [\"t\", \"l\"] },\n\
                     { id = \"b\", nodes = [\"l\"] },\n]\n",
                ),
                "it.toml:5: the entry of \"b\" lists nothing above node \"l\", but",
            ),
            (part("{ name = \"n\", kind = \"gpu\", under = \"n\" }"), "it.toml:7: a second part"),
            (part("{ name = \"g\", kind = \"gpu\" }"), "it.toml:7: \"g\" is under nothing"),
            (part("{ name = \"g\", kind = \"tpu\" }"), "it.toml:7: unknown variant `tpu`"),
            (
                part("{ name = \"g\", kind = \"gpu\", under = \"x\" }"),
                "it.toml:7: no part of machine \"m\" is called \"x\"",
            ),
            (
                part(
                    "{ name = \"s\", kind = \"pcie-switch\", under = \"t\" },\n\
                     { name = \"t\", kind = \"pcie-switch\", under = \"s\" }",
                ),
                "it.toml:7: \"s\" is under itself",
            ),
            (
                part("{ name = \"g\", kind = \"gpu\", under = \"n\", bandwidth = \"0\" }"),
                "it.toml:7: a bandwidth of 0 B/s carries nothing",
            ),
            (
                part("{ name = \"g\", kind = \"gpu\", under = \"n\", bandwidth = \"4 parsec\" }"),
                "it.toml:7: \"4 parsec\" is not a valid quantity",
            ),
            (
                part("{ name = \"g\", kind = \"gpu\", under = \"n\", latency = \"-3ns\" }"),
                "it.toml:7: a latency of -3 ns is impossible",
            ),
            (
                part("{ name = \"m\", kind = \"numa\", under = \"n\" }"),
                "\"m\" cannot be under \"n\"",
            ),
            (link("{ between = [\"a\", \"c\"], bandwidth = \"1GB/s\" }"), "is called \"c\""),
            (link("{ between = [\"a\", \"a\"], bandwidth = \"1GB/s\" }"), "cannot be linked"),
            (link("{ between = [\"a\", \"n\"], bandwidth = \"1GB/s\" }"), "cannot be linked"),
            (
                link(
                    "{ between = [\"a\", \"b\"], bandwidth = \"1GB/s\" },\n\
                     { between = [\"b\", \"a\"], bandwidth = \"2GB/s\" }",
                ),
                "it.toml:12: \"b\" and \"a\" are joined twice",
            ),
        ] {
            let error = parse("it.toml", &text).unwrap_err();
            assert!(error.contains(words), "{text}\n{error}");
        }
    }

    #[test]
    fn invalid_networks_are_reported_with_their_line() {
        let pod = write(&presets::find("superpod-256").unwrap().topology());
        for (from, to, words) in [
            ("children = 32", "children = 16", "joins at most 16 (the product"),
            ("children = 32", "children = 0", "children = 0"),
            ("cables = 8", "cables = 0", "cables = 0"),
            ("nics = 8", "nics = 9", "9 NICs of each host are on the network"),
            ("nics = 8", "nics = 0", "0 NICs of each host are on the network"),
            ("bandwidth = \"50GB/s\"", "bandwidth = \"0\"", "carries nothing"),
            ("wiring = \"rails\"", "wiring = \"rail\"", "unknown variant `rail`"),
        ] {
            let text = pod.replacen(from, to, 1);
            assert_ne!(text, pod);
            let error = parse("it.toml", &text).unwrap_err();
            assert!(error.contains(words), "{error}");
            assert!(!error.starts_with("it.toml:1:"), "{error}");
        }
    }

    #[test]
    fn a_damaged_text_is_read_or_refused_without_a_panic() {
        let pod = write(&presets::find("p5").unwrap().topology());
        // A text that is cut off or has one changed letter gives an error or a topology, no panic.
        let share = if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 1 } else { 7 };
        for cut in (0..pod.len()).step_by(7 * share).filter(|cut| pod.is_char_boundary(*cut)) {
            let _ = parse("it.toml", &pod[..cut]);
        }
        for at in (0..1200).step_by(share).filter(|at| pod.is_char_boundary(*at)) {
            for letter in ["9", "\"", "-", "[", "="] {
                let mut text = pod.clone();
                text.replace_range(at..=at, letter);
                let _ = parse("it.toml", &text);
            }
        }
    }
}
