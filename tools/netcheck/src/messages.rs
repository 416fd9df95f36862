//! What the processes of a point and the one that started them write to each other, a line of JSON
//! each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Listens and accepts, and what it gets is received.
    Receiver,
    /// Connects, and sends.
    Sender,
}

impl Role {
    /// The other.
    pub(crate) fn other(self) -> Role {
        match self {
            Role::Receiver => Role::Sender,
            Role::Sender => Role::Receiver,
        }
    }

    /// For people, and as the argument of a process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Receiver => "receiver",
            Role::Sender => "sender",
        }
    }
}

/// From a process of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Up {
    /// What it does from now on.
    Step(String),
    /// For its peer.
    Tell(Value),
    /// The plugin wrote this to NCCL's log.
    Log(String),
    /// Something to show beside the outcome.
    Note(String),
    /// Something measured.
    Measured(Row),
    /// The memory that a connection takes in this process, in bytes.
    Held(Role, usize),
    /// It is about to be killed, on purpose.
    Doomed,
    /// The end.
    Done(Verdict),
}

/// To a process of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Down {
    /// From its peer.
    Heard(Value),
    /// It has no peer any more.
    PeerEnded,
}

/// What became of a point in one of its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// It kept the contract.
    Passed,
    /// The point says nothing about this plugin, and why.
    Skipped(String),
    /// It broke the contract, and how.
    Failed(String),
    /// It waited for its peer, which knows more.
    PeerEnded,
}

/// How fast messages of one size go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The size.
    pub(crate) bytes: usize,
    /// Half of a round trip, the median.
    pub(crate) latency_us: f64,
    /// The same, of 99 in 100.
    pub(crate) latency_p99_us: f64,
    /// 10^9 bytes a second, one way, with 8 in flight.
    pub(crate) bandwidth_gbps: f64,
}

/// The memory that a connection takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Held {
    /// At its receiver.
    pub(crate) receiver: usize,
    /// At its sender.
    pub(crate) sender: usize,
}
