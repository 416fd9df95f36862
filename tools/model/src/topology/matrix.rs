//! Class of the path between any two of a host's GPUs and NICs, as `nvidia-smi topo -m` prints it.

use crate::topology::Topology;
use ccl_core::topology::machine::{Class, Kind, LEGEND, Machine};

/// Returns one table for each run of equal hosts, and the legend. A table shows one host; if there
/// are more hosts, one column stands for all ranks on the others.
#[must_use]
pub fn matrix(topology: &Topology) -> String {
    let mut text = String::new();
    for run in &topology.hosts {
        let Some(machine) = topology.machines.get(run.machine) else { continue };
        if topology.machines.len() > 1 {
            text += &format!("{}:\n", machine.name);
        }
        text += &table(machine, topology.hosts() > 1);
        text.push('\n');
    }
    let legend = legend(&text);
    text + &legend
}

/// Returns the part of the legend that a table needs.
fn legend(table: &str) -> String {
    let is_shown = |class: &str| {
        let stem = class.trim_end_matches('#');
        table.split_whitespace().any(|word| {
            word.strip_prefix(stem).is_some_and(|rest| match stem == class {
                true => rest.is_empty(),
                false => !rest.is_empty() && rest.bytes().all(|digit| digit.is_ascii_digit()),
            })
        })
    };
    let shown = LEGEND.iter().filter(|(class, _)| is_shown(class));
    shown.map(|(class, meaning)| format!("{class:<4}  {meaning}\n")).collect()
}

/// Returns the table of a machine. Its rows and columns are the GPUs (if there are none, the NUMA
/// nodes), then the NICs. `others` adds a column for ranks on other hosts; the last column has the
/// NUMA nodes.
fn table(machine: &Machine, others: bool) -> String {
    let mut shown = machine.seats();
    shown.extend(machine.of(Kind::Nic));
    let part_name = |part: usize| machine.parts[part].name.clone();
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(shown.iter().map(|part| part_name(*part)));
    rows[0].extend(others.then(|| "others".to_owned()));
    rows[0].push("NUMA".to_owned());
    for from in &shown {
        let mut row = vec![part_name(*from)];
        row.extend(shown.iter().map(|to| machine.path(*from, *to).class.to_string()));
        row.extend(others.then(|| Class::Net.to_string()));
        let node = machine.numa(*from).map(part_name);
        row.push(
            node.map_or_else(|| "?".to_owned(), |name| name.trim_start_matches("numa").to_owned()),
        );
        rows.push(row);
    }
    columns(&rows)
}

/// Formats rows as a table. Each column is as wide as the longest text in it.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
