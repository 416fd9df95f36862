//! Tests of the plugin as NCCL sees it: through its tables, with both sides in this process.
//! `ferroccl netcheck` tests what any plugin must do; these tests cover what is this plugin's own.

#[cfg(test)]
mod contract;
#[cfg(test)]
mod pair;
