//! Ranks connected by RDMA devices. `FERROCCL_TEST_RDMA` lists this machine's devices, each with
//! its port, as in `rxa:1,rxb:1`: two on one network, and optionally two more on another
//! network. The guest of the test suites has four Soft-RoCE devices.

mod doctor;
pub(crate) mod faults;
mod nccl;
mod packets;
mod rails;
mod setup;
mod topo;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cluster::{SECRET, WORK};
use crate::collectives::{sweep, sweep_families};
use ccl_core::config::Bytes;
use ccl_harness::processes::{Processes, command, free_address};
use ccl_harness::{config_with, ranks_with, skip, stretched};
use ferroccl::communicator::Call;
use ferroccl::{Collective, Communicator, Config, DataType, NetworkCheck, Reduction};

/// Name of the transport under test.
pub(crate) const VERBS: &str = ccl_transport_verbs::KIND.name;
/// Variable that lists this machine's devices for tests, each with its port.
const DEVICES: &str = "FERROCCL_TEST_RDMA";
/// Lock of all listed devices: tests watch and disturb their networks.
static LINK: Mutex<()> = Mutex::new(());

/// Returns the devices of one network, locked for the caller; `None` on a machine without them.
pub(crate) fn devices() -> Option<(Vec<String>, MutexGuard<'static, ()>)> {
    let Ok(names) = std::env::var(DEVICES) else {
        skip(&format!("{DEVICES} names no RDMA device"));
        return None;
    };
    let turn = LINK.lock().unwrap_or_else(PoisonError::into_inner);
    Some((names.split(',').take(2).map(str::to_owned).collect(), turn))
}

/// Returns, for each of the two sides, its devices on both networks, locked for the caller; `None`
/// on a machine without such devices.
pub(crate) fn rails() -> Option<([Vec<String>; 2], MutexGuard<'static, ()>)> {
    let names = std::env::var(DEVICES).unwrap_or_default();
    let names: Vec<String> = names.split(',').map(str::to_owned).collect();
    let [a, b, c, d] = <[String; 4]>::try_from(names).ok().or_else(|| {
        skip(&format!("{DEVICES} does not name the RDMA devices of two networks"));
        None
    })?;
    let turn = LINK.lock().unwrap_or_else(PoisonError::into_inner);
    Some(([vec![a, c], vec![b, d]], turn))
}

/// Returns a configuration that uses these devices.
fn over(devices: &[String], change: impl FnOnce(&mut Config)) -> Config {
    config_with(|config| {
        config.transport = VERBS.to_owned();
        config.transport_settings.set("FERROCCL_IB_HCA", &format!("={}", devices.join(",")));
        config.socket_interfaces = "127.0.0.1".to_owned();
        change(config);
    })
}

/// Short form of the next test, for the quick tier: a guest with emulated processors is slow.
#[test]
fn families_over_rdma() {
    let Some((devices, _turn)) = devices() else { return };
    for n in [2, 3] {
        ranks_with(n, over(&devices, |_| ()), |communicator| {
            assert_eq!(communicator.transport(), VERBS);
            sweep_families(communicator, &[1, 10_009]);
        });
    }
}

#[test]
fn every_algorithm_over_rdma() {
    let Some((devices, _turn)) = devices() else { return };
    for n in 2..=8 {
        let counts = match n {
            2 => &[0, 1, 1009, 40_009][..],
            3 => &[1, 1009],
            _ => &[1009],
        };
        for policy in ["qps=2 order=split chunk=1K", "qps=2 order=round_robin"] {
            let config = over(&devices, |config| config.ib_policy = policy.parse().unwrap());
            ranks_with(n, config, move |communicator| {
                assert_eq!(communicator.transport(), VERBS);
                sweep(communicator, counts);
            });
        }
    }
}

