//! Non-blocking calls.

use ccl_harness::stretched;
use ccl_harness::{config_with, ranks, ranks_with};
use ferroccl::communicator::{Call, CallError, Request};
use ferroccl::{Collective, Communicator, DataType, Error, Reduction};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

type Owned = Request<(Vec<u64>, Vec<u64>)>;

/// Starts an all_reduce that sums `rank + seed + index` over all ranks.
fn start(c: &mut Communicator, seed: u64, count: usize) -> Owned {
    let input = of(c, seed, count);
    c.start_all_reduce(input, vec![0; count], Reduction::Sum).unwrap()
}

fn of(c: &Communicator, seed: u64, count: usize) -> Vec<u64> {
    (0..count as u64).map(|index| u64::from(c.rank()) + seed + index).collect()
}

fn sums(ranks: u32, seed: u64, count: usize) -> Vec<u64> {
    let n = u64::from(ranks);
    (0..count as u64).map(|index| n * (n - 1) / 2 + n * (seed + index)).collect()
}

/// Waits for a request of [`start`] and checks its result.
fn finish(c: &mut Communicator, request: Owned, seed: u64, count: usize) {
    let (input, output) = c.wait(request, SOON).unwrap();
    assert_eq!((input.len(), input.first().copied()), (count, first(c, seed, count)));
    assert!(output == sums(c.ranks(), seed, count), "seed {seed}, count {count}");
}

fn first(c: &Communicator, seed: u64, count: usize) -> Option<u64> {
    (count > 0).then(|| u64::from(c.rank()) + seed)
}

const COUNTS: [usize; 7] = [1, 300_000, 0, 5, 40_000, 1, 300_000];

#[test]
fn many_requests_are_queued_and_waited_for_in_order() {
    for n in [1, 2, 3] {
        ranks(n, |c| {
            let started: Vec<_> = (0..).zip(COUNTS).map(|(seed, n)| start(c, seed, n)).collect();
            for ((seed, count), request) in (0..).zip(COUNTS).zip(started) {
                finish(c, request, seed, count);
            }
        });
    }
}

#[test]
fn each_rank_may_wait_for_requests_in_an_order_of_its_own() {
    ranks(3, |c| {
        let started = (0..).zip(COUNTS).map(|(seed, n)| (seed, n, start(c, seed, n)));
        let mut started: Vec<_> = started.collect();
        match c.rank() {
            0 => started.reverse(),
            1 => started.rotate_left(3),
            _ => started.swap(1, 6),
        }
        for (seed, count, request) in started {
            finish(c, request, seed, count);
        }
    });
}

#[test]
fn polling_one_request_advances_all() {
    ranks(2, |c| {
        let (a, b) = (start(c, 1, 100_000), start(c, 2, 3));
        let begun = Instant::now();
        while !c.test(&b).unwrap() {
            assert!(begun.elapsed() < SOON);
        }
        assert!(c.test(&a).unwrap(), "the request that was started first has not ended");
        finish(c, b, 2, 3);
        finish(c, a, 1, 100_000);
    });
}

#[test]
fn blocking_calls_run_after_queued_requests() {
    ranks(3, |c| {
        let (a, b) = (start(c, 7, 50_000), start(c, 8, 2));
        let mut value = [c.rank() + 1];
        c.all_reduce_in_place(&mut value, Reduction::Sum).unwrap();
        assert_eq!(value, [6]);
        let (own, mut got) = (c.rank(), [0]);
        let (next, previous) = ((own + 1) % 3, (own + 2) % 3);
        c.group().send(&[own], next).recv(&mut got, previous).run().unwrap();
        assert_eq!(got, [previous]);
        finish(c, b, 8, 2);
        finish(c, a, 7, 50_000);
    });
}

/// A call may be blocking on some ranks and non-blocking on others.
#[test]
fn blocking_and_non_blocking_calls_match_across_ranks() {
    ranks(3, |c| {
        for seed in 0..10 {
            if c.rank() == 1 {
                let input: Vec<u64> = (0..1000).map(|index| 1 + seed + index).collect();
                let mut output = vec![0; 1000];
                c.all_reduce(&input, &mut output, Reduction::Sum).unwrap();
                assert!(output == sums(3, seed, 1000));
            } else {
                let request = start(c, seed, 1000);
                finish(c, request, seed, 1000);
            }
        }
    });
}

#[test]
fn leaked_requests_do_no_harm() {
    ranks(2, |c| {
        for seed in 0..5 {
            let _leaked = start(c, seed, 70_000);
            let _leaked = start(c, seed, 10);
            let request = start(c, seed, 9);
            c.barrier().unwrap();
            finish(c, request, seed, 9);
        }
        // Some requests are still under way when the communicator is dropped.
        let _leaked = start(c, 1, 500_000);
    });
}

