//! Interface between the perf programs and a communicator. It has few calls, so that tests can
//! replace the communicator by an in-process fake.

use std::error::Error;
use std::time::Instant;

use ccl_core::admission::PeerStatistics;
use ccl_core::queue_pairs::Flow;
use ccl_core::transport::RailState;
use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
use serde::Serialize;

use super::memory::Storage;

/// Any failure of the measured subject; its text is shown to the user as it is.
pub type SubjectError = Box<dyn Error + Send + Sync>;

/// One rank of a communicator, as the perf programs see it. All ranks make the same calls in the
/// same order, except for the local calls: [`rank`](Self::rank), [`ranks`](Self::ranks),
/// [`now`](Self::now), [`explain`](Self::explain), [`transport`](Self::transport) and
/// [`peers`](Self::peers).
pub trait Subject {
    /// Returns the number of this rank.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks, at least 1.
    fn ranks(&self) -> u32;

    /// Runs one collective `times` times, each time until it is done. One method makes all calls of
    /// a sample: what surrounds a call would count as the call's time.
    ///
    /// # Errors
    /// Errors of the communicator; the program then ends.
    fn run(
        &mut self,
        request: &Request<'_>,
        buffers: Buffers<'_>,
        times: u64,
    ) -> Result<(), SubjectError>;

    /// Waits until every rank has called this method.
    ///
    /// # Errors
    /// Errors of the communicator.
    fn barrier(&mut self) -> Result<(), SubjectError>;

    /// Returns this rank's time. The call is local. Tests can override this method with a simulated
    /// clock, to control the time that a message takes.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns one number from every rank, in rank order.
    ///
    /// # Errors
    /// Errors of the communicator.
    fn all_gather_f64(&mut self, value: f64) -> Result<Vec<f64>, SubjectError>;

    /// Registers memory for the time of the run, if the transport supports it.
    ///
    /// # Errors
    /// Errors of the communicator.
    fn register(&mut self, memory: Vec<u8>) -> Result<Storage, SubjectError> {
        Ok(Storage::Plain(memory))
    }

    /// Returns the plan that [`run`](Self::run) would take. The call is local: nothing is sent, and
    /// only rank 0 calls this method.
    fn explain(&mut self, request: &Request<'_>) -> Plan;

    /// Returns the name of the transport in use, such as `shm`.
    fn transport(&self) -> String;

    /// Returns statistics of each peer that this rank sends messages to.
    fn peers(&self) -> Vec<Peer>;
}

/// Peer with its statistics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Rank of the peer.
    pub rank: Rank,
    /// Counters: bytes in flight, stalls, waits for credits.
    #[serde(flatten)]
    pub statistics: PeerStatistics,
    /// Flows of the messages to the peer, as an Ethernet fabric sees them.
    pub flows: Vec<Flow>,
    /// Rails of the messages to the peer, if there are several.
    pub rails: Vec<RailState>,
}

/// One call of a collective.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Kind of collective.
    pub collective: Collective,
    /// Type of the elements in both buffers.
    pub data_type: DataType,
    /// Operator of the reduction, for collectives that reduce.
    pub op: ReduceOp,
    /// Factor of this rank for [`ReduceOp::PremulSum`]: one element in native byte order, at the
    /// start of the array.
    pub scalar: Option<[u8; 8]>,
    /// Root, if the collective has one.
    pub root: Rank,
    /// Number of elements to and from each rank.
    pub shape: Shape<'a>,
    /// Algorithm that the user has named; `None` leaves the choice to the library.
    pub algorithm: Option<&'a str>,
}

/// Number of elements to and from each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape<'a> {
    /// Count as in NCCL's call: elements per rank for `all_gather`, `reduce_scatter`, `gather`,
    /// `scatter` and `all_to_all`, and elements of the whole buffer for the other collectives. For
    /// `SendRecv`, each rank sends `count` elements to the next rank and receives `count` elements
    /// from the previous one, both at once.
    Even {
        /// Number of elements.
        count: usize,
    },
    /// Counts of `AllToAllV`: blocks are consecutive, in rank order.
    Vector {
        /// Elements that this rank sends to each rank.
        send: &'a [usize],
        /// Elements that this rank receives from each rank.
        recv: &'a [usize],
    },
    /// Messages of `SendRecv` between two ranks only: `from` sends its input `messages` times, as
    /// one group; `to` receives the messages into consecutive parts of its output; every other rank
    /// returns at once.
    Pair {
        /// Rank that sends.
        from: Rank,
        /// Rank that receives; it differs from `from`.
        to: Rank,
        /// Number of messages.
        messages: usize,
        /// Number of elements of a message.
        count: usize,
    },
}

/// Memory of one call: raw bytes of the element type. For [`Shape::Even`], as in nccl-tests, all
/// ranks have buffers of the same size. If only the root receives a result, the outputs of the
/// other ranks stay untouched. If only the root's input is sent, the inputs of the other ranks are
/// not read.
#[derive(Debug)]
pub enum Buffers<'a> {
    /// Separate input and output.
    OutOfPlace {
        /// Input, which is only read.
        input: &'a [u8],
        /// Output, which is written.
        output: &'a mut [u8],
    },
    /// The larger of the two buffers, with the smaller one inside it, as in NCCL's in-place form.
    /// In `all_gather` and `gather`, the input is block `rank` of the output. In `reduce_scatter`
    /// and `scatter`, the output is block `rank` of the input. In other collectives, input and
    /// output both begin at the start.
    InPlace(&'a mut [u8]),
}

/// Choice of the library for a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Description in one line, for people.
    pub text: String,
    /// Whole plan, for the JSON report.
    pub detail: serde_json::Value,
}
