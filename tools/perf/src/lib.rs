//! The perf programs: nccl-tests' flags and columns over ferroccl's collectives.
//!
//! Each program in `examples/` is one call of [`main_with`]. The programs measure a
//! [`subject::Subject`]; [`open`] is the only module that creates one. A run uses the modules in
//! this order: [`options`] and [`sizes`], [`geometry`] (the shape of a call, given its size and
//! collective), [`memory`], [`data`] and [`trial`] (inputs with known results, and the check),
//! [`timing`], [`table`] and [`report`].

pub mod data;
pub mod geometry;
pub mod memory;
pub mod nccl_tests;
pub mod number;
pub mod open;
pub mod options;
mod program;
pub mod programs;
pub mod progress;
pub mod report;
pub mod setup;
pub mod significance;
pub mod sizes;
pub mod subject;
pub mod sweep;
pub mod table;
pub mod timing;
pub mod trial;
pub mod tune;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use program::{Program, main_with};
