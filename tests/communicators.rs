//! Communicators: splits, symmetric memory, aborts, and the release of communicators.

use ccl_harness::stretched;
use ccl_harness::{config, config_with, joining, ranks, ranks_with};
use ferroccl::{Communicator, Reduction};
use std::time::{Duration, Instant};

/// Gathers `rank` from every member of communicator `of`; returns the values in member order.
fn members(of: &mut Communicator, rank: u32) -> Vec<u32> {
    let mut all = vec![0; of.ranks() as usize];
    of.all_gather(&[rank], &mut all).unwrap();
    all
}

#[test]
fn a_split_groups_ranks_by_color_and_orders_them_by_key() {
    ranks(5, |c| {
        let rank = c.rank();
        // The keys are in reverse order, so that the highest rank comes first.
        let mut half = c.split(i64::from(rank % 2), -i64::from(rank)).unwrap().unwrap();
        let wanted: &[u32] = if rank.is_multiple_of(2) { &[4, 2, 0] } else { &[3, 1] };
        assert_eq!(members(&mut half, rank), wanted);
        assert_eq!(wanted[half.rank() as usize], rank);
        // Equal keys keep the order of the ranks. All three communicators work side by side.
        let mut same = c.split(7, 3).unwrap().unwrap();
        for _ in 0..10 {
            assert_eq!(members(&mut same, rank), [0, 1, 2, 3, 4]);
            assert_eq!(members(&mut half, rank), wanted);
            assert_eq!(members(c, rank), [0, 1, 2, 3, 4]);
        }
    });
}

#[test]
fn negative_colors_give_no_communicator_and_unique_colors_give_communicators_of_one_rank() {
    ranks(4, |c| {
        let color = if c.rank() == 2 { -1 } else { i64::MAX - i64::from(c.rank()) };
        let part = c.split(color, 0).unwrap();
        assert_eq!(part.is_none(), c.rank() == 2);
        if let Some(mut part) = part {
            assert_eq!((part.rank(), part.ranks()), (0, 1));
            assert_eq!(members(&mut part, c.rank()), [c.rank()]);
        }
        assert!(c.split(-1, 0).unwrap().is_none());
        c.barrier().unwrap();
    });
}

#[test]
fn deadlines_may_be_endless() {
    const MAX: Duration = Duration::MAX;
    for transport in ["shm", "tcp"] {
        let endless = config_with(|config| {
            config.transport = transport.to_owned();
            (config.timeout, config.join_timeout, config.dead_after) = (MAX, MAX, MAX);
            config.spin = MAX;
        });
        ranks_with(2, endless, |c| {
            let mut part = c.split(0, 0).unwrap().unwrap();
            assert_eq!(members(&mut part, c.rank()), [0, 1]);
        });
    }
}

#[test]
fn splits_nest_and_outlive_their_parents() {
    let listed = ranks(4, |c| {
        let rank = c.rank();
        let mut pair = {
            let mut half = c.split(i64::from(rank / 2), 0).unwrap().unwrap();
            half.split(0, -i64::from(half.rank())).unwrap().unwrap()
        };
        members(&mut pair, rank)
    });
    assert_eq!(listed, [[1, 0], [1, 0], [3, 2], [3, 2]]);
}

#[test]
fn a_failure_in_a_split_communicator_leaves_its_parent_unharmed() {
    ranks(4, |c| {
        let mut half = c.split(i64::from(c.rank() % 2), 0).unwrap().unwrap();
        if half.rank() == 0 {
            half.abort_handle().abort("enough of this half");
        } else {
            let error = half.barrier().unwrap_err().to_string();
            assert!(error.contains("enough of this half"), "{error}");
        }
        c.barrier().unwrap();
    });
}

#[test]
fn each_rank_writes_its_own_symmetric_memory_and_all_ranks_read_it() {
    for n in [1, 3] {
        ranks(n, move |c| {
            let rank = c.rank();
            let mut buffer = c.alloc::<f64>(100_001).unwrap();
            assert_eq!(
                (buffer.len(), buffer.ranks(), buffer.is_empty()),
                (100_001, n as usize, false)
            );
            let mut end = [1.0; 2];
            buffer.read(99_999, &mut end).unwrap();
            assert_eq!(end, [0.0; 2], "new memory is zeroed");
            buffer.write(99_999, &[f64::from(rank), 7.0]).unwrap();
            c.barrier().unwrap();
            buffer.read(99_999, &mut end).unwrap();
            assert_eq!(end, [f64::from(rank), 7.0], "only this rank writes to this memory");
            for peer in 0..n {
                buffer.read_from(peer, 99_999, &mut end).unwrap();
                assert_eq!(end, [f64::from(peer), 7.0]);
            }
            let error = buffer.read_from(n, 0, &mut end).unwrap_err().to_string();
            assert!(error.contains(&format!("rank {n} is not among the {n} ranks")), "{error}");
            assert!(buffer.write(100_000, &[0.0; 2]).is_err());
            assert!(buffer.read(usize::MAX, &mut end).is_err());
            let empty = c.alloc::<u8>(0).unwrap();
            assert!(empty.is_empty());
            drop(buffer);
            c.barrier().unwrap();
        });
    }
}

