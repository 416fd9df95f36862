//! Demands of NCCL on a network plugin, point by point.

mod connect;
mod cycles;
mod devices;
mod endings;
mod groups;
mod offload;
mod registration;
mod requests;
mod robustness;
mod setup;
mod strangers;
mod threads;
mod transfer;

use crate::side::Side;
use crate::stop::Outcome;

/// One demand of NCCL, and its test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Name by which users choose the point.
    pub(crate) name: &'static str,
    /// Demand of the contract, in a sentence.
    pub(crate) demand: &'static str,
    /// Kind of the demand: contract, or robustness beyond it.
    pub(crate) kind: Kind,
    /// Time limit of the point, as a multiple of the user's time limit (`--timeout`).
    pub(crate) patience: u32,
    /// Name of the point, if any, that this point depends on. This point is not tried if that point
    /// failed or was skipped.
    pub(crate) depends_on: Option<&'static str>,
    /// Test of the point.
    pub(crate) act: Act,
}

impl PartialEq for Point {
    fn eq(&self, other: &Point) -> bool {
        self.name == other.name
    }
}

/// Kind of a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Demand of the contract. It concerns calls that NCCL makes, or events that occur where NCCL
    /// runs.
    Contract,
    /// Demand beyond the contract: NCCL never relies on it, but it makes a plugin easier to use.
    Robustness,
}

impl Kind {
    /// Returns the name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Contract => "contract",
            Kind::Robustness => "robustness",
        }
    }
}

/// Test of a point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// Function for one process.
    Alone(fn(&Side) -> Outcome),
    /// Functions for two processes.
    Pair {
        /// Function of the process that listens.
        receive: fn(&Side) -> Outcome,
        /// Function of the process that connects.
        send: fn(&Side) -> Outcome,
    },
}

/// Point that every other point depends on.
const LOADS: &str = "loads_and_names";
/// Point that all later points with a connection depend on.
const HANDLE: &str = "handle_is_128_bytes";
/// Point that [`ONE_MESSAGE`] and [`offload::DEVICE_HANDLES`] depend on.
const CONNECTS: &str = "connects";
/// Point that all later points with messages depend on.
pub(crate) const ONE_MESSAGE: &str = "one_message";

impl Point {
    /// Makes a point of the contract that runs in one process and depends on [`LOADS`].
    const fn alone(name: &'static str, demand: &'static str, act: fn(&Side) -> Outcome) -> Point {
        let (act, depends_on) = (Act::Alone(act), Some(LOADS));
        Point { name, demand, kind: Kind::Contract, patience: 1, depends_on, act }
    }

    /// Makes a point of the contract that runs in two processes and depends on [`ONE_MESSAGE`].
    const fn pair(
        name: &'static str,
        demand: &'static str,
        receive: fn(&Side) -> Outcome,
        send: fn(&Side) -> Outcome,
    ) -> Point {
        let (act, depends_on) = (Act::Pair { receive, send }, Some(ONE_MESSAGE));
        Point { name, demand, kind: Kind::Contract, patience: 1, depends_on, act }
    }

    /// Sets the point that this one depends on, if any.
    const fn depending_on(self, depends_on: Option<&'static str>) -> Point {
        Point { depends_on, ..self }
    }

    /// Marks the point as a demand beyond the contract.
    const fn robustness(self) -> Point {
        Point { kind: Kind::Robustness, ..self }
    }

    /// Sets the time limit of the point, as a multiple of the user's time limit.
    const fn patient(self, times: u32) -> Point {
        Point { patience: times, ..self }
    }
}

/// All points, in the order in which they run. Simple points come first, so that the first failure
/// is the most informative one.
pub(crate) const ALL: &[Point] = &[
    setup::LOADS_AND_NAMES,
    setup::PROPERTIES,
    setup::DEVICES_STABLE,
    setup::ATTRIBUTES_ACCEPTED,
    connect::HANDLE_IS_128_BYTES,
    connect::CONNECTS,
    connect::ONE_MESSAGE,
    connect::NEVER_BLOCK,
    connect::GIVES_UP,
    connect::SEVERAL_FROM_ONE_LISTENER,
    connect::LISTENERS_HAVE_OWN_HANDLES,
    connect::BOTH_WAYS_AT_ONCE,
    connect::CROSS_DEVICE,
    devices::SEVERAL_AS_ONE,
    offload::DEVICE_HANDLES,
    transfer::SEND_RECEIVE,
    transfer::LARGE,
    transfer::ZERO_SIZES,
    transfer::SEND_SMALLER_THAN_RECEIVE,
    transfer::TRUNCATION,
    transfer::IN_ORDER,
    transfer::ISEND_WITHOUT_TEST,
    groups::GROUPED_RECEIVES,
    groups::EQUAL_TAGS,
    groups::INTERLEAVED_TAGS,
    groups::WRONG_TAG_WAITS,
    requests::THIRTY_TWO_IN_FLIGHT,
    requests::OPTIONAL_COMPLETION_HINT,
    requests::NULL_IS_RETRIED,
    requests::TEST_SEMANTICS,
    requests::CONSUMED_RECEIVES,
    requests::FLUSH,
    requests::PROFILED,
    registration::DURING_TRANSFERS,
    registration::FROM_OTHER_COMM,
    registration::PARTS_AND_OVERLAPS,
    registration::DEREGISTER_IN_FLIGHT,
    registration::DMA_BUF_REGISTRATION,
    offload::DEVICE_REGISTRATION,
    threads::FOUR_THREADS,
    threads::CALLS_FROM_OTHER_THREADS,
    threads::FORK_AFTER_INIT,
    endings::CLOSE_IN_FLIGHT,
    endings::CLOSE_WITH_REQUESTS,
    endings::RECEIVER_KILLED,
    endings::SENDER_KILLED,
    endings::RECEIVER_KILLED_WITHIN,
    endings::SENDER_KILLED_WITHIN,
    strangers::STRANGER_ON_PORT,
    strangers::BAD_HANDLE,
    cycles::LISTEN_CLOSE,
    cycles::CONNECTIONS_CYCLE,
    cycles::INIT_FINALIZE,
    cycles::FINALIZE_JOINS_THREADS,
    cycles::DLCLOSE,
    robustness::IDLE_COSTS_NOTHING,
    robustness::NULL_ARGUMENTS,
    robustness::NO_SUCH_DEVICE,
    devices::NO_SUCH_PARTS,
    robustness::REQUEST_AFTER_COMPLETION,
    robustness::DOUBLE_CLOSE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_demands_are_sentences() {
        for (at, point) in ALL.iter().enumerate() {
            assert!(ALL[..at].iter().all(|other| other.name != point.name), "{}", point.name);
            assert!(
                point.name.chars().all(|c| c.is_ascii_lowercase()
                    || c == '_'
                    || c == '1'
                    || c == '2'
                    || c == '8'),
                "{}",
                point.name
            );
            assert!(point.demand.ends_with('.'), "{}", point.demand);
        }
    }

    #[test]
    fn every_point_but_the_first_depends_on_an_earlier_one() {
        for (at, point) in ALL.iter().enumerate() {
            let is_earlier = |name| ALL[..at].iter().any(|other| other.name == name);
            assert!(point.depends_on.map_or(at == 0, is_earlier), "{}", point.name);
        }
    }
}
