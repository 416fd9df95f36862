//! Messages between the processes of a point (one check of a plugin) and the process that started
//! them. Each message is a line of JSON.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Role of a process of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Process that listens, accepts and receives.
    Receiver,
    /// Process that connects and sends.
    Sender,
}

impl Role {
    /// Returns the other role.
    pub(crate) fn other(self) -> Role {
        match self {
            Role::Receiver => Role::Sender,
            Role::Sender => Role::Receiver,
        }
    }

    /// Returns the name, for people and as the argument of a process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Receiver => "receiver",
            Role::Sender => "sender",
        }
    }
}

/// Message from a process of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ChildMessage {
    /// Step that the process begins.
    Step(String),
    /// Value for its peer.
    Tell(Value),
    /// Text of a warning. The plugin has written the warning to NCCL's log.
    Log(String),
    /// Text to show beside the outcome.
    Note(String),
    /// Measured performance.
    Measured(Row),
    /// Role of this process, and the bytes of memory that a connection takes in it.
    Held(Role, usize),
    /// The process is about to kill itself: the point tests how its peer reacts.
    Doomed,
    /// Verdict; the last message.
    Done(Verdict),
}

/// Message to a process of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ParentMessage {
    /// Value from its peer.
    Heard(Value),
    /// The process has no peer any more.
    PeerEnded,
}

/// Verdict on a point in one of its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// The plugin kept the contract.
    Passed,
    /// The point says nothing about this plugin, for this reason.
    Skipped(String),
    /// The plugin broke the contract, in this way.
    Failed(String),
    /// The peer's process has ended early or is late; the peer's own report has the reason.
    PeerEnded,
}

/// Latency and bandwidth of messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Bytes of each message.
    pub(crate) bytes: usize,
    /// Median of half of a round trip, in microseconds.
    pub(crate) latency_us: f64,
    /// 99th percentile of half of a round trip, in microseconds.
    pub(crate) latency_p99_us: f64,
    /// Bandwidth one way, in 10^9 bytes per second, with 8 messages in flight.
    pub(crate) bandwidth_gbps: f64,
}

/// Memory that a connection takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Held {
    /// Bytes at the receiver.
    pub(crate) receiver: usize,
    /// Bytes at the sender.
    pub(crate) sender: usize,
}
