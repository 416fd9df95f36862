//! Launching of ranks. [`from_environment`] reads this process's rank, and the rendezvous of the
//! ranks, from the variables of torchrun, Open MPI, MPICH or Slurm, or from our own variables.
//! [`spawn_local`] starts local ranks.
//!
//! Our own variables are in the table [`VARIABLES`].
//!
//! If ranks have no secret and meet over loopback, any user of this host can start a process that
//! joins as one of them.

mod descriptor;
mod detect;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod local;
mod local_rendezvous;
mod pmi;
mod rendezvous;
mod secret;
mod service;
mod store;
mod stream;
mod variables;

pub use detect::{Launcher, from_environment};
pub use local::{LOCAL_RANKS_MAX, LocalExit, spawn_local};
pub use rendezvous::JoinPlan;
pub use service::{DescriptorError, ServiceError};
pub use variables::{VARIABLES, variable};

use crate::bootstrap::{BootstrapError, Endpoint, Secret, UniqueId};
use ccl_core::types::Rank;
use std::path::PathBuf;
use thiserror::Error;

/// Rank of this process in a job, and the way to find the other ranks, as the launcher gave them.
#[derive(Debug)]
pub struct Launch {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// This rank's number on its host, if the launcher gives it.
    pub local_rank: Option<u32>,
    /// Number of ranks on this host, if the launcher gives it.
    pub local_ranks: Option<u32>,
    /// Origin of the rank: a launcher, or our own variables.
    pub launcher: Launcher,
    rendezvous: Rendezvous,
    secret: Option<Secret>,
    insecure: bool,
    host: Option<String>,
}

/// Way in which the other ranks learn the address of rank 0, and the secret.
#[derive(Debug)]
enum Rendezvous {
    /// There is no other rank.
    Alone,
    /// Address of rank 0, given to all ranks.
    Known(Vec<Endpoint>),
    /// Unique id, given to all ranks.
    Id(UniqueId),
    /// Address of rank 0, given to all ranks; rank 0 inherits the socket as this descriptor.
    Inherited(Endpoint, i32),
    /// Key-value store of torchrun's agent.
    Store(store::StoreAddress),
    /// Key-value space of a PMI-1 process manager.
    Pmi(pmi::PmiAddress),
    /// Abstract Unix socket of this name: all ranks are on this host.
    SameHost(String),
}

/// Error for an environment whose variables do not say which rank this process is, or for ranks
/// that did not meet.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// A variable has a malformed value.
    #[error("{name}={value:?} is not {expected}")]
    Value {
        /// The variable.
        name: String,
        /// The value of the variable.
        value: String,
        /// The values that the variable can have.
        expected: &'static str,
    },
    /// A variable that goes with others is not set.
    #[error("{name} is not set, but {because}: set {name}, or unset the variables that need it")]
    Absent {
        /// The missing variable.
        name: &'static str,
        /// The reason why the variable is needed.
        because: String,
    },
    /// Rank and number of ranks contradict each other.
    #[error("{rank_name}={rank}, but {ranks_name}={ranks}: ranks are counted from 0")]
    RankOutOfRange {
        /// Variable with the rank.
        rank_name: &'static str,
        /// The rank.
        rank: u32,
        /// Variable with the number of ranks.
        ranks_name: &'static str,
        /// The number of ranks.
        ranks: u32,
    },
    /// The launcher offers no rendezvous.
    #[error(
        "{launcher} started this rank, but passes no addresses between ranks. Say where rank 0 \
         listens (a free port on rank 0's host) and give all ranks a secret, for example:\n    \
         export FERROCCL_COMM_ID=node1.example.org:29400 FERROCCL_SECRET=$(openssl rand -hex 16)\n\
         and pass both on to all ranks ({pass_on})"
    )]
    NoRendezvousPoint {
        /// The launcher.
        launcher: Launcher,
        /// Text on how this launcher passes variables on to the ranks.
        pass_on: &'static str,
    },
    /// A secret that cannot be used.
    #[error("{0}")]
    Secret(String),
    /// torchrun's store failed.
    #[error("the store of torchrun's agent at {address}: {error}")]
    Store {
        /// Address of the store.
        address: Endpoint,
        /// The error.
        error: ServiceError,
    },
    /// The PMI process manager failed.
    #[error(
        "the process manager (PMI): {error}. To join without the process manager, set \
         FERROCCL_COMM_ID=HOST:PORT"
    )]
    Pmi {
        /// The error.
        error: ServiceError,
    },
    /// The ranks of this host did not meet.
    #[error(
        "the ranks of this host could not meet at the abstract Unix socket @{name}: {text}. To \
         meet at a port instead, set FERROCCL_COMM_ID=127.0.0.1:PORT for all ranks; the port must \
         be free on this host"
    )]
    LocalRendezvous {
        /// The socket's name.
        name: String,
        /// The reason.
        text: String,
    },
    /// Joining failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// A local rank could not be started.
    #[error("cannot start {}: {error}", program.display())]
    Spawn {
        /// The program that was to be started.
        program: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The number of local ranks is out of range.
    #[error("cannot start {ranks} local ranks: the number must be 1 to {LOCAL_RANKS_MAX}")]
    LocalRanks {
        /// The number that was asked for.
        ranks: u32,
    },
    /// An inherited descriptor that cannot be used.
    #[error("{name}={fd}: {error}")]
    Descriptor {
        /// The variable.
        name: &'static str,
        /// The value of the variable.
        fd: i32,
        /// The error.
        error: DescriptorError,
    },
}
