//! Data with a known correct result: inputs computed from rank, element and
//! [repetition](generate::Recipe::repetition), expected outputs that each rank computes by itself,
//! and the comparison.
//!
//! Reductions get values for which every order of combining, with or without rounding in between,
//! gives the same bits. So a wrong element is always a mistake and never rounding; the only
//! exception is the average of floats, see [`check`].

pub mod check;
pub mod expect;
pub mod format;
pub mod generate;
pub mod pattern;
