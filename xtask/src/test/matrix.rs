//! docs/fault-matrix.md: the result of each cell of the fault matrix in the last full run.

use std::collections::BTreeMap;
use std::fs;

use crate::Outcome;
use crate::machine::Provenance;
use crate::report;
use crate::workspace::root;

/// Start of a line in which a test reports the result of a cell. Place, fault, collective, family,
/// algorithm and outcome follow, with bars between them.
const CELL: &str = "CELL: ";
/// Path of the page, relative to the root.
const RECORD: &str = "docs/fault-matrix.md";
const INTRODUCTION: &str = "\
# The fault matrix

Written by `cargo xtask test --full`. Each cell is a job of 4 ranks on 2 hosts that meets the fault
in the middle of its work. Either the job must complete with right data, or every survivor must
return an error within 5 s (15 s over RDMA and libfabric). The error must name a rank that the fault
hit, and all survivors must agree on the last operation that all of them completed (L in the
tables). If a family has no algorithm for a collective, the cell names the algorithm that is used
instead.
";
/// Places where cells run, in the order of the page, with their descriptions.
const PLACES: [(&str, &str); 12] = [
    ("network", "Processes in network namespaces"),
    ("guest", "Processes in a virtual machine, whose links lose, delay and reorder packets"),
    ("rdma", "Over RDMA, between two Soft-RoCE devices in the virtual machine"),
    ("libfabric 2.5 tcp", "Over `tcp` of libfabric 2.5, in network namespaces"),
    ("libfabric 2.5 tcp;ofi_rxm", "Over `tcp;ofi_rxm` of libfabric 2.5, in network namespaces"),
    ("libfabric 1.17 tcp;ofi_rxm", "Over `tcp;ofi_rxm` of libfabric 1.17, in network namespaces"),
    ("libfabric 2.5 shm", "Over `shm` of libfabric 2.5, on one host"),
    ("libfabric 1.17 shm", "Over `shm` of libfabric 1.17, on one host"),
    ("guest libfabric 2.5 tcp", "Over `tcp` of libfabric 2.5, in the virtual machine"),
    (
        "guest libfabric 2.5 tcp;ofi_rxm",
        "Over `tcp;ofi_rxm` of libfabric 2.5, in the virtual machine",
    ),
    (
        "guest libfabric 1.17 tcp;ofi_rxm",
        "Over `tcp;ofi_rxm` of libfabric 1.17, in the virtual machine",
    ),
    ("simulator", "The simulator, each cell under many seeds"),
];

/// Results of cells.
#[derive(Debug, Default)]
pub(crate) struct Cells(Vec<[String; 6]>);

impl Cells {
    /// Adds the result of a cell from a line of output; ignores lines without such a result.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some(cell) = line.strip_prefix(CELL) else { return };
        let words: Vec<String> = cell.splitn(6, " | ").map(str::to_owned).collect();
        self.0.extend(<[String; 6]>::try_from(words));
    }

    /// Writes the page; places without results keep their old text.
    pub(crate) fn record(&self) -> Outcome {
        if self.0.is_empty() {
            return Ok(());
        }
        let path = root().join(RECORD);
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, self.page(&before, &Provenance::now().sentence()))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        println!("recorded in {RECORD}");
        let is_unknown = |at: &&String| PLACES.iter().all(|(place, _)| place != at);
        match self.0.iter().map(|[at, ..]| at).find(is_unknown) {
            Some(at) => Err(format!("{RECORD} has no part for cells of {at:?}")),
            None => Ok(()),
        }
    }

    fn page(&self, before: &str, provenance: &str) -> String {
        let mut page = INTRODUCTION.to_owned();
        for (place, title) in PLACES {
            let heading = format!("\n## {title}\n");
            let table = self.table(place);
            if !table.is_empty() {
                page += &format!("{heading}\n{provenance}.\n\n{table}");
            } else if let Some((_, old)) = before.split_once(&heading) {
                page += &heading;
                page += old.split_once("\n## ").map_or(old, |(old, _)| old);
            }
        }
        page
    }

    /// Returns a table with a row for each pair of fault and collective, and a column for each
    /// family. Rows and columns are in the order of their first results.
    fn table(&self, place: &str) -> String {
        let mut families: Vec<&str> = Vec::new();
        let mut rows: Vec<(&str, &str)> = Vec::new();
        let mut texts: BTreeMap<(&str, &str, &str), String> = BTreeMap::new();
        for cell in &self.0 {
            let [at, fault, collective, family, algorithm, outcome] =
                cell.each_ref().map(String::as_str);
            if at != place {
                continue;
            }
            if !families.contains(&family) {
                families.push(family);
            }
            if !rows.contains(&(fault, collective)) {
                rows.push((fault, collective));
            }
            let text = match algorithm == family {
                true => outcome.to_owned(),
                false => format!("{algorithm}: {outcome}"),
            };
            texts.insert((fault, collective, family), text);
        }
        if rows.is_empty() {
            return String::new();
        }
        let lines: Vec<Vec<String>> = rows
            .iter()
            .map(|(fault, collective)| {
                let text = |family: &&str| texts.get(&(*fault, *collective, *family)).cloned();
                let texts = families.iter().map(|family| text(family).unwrap_or_default());
                [(*fault).to_owned(), (*collective).to_owned()].into_iter().chain(texts).collect()
            })
            .collect();
        report::table(&[&["fault", "collective"], families.as_slice()].concat(), &lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(lines: &[&str]) -> Cells {
        let mut cells = Cells::default();
        lines.iter().for_each(|line| cells.add_line(line));
        cells
    }

    #[test]
    fn a_row_has_all_families_of_a_fault_and_a_collective() {
        let cells = cells(&[
            "CELL: guest | loss | all_to_all | ring | bruck | completes",
            "CELL: guest | loss | all_to_all | direct | direct | completes | and more",
            "CELL: guest | loss | broadcast | ring | ring | completes",
            "test CELL: guest | loss | broadcast | direct | direct | not at the start",
            "CELL: guest | loss | too short",
        ]);
        let page = cells.page("", "now");
        let rows: Vec<String> = page
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(rows[0], "| fault | collective | ring | direct |");
        assert_eq!(
            rows[2..],
            [
                "| loss | all_to_all | bruck: completes | completes | and more |",
                "| loss | broadcast | completes | |"
            ]
        );
    }

    #[test]
    fn a_place_without_new_results_keeps_its_table() {
        let guest = "CELL: guest | loss | broadcast | ring | ring | completes";
        let network = "CELL: network | kill | broadcast | ring | ring | errors";
        let first = cells(&[guest, network]).page("", "yesterday");
        let second = cells(&[network]).page(&first, "today");
        assert_eq!(second, first.replacen("yesterday", "today", 1));
        assert_eq!(cells(&[guest]).page(&second, "yesterday"), second.clone());
    }
}
