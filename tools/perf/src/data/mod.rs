//! Data with a known correct result. Each element of an input is computed from the rank, the index
//! of the element, and the [repetition](generate::Recipe::repetition). So each rank can compute its
//! expected output by itself, and compares its actual output with the expected one.
//!
//! Reductions get values for which every order of combining, with or without rounding in between,
//! gives the same bits. So a wrong element is always a mistake and never rounding; the only
//! exception is the average of floats, see [`check`].

pub mod check;
pub mod expect;
pub mod format;
pub mod generate;
pub mod pattern;
