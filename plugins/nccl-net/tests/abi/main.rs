//! Tests of the plugin as NCCL sees it: through the tables of functions that the plugin exports,
//! with both sides in this process.
//! `ferroccl netcheck` tests the contract that NCCL has with any plugin; these tests, also those in
//! `contract`, cover this plugin's own behaviour.

#[cfg(test)]
mod contract;
#[cfg(test)]
mod pair;
