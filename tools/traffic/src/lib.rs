//! Traffic between ranks: computed from the schedules of a collective, or counted while an
//! application runs. [`matrix`] is the file format of traffic. [`bus_factor`] is bus bandwidth
//! divided by algorithm bandwidth.

/// Fuzz targets of this crate, as in `ccl_core::fuzzing`.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod matrix;

use std::collections::BTreeMap;
use std::io::Write as _;

use ccl_core::algorithm::{Algorithm, Params};
use ccl_core::cost::predict::grain;
use ccl_core::schedule::shape::{Seat, ShapeError, Sizes};
use ccl_core::schedule::{Buffer, Op};
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, Rank};

/// Bytes from one rank to another.
pub type Bytes = BTreeMap<(Rank, Rank), u64>;

/// Traffic between ranks, in intervals of equal length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Number of ranks; those that send nothing count too.
    pub ranks: u32,
    /// Length of an interval, in seconds.
    pub interval_s: f64,
    /// Bytes of each interval, in order. A pair without an entry sends nothing.
    pub intervals: Vec<Bytes>,
}

impl Traffic {
    /// Returns the bytes of each pair of ranks, summed over all intervals.
    #[must_use]
    pub fn whole(&self) -> Bytes {
        let mut whole = Bytes::new();
        for (pair, bytes) in self.intervals.iter().flatten() {
            *whole.entry(*pair).or_insert(0) += bytes;
        }
        whole
    }
}

/// Collective with blocks of equal length (see [`ccl_core::algorithm`]), and its algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Algorithm of the collective.
    pub algorithm: &'static Algorithm,
    /// Root of the collective; any rank if the collective has no root.
    pub root: Rank,
    /// Number of elements of a block.
    pub count: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Placement of the ranks on hosts.
    pub hosts: &'a Hosts,
}

impl Sent<'_> {
    /// Returns the bytes that one rank sends, by peer.
    ///
    /// # Errors
    ///
    /// When the collective has no blocks of equal length.
    pub fn by(&self, rank: Rank) -> Result<BTreeMap<Rank, u64>, ShapeError> {
        let Sent { algorithm, root, count, element_bytes, hosts } = *self;
        let ranks = hosts.ranks();
        let schedule = (algorithm.schedule)(&Params { rank, ranks, root, hosts });
        let seat = Seat { collective: algorithm.collective, rank, ranks, root };
        let (input, output) =
            seat.layouts(Sizes::Even(count), schedule.split, grain(element_bytes))?;
        let mut sent = BTreeMap::new();
        schedule.for_each(&mut |op, counters| {
            let Op::Send { peer, source } = op else { return };
            let parts = source.extent.parts;
            let layout = if source.extent.buffer == Buffer::Input { &input } else { &output };
            let elements = |index| layout.part(parts.part(index, counters)).1;
            let elements: usize = (0..parts.total).map(elements).sum();
            *sent.entry(peer.eval(counters)).or_insert(0) += (elements * element_bytes) as u64;
        });
        Ok(sent)
    }

    /// Returns the bytes that all ranks send.
    ///
    /// # Errors
    ///
    /// When the collective has no blocks of equal length.
    pub fn by_all(&self) -> Result<Bytes, ShapeError> {
        let mut bytes = Bytes::new();
        for rank in 0..self.hosts.ranks() {
            let sent = self.by(rank)?;
            bytes.extend(sent.into_iter().map(|(peer, bytes)| ((rank, peer), bytes)));
        }
        Ok(bytes)
    }
}

/// Returns bus bandwidth divided by algorithm bandwidth, as in nccl-tests: the bytes that the best
/// algorithm sends over the busiest link, divided by the bytes of the call. With `n` ranks,
/// the factor is `2 (n − 1) / n` for all_reduce, `(n − 1) / n` for collectives in which one of a
/// rank's `n` parts stays on the rank, and 1 for the rest.
#[must_use]
pub fn bus_factor(collective: Collective, ranks: u32) -> f64 {
    use Collective as C;
    let n = f64::from(ranks);
    match collective {
        C::AllReduce => 2.0 * (n - 1.0) / n,
        C::AllGather
        | C::AllGatherV
        | C::ReduceScatter
        | C::ReduceScatterV
        | C::AllToAll
        | C::AllToAllV
        | C::Gather
        | C::GatherV
        | C::Scatter
        | C::ScatterV => (n - 1.0) / n,
        C::Broadcast | C::Reduce | C::SendRecv | C::Barrier => 1.0,
    }
}

/// Writes a whole file; `-` is standard output.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_file(path: &str, bytes: &[u8]) -> Result<(), String> {
    let written = match path {
        "-" => std::io::stdout().write_all(bytes),
        _ => std::fs::write(path, bytes),
    };
    written.map_err(|error| format!("cannot write {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::algorithm::find;
    use ccl_core::types::Collective;

    #[test]
    fn a_rank_of_a_ring_sends_only_to_the_next_rank() {
        let hosts = Hosts::one(4);
        let algorithm = find(Collective::AllReduce, "ring").unwrap();
        let sent = Sent { algorithm, root: 0, count: 640, element_bytes: 4, hosts: &hosts };
        let bytes = sent.by_all().unwrap();
        // 2 (n - 1) / n of the buffer.
        let expected = (0..4).map(|rank| ((rank, (rank + 1) % 4), 3_840)).collect();
        assert_eq!(bytes, expected);
        // Parts begin at cache lines, as in a real call: parts of 96, 112, 96 and 96 elements.
        let odd = Sent { count: 400, ..sent }.by_all().unwrap();
        assert_eq!(odd.values().sum::<u64>(), 2 * 3 * 1_600);
        assert!(odd.values().all(|bytes| bytes % 64 == 0));
        let twice = Traffic { ranks: 4, interval_s: 1.0, intervals: vec![bytes.clone(), bytes] };
        assert_eq!(twice.whole()[&(3, 0)], 7_680);
    }

    #[test]
    fn the_bus_factor_depends_on_the_collective() {
        use Collective as C;
        let eight = |collective| bus_factor(collective, 8);
        assert_eq!(
            [C::AllReduce, C::AllToAllV, C::Gather, C::Broadcast].map(eight),
            [1.75, 0.875, 0.875, 1.0]
        );
    }
}
