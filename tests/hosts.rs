//! Several hosts on one machine: ranks with different host ids share no memory and connect over
//! TCP.

use std::time::Duration;

use crate::collectives::sweep;
use ccl_harness::{config, joining};
use ferroccl::communicator::Call;
use ferroccl::{Collective, Communicator, Config, DataType, Error, NetworkCheck, Reduction};

/// Function that returns the host of a rank.
type Hosts = fn(u32) -> u32;

fn place(config: &mut Config, host: u32) {
    config.host_id = format!("host {host}");
    config.socket_interfaces = "127.0.0.1".to_owned();
}

/// Runs `run` on each of `n` ranks; `hosts` returns the host of a rank.
fn placed<T: Send + 'static>(
    n: u32,
    hosts: Hosts,
    change: impl Fn(&mut Config) + Send + Sync + 'static,
    run: impl Fn(&mut Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let config = move |rank| {
        let mut config = config();
        place(&mut config, hosts(rank));
        change(&mut config);
        config
    };
    joining(n, config, move |joined| run(&mut joined.unwrap()))
}

#[test]
fn every_algorithm_with_every_rank_on_a_host_of_its_own() {
    for n in [2, 3, 5] {
        placed(
            n,
            |rank| rank,
            |_| {},
            |c| {
                assert_eq!(c.transport(), "tcp");
                sweep(c, &[0, 1, 7, 1009]);
            },
        );
    }
}

#[test]
fn every_algorithm_works_on_hosts_with_several_ranks() {
    let placements: [(u32, Hosts); 3] =
        [(4, |rank| rank / 2), (5, |rank| rank % 2), (3, |r| r / 2)];
    for (n, hosts) in placements {
        let names = placed(
            n,
            hosts,
            |_| {},
            |c| {
                sweep(c, &[0, 3, 1009]);
                c.transport()
            },
        );
        assert!(names.iter().all(|name| *name == "shm+tcp"), "{names:?}");
    }
}

#[test]
fn tcp_can_be_chosen_on_one_host() {
    let several = |config: &mut Config| {
        config.transport = "tcp".to_owned();
        config.transport_settings.set("FERROCCL_SOCKETS", "3");
    };
    placed(
        3,
        |_| 0,
        several,
        |c| {
            assert_eq!(c.transport(), "tcp");
            sweep(c, &[5, 300_000]);
        },
    );
}

#[cfg(feature = "tls")]
#[test]
fn collectives_work_with_encryption_between_hosts() {
    for sockets in ["1", "3"] {
        let change = move |config: &mut Config| {
            config.tls = true;
            config.transport_settings.set("FERROCCL_SOCKETS", sockets);
        };
        placed(
            3,
            |rank| rank / 2,
            change,
            |c| {
                assert_eq!(c.transport(), "shm+tcp");
                sweep(c, &[0, 5, 300_000]);
            },
        );
    }
}

#[test]
fn hosts_that_disagree_on_encryption_get_an_error() {
    let config = |rank| {
        let mut config = config();
        place(&mut config, rank);
        config.tls = rank == 1;
        config
    };
    for error in joining(2, config, |joined| joined.unwrap_err().to_string()) {
        assert!(error.contains("configuration of rank 1 differs"), "{error}");
    }
}

#[test]
fn few_slots_and_several_channels_work_between_hosts() {
    for (slots, channels) in [(1, 1), (2, 3)] {
        let change = move |config: &mut Config| {
            (config.slots, config.channels) = (slots, channels);
            config.slot_bytes = ccl_core::config::Bytes(4096);
        };
        placed(3, |rank| rank / 2, change, |c| sweep(c, &[1, 20_000]));
    }
}

