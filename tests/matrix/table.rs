//! Table of the matrix: the faults, the families of algorithms and the collectives. The simulator's
//! tests use this file, too.

use ccl_core::types::Collective;

/// Start of the lines from which `cargo xtask test` writes docs/fault-matrix.md.
pub(crate) const CELL: &str = "CELL: ";
/// Start of the outcome text of a cell that went wrong.
pub(crate) const WRONG: &str = "WRONG: ";

/// Fault that a job meets while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    LongStop,
    ShortStop,
    LongCut,
    ShortCut,
    Broken,
    FullSendBuffer,
    Stranger,
    HalfOpen,
    SlowReader,
    Loss,
    Delay,
    Reordering,
}

impl Fault {
    pub(crate) const ALL: [Fault; 13] = [
        Fault::Kill,
        Fault::LongStop,
        Fault::ShortStop,
        Fault::LongCut,
        Fault::ShortCut,
        Fault::Broken,
        Fault::FullSendBuffer,
        Fault::Stranger,
        Fault::HalfOpen,
        Fault::SlowReader,
        Fault::Loss,
        Fault::Delay,
        Fault::Reordering,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9",
            Fault::LongStop => "stopped for longer than the deadline",
            Fault::ShortStop => "stopped for a moment",
            Fault::LongCut => "link down for longer than the deadline",
            Fault::ShortCut => "link down for a moment",
            Fault::Broken => "data connections reset",
            Fault::FullSendBuffer => "full send buffer",
            Fault::Stranger => "strangers with random bytes",
            Fault::HalfOpen => "half-open connections",
            Fault::SlowReader => "slow reader",
            Fault::Loss => "1 % loss",
            Fault::Delay => "50 ms delay",
            Fault::Reordering => "reordering",
        }
    }
}

/// Family of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Ring,
    Tree,
    Direct,
    Hierarchical,
}

impl Family {
    pub(crate) const ALL: [Family; 4] =
        [Family::Ring, Family::Tree, Family::Direct, Family::Hierarchical];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::Ring => "ring",
            Family::Tree => "tree",
            Family::Direct => "direct",
            Family::Hierarchical => "hierarchical",
        }
    }
}

pub(crate) const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::AllToAll, Collective::Broadcast];

/// Cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) fault: Fault,
    pub(crate) family: Family,
    pub(crate) collective: Collective,
}

impl Cell {
    pub(crate) fn all() -> Vec<Cell> {
        let mut all = Vec::new();
        for fault in Fault::ALL {
            for collective in COLLECTIVES {
                all.extend(Family::ALL.map(|family| Cell { fault, family, collective }));
            }
        }
        all
    }

    /// Returns the family's algorithm for the collective, or the closest one. An all_to_all has
    /// neither ring nor tree, because it reduces nothing and broadcasts nothing. Bruck's algorithm
    /// stands for both: rank r sends to the ranks r + 1, r + 2, r + 4, … around the ring, and takes
    /// as many steps as a tree has levels.
    pub(crate) fn algorithm(&self) -> &'static str {
        match (self.collective, self.family) {
            (Collective::AllToAll, Family::Ring | Family::Tree) => "bruck",
            (Collective::AllReduce, Family::Tree) => "double_tree",
            (_, family) => family.name(),
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("{} | {} | {}", self.fault.name(), self.collective, self.family.name())
    }
}

/// Checks that a part of the documentation page has all cells of these faults, none of them wrong.
#[track_caller]
pub(crate) fn assert_page(page: &str, faults: &[Fault]) {
    assert!(!page.contains(WRONG.trim()));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = page.lines().map(words).collect();
    let families = Family::ALL.map(Family::name).join(" | ");
    let head = format!("| fault | collective | {families} |");
    assert!(rows.contains(&head), "the page has no row {head}");
    for (fault, collective) in faults.iter().flat_map(|f| COLLECTIVES.map(|c| (f, c))) {
        let start = format!("| {} | {collective} | ", fault.name());
        let row = rows.iter().find_map(|row| row.strip_prefix(&start));
        let row = row.unwrap_or_else(|| panic!("no row starts with {start}"));
        let cells: Vec<&str> = row.trim_end_matches('|').split(" | ").collect();
        assert!(cells.len() == Family::ALL.len(), "wrong number of cells: {row}");
        assert!(cells.iter().all(|cell| !cell.trim().is_empty()), "empty cell: {row}");
    }
}

#[test]
fn every_cell_has_its_algorithm() {
    for cell in Cell::all() {
        ccl_core::algorithm::find(cell.collective, cell.algorithm()).unwrap();
    }
}
