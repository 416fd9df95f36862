//! Tests of the real programs over a simulated network in virtual time.
//!
//! `FERROCCL_SIM_SEED=n` replays one seed of every seeded test; `FERROCCL_TEST_FULL=1` runs many
//! more seeds.

#[cfg(test)]
mod control;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod same_bits;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod seals;
#[cfg(test)]
#[path = "../../../../tests/matrix/table.rs"]
mod table;
#[cfg(test)]
mod weather;
