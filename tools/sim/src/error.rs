//! What can be wrong with what the simulator is asked.

/// Why nothing can be simulated, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A number of the network or of the hosts that cannot be.
    #[error("{what} is {given}; {remedy}")]
    Number {
        /// What it is the number of.
        what: String,
        /// The value given.
        given: String,
        /// What to give.
        remedy: String,
    },
    /// More than memory was given for.
    #[error(
        "{what} would take about {needed_mib} MiB, and {limit_mib} MiB are allowed; simulate fewer \
         hosts or queue pairs, fold ranks that are alike, or allow more (--memory)"
    )]
    Memory {
        /// What would take it.
        what: String,
        /// About how much, in MiB.
        needed_mib: u64,
        /// What was allowed, in MiB.
        limit_mib: u64,
    },
    /// More than time was given for.
    #[error(
        "{what} would take about {needed_millions} million steps, and {limit_millions} million are \
         allowed, which take minutes; simulate fewer ranks, bytes or queue pairs, take longer \
         slots, fold ranks that are alike, or allow more (--work)"
    )]
    Work {
        /// What would take them.
        what: String,
        /// About how many, in millions.
        needed_millions: u64,
        /// What was allowed, in millions.
        limit_millions: u64,
    },
    /// A cluster of which only the hosts are known.
    #[error(
        "{name} has no switches between hosts, of which alone something can be simulated; give a \
         cluster of `ferroccl topo --list` as superpod-256, or a file with a fabric"
    )]
    NoFabric {
        /// Its name.
        name: String,
    },
    /// An experiment of the paper's own network.
    #[error(
        "{scenario} tries what the paper says of its own network; leave out --on, or run one of \
         these on any: {which}"
    )]
    OwnNetwork {
        /// The experiment.
        scenario: &'static str,
        /// Those that run on any.
        which: String,
    },
    /// No way leads from one port to another.
    #[error(
        "no way leads from NIC {from_nic} of host {from_host} to NIC {to_nic} of host {to_host}: \
         {reason}"
    )]
    NoPath {
        /// The sender's host.
        from_host: u32,
        /// The sender's NIC.
        from_nic: u32,
        /// The receiver's host.
        to_host: u32,
        /// The receiver's NIC.
        to_nic: u32,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A name that nothing has.
    #[error("there is no {what} \"{name}\"; choose one of: {known}")]
    Unknown {
        /// What should have the name.
        what: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// Ranks that are not alike cannot stand for each other.
    #[error("these ranks cannot be folded: {reason}")]
    NotAlike {
        /// Why, and what to do.
        reason: String,
    },
    /// Nothing moves and not all is done.
    #[error(
        "after {after_s:.6} s nothing moves and {open} of {ranks} ranks are not done; rank {rank} \
         waits: {waiting}. That is an error of the simulator or of the schedule: please report it \
         with the command and the seed"
    )]
    Stuck {
        /// The time simulated until then, in seconds.
        after_s: f64,
        /// Ranks that are not done.
        open: usize,
        /// Ranks in all.
        ranks: usize,
        /// One that is not done.
        rank: u32,
        /// What for.
        waiting: String,
    },
}

impl SimError {
    /// Refuses what would take more than is allowed, before it is taken.
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

    /// Refuses what would take longer than is allowed, before it is begun. A step is a message on a
    /// link, or a flow in a queue for a moment: the one takes about as long as the other.
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

    /// A number that cannot be.
    pub(crate) fn number(
        what: impl Into<String>,
        given: impl std::fmt::Display,
        remedy: impl Into<String>,
    ) -> SimError {
        SimError::Number { what: what.into(), given: given.to_string(), remedy: remedy.into() }
    }
}