/// Collectives work with few slots. They work with zero copy for all messages, with zero copy for
/// messages of at least 64 bytes, and without zero copy.
#[test]
fn messages_sent_from_the_callers_memory_and_received_into_it_are_right() {
    for (sockets, slots, zero_copy) in
        [("1", 8, 1), ("3", 2, 1), ("2", 1, 64), ("1", 8, usize::MAX)]
    {
        let change = move |config: &mut Config| {
            config.transport_settings.set("FERROCCL_SOCKETS", sockets);
            config.slots = slots;
            config.slot_bytes = ccl_core::config::Bytes(8192);
            config.zero_copy_bytes = ccl_core::config::Bytes(zero_copy);
        };
        placed(4, |rank| rank / 2, change, |c| sweep(c, &[1, 7, 1009, 20_001]));
        placed(3, |rank| rank, change, |c| sweep(c, &[1, 7, 1009, 20_001]));
    }
}

fn sums(communicator: &mut Communicator) {
    let ranks = communicator.ranks();
    for count in [5, 20_000] {
        let mut data = vec![1_u32; count];
        communicator.all_reduce_in_place(&mut data, Reduction::Sum).unwrap();
        assert!(data.iter().all(|sum| *sum == ranks));
    }
}

/// The measurement may or may not find an oversubscribed network on a single machine, but all ranks
/// report the same result. A communicator that comes from a split keeps the result.
#[test]
fn all_ranks_report_the_same_result_of_a_measured_network() {
    for hosts in [(|rank| rank) as Hosts, |rank| rank / 2, |_| 0] {
        let notes = placed(
            4,
            hosts,
            |config| config.check_network = NetworkCheck::Measure,
            |c| {
                sums(c);
                let call = Call::even(Collective::AllReduce, DataType::Float32, 1000);
                let note = c.explain(&call).unwrap().note;
                let mut part = c.split(i64::from(c.rank() % 2), 0).unwrap().unwrap();
                sums(&mut part);
                assert_eq!(part.explain(&call).unwrap().note, note);
                assert_eq!(c.config().check_network, NetworkCheck::Measure);
                note
            },
        );
        assert!(notes.iter().all(|note| *note == notes[0]), "{notes:?}");
        if let Some(note) = &notes[0] {
            assert!(note.contains("oversubscribed 1:"), "{note}");
        }
    }
}

#[test]
fn shared_memory_is_refused_between_hosts() {
    let config = |rank| {
        let mut config = config();
        place(&mut config, rank);
        config.transport = "shm".to_owned();
        config
    };
    for error in joining(2, config, |joined| joined.unwrap_err().to_string()) {
        assert!(error.contains("2") && error.contains("set it to auto"), "{error}");
    }
}

#[test]
fn a_missing_interface_is_reported_with_the_available_ones() {
    let config = |rank| {
        let mut config = config();
        place(&mut config, rank);
        config.socket_interfaces = "nosuch".to_owned();
        config
    };
    for error in joining(2, config, |joined| joined.unwrap_err().to_string()) {
        assert!(error.contains("FERROCCL_SOCKET_IFNAME") && error.contains("lo ("), "{error}");
    }
}

#[test]
fn data_arrives_even_if_its_sender_leaves_early() {
    for _ in 0..20 {
        placed(
            3,
            |rank| rank,
            |_| {},
            |c| {
                let mut buffer = vec![c.rank() as f32; 50_000];
                c.broadcast(&mut buffer, 1).unwrap();
                assert!(buffer.iter().all(|value| *value == 1.0));
                // The root leaves at once, perhaps before the other ranks have received its data.
                if c.rank() != 1 {
                    std::thread::sleep(Duration::from_millis(u64::from(c.rank()) * 2));
                }
            },
        );
    }
}

#[test]
fn different_counts_on_ranks_of_different_hosts_are_an_error() {
    let errors = placed(
        3,
        |rank| rank,
        |_| {},
        |c| -> Result<(), Error> {
            let count = if c.rank() == 2 { 5 } else { 4 };
            c.all_reduce_in_place(&mut vec![1i32; count], Reduction::Sum)?;
            c.barrier()
        },
    );
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("disagree") || error.contains("rank 2"), "{error}");
    }
}
