//! A topology as a tree, top down. It shows one of several equal items, and the number of the
//! others.

use std::collections::BTreeMap;

use crate::topology::fabric::{Fabric, Tier};
use crate::topology::{HostRun, Topology};
use ccl_core::topology::machine::{GpuLinkKind, Kind, LinkSpeed, Machine};

use crate::quantity::{self, Unit};

/// Kind of an item, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Group of a tier of switches, or a node of a provider's network.
    Group,
    Host,
    /// Host that is shown without its parts.
    Placed,
    Part(Kind),
    /// Number of further items like the previous one.
    More,
}

/// An item of the tree.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: String,
    /// Speed and similar details; may be empty.
    pub(super) detail: String,
    pub(super) sort: Sort,
    /// Index of the part in its machine, if the item is a part.
    pub(super) part: Option<usize>,
    /// Index of the run of equal hosts ([`HostRun`]), if the item is the first host of a run.
    pub(super) run: Option<usize>,
    pub(super) children: Vec<Item>,
}

impl Item {
    fn new(name: String, detail: String, sort: Sort) -> Item {
        Item { name, detail, sort, part: None, run: None, children: Vec::new() }
    }
}

/// Returns the tree as text.
#[must_use]
pub fn tree(topology: &Topology) -> String {
    let mut text = String::new();
    let root = items(topology);
    text += &line(&root);
    below(&mut text, &root, "");
    text
}

fn line(item: &Item) -> String {
    match item.detail.is_empty() {
        true => format!("{}\n", item.name),
        false => format!("{}  {}\n", item.name, item.detail),
    }
}

fn below(text: &mut String, item: &Item, indent: &str) {
    for (number, child) in item.children.iter().enumerate() {
        let is_last = number + 1 == item.children.len();
        let (branch, further) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        *text += &format!("{indent}{branch}{}", line(child));
        below(text, child, &format!("{indent}{further}"));
    }
}

pub(super) fn rate(bytes_per_s: f64) -> String {
    quantity::show(bytes_per_s, Unit::BytesPerSecond)
}

/// Returns the whole tree, from the switches at the top down to the parts of the first host of each
/// run.
pub(super) fn items(topology: &Topology) -> Item {
    let (hosts, gpus) = (topology.hosts(), topology.gpus());
    let mut detail = vec![counted(u64::from(hosts), "host")];
    if gpus > 0 {
        detail.push(counted(gpus, "GPU"));
    }
    detail.extend(switches(topology));
    let mut root = Item::new(topology.name.clone(), detail.join(", "), Sort::Host);
    root.children = match topology.fabric.tiers.len() {
        _ if !topology.placed.is_empty() => {
            let all: Vec<usize> = (0..topology.placed.len()).collect();
            placed(topology, 0, &all)
        }
        0 => runs(topology),
        tiers => groups(topology, tiers - 1, hosts),
    };
    root
}

