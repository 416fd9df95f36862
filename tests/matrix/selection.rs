//! Selection of the cells that run when there is no time for all of them.

use super::{COLLECTIVES, Cell, Family, Fault};

/// Two of the three coordinates of a cell.
type Pair = (Option<Fault>, Option<Family>, Option<ccl_core::types::Collective>);

fn pairs(cell: &Cell) -> [Pair; 3] {
    let Cell { fault, family, collective } = *cell;
    let (fault, family, collective) = (Some(fault), Some(family), Some(collective));
    [(fault, family, None), (fault, None, collective), (None, family, collective)]
}

/// Returns cells that cover each [`Pair`] of the cells in `all`. Each step takes the cell with the
/// most new pairs; of several such cells, it takes the first.
pub(super) fn pairwise(all: &[Cell]) -> Vec<Cell> {
    let mut chosen = Vec::new();
    let mut seen: Vec<Pair> = Vec::new();
    loop {
        let news =
            |cell: &Cell| pairs(cell).into_iter().filter(|pair| !seen.contains(pair)).count();
        let Some(best) = all.iter().rev().max_by_key(|cell| news(cell)) else { return chosen };
        if news(best) == 0 {
            return chosen;
        }
        seen.extend(pairs(best));
        chosen.push(*best);
    }
}

#[test]
fn few_cells_cover_all_pairs() {
    let all = Cell::all();
    let chosen = pairwise(&all);
    let covered = |pair: &Pair| chosen.iter().any(|cell| pairs(cell).contains(pair));
    assert!(all.iter().flat_map(pairs).all(|pair| covered(&pair)));
    // Each pair of a fault and a family needs a cell of its own, so this is the minimum.
    let least = Fault::ALL.len() * Family::ALL.len();
    assert_eq!(all.len(), least * COLLECTIVES.len());
    assert!(chosen.len() <= least + 2, "{} cells are chosen", chosen.len());
    assert_eq!(chosen, pairwise(&all), "another call chooses other cells");
    let without: Vec<Cell> = chosen[1..].to_vec();
    let missing = all
        .iter()
        .flat_map(pairs)
        .any(|pair| !without.iter().any(|cell| pairs(cell).contains(&pair)));
    assert!(missing, "all pairs are covered without the first cell, too");
}
