//! What the perf programs need of a communicator: a handful of calls, so that everything above them
//! is tested against an in-process fake.

use std::error::Error;
use std::time::Instant;

use ccl_core::admission::PeerStatistics;
use ccl_core::queue_pairs::Flow;
use ccl_core::transport::RailState;
use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
use serde::Serialize;

use super::memory::Storage;

/// Any failure of the thing being measured; its text is shown to the user as it is.
pub type SubjectError = Box<dyn Error + Send + Sync>;

/// One rank of a communicator, as the perf programs see it. Every method but [`rank`](Self::rank),
/// [`ranks`](Self::ranks), [`now`](Self::now), [`explain`](Self::explain),
/// [`transport`](Self::transport) and [`peers`](Self::peers) is called by all ranks in the same
/// order.
pub trait Subject {
    /// This rank.
    fn rank(&self) -> Rank;

    /// How many ranks there are, at least 1.
    fn ranks(&self) -> u32;

    /// Runs one collective to its end.
    ///
    /// # Errors
    /// Whatever the communicator reports; the program then ends.
    fn run(&mut self, request: &Request<'_>, buffers: Buffers<'_>) -> Result<(), SubjectError>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// Whatever the communicator reports.
    fn barrier(&mut self) -> Result<(), SubjectError>;

    /// What time it is for this rank. Local. Tests have a time of their own, in which calls take as
    /// long as was planted.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// One number from every rank, in rank order.
    ///
    /// # Errors
    /// Whatever the communicator reports.
    fn all_gather_f64(&mut self, value: f64) -> Result<Vec<f64>, SubjectError>;

    /// Keeps memory registered, if there is anything to register it with.
    ///
    /// # Errors
    /// Whatever the communicator reports.
    fn register(&mut self, memory: Vec<u8>) -> Result<Storage, SubjectError> {
        Ok(Storage::Plain(memory))
    }

    /// The plan that [`run`](Self::run) would take. Local: nothing is sent, and rank 0 alone asks.
    fn explain(&mut self, request: &Request<'_>) -> Plan;

    /// The name of the transport in use, such as `shm`.
    fn transport(&self) -> String;

    /// What has passed so far between this rank and each peer that it sends messages to.
    fn peers(&self) -> Vec<Peer>;
}

/// A peer, and what has passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its rank.
    pub rank: Rank,
    /// Bytes in flight, stalls, waits for grants.
    #[serde(flatten)]
    pub account: PeerStatistics,
    /// What an Ethernet fabric sees of the messages sent to it.
    pub flows: Vec<Flow>,
    /// The ways that they take, where there are several.
    pub rails: Vec<RailState>,
}

/// One call of a collective.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Which one.
    pub collective: Collective,
    /// The type of the elements in both buffers.
    pub data_type: DataType,
    /// How elements are combined, where the collective combines any.
    pub op: ReduceOp,
    /// This rank's factor for [`ReduceOp::PremulSum`]: the native bytes of one element, first.
    pub scalar: Option<[u8; 8]>,
    /// The rank that is singled out, where one is.
    pub root: Rank,
    /// How many elements go where.
    pub shape: Shape<'a>,
    /// The algorithm that the user asked for by name; `None` leaves the choice to the library.
    pub algorithm: Option<&'a str>,
}

/// How many elements go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape<'a> {
    /// The count of NCCL's call: per rank for `all_gather`, `reduce_scatter`, `gather`, `scatter`
    /// and `all_to_all`, else of the whole buffer. `SendRecv`: each rank sends that many elements
    /// to the next rank and receives as many from the one before, both at once.
    Even {
        /// Elements.
        count: usize,
    },
    /// `AllToAllV`: blocks lie one behind the other in rank order.
    Vector {
        /// Elements that this rank sends to each rank.
        send: &'a [usize],
        /// Elements that this rank receives from each rank.
        recv: &'a [usize],
    },
    /// `SendRecv` between two ranks only: `from` sends its input so many times, as one group, `to`
    /// receives them one behind the other; every other rank returns at once.
    Pair {
        /// The sender.
        from: Rank,
        /// The receiver, another rank.
        to: Rank,
        /// So many times.
        messages: usize,
        /// Elements of a message.
        count: usize,
    },
}

/// The memory of one call: raw bytes of the element type. All ranks bring buffers of the same shape
/// as in nccl-tests, so a rank that is not the root brings an output too (which stays untouched)
/// and brings an input (which is not read).
#[derive(Debug)]
pub enum Buffers<'a> {
    /// Input and output apart.
    OutOfPlace {
        /// Read only.
        input: &'a [u8],
        /// Written.
        output: &'a mut [u8],
    },
    /// The larger of the two; the other one lies inside, where NCCL's in-place form has it: an
    /// input of `all_gather` and `gather` and an output of `reduce_scatter` and `scatter` at block
    /// `rank`, everything else at the start.
    InPlace(&'a mut [u8]),
}

/// What the library chose for a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The name of the algorithm.
    pub algorithm: String,
    /// One line for people.
    pub text: String,
    /// Everything, for the JSON report.
    pub detail: serde_json::Value,
}
