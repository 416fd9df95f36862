//! Reasons why a point (one check of a plugin) ends early.

use nccl_net_abi::NcclResult;

/// Result of a point or of a step.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Reason why a point has not passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The plugin breaks the contract; the text says how.
    Failed(String),
    /// The point says nothing about this plugin; the text gives the reason.
    Skipped(String),
    /// The other process has ended the point early, or is late; it reports the reason itself.
    PeerEnded,
}

/// A call that did not return success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Name of the function.
    pub(crate) call: &'static str,
    /// Result that it returned.
    pub(crate) result: NcclResult,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} returned {} ({})", self.call, self.result.name(), self.result.0)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Failed(format!("{refusal}, expected ncclSuccess"))
    }
}

/// Returns the error of a broken contract.
pub(crate) fn failed<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::Failed(why.into()))
}

/// Returns the error for a point that says nothing about this plugin.
pub(crate) fn skipped<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::Skipped(why.into()))
}

/// Fails with a reason unless `holds` is true.
pub(crate) fn demand(holds: bool, why: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { failed(why()) }
}

impl Stop {
    /// Adds the name of the message to a failure. If the data of another message, named `other`,
    /// arrived instead, the failure reports only this fact.
    pub(crate) fn of(self, message: &str, other: Option<String>) -> Stop {
        match (self, other) {
            (Stop::Failed(_), Some(other)) => {
                Stop::Failed(format!("{message} holds the data of {other}: out of order"))
            }
            (Stop::Failed(why), None) => Stop::Failed(format!("{message}: {why}")),
            (stop, _) => stop,
        }
    }
}