/// Requests of collectives other than all_reduce work as well, also if several of them use one plan
/// (a prepared program) at once.
#[test]
fn requests_of_several_collectives_may_be_mixed() {
    ranks(2, |c| {
        let rank = c.rank() as u8;
        let gather = c.start_all_gather(vec![rank; 3], vec![9; 6]).unwrap();
        let longer = c.start_all_gather(vec![rank + 5; 4], vec![9; 8]).unwrap();
        let sum = start(c, 4, 6);
        let scatter =
            c.start_reduce_scatter(vec![1u8, 2, 3, 4], vec![0; 2], Reduction::Prod).unwrap();
        let call = Call { root: 1, ..Call::even(Collective::Broadcast, DataType::Uint8, 2) };
        let broadcast = c.start(&call, vec![rank, 8], vec![0, 0]).unwrap();
        assert_eq!(c.wait(broadcast, SOON).unwrap().1, [1, 8]);
        assert_eq!(c.wait(longer, SOON).unwrap().1, [5, 5, 5, 5, 6, 6, 6, 6]);
        assert_eq!(c.wait(gather, SOON).unwrap().1, [0, 0, 0, 1, 1, 1]);
        assert_eq!(c.wait(scatter, SOON).unwrap().1, [[1, 4], [9, 16]][c.rank() as usize]);
        finish(c, sum, 4, 6);
    });
}

#[test]
fn a_wait_for_a_peer_that_does_not_come_ends_in_time() {
    let results = ranks(2, |c| {
        if c.rank() == 1 {
            std::thread::sleep(Duration::from_secs(3));
            return (String::new(), String::new(), Duration::ZERO);
        }
        let (a, b) = (start(c, 1, 10), start(c, 2, 10));
        let begun = Instant::now();
        let error = c.wait(b, Duration::from_millis(200)).unwrap_err().to_string();
        (error, c.wait(a, SOON).unwrap_err().to_string(), begun.elapsed())
    });
    let (error, later, took) = &results[0];
    assert!(error.contains("no progress") && error.contains("rank 1"), "{error}");
    let verdict = error.find("Rank 1 is behind").map(|at| &error[at..]).unwrap();
    assert!(later.contains(verdict), "the requests end with different causes: {later}");
    assert!(*took < stretched(Duration::from_millis(900)), "{took:?}");
}

#[test]
fn failures_reach_requests_that_are_polled() {
    let results = ranks(2, |c| {
        if c.rank() == 1 {
            return String::new();
        }
        let request = start(c, 1, 10);
        let begun = Instant::now();
        loop {
            match c.test(&request) {
                Ok(ended) => assert!(!ended),
                Err(error) => return error.to_string(),
            }
            assert!(
                begun.elapsed() < stretched(Duration::from_secs(5)),
                "no call reports that rank 1 has left"
            );
        }
    });
    assert!(results[0].contains("rank 1"), "{results:?}");
}

#[test]
fn polling_fails_after_the_time_limit() {
    let impatient = config_with(|config| config.timeout = Duration::from_millis(300));
    let results = ranks_with(2, impatient, |c| {
        let begun = Instant::now();
        if c.rank() == 1 {
            std::thread::sleep(Duration::from_secs(3));
            return (String::new(), Duration::ZERO);
        }
        let request = start(c, 1, 10);
        loop {
            match c.test(&request) {
                Ok(ended) => assert!(!ended && begun.elapsed() < SOON),
                Err(error) => return (error.to_string(), begun.elapsed()),
            }
        }
    });
    let (error, took) = &results[0];
    assert!(error.contains("waiting for a message from rank 1"), "{error}");
    assert!(*took < stretched(Duration::from_millis(900)), "{took:?}");
}

#[test]
fn wrong_buffers_and_foreign_requests_are_refused() {
    ranks(2, |c| {
        let short = c.start_all_reduce(vec![1u8; 4], vec![0; 3], Reduction::Sum).unwrap_err();
        assert!(
            matches!(
                short,
                Error::Call(CallError::Buffer { buffer: "output", needed: 4, given: 3, .. })
            ),
            "{short}"
        );
        let call = Call::even(Collective::AllReduce, DataType::Float32, 1);
        let other = c.start(&call, vec![1i32], vec![0]).unwrap_err();
        assert!(other.to_string().contains("float"), "{other}");
        let mut alone = Communicator::alone(config_with(|_| {})).unwrap();
        let own = start(c, 3, 4);
        assert!(alone.test(&own).unwrap_err().to_string().contains("another communicator"));
        let theirs = start(&mut alone, 0, 1);
        assert!(c.wait(theirs, SOON).unwrap_err().to_string().contains("another communicator"));
        finish(c, own, 3, 4);
    });
}