/// Perf programs run over RDMA as users run them.
#[test]
fn perf_programs_over_rdma() {
    let Some((devices, _turn)) = devices() else { return };
    let programs = crate::perf::examples();
    let programs = ["all_reduce_perf", "alltoall_perf", "sendrecv_perf"]
        .map(|program| (program, programs.join(program)));
    for (program, path) in programs {
        let mut command = Command::new(path);
        command.args("-g 2 -b 8 -e 128K -f 16 -n 3 -c 1 -R 1".split(' '));
        command.env("FERROCCL_TRANSPORT", VERBS).env("FERROCCL_SOCKET_IFNAME", "lo");
        command.env("FERROCCL_IB_HCA", format!("={}", devices.join(",")));
        let ended = Processes::start([command]).end(Duration::from_secs(60)).remove(0);
        assert!(ended.status.success(), "{program}: {}", ended.output);
        assert!(ended.output.contains("transport verbs"), "{}", ended.output);
        let rows = ended.output.lines().filter(|line| line.contains(" float "));
        assert_eq!(rows.count(), 4, "{}", ended.output);
    }
}

/// Between hosts, `auto` takes the transport that all ranks have.
#[test]
fn auto_takes_rdma_where_all_ranks_have_it() {
    let Some((devices, _turn)) = devices() else { return };
    let named = format!("={}", devices.join(","));
    for (second, transport) in [(named.as_str(), VERBS), ("=none", "tcp")] {
        let address = free_address();
        let ranks = [named.as_str(), second].into_iter().enumerate().map(|(rank, devices)| {
            let mut command = command("sums");
            command.env(WORK, "1000 2").env("FERROCCL_SECRET", SECRET);
            command.env("FERROCCL_RANK", rank.to_string()).env("FERROCCL_RANKS", "2");
            command.env("FERROCCL_COMM_ID", &address).env("FERROCCL_HOSTID", format!("{rank}"));
            command.env("FERROCCL_SOCKET_IFNAME", "lo").env("FERROCCL_IB_HCA", devices);
            command
        });
        for ended in Processes::start(ranks).end(stretched(Duration::from_secs(60))) {
            assert!(ended.status.success(), "{}", ended.output);
            let found = ended.output.lines().any(|line| line.ends_with(transport));
            assert!(found, "{transport}: {}", ended.output);
        }
    }
}

/// Runs sums and exchanges with the planner's choice of algorithms.
fn sums_and_exchanges(communicator: &mut Communicator) {
    let (rank, ranks) = (communicator.rank() as usize, communicator.ranks() as usize);
    for count in [1, 1000, 50_000] {
        let input = vec![rank as f32 + 1.0; count];
        let mut output = vec![0.0; count];
        communicator.all_reduce(&input, &mut output, Reduction::Sum).unwrap();
        let sum = (ranks * (ranks + 1) / 2) as f32;
        assert!(output.iter().all(|value| *value == sum), "{count}");
        let input: Vec<u32> = (0..ranks * count).map(|at| (rank * 1_000_000 + at) as u32).collect();
        let mut output = vec![0; ranks * count];
        communicator.all_to_all(&input, &mut output).unwrap();
        let expected = |at: usize| (at / count * 1_000_000 + rank * count + at % count) as u32;
        assert!(output.iter().enumerate().all(|(at, value)| *value == expected(at)), "{count}");
    }
}

/// Large buffers are registered for the call and read in place. The receiver sends a CTS in
/// advance, and the data is written to the memory that the CTS names.
#[test]
fn large_messages_are_copied_at_neither_end() {
    let Some((devices, _turn)) = devices() else {
        return;
    };
    let config = over(&devices, |config| config.ib_policy = "qps=4".parse().unwrap());
    let seen = ranks_with(3, config, |communicator| {
        let (rank, ranks) = (communicator.rank() as usize, communicator.ranks() as usize);
        let count = 200_003;
        for turn in 0..3u32 {
            let input = vec![rank as u32 + turn; count];
            let mut output = vec![0; count];
            communicator.all_reduce(&input, &mut output, Reduction::Sum).unwrap();
            assert!(output.iter().all(|sum| *sum == 3 + 3 * turn));
            let mut own = input.clone();
            communicator.all_reduce_in_place(&mut own, Reduction::Sum).unwrap();
            assert!(own == output);
            let mut all = vec![0; count * ranks];
            communicator.all_gather(&input, &mut all).unwrap();
            assert!(all.iter().enumerate().all(|(at, value)| *value == (at / count) as u32 + turn));
            let (next, before) = ((rank + 1) % ranks, (rank + 2) % ranks);
            let group = communicator.group().send(&input, next as u32);
            group.recv(&mut output, before as u32).run().unwrap();
            assert!(output.iter().all(|value| *value == before as u32 + turn));
        }
        let all_statistics = communicator.peer_statistics();
        all_statistics
            .map(|(_, statistics)| {
                [statistics.sent, statistics.zero_copy_sent, statistics.zero_copy_received]
            })
            .fold([0; 3], |all, one| std::array::from_fn(|at| all[at] + one[at]))
    });
    println!("messages sent, sent with zero copy, placed directly: {seen:?}");
    for [sent, zero_copy, _] in &seen {
        assert!(zero_copy * 2 > *sent, "{zero_copy} of {sent} messages were sent with zero copy");
    }
    // A late rank finds messages in their slots, so the test only requires that some messages were
    // placed directly.
    let placed: u64 = seen.iter().map(|[_, _, placed]| placed).sum();
    assert!(placed > 0, "no message was placed directly");
}