/// Lists the switches as text: the number of each kind, and the total. Returns None if the topology
/// has no tiers.
fn switches(topology: &Topology) -> Option<String> {
    let fabric = &topology.fabric;
    let nvswitches = |machine: usize| {
        topology.machines.get(machine).map_or(0, |machine| machine.of(Kind::NvSwitch).count())
    };
    let runs = topology.hosts.iter();
    let own = runs.map(|run| nvswitches(run.machine) as u64 * u64::from(run.count)).sum();
    let mut kinds = vec![(own, "NVSwitch")];
    for (number, tier) in fabric.tiers.iter().enumerate() {
        kinds.push((fabric.switches(number, topology.hosts()), &tier.name));
    }
    kinds.retain(|(count, _)| *count > 0);
    let all: u64 = kinds.iter().map(|(count, _)| count).sum();
    let said = kinds.iter().map(|(count, name)| format!("{count} {name}"));
    let said = said.collect::<Vec<_>>().join(" + ");
    (!fabric.tiers.is_empty()).then(|| format!("{said} = {all} switches"))
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the items of `hosts`, whose first `depth` network nodes, counted from the top, are the
/// same. Hosts are grouped by the next node, and groups are in the order of their first hosts. The
/// first host of each run is shown with its parts.
fn placed(topology: &Topology, depth: usize, hosts: &[usize]) -> Vec<Item> {
    let mut groups: Vec<(Option<&String>, Vec<usize>)> = Vec::new();
    let mut numbers: BTreeMap<&String, usize> = BTreeMap::new();
    for &host in hosts {
        let node = topology.placed[host].nodes.get(depth);
        let number = node.map(|node| *numbers.entry(node).or_insert(groups.len()));
        match number.and_then(|number| groups.get_mut(number)) {
            Some((_, group)) => group.push(host),
            None => groups.push((node, vec![host])),
        }
    }
    let item = |(node, group): (Option<&String>, Vec<usize>)| match node {
        Some(node) => {
            let level = format!("level {}", depth + 1);
            let detail = format!("{level}, {}", counted(group.len() as u64, "host"));
            let mut item = Item::new(node.clone(), detail, Sort::Group);
            item.children = placed(topology, depth + 1, &group);
            item
        }
        None => placed_host(topology, group[0]),
    };
    groups.into_iter().map(item).collect()
}

fn placed_host(topology: &Topology, number: usize) -> Item {
    let (mut first, id) = (0, &topology.placed[number].id);
    for (run, HostRun { machine, count }) in topology.hosts.iter().enumerate() {
        let here = first..first + *count as usize;
        first = here.end;
        let Some(machine) = topology.machines.get(*machine).filter(|_| here.contains(&number))
        else {
            continue;
        };
        if here.start == number {
            let mut item = host(machine, run);
            item.detail = format!("{}, {}", item.name, item.detail);
            item.name.clone_from(id);
            return item;
        }
        return Item::new(id.clone(), machine.name.clone(), Sort::Placed);
    }
    Item::new(id.clone(), String::new(), Sort::Placed)
}

/// Returns the groups of a tier that the first `hosts` hosts need: the first group with its
/// contents, and the number of the others.
fn groups(topology: &Topology, tier: usize, hosts: u32) -> Vec<Item> {
    let fabric = &topology.fabric;
    let Tier { name, group, .. } = &fabric.tiers[tier];
    let title = if group.is_empty() { name } else { group };
    let switches = u64::from(fabric.tiers[tier].switches);
    let mut detail = format!("{switches} × {name}");
    detail +=
        &format!(", {} to each {}", rate(fabric.upward_bytes_per_s(tier)), child(fabric, tier));
    let over = fabric.oversubscription(tier);
    if over > 1.0 + 1e-9 {
        detail += &format!(", oversubscribed 1:{}", (over * 10.0).round() / 10.0);
    }
    let mut first = Item::new(title.clone(), detail, Sort::Group);
    let count = fabric.groups(tier, hosts);
    let inside = u64::from(hosts).min(fabric.hosts_in_group(tier));
    let inside = u32::try_from(inside).unwrap_or(u32::MAX);
    first.children = match tier.checked_sub(1) {
        None => runs_of(topology, inside),
        Some(lower) => groups(topology, lower, inside),
    };
    let mut all = vec![first];
    all.extend(more(u64::from(count) - 1, title));
    all
}

fn child(fabric: &Fabric, tier: usize) -> &str {
    match tier.checked_sub(1).map(|lower| &fabric.tiers[lower]) {
        None => "host",
        Some(lower) if lower.group.is_empty() => "group",
        Some(lower) => &lower.group,
    }
}

fn more(count: u64, what: &str) -> Option<Item> {
    let name = format!("… {count} more {what}{}", if count == 1 { "" } else { "s" });
    (count > 0).then(|| Item::new(name, String::new(), Sort::More))
}

/// Returns all hosts: the first of each run, and the number of the others.
fn runs(topology: &Topology) -> Vec<Item> {
    runs_of(topology, topology.hosts())
}

/// Returns the first `hosts` hosts, in the same form as `runs`.
fn runs_of(topology: &Topology, hosts: u32) -> Vec<Item> {
    let mut left = hosts;
    let mut items = Vec::new();
    for (number, run) in topology.hosts.iter().enumerate() {
        let here = run.count.min(left);
        left -= here;
        let Some(machine) = topology.machines.get(run.machine).filter(|_| here > 0) else {
            continue;
        };
        items.push(host(machine, number));
        items.extend(more(u64::from(here) - 1, &machine.name));
    }
    items
}

/// Returns the first machine of a run, with its parts.
fn host(machine: &Machine, run: usize) -> Item {
    let count = |kind| machine.of(kind).count() as u64;
    let mut detail = vec![counted(count(Kind::Numa), "NUMA node")];
    for (kind, what) in [(Kind::Gpu, "GPU"), (Kind::Nic, "NIC")] {
        detail.extend((count(kind) > 0).then(|| counted(count(kind), what)));
    }
    let network = machine.network_bytes_per_s();
    if network > 0.0 && network.is_finite() {
        detail.push(format!("{} to the network", rate(network)));
    }
    let mut item = Item::new(machine.name.clone(), detail.join(", "), Sort::Host);
    item.run = Some(run);
    let tops = (0..machine.parts.len()).filter(|part| machine.parts[*part].under.is_none());
    item.children = tops.map(|top| part(machine, top)).collect();
    item
}

fn part(machine: &Machine, number: usize) -> Item {
    let this = &machine.parts[number];
    let mut detail: Vec<String> = known(this.speed).into_iter().collect();
    detail.extend(this.network.and_then(known).map(|rate| format!("network {rate}")));
    detail.extend(own_links(machine, number));
    detail.extend(this.pci.clone().filter(|pci| *pci != this.name));
    let mut item = Item::new(this.name.clone(), detail.join(", "), Sort::Part(this.kind));
    item.part = Some(number);
    let below = (0..machine.parts.len()).filter(|part| machine.parts[*part].under == Some(number));
    item.children = below.map(|below| part(machine, below)).collect();
    item
}

fn known(speed: LinkSpeed) -> Option<String> {
    speed.bytes_per_s.is_finite().then(|| rate(speed.bytes_per_s))
}

/// Describes the links of a GPU or NVSwitch ([`Machine::gpu_links`]): count, type, total bandwidth.
fn own_links(machine: &Machine, gpu: usize) -> Option<String> {
    let mine = || machine.gpu_links.iter().filter(move |link| link.ends.contains(&gpu));
    let links: u32 = mine().map(|link| link.links).sum();
    let all: f64 = mine().map(|link| f64::from(link.links) * link.speed.bytes_per_s).sum();
    let what = match mine().next()?.kind {
        GpuLinkKind::NvLink => "NVLink",
        GpuLinkKind::Xgmi => "XGMI link",
    };
    Some(format!("{} {}", counted(u64::from(links), what), rate(all)))
}
