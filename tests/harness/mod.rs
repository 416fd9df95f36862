//! Ranks to test with: threads of this process, or processes of their own; networks to put them
//! on, and strangers that disturb them. Nothing here waits without a deadline.

pub(crate) mod capture;
#[cfg(feature = "cli")]
pub(crate) mod command;
pub(crate) mod data;
pub(crate) mod netns;
pub(crate) mod processes;
pub(crate) mod stranger;
mod threads;

use ferroccl::{Communicator, Config};

pub(crate) use threads::{config, joining, ranks_with};

/// The default configuration, changed.
pub(crate) fn config_with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

/// Runs `run` on every rank of a communicator of `n` threads; returns what they return, by rank.
pub(crate) fn ranks<T: Send + 'static>(
    n: u32,
    run: impl Fn(&mut Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    ranks_with(n, config(), run)
}
