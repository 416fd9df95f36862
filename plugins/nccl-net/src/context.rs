//! Context of an NCCL communicator: its traffic class and a hint about its next operation.

use std::sync::atomic::{AtomicU64, Ordering};

use ccl_core::queue_pairs::{Policy, Situation, Striping, Tier};
use ccl_core::types::Collective;
use nccl_net_abi::{Attributes, UNDEFINED};

use crate::table::Id;

/// Collectives; the index of each is NCCL's number for it (`ncclFunc_t`). Higher numbers are
/// point-to-point operations.
const COLLECTIVES: [Collective; 5] = [
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
];

/// Number of the all-reduce, which is assumed unless NCCL names exactly one operation.
const ALL_REDUCE: u32 = 4;

/// Context of a call, by its number or as a value.
#[derive(Debug)]
pub(crate) enum Known {
    /// Number of an existing context.
    By(Id),
    /// Context made for the call; versions of NCCL's interface before 11 have no contexts.
    Here(Context),
}

/// State of a communicator of NCCL.
#[derive(Debug)]
pub(crate) struct Context {
    /// Traffic class of the communicator's packets, if NCCL's configuration has one.
    pub(crate) traffic_class: Option<u8>,
    /// Lower 32 bits: number of the collective. Upper 32 bits: largest number of peers that this
    /// rank sends to at once.
    doing: AtomicU64,
}

impl Context {
    pub(crate) fn new(traffic_class: i32) -> Context {
        let traffic_class = u8::try_from(traffic_class).ok();
        Context { traffic_class, doing: AtomicU64::new(u64::from(ALL_REDUCE) | 1 << 32) }
    }

    /// Records NCCL's hint about the next operation.
    pub(crate) fn hint(&self, attributes: &Attributes) {
        // A mask with one bit names one operation. A mask with none, several or all bits (NCCL's
        // value for undefined has all) is read as all-reduce, the usual operation.
        let operations = attributes.operations;
        let collective = match operations.count_ones() {
            1 => operations.trailing_zeros(),
            _ => ALL_REDUCE,
        };
        let fan_out = attributes.send.peers_max.max(1).cast_unsigned();
        let doing = u64::from(collective) | u64::from(fan_out) << 32;
        self.doing.store(doing, Ordering::Relaxed);
    }

    /// Returns the policy's striping for a message of `bytes` bytes now.
    pub(crate) fn striping(&self, policy: &Policy, bytes: usize) -> Striping {
        let doing = self.doing.load(Ordering::Relaxed);
        let known = COLLECTIVES.get((doing & 0xff) as usize).copied();
        let collective = known.unwrap_or(Collective::SendRecv);
        let fan_out = (doing >> 32) as u32;
        policy.choose(&Situation { collective, bytes, fan_out, tier: Tier::Network })
    }
}

impl Default for Context {
    fn default() -> Context {
        Context::new(UNDEFINED)
    }
}

#[cfg(test)]
mod tests {
    use nccl_net_abi::Fan;

    use super::*;

    #[test]
    fn nccls_hints_select_the_number_of_queue_pairs() {
        let policy: Policy = "all_gather: qps=3; fan_out>=8: qps=4; bytes>=1M: qps=5; qps=6"
            .parse()
            .unwrap_or_else(|error| panic!("{error}"));
        let context = Context::default();
        let pairs = |bytes| context.striping(&policy, bytes).pairs;
        assert_eq!((pairs(8), pairs(1 << 20)), (6, 5));
        let fan = |peers_max| Fan { peers_max, peers_min: 1, flows_max: 1, flows_min: 1 };
        let hint = |operations, peers| {
            let (send, receive) = (fan(peers), fan(1));
            let rest = (0, 0);
            let (algorithms, protocols) = rest;
            context.hint(&Attributes { send, receive, operations, algorithms, protocols });
        };
        hint(1 << 2, 1);
        assert_eq!(pairs(8), 3);
        hint(1 << 6, 64);
        assert_eq!(pairs(8), 4);
        for undefined in [0, u32::MAX, 1 << 2 | 1 << 4] {
            hint(undefined, -1);
            assert_eq!(pairs(8), 6, "{undefined:#x}");
        }
        assert_eq!(Context::new(104).traffic_class, Some(104));
        assert_eq!(Context::new(-1).traffic_class, None);
    }
}