/// Checks that 320 requests can be queued at once, although a communicator keeps only 64 plans
/// (prepared programs). The requests share 24 plans: two collectives, three roots, four algorithms.
#[test]
fn requests_may_outnumber_the_kept_plans() {
    let small = config_with(|config| config.slots = 2);
    ranks_with(3, small, |c| {
        let n = c.ranks();
        let mut started = Vec::new();
        for round in 0..40u32 {
            for collective in [Collective::Reduce, Collective::Broadcast] {
                let call = Call { root: round % n, ..Call::even(collective, DataType::Uint32, 7) };
                for algorithm in ["direct", "tree", "ring", "double_tree"] {
                    let call = Call { algorithm: Some(algorithm), ..call };
                    let request = c.start(&call, vec![round + 1; 7], vec![0; 7]).unwrap();
                    started.push((collective, round, request));
                }
            }
        }
        for (collective, round, request) in started {
            let (_, output) = c.wait(request, SOON).unwrap();
            let is_root = c.rank() == round % n;
            match collective {
                Collective::Broadcast => assert_eq!(output, [round + 1; 7]),
                _ if is_root => assert_eq!(output, [n * (round + 1); 7]),
                _ => {}
            }
        }
    });
}

#[test]
fn a_scope_ends_the_calls_that_borrowed_buffers() {
    for n in [1, 2, 3] {
        ranks(n, move |c| {
            let owned = start(c, 9, 1000);
            let mut buckets: Vec<Vec<u64>> =
                (0..).zip(COUNTS).map(|(seed, count)| of(c, seed, count)).collect();
            let (input, mut all) = (of(c, 7, 100), vec![0; 100 * n as usize]);
            c.scope(|scope| {
                for (index, bucket) in buckets.iter_mut().enumerate() {
                    let request = scope.start_all_reduce_in_place(bucket, Reduction::Sum)?;
                    match index % 3 {
                        0 => scope.wait(request, SOON)?,
                        1 => drop(scope.test(&request)?),
                        // A dropped or leaked request does no harm.
                        _ => drop(request),
                    }
                }
                let call = Call::even(Collective::AllGather, DataType::Uint64, 100);
                scope.start(&call, &input, &mut all).map(drop)
            })
            .unwrap()
            .unwrap();
            for ((seed, count), bucket) in (0..).zip(COUNTS).zip(buckets) {
                assert!(bucket == sums(n, seed, count), "seed {seed}, count {count}");
            }
            let expected: Vec<u64> = (0..u64::from(n))
                .flat_map(|rank| (0..100).map(move |index| rank + 7 + index))
                .collect();
            assert_eq!(all, expected);
            finish(c, owned, 9, 1000);
        });
    }
}

#[test]
fn a_scope_refuses_what_a_blocking_call_refuses() {
    ranks(2, |c| {
        let (mut bytes, mut two) = ([0u8; 5], [0i32; 2]);
        let call = Call::even(Collective::AllReduce, DataType::Float32, 5);
        let wrong = c.scope(|scope| scope.start_in_place(&call, &mut bytes).map(drop)).unwrap();
        assert!(wrong.unwrap_err().to_string().contains("buffers have uint8 elements"));
        let call = Call::even(Collective::AllGather, DataType::Int32, 5);
        let short = c.scope(|scope| scope.start_in_place(&call, &mut two).map(drop)).unwrap();
        assert!(short.unwrap_err().is_harmless());
        c.barrier().unwrap();
    });
}

/// Started calls cannot go on without the rank that panicked.
#[test]
fn a_panic_in_a_scope_ends_the_calls_of_all_ranks() {
    let errors = ranks(3, |c| {
        let mut buffer = of(c, 0, 1_000_000);
        let rank = c.rank();
        let scope = std::panic::AssertUnwindSafe(|| {
            c.scope(|scope| {
                let started = scope.start_all_reduce_in_place(&mut buffer, Reduction::Sum);
                assert_ne!(rank, 1, "the test plants this panic");
                started.map(drop)
            })
        });
        match std::panic::catch_unwind(scope) {
            Ok(result) => result.and_then(|inner| inner),
            Err(_) => c.barrier(),
        }
        .unwrap_err()
        .to_string()
    });
    assert!(errors.iter().all(|error| error.contains("panicked")), "{errors:?}");
}

/// A scope reports an error that its body ignored.
#[test]
fn a_scope_reports_failures_that_its_body_ignored() {
    let errors = ranks(2, |c| {
        let mut buffer = vec![0u64; 5 + c.rank() as usize];
        let scope = c.scope(|scope| {
            let _ = scope.start_all_reduce_in_place(&mut buffer, Reduction::Sum);
        });
        scope.unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("disagree")), "{errors:?}");
}
