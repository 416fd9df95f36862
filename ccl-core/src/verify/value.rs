//! Symbolic values: the origin of an element, and the way it was combined.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::violation::Misfold;
use crate::types::Rank;

/// Number that identifies an expression over ranks; equal expressions have equal numbers.
pub(super) type Expr = u32;

/// Expression of memory that was never written.
pub(super) const GARBAGE: Expr = 0;

/// Content of one element of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// Number that identifies an element of an input block: block × length of the longest block +
    /// index of the element in the block.
    pub(super) element: u32,
    /// Ranks of the contributions, and the way they were combined.
    pub(super) expr: Expr,
}

/// Value of memory that was never written.
pub(super) const NOTHING: Value = Value { element: 0, expr: GARBAGE };

/// Rule by which folds of a collective are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A fold counts no rank's contribution twice. A fold marked last (as completing a reduction)
    /// has the contributions of all ranks.
    Reduce,
    /// A fold has one operand and is not marked last: data only moves.
    Move,
    /// Every fold is accepted: a barrier's data does not matter. Vector clocks, not expressions,
    /// show that every rank has heard of every other rank.
    Barrier,
}

#[derive(Clone, Debug)]
struct Node {
    /// Set of the ranks whose contributions are in the expression.
    ranks: Box<[u64]>,
    sources: Vec<Expr>,
    last: bool,
    complete: bool,
}

/// All expressions of a run.
///
/// Garbage is 0. `raw(r)` is rank r's contribution, untouched in the input; `leaf(r)` is the same
/// contribution after it was read from the input. A premultiplied sum scales the contribution when
/// it is read, so the two expressions differ.
#[derive(Clone, Debug)]
pub(super) struct Exprs {
    ranks: u32,
    mode: Mode,
    nodes: Vec<Node>,
    known: BTreeMap<(Vec<Expr>, bool), Expr>,
}

