//! Drawings of a topology: SVG, Graphviz, Mermaid. All three draw the tree ([`super::tree()`]) and
//! the links of accelerators.

use std::fmt::Write as _;

use crate::topology::Topology;
use ccl_core::topology::machine::Kind;

use super::nccl::escaped;
use super::tree::{Item, Sort, items};

/// Box of a drawing, with the number of its parent.
struct Node<'i> {
    item: &'i Item,
    above: Option<usize>,
    depth: usize,
    /// Number of the entry of [`Topology::hosts`] that the box belongs to, counted from 1. An entry
    /// stands for one or more equal hosts.
    host: usize,
}

/// Collects all boxes, each after its parent.
fn nodes<'i>(
    item: &'i Item,
    above: Option<usize>,
    (depth, host): (usize, &mut usize),
    into: &mut Vec<Node<'i>>,
) {
    let number = into.len();
    if let Some(run) = item.run {
        *host = run + 1;
    }
    into.push(Node { item, above, depth, host: *host });
    for child in &item.children {
        nodes(child, Some(number), (depth + 1, host), into);
    }
}

/// Returns each linked pair of boxes (two accelerators, or an accelerator and a switch): the
/// numbers of both boxes, and the count of links.
fn links(topology: &Topology, nodes: &[Node<'_>]) -> Vec<(usize, usize, u32)> {
    let mut found = Vec::new();
    let machines = topology.hosts.iter().map(|run| topology.machines.get(run.machine));
    for (number, machine) in machines.enumerate() {
        let Some(machine) = machine else { continue };
        let of = |part: usize| {
            nodes.iter().position(|node| node.host == number + 1 && node.item.part == Some(part))
        };
        for link in &machine.gpu_links {
            if let (Some(one), Some(other)) = (of(link.ends[0]), of(link.ends[1])) {
                found.push((one, other, link.links));
            }
        }
    }
    found
}

fn colour(sort: Sort) -> &'static str {
    match sort {
        Sort::Group => "#d6e6f5",
        Sort::Host | Sort::Placed => "#f2f2f2",
        Sort::More => "#ffffff",
        Sort::Part(Kind::Numa) => "#e8e3f3",
        Sort::Part(Kind::HostBridge | Kind::PcieSwitch) => "#fdf1d8",
        Sort::Part(Kind::Gpu) => "#d9efdb",
        Sort::Part(Kind::NvSwitch) => "#bfe0c4",
        Sort::Part(Kind::Nic) => "#f8dcd3",
    }
}

