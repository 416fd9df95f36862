//! Vocabulary of collectives: element types, reduction operators, collectives, ranks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The index of a process in a communicator, `0..ranks`.
pub type Rank = u32;

/// The type of one element, with NCCL's names. The small floats are stored as raw bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum DataType {
    /// Signed integer, 1 byte.
    Int8,
    /// Unsigned integer, 1 byte.
    Uint8,
    /// Signed integer, 4 bytes.
    Int32,
    /// Unsigned integer, 4 bytes.
    Uint32,
    /// Signed integer, 8 bytes.
    Int64,
    /// Unsigned integer, 8 bytes.
    Uint64,
    /// IEEE 754 binary16.
    Float16,
    /// The upper half of a binary32.
    Bfloat16,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// OCP 8-bit float, 4 exponent and 3 mantissa bits, no infinity (E4M3FN).
    Float8E4m3,
    /// OCP 8-bit float, 5 exponent and 2 mantissa bits.
    Float8E5m2,
}

impl DataType {
    /// Every type, in the order of NCCL's enumeration.
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8E4m3,
        DataType::Float8E5m2,
    ];

    /// Returns the number of bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 | DataType::Float8E4m3 | DataType::Float8E5m2 => 1,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }

    /// Returns the name that nccl-tests prints and accepts (`-d`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Int8 => "int8",
            DataType::Uint8 => "uint8",
            DataType::Int32 => "int32",
            DataType::Uint32 => "uint32",
            DataType::Int64 => "int64",
            DataType::Uint64 => "uint64",
            DataType::Float16 => "half",
            DataType::Bfloat16 => "bfloat16",
            DataType::Float32 => "float",
            DataType::Float64 => "double",
            DataType::Float8E4m3 => "f8e4m3",
            DataType::Float8E5m2 => "f8e5m2",
        }
    }

    /// Returns whether elements are floats of 8 or 16 bits, which are accumulated in float32.
    #[must_use]
    pub const fn is_narrow_float(self) -> bool {
        matches!(
            self,
            DataType::Float16 | DataType::Bfloat16 | DataType::Float8E4m3 | DataType::Float8E5m2
        )
    }
}

/// Operator that combines elements, with NCCL's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum ReduceOp {
    /// a + b; integers wrap.
    Sum,
    /// a × b; integers wrap.
    Prod,
    /// The smaller element.
    Min,
    /// The larger element.
    Max,
    /// The sum divided by the number of ranks (integers: rounded towards zero, as NCCL does).
    Avg,
    /// The sum of the ranks' elements, each first multiplied by its rank's own scalar.
    PremulSum,
}

impl ReduceOp {
    /// Every operator.
    pub const ALL: [ReduceOp; 6] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Avg,
        ReduceOp::PremulSum,
    ];

    /// Returns the name that nccl-tests prints and accepts (`-o`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::PremulSum => "mulsum",
        }
    }
}

/// Operation that a group of ranks performs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Collective {
    /// Every rank gets the reduction of all inputs. Input and output: `count` elements.
    AllReduce,
    /// Every rank gets all inputs in rank order. Input `count`, output `ranks × count`.
    AllGather,
    /// Rank r gets block r of the reduction. Input `ranks × count`, output `count`.
    ReduceScatter,
    /// Every rank gets the root's input. Input (root) and output: `count`.
    Broadcast,
    /// The root gets the reduction of all inputs. Input and output (root): `count`.
    Reduce,
    /// The root gets all inputs in rank order. Input `count`, output (root) `ranks × count`.
    Gather,
    /// Rank r gets block r of the root's input. Input (root) `ranks × count`, output `count`.
    Scatter,
    /// Block j of rank i becomes block i of rank j. Input and output: `ranks × count`.
    AllToAll,
    /// `AllGather` with a count per rank, known to all.
    AllGatherV,
    /// `ReduceScatter` with a count per rank, known to all.
    ReduceScatterV,
    /// `AllToAll` with a count per pair; each rank knows its own row and column.
    AllToAllV,
    /// `Gather` with a count per rank, known to the root; each rank knows its own.
    GatherV,
    /// `Scatter` with a count per rank, known to the root; each rank knows its own.
    ScatterV,
    /// No rank leaves before every rank has entered.
    Barrier,
    /// A group of sends and receives between pairs of ranks.
    SendRecv,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Collective; 15] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::AllGatherV,
        Collective::ReduceScatterV,
        Collective::AllToAllV,
        Collective::GatherV,
        Collective::ScatterV,
        Collective::Barrier,
        Collective::SendRecv,
    ];

    /// Returns the number of equal blocks in the larger buffer of a rank; none for collectives
    /// whose blocks have counts of their own, or that move nothing.
    #[must_use]
    pub const fn even_blocks(self, ranks: u32) -> Option<u32> {
        match self {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => Some(1),
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll => Some(ranks),
            _ => None,
        }
    }

    /// Returns the name used in commands, tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::AllGatherV => "all_gather_v",
            Collective::ReduceScatterV => "reduce_scatter_v",
            Collective::AllToAllV => "all_to_all_v",
            Collective::GatherV => "gather_v",
            Collective::ScatterV => "scatter_v",
            Collective::Barrier => "barrier",
            Collective::SendRecv => "send_recv",
        }
    }

    /// Returns whether the collective combines elements, so that type and operator matter.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::ReduceScatter
                | Collective::Reduce
                | Collective::ReduceScatterV
        )
    }

    /// Returns whether the collective has a root.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(
            self,
            Collective::Broadcast
                | Collective::Reduce
                | Collective::Gather
                | Collective::Scatter
                | Collective::GatherV
                | Collective::ScatterV
        )
    }
}

/// Error for an unknown name of a type, a reduction or a collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} \"{given}\"; choose one of: {known}")]
pub struct UnknownName {
    what: &'static str,
    given: String,
    known: String,
}

fn by_name<T: Copy>(
    what: &'static str,
    all: &[T],
    name: fn(T) -> &'static str,
    given: &str,
) -> Result<T, UnknownName> {
    all.iter().copied().find(|&value| name(value) == given).ok_or_else(|| UnknownName {
        what,
        given: given.to_owned(),
        known: all.iter().map(|&value| name(value)).collect::<Vec<_>>().join(" "),
    })
}

macro_rules! named {
    ($($type:ty, $what:literal;)*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
        impl FromStr for $type {
            type Err = UnknownName;
            fn from_str(given: &str) -> Result<Self, UnknownName> {
                by_name($what, &Self::ALL, Self::name, given)
            }
        }
    )*};
}

named! {
    DataType, "type";
    ReduceOp, "reduction";
    Collective, "collective";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_errors_list_the_known_names() {
        for value in DataType::ALL {
            assert_eq!(value.to_string().parse::<DataType>(), Ok(value));
        }
        for value in ReduceOp::ALL {
            assert_eq!(value.to_string().parse::<ReduceOp>(), Ok(value));
        }
        for value in Collective::ALL {
            assert_eq!(value.to_string().parse::<Collective>(), Ok(value));
        }
        let error = "floot".parse::<DataType>().unwrap_err().to_string();
        assert!(error.contains("floot") && error.contains("bfloat16"), "{error}");
    }
}