/// The registration of a registered buffer outlives the call. Zero copy thus pays even for a buffer
/// that is shorter than the device's `register_bytes_min`.
#[test]
fn registered_buffers_use_zero_copy_for_shorter_messages() {
    let Some((devices, _turn)) = devices() else {
        return;
    };
    let config = over(&devices, |config| config.registered_bytes = Bytes(400_000));
    let seen = ranks_with(2, config, |communicator| {
        let zero_copy = |communicator: &Communicator| -> u64 {
            communicator.peer_statistics().map(|(_, statistics)| statistics.zero_copy_sent).sum()
        };
        // Buffers of 160,000 bytes each: with the limit of 400,000 bytes, at most two of them stay
        // registered between calls.
        let mut buffers = [1u32, 2, 3].map(|fill| vec![fill; 40_000]);
        for _ in 0..2 {
            for data in &mut buffers {
                communicator.all_reduce_in_place(data, Reduction::Max).unwrap();
            }
        }
        let unregistered = zero_copy(communicator);
        let mut registered = buffers.map(|buffer| communicator.register(buffer).unwrap());
        for turn in 0..3 {
            for (at, data) in registered.iter_mut().enumerate() {
                communicator.all_reduce_in_place(data, Reduction::Sum).unwrap();
                let expected = (at as u32 + 1) << (turn + 1);
                assert!(data.iter().all(|value| *value == expected), "{at}, {turn}");
            }
        }
        let after = zero_copy(communicator);
        let [first, ..] = registered;
        let mut data = first.into_inner();
        communicator.all_reduce_in_place(&mut data, Reduction::Max).unwrap();
        assert_eq!(zero_copy(communicator), after, "the buffer is still registered");
        (unregistered, after)
    });
    println!("zero-copy messages before and after registration: {seen:?}");
    for (before, after) in seen {
        assert!(before == 0 && after > 0, "zero-copy messages: {before}, then {after}");
    }
}

/// Over RoCE, flows are assumed to be hashed onto paths, unless the configuration says otherwise. A
/// measurement between only two ranks shows no contention, so it leaves the number of queue pairs
/// as it is.
#[test]
fn a_fabric_that_routes_adaptively_needs_one_queue_pair() {
    let Some((devices, _turn)) = devices() else { return };
    for (routing, check, pairs) in [
        (None, NetworkCheck::Assumed, 16),
        (None, NetworkCheck::Measure, 16),
        (Some(true), NetworkCheck::Assumed, 1),
    ] {
        let config = over(&devices, |config| {
            (config.ib_adaptive_routing, config.check_network) = (routing, check);
        });
        ranks_with(2, config, move |communicator| {
            // After the second call, each rank knows that its first message has arrived, so its
            // queue pairs are connected: only connected queue pairs have flows.
            for _ in 0..2 {
                let mut data = [communicator.rank()];
                communicator.all_reduce_in_place(&mut data, Reduction::Sum).unwrap();
                assert_eq!(data, [1]);
            }
            // `flows` yields the flows of the last operation.
            assert_eq!(communicator.flows().count(), pairs);
            let call = Call::even(Collective::AllReduce, DataType::Float32, 1000);
            let plan = communicator.explain(&call).unwrap();
            assert_eq!(plan.striping.as_ref().unwrap().striping.pairs, pairs as u32);
            let device = "credits and CTS of traffic class 0 (the class of data)";
            assert!(plan.to_string().contains(device), "{plan}");
            // There may also be a note about the round trip: a Soft-RoCE device is slow.
            let note = plan.note.as_deref().unwrap_or_default();
            let said = note.contains(": 1 queue pair for the data of each");
            assert_eq!(said, routing.is_some(), "{note}");
        });
    }
}

