//! Tests of the plugin as NCCL sees it: through the tables of functions that the plugin exports,
//! with both sides in this process.
//! `ferroccl netcheck` tests the contract that NCCL has with any plugin; the tests here are in
//! `contract`, and cover this plugin's own behaviour.

#[cfg(test)]
mod contract;
#[cfg(test)]
mod pair;
