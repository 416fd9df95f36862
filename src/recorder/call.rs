//! The current call of each rank, in memory that its peers can read. A rank that disagrees with a
//! peer, or waits for it, can thus name the calls of both.

use ccl_core::algorithm;
use ccl_core::select::variant::SlotFraction;
use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
use ccl_memory::{Region, RegionError, record};

/// Number of words that are published besides the sequence: the count, and the kind, which packs
/// all other fields of the record.
const WORDS: usize = 2;
const _: () = assert!(record::bytes(WORDS) <= CallRecord::SHARED_BYTES);

/// A call as other ranks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallRecord {
    /// Number of the call on this communicator, from 1; 0 before the first.
    pub(crate) sequence: u64,
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: Rank,
    /// Algorithm as 1 + its index in the registry, or 0 if ranks do not compare their algorithms.
    /// Ranks compare their algorithms in two cases: the call names an algorithm, or the tuning
    /// table has a cost model, with which each rank predicts by itself.
    pub(crate) algorithm: u8,
    /// Slot fraction of the algorithm; the whole slot if `algorithm` is 0.
    pub(crate) slot_fraction: SlotFraction,
    /// Number of elements of each block. If blocks have counts of their own, this field is a digest
    /// of the counts, or 0 if not all ranks know the counts.
    pub(crate) count: u64,
}

impl CallRecord {
    /// Bytes of a record in shared memory: a cache line of its own.
    pub(crate) const SHARED_BYTES: usize = 64;

    /// Returns the tag that messages of this call carry: 0 if calls are not to be compared.
    pub(crate) fn tag(&self, check: bool) -> u64 {
        CallRecord::tag_of(check, self.sequence, self.kind(), self.count)
    }

    /// Returns the tag of [`CallRecord::tag`], computed from the numbers that make up a record.
    #[inline]
    pub(crate) fn tag_of(check: bool, sequence: u64, kind: u64, count: u64) -> u64 {
        if !check {
            return 0;
        }
        // A multiplicative mix: cheap, and two calls that differ in one field hardly ever get the
        // same tag.
        let mixed = (kind ^ count.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sequence << 32 | mixed >> 32
    }

    pub(crate) fn kind(&self) -> u64 {
        let reduces = self.collective.reduces();
        let op = if reduces { self.op as u64 } else { 0 };
        let root = if self.collective.has_root() { u64::from(self.root) } else { 0 };
        let variant =
            u64::from(self.algorithm) << 24 | u64::from(self.slot_fraction.number()) << 22;
        self.collective as u64 | (self.data_type as u64) << 8 | op << 16 | variant | root << 32
    }

    /// Publishes a record to the peers.
    pub(crate) fn publish(
        to: &Region,
        sequence: u64,
        kind: u64,
        count: u64,
    ) -> Result<(), RegionError> {
        record::publish(to, sequence, [kind, count])
    }

    /// Returns the current call of the owner of `from`; none before its first call, or if the
    /// record is invalid.
    pub(crate) fn read(from: &Region) -> Option<CallRecord> {
        let (sequence, [kind, count]) = record::read::<WORDS>(from)?;
        CallRecord::of(sequence, kind, count)
    }

    /// Returns the record with these numbers; none if they are invalid.
    pub(crate) fn of(sequence: u64, kind: u64, count: u64) -> Option<CallRecord> {
        let pick = |shift: u32| (kind >> shift & 0xff) as u8;
        Some(CallRecord {
            sequence,
            collective: Collective::ALL.into_iter().find(|c| *c as u8 == pick(0))?,
            data_type: DataType::ALL.into_iter().find(|d| *d as u8 == pick(8))?,
            op: ReduceOp::ALL.into_iter().find(|o| *o as u8 == pick(16) & 0x3f)?,
            root: (kind >> 32) as Rank,
            algorithm: pick(24),
            slot_fraction: SlotFraction::of_number(pick(16) >> 6)?,
            count,
        })
    }

    /// Returns false if another rank's call has the same number but differs.
    pub(crate) fn agrees(&self, other: &CallRecord) -> bool {
        self.sequence != other.sequence
            || (self.kind() == other.kind() && self.count == other.count)
    }
}

impl std::fmt::Display for CallRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CallRecord { collective, sequence, count, data_type, .. } = self;
        match takes_counts(*collective) {
            false => write!(f, "{collective} #{sequence} of {count} × {data_type}")?,
            true if *count == 0 => write!(f, "{collective} #{sequence} of {data_type}")?,
            true => {
                write!(f, "{collective} #{sequence} of {data_type}, counts' digest {count:016x}")?
            }
        }
        if self.collective.reduces() {
            write!(f, ", {}", self.op)?;
        }
        if self.collective.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        let index = usize::from(self.algorithm).checked_sub(1);
        if let Some(asked) = index.and_then(|index| algorithm::all().nth(index)) {
            write!(f, ", by {}{}", asked.name, self.slot_fraction)?;
        }
        Ok(())
    }
}

/// Returns whether a collective takes counts per block, so that the count of its record is a digest
/// or zero.
pub(super) fn takes_counts(collective: Collective) -> bool {
    use Collective as C;
    matches!(
        collective,
        C::AllGatherV | C::ReduceScatterV | C::AllToAllV | C::GatherV | C::ScatterV
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> CallRecord {
        CallRecord {
            sequence: 7,
            collective: Collective::Reduce,
            data_type: DataType::Bfloat16,
            op: ReduceOp::Max,
            root: 3,
            algorithm: 0,
            slot_fraction: SlotFraction::WHOLE,
            count: 1000,
        }
    }

    #[test]
    fn a_published_record_is_read_back() {
        let region = Region::private(CallRecord::SHARED_BYTES);
        assert_eq!(CallRecord::read(&region), None);
        let CallRecord { sequence, count, .. } = record();
        CallRecord::publish(&region, sequence, record().kind(), count).unwrap();
        assert_eq!(CallRecord::read(&region), Some(record()));
        assert_eq!(record().to_string(), "reduce #7 of 1000 × bfloat16, max, root 3");
    }

    #[test]
    fn every_field_changes_the_tag() {
        let changes: [fn(&mut CallRecord); 8] = [
            |r| r.sequence += 1,
            |r| r.collective = Collective::AllReduce,
            |r| r.data_type = DataType::Int8,
            |r| r.op = ReduceOp::Sum,
            |r| r.root = 0,
            |r| r.algorithm = 3,
            |r| r.slot_fraction = SlotFraction::ALL[3],
            |r| r.count -= 1,
        ];
        for change in changes {
            let mut other = record();
            change(&mut other);
            assert_ne!(other.tag(true), record().tag(true), "{other}");
            // A kind leaves out fields that the collective lacks.
            let read = CallRecord::of(other.sequence, other.kind(), other.count).unwrap();
            assert_eq!(
                (read.kind(), read.slot_fraction),
                (other.kind(), other.slot_fraction),
                "{other}"
            );
        }
        assert_eq!(record().tag(false), 0);
    }
}
