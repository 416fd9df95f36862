//! Ring `all_reduce`: each of n parts goes around the ring twice, first to be reduced, then to be
//! distributed.
//!
//! ```text
//!   reduce part 0:    1 ──► 2 ──► 3 ──► 0        (complete at 0)
//!   hand it out:      0 ──► 1 ──► 2 ──► 3
//! ```
//!
//! Steps: 2(n-1). Bytes sent per rank: 2(n-1)/n of the buffer, the least possible. All links of
//! the ring are busy all the time. Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations", 2009.

use crate::algorithm::common::{Ring, gather_around, reduce_around};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllReduce,
    family: Family::Ring,
    name: "ring",
    summary: "reduce_scatter, then all_gather, around a ring; least bytes, most steps",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| 2 * (hosts.ranks() - 1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let ring = Ring::of(params);
    let mut b = Builder::new(params.rank, params.ranks, params.ranks);
    reduce_around(&mut b, ring, output(ring.own));
    gather_around(&mut b, ring);
    b.finish()
}
