//! Errors in the arguments of one call.

use ccl_core::algorithm::SendRecvError;
use ccl_core::cost::predict::PredictError;
use ccl_core::queue_pairs::PolicyError;
use ccl_core::schedule::shape::ShapeError;
use ccl_core::types::{Collective, DataType, Rank};
use ccl_memory::RegionError;

/// Arguments of one call that cannot be right. Nothing was sent, and the communicator is unharmed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// A root that is not in the communicator.
    #[error("{collective}: root {root} is not among the {ranks} ranks, which are counted from 0")]
    Root {
        /// The collective.
        collective: Collective,
        /// The root that the call names.
        root: Rank,
        /// Number of ranks.
        ranks: u32,
    },
    /// A rank that is not in the communicator.
    #[error("rank {rank} is not among the {ranks} ranks, which are counted from 0")]
    NoSuchRank {
        /// The rank that the call names.
        rank: Rank,
        /// Number of ranks.
        ranks: u32,
    },
    /// Sizes that the collective does not take.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A length that is no multiple of the number of ranks.
    #[error(
        "{collective}: {elements} elements cannot be divided evenly among {ranks} ranks; use \
         {collective}_v, which takes a count for each rank"
    )]
    Uneven {
        /// The collective.
        collective: Collective,
        /// Elements of the buffer.
        elements: usize,
        /// Number of ranks.
        ranks: u32,
    },
    /// An input and an output whose lengths differ, where they must be equal.
    #[error(
        "{collective}: the input has {input} elements, the output {output}; give both the same \
         length"
    )]
    Lengths {
        /// The collective.
        collective: Collective,
        /// Elements of the input.
        input: usize,
        /// Elements of the output.
        output: usize,
    },
    /// A buffer that is too short.
    #[error(
        "{collective}: the {buffer} must hold {needed} elements of {data_type} but holds {given}"
    )]
    Buffer {
        /// The collective.
        collective: Collective,
        /// Name of the buffer: `input` or `output`.
        buffer: &'static str,
        /// Type of the elements.
        data_type: DataType,
        /// Elements that the call needs.
        needed: usize,
        /// Elements of the buffer.
        given: usize,
    },
    /// An input and an output that overlap but are not the in-place form.
    #[error(
        "{collective}: input and output overlap but are not the in-place form, in which the \
         smaller one is this rank's block of the larger one"
    )]
    BuffersOverlap {
        /// The collective.
        collective: Collective,
    },
    /// Counts that no memory can hold.
    #[error(
        "{collective}: the counts come to more bytes than an address space holds; check the counts"
    )]
    TooManyBytes {
        /// The collective.
        collective: Collective,
    },
    /// An in-place call whose sent blocks differ from its received blocks.
    #[error(
        "{collective}: in place, the block sent to a rank and the block received from it must have \
         the same start and count"
    )]
    InPlaceBlocks {
        /// The collective.
        collective: Collective,
    },
    /// A rank's block for itself, with different lengths in input and output.
    #[error(
        "{collective}: rank {rank} sends {sent} elements to itself but expects {expected}; give \
         both the same count"
    )]
    OwnBlock {
        /// The collective.
        collective: Collective,
        /// This rank.
        rank: Rank,
        /// Elements that the rank sends to itself.
        sent: usize,
        /// Elements that the rank expects of itself.
        expected: usize,
    },
    /// Received blocks that share elements of the output.
    #[error(
        "{collective}: the block from rank {first} and the block from rank {second} would overlap \
         in the output; give each a range of its own"
    )]
    BlocksOverlap {
        /// The collective.
        collective: Collective,
        /// Rank whose block begins first.
        first: Rank,
        /// Rank whose block begins inside the block of `first`.
        second: Rank,
    },
    /// Buffers of another element type than the call's.
    #[error(
        "{collective}: the call is for {call} elements, and the buffers have {buffers} elements"
    )]
    DataType {
        /// The collective.
        collective: Collective,
        /// Element type of the call.
        call: DataType,
        /// Element type of the buffers.
        buffers: DataType,
    },
    /// An algorithm whose messages do not fit the slots of the links.
    #[error(
        "a message of {parts} parts does not fit slots of {slot_bytes} bytes; raise \
         FERROCCL_BUDGET_BYTES"
    )]
    SlotTooSmall {
        /// Parts of the longest message.
        parts: u32,
        /// Bytes of a slot.
        slot_bytes: usize,
    },
    /// A group of sends and receives that cannot be carried out.
    #[error(transparent)]
    Messages(#[from] SendRecvError),
    /// A rank's message to itself, with different lengths of send and receive.
    #[error(
        "rank {rank} sends {sent} bytes to itself but expects {expected}; give both the same length"
    )]
    OwnMessage {
        /// This rank.
        rank: Rank,
        /// Bytes that the rank sends to itself.
        sent: usize,
        /// Bytes that the rank expects of itself.
        expected: usize,
    },
    /// Another rank's symmetric memory, which this rank does not map.
    #[error(
        "the memory of rank {rank} is not mapped: it is on another host, or FERROCCL_TRANSPORT \
         keeps the ranks of this host from sharing memory; use sends and receives instead"
    )]
    NotMapped {
        /// Rank whose memory is not mapped.
        rank: Rank,
    },
    /// Elements that are not in the symmetric memory.
    #[error(transparent)]
    Range(#[from] RegionError),
    /// More elements than memory can hold.
    #[error("{count} elements are more than memory can hold; ask for fewer")]
    TooManyElements {
        /// Elements that the call asks for.
        count: usize,
    },
    /// A call whose duration cannot be predicted.
    #[error(transparent)]
    Prediction(#[from] PredictError),
    /// A text that is no queue-pair policy.
    #[error("the queue-pair policy is invalid: {0}")]
    Policy(PolicyError),
    /// A queue-pair policy that needs more queue pairs than the ranks made when they joined.
    #[error(
        "the queue-pair policy needs {pairs} queue pairs of {} on each link, but fewer were made \
         when the ranks joined; join with a FERROCCL_IB_POLICY that has enough",
        class(*.traffic_class)
    )]
    QueuePairs {
        /// Queue pairs that the policy needs on each link.
        pairs: u32,
        /// Traffic class of the queue pairs; none for the transport's own.
        traffic_class: Option<u8>,
    },
    /// A request that another communicator started.
    #[error("the request belongs to another communicator; pass it to the one that started it")]
    ForeignRequest,
    /// A request whose result is gone.
    #[error(
        "the request's result was taken before; a scope takes the results of its requests when it \
         ends"
    )]
    ResultTaken,
    /// A `Request<B>` whose buffers are not of type `B`.
    #[error(
        "the request's buffers are of another type; take them as the type that it was started with"
    )]
    RequestBuffers,
    /// A request that has ended and cannot be driven.
    #[error("a request that has ended cannot be driven; `wait` returns its result")]
    RequestEnded,
    /// A request that has ended with an error, which was returned before.
    #[error("{reason}")]
    RequestFailed {
        /// Text of the error.
        reason: String,
    },
}

fn class(traffic_class: Option<u8>) -> String {
    let own = || "the transport's own traffic class".to_owned();
    traffic_class.map_or_else(own, |class| format!("traffic class {class}"))
}
