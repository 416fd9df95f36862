//! Errors of the simulator.

/// Error of a simulation, with a remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// An invalid number, such as a parameter of an experiment or a bandwidth of the network.
    #[error("{what} is {given}; {remedy}")]
    Number {
        /// Name of the number.
        what: String,
        /// Value given.
        given: String,
        /// Values to give instead.
        remedy: String,
    },
    /// More memory needed than allowed.
    #[error(
        "{what} would take about {needed_mib} MiB, and {limit_mib} MiB are allowed; simulate fewer \
         hosts or queue pairs, fold ranks that are alike, or allow more (--memory)"
    )]
    Memory {
        /// Part of the simulation that needs the memory.
        what: String,
        /// Estimated need, in MiB.
        needed_mib: u64,
        /// Memory that is allowed, in MiB.
        limit_mib: u64,
    },
    /// More work needed than allowed.
    #[error(
        "{what} would take about {needed_millions} million steps, and {limit_millions} million are \
         allowed (1,000 million take minutes); simulate fewer ranks, bytes or queue pairs, use \
         longer slots, fold ranks that are alike, or allow more (--work)"
    )]
    Work {
        /// Part of the simulation that needs the work.
        what: String,
        /// Estimated number of steps, in millions.
        needed_millions: u64,
        /// Steps that are allowed, in millions.
        limit_millions: u64,
    },
    /// A cluster without switches between its hosts.
    #[error(
        "{name} has no switches between hosts, so there is nothing to simulate; give a cluster of \
         `ferroccl topo --list`, such as superpod-256, or a file with a fabric"
    )]
    NoFabric {
        /// Name of the cluster.
        name: String,
    },
    /// A network given for an experiment that runs only on the network of Meta's paper.
    #[error(
        "{scenario} tests claims of Meta's paper on RoCE about the paper's own network; leave out \
         --on, or choose an experiment that runs on any network: {which}"
    )]
    OwnNetwork {
        /// Name of the experiment.
        scenario: &'static str,
        /// Names of the experiments that run on any network.
        which: String,
    },
    /// An error for a missing path from one port to another.
    #[error(
        "no path leads from NIC {from_nic} of host {from_host} to NIC {to_nic} of host {to_host}: \
         {reason}"
    )]
    NoPath {
        /// Host of the sender.
        from_host: u32,
        /// NIC of the sender.
        from_nic: u32,
        /// Host of the receiver.
        to_host: u32,
        /// NIC of the receiver.
        to_nic: u32,
        /// Reason, and what to do.
        reason: &'static str,
    },
    /// An unknown name.
    #[error("there is no {what} \"{name}\"; choose one of: {known}")]
    Unknown {
        /// Kind of the named thing.
        what: &'static str,
        /// Name given.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// An error for ranks that are not alike: they cannot stand for each other.
    #[error("the ranks are not alike, so a rank cannot stand for others: {reason}")]
    NotAlike {
        /// Reason, and what to do.
        reason: String,
    },
    /// A simulation that does not end: nothing moves, or the time limit has passed, but some ranks
    /// (or streams, or flows) are not done.
    #[error(
        "the simulation stopped after {after_s:.6} simulated seconds, and {open} of {ranks} \
         ranks, streams or flows are not done; rank, stream or flow {rank} waits for {waiting}. \
         This is an error of the simulator or of the schedule: please report it with the command \
         and the seed"
    )]
    Stuck {
        /// Simulated time when the simulation was given up, in seconds.
        after_s: f64,
        /// Number of ranks, streams or flows that are not done.
        open: usize,
        /// Number of ranks, streams or flows in all.
        ranks: usize,
        /// Rank that is not done, or index of a stream or flow that is not done.
        rank: u32,
        /// Description of what this rank, stream or flow waits for.
        waiting: String,
    },
}

impl SimError {
    /// Refuses a simulation that needs more memory than allowed, before the memory is allocated.
    pub(crate) fn if_over(
        what: impl Into<String>,
        bytes: f64,
        limit_mib: u64,
    ) -> Result<(), SimError> {
        let needed_mib = (bytes / f64::from(1 << 20)).ceil() as u64;
        if needed_mib <= limit_mib {
            return Ok(());
        }
        Err(SimError::Memory { what: what.into(), needed_mib, limit_mib })
    }

    /// Refuses a simulation that needs more work than is allowed, before it begins. The work is
    /// counted in steps. One step is one message on one link, or one flow in one queue for one time
    /// step of the simulation; both cost about the same time.
    pub(crate) fn if_long(
        what: impl Into<String>,
        steps: f64,
        limit_millions: u64,
    ) -> Result<(), SimError> {
        let needed_millions = (steps / 1e6).ceil() as u64;
        if needed_millions <= limit_millions {
            return Ok(());
        }
        Err(SimError::Work { what: what.into(), needed_millions, limit_millions })
    }

    /// Makes the error for an invalid number.
    pub(crate) fn number(
        what: impl Into<String>,
        given: impl std::fmt::Display,
        remedy: impl Into<String>,
    ) -> SimError {
        SimError::Number { what: what.into(), given: given.to_string(), remedy: remedy.into() }
    }
}
