//! Expressions that are affine in the loop counters, optionally modulo a number: the only form in
//! which a schedule states peers and part numbers.

use std::fmt;
use std::ops::Range;

/// Number of counters: one for each of two nested loops, and one for a repeated operand of an op.
pub const DEPTH: usize = 3;

/// Dimension that counts the repetitions of one operand (see [`super::Terms`]).
pub const TERM: usize = 2;

/// Values of the loop counters at one point of a run, outermost first.
pub type Counters = [u32; DEPTH];

/// `offset + (base + Σ steps[d] × counter[d]) mod modulus`; a modulus of 0 means none.
///
/// Peers and block numbers are such expressions. A ring that begins with block r and goes back one
/// block in each iteration uses `Affine::constant(r).step(0, -1).modulo(n)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Affine {
    base: i64,
    steps: [i32; DEPTH],
    modulus: u32,
    offset: u32,
}

impl Affine {
    /// Returns an expression with the same value in every iteration.
    #[must_use]
    pub const fn constant(value: u32) -> Affine {
        Affine { base: value as i64, steps: [0; DEPTH], modulus: 0, offset: 0 }
    }

    /// Adds `step × counter[dimension]`; `dimension` 0 is the outermost loop.
    #[must_use]
    pub const fn step(mut self, dimension: usize, step: i32) -> Affine {
        self.steps[dimension] += step;
        self
    }

    /// Adds a constant, which may be negative when a modulus follows.
    #[must_use]
    pub const fn plus(mut self, constant: i64) -> Affine {
        self.base += constant;
        self
    }

    /// Wraps the expression so far into `0..modulus`.
    #[must_use]
    pub const fn modulo(mut self, modulus: u32) -> Affine {
        self.modulus = modulus;
        if modulus != 0 {
            self.base = self.base.rem_euclid(modulus as i64);
        }
        self
    }

    /// Adds a constant after the wrap.
    #[must_use]
    pub const fn offset(mut self, offset: u32) -> Affine {
        self.offset += offset;
        self
    }

    /// Returns the value for these counters. Without a modulus, a sum below zero counts as 0.
    #[must_use]
    #[inline]
    pub fn eval(&self, counters: &Counters) -> u32 {
        let mut value = self.base;
        if self.steps != [0; DEPTH] {
            for (step, counter) in self.steps.iter().zip(counters) {
                value += i64::from(*step) * i64::from(*counter);
            }
            if self.modulus != 0 {
                value = value.rem_euclid(i64::from(self.modulus));
            }
        }
        self.offset + u32::try_from(value).unwrap_or(0)
    }

    /// Returns the largest value that the expression has while each counter is below its count,
    /// without evaluating all values. For an expression that wraps, returns an upper bound instead:
    /// offset + modulus - 1.
    #[must_use]
    pub fn most(&self, counts: &Counters) -> u32 {
        let (mut least, mut most) = (self.base, self.base);
        for (step, count) in self.steps.iter().zip(counts) {
            let far = i64::from(*step) * i64::from(count.saturating_sub(1));
            least += far.min(0);
            most += far.max(0);
        }
        if self.modulus != 0 && (least < 0 || most >= i64::from(self.modulus)) {
            most = i64::from(self.modulus) - 1;
        }
        self.offset + u32::try_from(most).unwrap_or(0)
    }

    /// Returns the number of successive values that stay in `range` and do not wrap while the
    /// counter of `dimension` grows from its value in `counters`. The first value must be in
    /// `range`.
    #[must_use]
    pub fn stays(&self, counters: &Counters, dimension: usize, range: &Range<u32>) -> u32 {
        let modulus = i64::from(self.modulus);
        let step = i64::from(self.steps[dimension]);
        let step = if self.modulus == 0 { step } else { step % modulus };
        if step == 0 {
            return u32::MAX;
        }
        let value = i64::from(self.eval(counters));
        let (mut least, mut most) = (i64::from(range.start), i64::from(range.end) - 1);
        let offset = i64::from(self.offset);
        least = least.max(offset);
        if self.modulus != 0 {
            most = most.min(offset + modulus - 1);
        }
        let room = if step > 0 { most - value } else { value - least };
        u32::try_from(room.max(0) / step.abs() + 1).unwrap_or(u32::MAX)
    }

    /// Returns whether no counter changes the value.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.steps == [0; DEPTH]
    }

    /// Returns this expression with the counter of dimension `from` replaced by the counter of
    /// dimension `to`.
    #[must_use]
    pub fn rename(mut self, from: usize, to: usize) -> Affine {
        if from != to {
            self.steps[to] += self.steps[from];
            self.steps[from] = 0;
        }
        self
    }
}

impl fmt::Debug for Affine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Affine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_constant() {
            return write!(f, "{}", self.eval(&[0; DEPTH]));
        }
        if self.offset != 0 {
            write!(f, "{}+", self.offset)?;
        }
        write!(f, "({}", self.base)?;
        for (step, name) in self.steps.iter().zip(["i", "j", "t"]) {
            match step {
                0 => {}
                1 => write!(f, "+{name}")?,
                -1 => write!(f, "-{name}")?,
                _ => write!(f, "{step:+}{name}")?,
            }
        }
        match self.modulus {
            0 => write!(f, ")"),
            modulus => write!(f, ")%{modulus}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_in_both_directions() {
        let back = Affine::constant(1).step(0, -1).modulo(5);
        let seen: Vec<u32> = (0..6).map(|i| back.eval(&[i, 0, 0])).collect();
        assert_eq!(seen, [1, 0, 4, 3, 2, 1]);
        assert_eq!(Affine::constant(0).plus(-1).modulo(5).eval(&[0; 3]), 4);
        assert_eq!(Affine::constant(4).step(1, 3).modulo(8).offset(8).eval(&[9, 2, 0]), 10);
    }

    #[test]
    fn the_largest_value_is_found_without_evaluating_all() {
        assert_eq!(Affine::constant(3).step(0, 2).step(TERM, 1).most(&[5, 1, 4]), 14);
        assert_eq!(Affine::constant(9).step(0, -2).most(&[5, 1, 1]), 9);
        assert_eq!(Affine::constant(1).step(0, 1).modulo(24).offset(2).most(&[5, 1, 1]), 7);
        assert_eq!(Affine::constant(1).step(0, -1).modulo(24).offset(2).most(&[5, 1, 1]), 25);
    }

    #[test]
    fn renaming_moves_the_step() {
        let along = Affine::constant(2).step(0, 1).modulo(7).rename(0, TERM);
        assert_eq!(along.eval(&[100, 0, 6]), 1);
    }
}