fn drawn<R>(topology: &Topology, draw: impl FnOnce(&[Node<'_>], &[(usize, usize, u32)]) -> R) -> R {
    let root = items(topology);
    let mut all = Vec::new();
    nodes(&root, None, (0, &mut 0), &mut all);
    let links = links(topology, &all);
    draw(&all, &links)
}

/// Draws a topology for Graphviz' `dot`.
#[must_use]
pub fn dot(topology: &Topology) -> String {
    drawn(topology, |nodes, links| {
        let mut text =
            "graph topology {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", \
                        fontname=\"Helvetica\", fontsize=11];\n"
                .to_owned();
        for (number, Node { item, above, .. }) in nodes.iter().enumerate() {
            let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
            let (name, detail) = (escape(&item.name), escape(&item.detail));
            let label = if detail.is_empty() { name } else { format!("{name}\\n{detail}") };
            let fill = colour(item.sort);
            let _ = writeln!(text, "  n{number} [label=\"{label}\", fillcolor=\"{fill}\"];");
            if let Some(above) = above {
                let _ = writeln!(text, "  n{above} -- n{number};");
            }
        }
        for (one, other, count) in links {
            let _ = writeln!(
                text,
                "  n{one} -- n{other} [color=\"#2e8b3d\", constraint=false, label=\"{count}\"];"
            );
        }
        text + "}\n"
    })
}

/// Draws a topology in Mermaid's language, which GitHub shows as a drawing.
#[must_use]
pub fn mermaid(topology: &Topology) -> String {
    drawn(topology, |nodes, links| {
        let mut text = "graph TD\n".to_owned();
        for (number, Node { item, above, .. }) in nodes.iter().enumerate() {
            let escape = |text: &str| text.replace('#', "#35;").replace('"', "#quot;");
            let (name, detail) = (escape(&item.name), escape(&item.detail));
            let label = if detail.is_empty() { name } else { format!("{name}<br/>{detail}") };
            let _ = writeln!(text, "  n{number}[\"{label}\"]");
            if let Some(above) = above {
                let _ = writeln!(text, "  n{above} --- n{number}");
            }
        }
        for (one, other, count) in links {
            let _ = writeln!(text, "  n{one} -. \"{count}\" .- n{other}");
        }
        for (number, node) in nodes.iter().enumerate() {
            let _ = writeln!(text, "  style n{number} fill:{}", colour(node.item.sort));
        }
        text
    })
}

const BOX_WIDTH: f64 = 128.0;
const BOX_HEIGHT: f64 = 60.0;
const GAP: f64 = 12.0;
const ROW: f64 = 96.0;
const MARGIN: f64 = 20.0;
/// Approximate number of letters that fit into a line of a box.
const LETTERS: usize = 24;
/// Largest number of lines below the name of a box.
const LINES: usize = 3;

/// Draws a topology as SVG: the tree, and below it the links of accelerators.
#[must_use]
pub fn svg(topology: &Topology) -> String {
    drawn(topology, |nodes, links| {
        let places = places(nodes);
        // Links between two accelerators are drawn as curves below their row.
        let bend = |one: usize, other: usize| 40.0 + (places[one].0 - places[other].0).abs() / 8.0;
        let lowest = |reach: f64, (one, other): (usize, usize)| {
            let y = places[one].1.max(places[other].1) + BOX_HEIGHT;
            reach.max(y + if is_switch(nodes, other) { 0.0 } else { bend(one, other) / 2.0 })
        };
        let right = places.iter().map(|place| place.0).fold(0.0, f64::max);
        let bottom = places.iter().map(|place| place.1 + BOX_HEIGHT).fold(0.0, f64::max);
        let bottom = links.iter().map(|(one, other, _)| (*one, *other)).fold(bottom, lowest);
        let (width, height) = (right + BOX_WIDTH / 2.0 + MARGIN, bottom + MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" \
             font-size=\"12\" fill=\"#1a1a1a\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        for (number, node) in nodes.iter().enumerate() {
            if let Some(above) = node.above.filter(|_| !is_switch(nodes, number)) {
                let ((from_x, from), (x, y)) = (places[above], places[number]);
                let (from, half) = (from + BOX_HEIGHT, (ROW - BOX_HEIGHT) / 2.0);
                let _ = writeln!(
                    svg,
                    "<path d=\"M{from_x} {from} v{half} H{x} V{y}\" fill=\"none\" \
                     stroke=\"#8a8a8a\"/>"
                );
            }
        }
        for (one, other, count) in links {
            let ((x, y), (to_x, to_y)) = (places[*one], places[*other]);
            let way = match is_switch(nodes, *other) {
                true => format!("M{x} {} L{to_x} {to_y}", y + BOX_HEIGHT),
                false => {
                    let (middle, base) = (f64::midpoint(x, to_x), y.max(to_y) + BOX_HEIGHT);
                    let low = base + bend(*one, *other);
                    format!("M{x} {base} Q{middle} {low} {to_x} {base}")
                }
            };
            let _ = writeln!(
                svg,
                "<path d=\"{way}\" fill=\"none\" stroke=\"#2e8b3d\" stroke-opacity=\"0.5\" \
                 stroke-width=\"{}\"/>",
                1.0 + f64::from(*count).min(18.0) / 6.0
            );
        }
        for (node, place) in nodes.iter().zip(&places) {
            shape(&mut svg, node.item, *place);
        }
        svg + "</svg>\n"
    })
}

fn is_switch(nodes: &[Node<'_>], number: usize) -> bool {
    nodes[number].item.sort == Sort::Part(Kind::NvSwitch)
}

/// Draws a box with its name and details; its tooltip has both in full.
fn shape(svg: &mut String, item: &Item, (centre, top): (f64, f64)) {
    let Item { name, detail, sort, .. } = item;
    let dash = if *sort == Sort::More { " stroke-dasharray=\"4 3\"" } else { "" };
    let _ = writeln!(
        svg,
        "<g><title>{}</title><rect x=\"{}\" y=\"{top}\" width=\"{BOX_WIDTH}\" \
         height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"{}\" stroke=\"#6b6b6b\"{dash}/>",
        escaped(format!("{name} {detail}").trim_end()),
        centre - BOX_WIDTH / 2.0,
        colour(*sort)
    );
    let details = detail.split(", ").filter(|line| !line.is_empty()).take(LINES);
    let lines: Vec<&str> = [name.as_str()].into_iter().chain(details).collect();
    let first = top + BOX_HEIGHT / 2.0 + 4.0 - 6.5 * (lines.len() - 1) as f64;
    for (row, line) in lines.iter().enumerate() {
        let text = match line.chars().count() > LETTERS {
            true => line.chars().take(LETTERS - 1).collect::<String>() + "…",
            false => (*line).to_owned(),
        };
        let (weight, size) = if row == 0 { ("bold", 12) } else { ("normal", 10) };
        let _ = writeln!(
            svg,
            "<text x=\"{centre}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"{weight}\" \
             font-size=\"{size}\">{}</text>",
            first + 13.0 * row as f64,
            escaped(&text)
        );
    }
    svg.push_str("</g>\n");
}

/// Returns the horizontal middle and the top of each box. Leaves are side by side, other boxes
/// above the middle of their children. NVSwitches are in the lowest row, centred below their host.
fn places(nodes: &[Node<'_>]) -> Vec<(f64, f64)> {
    let depth = nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    let top = |depth: usize| MARGIN + depth as f64 * ROW;
    let mut places: Vec<(f64, f64)> = nodes.iter().map(|node| (0.0, top(node.depth))).collect();
    let step = BOX_WIDTH + GAP;
    let mut next = MARGIN + BOX_WIDTH / 2.0;
    for (number, node) in nodes.iter().enumerate() {
        if node.item.children.is_empty() && !is_switch(nodes, number) {
            places[number].0 = next;
            next += step;
        }
    }
    // The children of a box come after it, so the loop goes from the last box to the first.
    for number in (0..nodes.len()).rev() {
        let hangs = |at: &usize| nodes[*at].above == Some(number) && !is_switch(nodes, *at);
        let hangs: Vec<usize> = (number..nodes.len()).filter(hangs).collect();
        if let (Some(first), Some(last)) = (hangs.first(), hangs.last()) {
            places[number].0 = f64::midpoint(places[*first].0, places[*last].0);
        }
    }
    for host in 0..=nodes.iter().map(|node| node.host).max().unwrap_or(0) {
        let here = |at: &usize| nodes[*at].host == host && is_switch(nodes, *at);
        let switches: Vec<usize> = (0..nodes.len()).filter(here).collect();
        let Some(above) = switches.first().and_then(|first| nodes[*first].above) else { continue };
        let left = places[above].0 - step * (switches.len() - 1) as f64 / 2.0;
        for (number, switch) in switches.into_iter().enumerate() {
            places[switch] = (left + step * number as f64, top(depth + 2));
        }
    }
    places
}