/// Each of the two devices is shared by four of the eight ranks: each rank has a quarter of the
/// configured budget.
#[test]
fn seven_senders_keep_to_the_budget_of_their_receiver() {
    const BUDGET: usize = 4 << 20;
    const COUNT: usize = 256 << 10;
    let Some((devices, _turn)) = devices() else { return };
    let config = over(&devices, |config| {
        config.budget_bytes = Bytes(BUDGET);
        config.ib_policy = "2".parse().unwrap();
    });
    let under_way = ranks_with(8, config, |communicator| {
        let own = vec![communicator.rank(); COUNT];
        let mut all = vec![0; if communicator.rank() == 0 { 8 * COUNT } else { 0 }];
        for _ in 0..3 {
            communicator.gather(&own, &mut all, 0).unwrap();
            assert!(all.iter().enumerate().all(|(at, value)| *value as usize == at / COUNT));
        }
        let mut all_statistics = communicator.peer_statistics();
        all_statistics.find(|(rank, _)| *rank == 0).map_or(0, |(_, own)| own.in_flight_bytes_max)
    });
    println!("largest number of bytes in flight to rank 0, by sender: {under_way:?}");
    let all: u64 = under_way.iter().sum();
    assert!(all <= BUDGET as u64 / 4, "{all} bytes in flight exceed the budget");
    assert!(under_way[1..].iter().all(|own| *own > 0), "{under_way:?}");
}

/// One of seven senders has data, and takes the credits that the others leave.
#[test]
fn one_sender_takes_the_credits_of_idle_ones() {
    const BUDGET: usize = 4 << 20;
    const COUNT: usize = 1 << 20;
    let Some((devices, _turn)) = devices() else { return };
    let config = over(&devices, |config| {
        (config.budget_bytes, config.slot_bytes) = (Bytes(BUDGET), Bytes(16 << 10));
        config.ib_policy = "2".parse().unwrap();
    });
    let under_way = ranks_with(8, config, |communicator| {
        for round in 0..3 {
            let mut data = vec![round; COUNT];
            match communicator.rank() {
                0 => {
                    data.fill(0);
                    communicator.recv(&mut data, 1).unwrap();
                    assert!(data.iter().all(|value| *value == round));
                }
                1 => communicator.send(&data, 0).unwrap(),
                _ => {}
            }
        }
        communicator.barrier().unwrap();
        let mut all_statistics = communicator.peer_statistics();
        all_statistics.find(|(rank, _)| *rank == 0).map_or(0, |(_, own)| own.in_flight_bytes_max)
    });
    println!("largest number of bytes in flight to rank 0, by sender: {under_way:?}");
    let equal = BUDGET as u64 / 4 / 7;
    assert!(
        (equal + equal / 2..=BUDGET as u64 / 4).contains(&under_way[1]),
        "bytes in flight by sender: {under_way:?}; an equal share is {equal}"
    );
}

#[test]
fn up_to_8_ranks_over_rdma() {
    let Some((devices, _turn)) = devices() else { return };
    for (n, policy) in [
        (2, "qps=16"),
        (2, "bytes<64K: qps=2 order=load_aware; qps=4 order=split"),
        (4, "qps=1"),
        (8, "all_to_all: qps=2 order=split chunk=4K; qps=2"),
    ] {
        let config = over(&devices, |config| config.ib_policy = policy.parse().unwrap());
        ranks_with(n, config, sums_and_exchanges);
    }
}
