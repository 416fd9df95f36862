//! Repeated calls of the same collective allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// System allocator with a count of each thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: `Counting` hands everything on to the system's allocator, and counts without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract; `at` came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[cfg(test)]
mod tests {
    use super::ALLOCATIONS;
    use ccl_harness::{config, ranks_with};
    use ferroccl::communicator::Blocks;
    use ferroccl::{Communicator, Config, Error, Reduction};
    use std::collections::BTreeMap;

    /// Number of rounds, which must be equal on all ranks.
    const ROUNDS: u32 = 3;

    /// Returns the number of allocations in 100 calls that follow a first call. The result is the
    /// minimum of a few rounds: on a busy machine, a rank can wait so long that it runs the stall
    /// detector, which can allocate.
    fn count(
        c: &mut Communicator,
        mut call: impl FnMut(&mut Communicator) -> Result<(), Error>,
    ) -> u64 {
        call(c).unwrap();
        let round = |_| {
            let before = ALLOCATIONS.get();
            for _ in 0..100 {
                call(c).unwrap();
            }
            ALLOCATIONS.get() - before
        };
        (0..ROUNDS).map(round).min().unwrap()
    }

    /// Returns the number of allocations for each kind of call, with blocks of `length` elements.
    fn counts(c: &mut Communicator, length: usize) -> BTreeMap<&'static str, u64> {
        let (n, root) = (c.ranks() as usize, c.ranks() - 1);
        let (next, previous) = ((c.rank() + 1) % n as u32, (c.rank() + n as u32 - 1) % n as u32);
        let (small, large) = (vec![1f32; length], vec![1f32; length * n]);
        let (mut out, mut all) = (vec![0f32; length], vec![0f32; length * n]);
        let uneven: Vec<usize> = (0..n).map(|rank| length * rank / n).collect();
        let starts: Vec<usize> = (0..n).map(|rank| length * rank).collect();
        let blocks = Blocks { counts: &uneven, starts: &starts };
        let own = uneven[c.rank() as usize];
        let (sends, halves) = (vec![own; n], vec![length / 2; n]);
        let send = Blocks { counts: &sends, starts: &starts };
        let sum = Reduction::Sum;
        BTreeMap::from([
            ("all_reduce", count(c, |c| c.all_reduce(&small, &mut out, sum))),
            ("all_reduce in place", count(c, |c| c.all_reduce_in_place(&mut all, sum))),
            ("all_gather", count(c, |c| c.all_gather(&small, &mut all))),
            ("reduce_scatter", count(c, |c| c.reduce_scatter(&large, &mut out, sum))),
            ("broadcast", count(c, |c| c.broadcast(&mut out, root))),
            ("reduce", count(c, |c| c.reduce(&small, &mut out, sum, root))),
            ("gather", count(c, |c| c.gather(&small, &mut all, root))),
            ("scatter", count(c, |c| c.scatter(&large, &mut out, root))),
            ("all_to_all", count(c, |c| c.all_to_all(&large, &mut all))),
            ("barrier", count(c, Communicator::barrier)),
            (
                "send_recv",
                count(c, |c| c.group().send(&small, next).recv(&mut out, previous).run()),
            ),
            ("all_gather_v", count(c, |c| c.all_gather_v(&small[..own], &mut all, blocks))),
            ("reduce_scatter_v", count(c, |c| c.reduce_scatter_v(&large, &mut out, blocks, sum))),
            (
                "all_gather_v with changing counts",
                count(c, |c| {
                    c.all_gather_v(&small[..own], &mut all, blocks)?;
                    let halves = Blocks { counts: &halves, starts: &starts };
                    c.all_gather_v(&small[..length / 2], &mut all, halves)
                }),
            ),
            ("all_to_all_v", count(c, |c| c.all_to_all_v(&large, send, &mut all, blocks))),
            (
                "different calls in turn",
                count(c, |c| {
                    c.all_reduce(&small, &mut out, sum)?;
                    c.all_gather(&small, &mut all)?;
                    c.all_reduce(&small[..1], &mut out[..1], sum)
                }),
            ),
        ])
    }

    fn allocate_nothing(n: u32, config: &Config) {
        for length in [1, 1000, 100_003] {
            for all in ranks_with(n, config.clone(), move |c| counts(c, length)) {
                let allocating: Vec<_> = all.iter().filter(|(_, count)| **count > 0).collect();
                assert!(
                    allocating.is_empty(),
                    "with {n} ranks and {length} elements, these calls allocate: {allocating:?}"
                );
            }
        }
    }

    #[test]
    fn calls_after_the_first_allocate_nothing() {
        for n in [1, 2, 4] {
            allocate_nothing(n, &config());
        }
    }

    #[test]
    fn calls_after_the_first_allocate_nothing_over_tcp() {
        let mut config = config();
        (config.transport, config.socket_interfaces) = ("tcp".to_owned(), "127.0.0.1".to_owned());
        for n in [2, 3] {
            allocate_nothing(n, &config);
        }
    }

    /// Checks that the allocator counts the allocations of this thread.
    #[test]
    fn allocations_are_counted() {
        let before = ALLOCATIONS.get();
        drop(std::hint::black_box(vec![1u8; 100]));
        assert_eq!(ALLOCATIONS.get() - before, 1);
    }
}