impl Exprs {
    pub(super) fn new(ranks: u32, mode: Mode) -> Exprs {
        let words = (ranks as usize).div_ceil(64);
        let node = |set: Box<[u64]>| Node {
            ranks: set,
            sources: Vec::new(),
            last: false,
            complete: false,
        };
        let mut nodes = vec![node(vec![0; words].into())];
        for rank in (0..ranks as usize).chain(0..ranks as usize) {
            let mut set = vec![0; words];
            set[rank / 64] = 1 << (rank % 64);
            nodes.push(node(set.into()));
        }
        Exprs { ranks, mode, nodes, known: BTreeMap::new() }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn raw(&self, rank: Rank) -> Expr {
        1 + rank
    }

    pub(super) fn leaf(&self, rank: Rank) -> Expr {
        1 + self.ranks + rank
    }

    /// Returns the expression that results when `expr` is read as input: the leaf of a raw
    /// contribution. `None` if `expr` is not a raw contribution.
    pub(super) fn read_as_input(&self, expr: Expr) -> Option<Expr> {
        self.is_raw(expr).then(|| expr + self.ranks)
    }

    pub(super) fn is_raw(&self, expr: Expr) -> bool {
        expr != GARBAGE && expr <= self.ranks
    }

    /// Returns the fold of `sources`, none of which is garbage.
    pub(super) fn fold(&mut self, sources: &[Expr], last: bool) -> Result<Expr, Misfold> {
        if self.mode != Mode::Reduce {
            return match sources {
                [one] if !last || self.mode == Mode::Barrier => Ok(*one),
                [first, ..] if self.mode == Mode::Barrier => Ok(*first),
                _ => Err(Misfold::NotReduction),
            };
        }
        match sources {
            [one] if !last => return Ok(*one),
            _ => {}
        }
        let key = (sources.to_vec(), last);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let node = self.combined(sources, last)?;
        let expr = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.push(node);
        self.known.insert(key, expr);
        Ok(expr)
    }

    fn combined(&self, sources: &[Expr], last: bool) -> Result<Node, Misfold> {
        let mut ranks = self.nodes[GARBAGE as usize].ranks.clone();
        for &source in sources {
            let node = &self.nodes[source as usize];
            if node.complete {
                return Err(Misfold::AlreadyComplete);
            }
            for (word, (all, new)) in ranks.iter_mut().zip(&node.ranks).enumerate() {
                if *all & new != 0 {
                    let bit = (*all & new).trailing_zeros();
                    return Err(Misfold::CountedTwice(word as u32 * 64 + bit));
                }
                *all |= new;
            }
        }
        let has = |rank: u32| ranks[rank as usize / 64] >> (rank % 64) & 1 == 1;
        if last && let Some(missing) = (0..self.ranks).find(|&rank| !has(rank)) {
            return Err(Misfold::LastTooEarly(missing));
        }
        Ok(Node { ranks, sources: sources.to_vec(), last, complete: last })
    }

    /// Returns whether the expression has every rank's contribution.
    pub(super) fn holds_all(&self, expr: Expr) -> bool {
        let set = &self.nodes[expr as usize].ranks;
        set.iter().map(|word| word.count_ones()).sum::<u32>() == self.ranks
    }

    /// Returns whether the expression is the result of a fold marked last (as completing a
    /// reduction).
    pub(super) fn is_complete(&self, expr: Expr) -> bool {
        self.nodes[expr as usize].complete
    }

    /// Returns whether the expression is one fold over all ranks' contributions in ascending order.
    pub(super) fn in_rank_order(&self, expr: Expr) -> bool {
        let sources = &self.nodes[expr as usize].sources;
        sources.len() == self.ranks as usize
            && (0..self.ranks).zip(sources).all(|(rank, source)| *source == self.leaf(rank))
    }

    /// Returns the expression as a formula over ranks.
    pub(super) fn text(&self, expr: Expr) -> String {
        let mut text = String::new();
        self.write(expr, &mut text);
        text
    }

    fn write(&self, expr: Expr, out: &mut String) {
        if expr == GARBAGE {
            out.push_str("nothing");
        } else if expr <= 2 * self.ranks {
            let _ = write!(out, "r{}", (expr - 1) % self.ranks);
        } else {
            let node = &self.nodes[expr as usize];
            out.push('(');
            for (index, source) in node.sources.iter().enumerate() {
                if index > 0 {
                    out.push_str(" ⊕ ");
                }
                self.write(*source, out);
            }
            out.push_str(if node.last { ", last)" } else { ")" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_folds_are_reported() {
        let mut exprs = Exprs::new(3, Mode::Reduce);
        let [a, b, c] = [0, 1, 2].map(|rank| exprs.leaf(rank));
        let ab = exprs.fold(&[a, b], false).unwrap();
        assert_eq!(exprs.fold(&[a, b], false), Ok(ab));
        assert_eq!(exprs.fold(&[ab, b], false), Err(Misfold::CountedTwice(1)));
        assert_eq!(exprs.fold(&[ab], true), Err(Misfold::LastTooEarly(2)));
        let all = exprs.fold(&[ab, c], true).unwrap();
        assert_eq!(exprs.fold(&[all], true), Err(Misfold::AlreadyComplete));
        assert!(exprs.holds_all(all) && exprs.is_complete(all) && !exprs.in_rank_order(all));
        let flat = exprs.fold(&[a, b, c], true).unwrap();
        assert!(exprs.in_rank_order(flat));
        assert_eq!(exprs.text(all), "((r0 ⊕ r1) ⊕ r2, last)");
    }

    #[test]
    fn folds_of_two_operands_are_rejected_where_data_only_moves() {
        let mut exprs = Exprs::new(2, Mode::Move);
        let (a, b) = (exprs.leaf(0), exprs.leaf(1));
        assert_eq!(exprs.fold(&[a], false), Ok(a));
        assert_eq!(exprs.fold(&[a, b], false), Err(Misfold::NotReduction));
    }
}
