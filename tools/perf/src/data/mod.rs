//! Data whose correct result is known: inputs made from a counter (which rank, which element, which
//! repetition), the expected outputs worked out by each rank on its own, and the comparison.
//!
//! Reductions get values for which every order of combining, with or without rounding in between,
//! gives the same bits, so that one wrong element is one mistake and never rounding; the one
//! exception is the average of floats, see [`check`].

pub mod check;
pub mod expect;
pub mod format;
pub mod generate;
pub mod pattern;