#[test]
fn memory_of_a_peer_without_shared_memory_cannot_be_read() {
    let tcp = config_with(|config| config.transport = "tcp".to_owned());
    ranks_with(2, tcp, |c| {
        let (rank, mut read) = (c.rank(), [1]);
        let buffer = c.alloc::<u8>(8).unwrap();
        assert_eq!(buffer.ranks(), 1);
        buffer.read(0, &mut read).unwrap();
        assert_eq!(read, [0]);
        let error = buffer.read_from(1 - rank, 0, &mut read).unwrap_err().to_string();
        assert!(error.contains(&format!("rank {} is not mapped", 1 - rank)), "{error}");
    });
}

#[test]
fn failed_allocations_are_errors_on_all_ranks_and_harm_nothing() {
    let errors = ranks(3, |c| {
        // The first length exceeds an address space; the next two exceed this machine's memory.
        let absurd = c.alloc::<u64>(usize::MAX / 4).unwrap_err().to_string();
        let large = c.alloc::<u8>(1 << 46).unwrap_err().to_string();
        let error = c.alloc::<u8>(1 << 46).unwrap_err();
        assert!(error.is_harmless(), "{error:?}");
        // The descriptors of 500 failed calls would fill a socket if peers did not receive them.
        for _ in 0..500 {
            c.alloc::<u8>(100 + c.rank() as usize).unwrap_err();
        }
        let uneven = c.alloc::<u8>(100 + c.rank() as usize).unwrap_err().to_string();
        c.barrier().unwrap();
        c.alloc::<u8>(1000).unwrap();
        [absurd, large, uneven]
    });
    for [absurd, large, uneven] in errors {
        assert!(absurd.contains("more than memory can hold"), "{absurd}");
        assert!(large.contains("memory"), "{large}");
        assert!(uneven.contains("rank ") && uneven.contains("bytes"), "{uneven}");
    }
}

#[test]
fn an_abort_from_another_thread_ends_a_wait() {
    let errors = ranks(3, |c| {
        if c.rank() == 2 {
            // This rank cannot learn of the abort before its next call.
            std::thread::sleep(Duration::from_secs(2));
            return (c.barrier().unwrap_err().to_string(), Duration::ZERO);
        }
        let handle = c.abort_handle();
        let is_first = c.rank() == 0;
        let begun = Instant::now();
        let aborter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            if is_first {
                handle.abort("the user pressed a key");
            }
        });
        let error = c.all_reduce_in_place(&mut [1u8], Reduction::Sum).unwrap_err().to_string();
        aborter.join().unwrap();
        (error, begun.elapsed())
    });
    for (error, took) in errors {
        assert!(error.contains("rank 0") && error.contains("the user pressed a key"), "{error}");
        assert!(took < stretched(Duration::from_secs(5)), "{took:?}");
    }
}

#[test]
fn a_communicator_of_one_rank_works() {
    let mut c = Communicator::alone(config()).unwrap();
    assert_eq!((c.rank(), c.ranks(), c.transport()), (0, 1, "self"));
    let mut value = [3.0f32, 4.0];
    c.all_reduce_in_place(&mut value, Reduction::PremulSum(2.0)).unwrap();
    assert_eq!(value, [6.0, 8.0]);
    c.all_reduce_in_place(&mut value, Reduction::Avg).unwrap();
    assert_eq!(value, [6.0, 8.0]);
    c.barrier().unwrap();
    assert_eq!(c.split(0, 0).unwrap().unwrap().ranks(), 1);
    c.abort_handle().abort("over");
    let error = c.barrier().unwrap_err().to_string();
    assert!(error.contains("rank 0 failed") && error.contains("over"), "{error}");
}

#[test]
fn settings_that_make_no_sense_fail_on_all_ranks_or_on_none() {
    for change in [
        |c: &mut ferroccl::Config| c.slots = 0,
        |c: &mut ferroccl::Config| c.channels = 0,
        |c: &mut ferroccl::Config| c.slots = u32::MAX,
        |c: &mut ferroccl::Config| c.channels = u32::MAX,
        |c: &mut ferroccl::Config| c.slot_bytes.0 = 0,
        |c: &mut ferroccl::Config| (c.slot_bytes.0, c.budget_bytes.0) = (usize::MAX, usize::MAX),
        |c: &mut ferroccl::Config| c.budget_bytes.0 = 0,
    ] {
        let config = config_with(change);
        let results = joining(
            2,
            move |_| config.clone(),
            |joined| match joined {
                Ok(mut c) => c.barrier().map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            },
        );
        assert!(results.iter().all(|r| r.is_ok() == results[0].is_ok()), "{results:?}");
    }
}

#[test]
fn communicators_can_be_created_and_dropped_again_and_again() {
    let small = config_with(|config| config.slot_bytes.0 = 4096);
    for _ in 0..10 {
        ranks_with(4, small.clone(), |c| c.barrier().unwrap());
    }
    ranks(2, |c| {
        for _ in 0..20 {
            let mut part = c.split(0, 0).unwrap().unwrap();
            part.barrier().unwrap();
        }
    });
}

/// Dropped memory is released: file descriptors do not accumulate.
#[test]
fn memory_that_is_dropped_is_given_back() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    ranks(2, move |c| {
        drop(c.alloc::<u8>(4096).unwrap());
        let before = open();
        for _ in 0..300 {
            drop(c.alloc::<u8>(4096).unwrap());
        }
        let after = open();
        assert!(after < before + 100, "{before} descriptors became {after}");
    });
}
