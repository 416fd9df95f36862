//! Broken networks: each affected rank gets an error that names the problem and says what to do.

use crate::bad_input::within;
use crate::cluster::{self, all_well};
use ccl_harness::netns::Network;
use ccl_harness::processes::{Ended, command};
use ccl_harness::skip;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Runs one rank on each of two hosts. The ranks join at `address` if they can.
fn pair(address: &str, change: impl Fn(usize, &mut Command)) -> Option<Vec<Ended>> {
    Some(pair_on(&Network::back_to_back()?, address, change))
}

fn pair_on(network: &Network, address: &str, change: impl Fn(usize, &mut Command)) -> Vec<Ended> {
    let first = network.hosts[0].ipv4();
    let change = |rank: usize, command: &mut Command| {
        command.env("FERROCCL_COMM_ID", address).env("FERROCCL_JOIN_TIMEOUT", "3");
        command.env("FERROCCL_TEST_WORK", "100000 3");
        change(rank, command);
    };
    cluster::job(network, 1, first, || command("sums"), change).end(LONG)
}

/// Checks that each rank ended with an error that contains all words of the rank's list.
fn told(ended: &[Ended], words: [&[&str]; 2]) {
    for (rank, (ended, words)) in ended.iter().zip(words).enumerate() {
        assert_eq!(ended.status.code(), Some(1), "rank {rank}: {}", ended.output);
        for word in words {
            assert!(ended.error().contains(word), "rank {rank}: no {word:?} in {}", ended.output);
        }
    }
}

const THERE: &str = "10.77.0.1:7100";

#[test]
fn an_address_that_no_host_has_is_reported() {
    let Some(ended) = pair("10.77.0.99:7100", |_, _| {}) else { return };
    let root: &[&str] = &["rank 1 did not join", "rank 0 at 10.77.0.99, which is no address"];
    told(&ended, [root, &["could not reach rank 0 at 10.77.0.99:7100", "address and port"]]);
}

#[test]
fn a_port_that_another_program_uses_is_reported() {
    let Some(network) = Network::back_to_back() else { return };
    let taken = network.hosts[0].spawn(|| TcpListener::bind(THERE).unwrap()).join().unwrap();
    let ended = pair_on(&network, THERE, |_, _| {});
    let root: &[&str] = &["cannot listen at 10.77.0.1:7100", "Choose a free port"];
    told(&ended, [root, &["the process that listens at 10.77.0.1:7100 does not answer"]]);
    drop(taken);
}

#[test]
fn interfaces_that_lead_nowhere_or_are_missing_are_reported() {
    let loopback = |rank, command: &mut Command| {
        if rank == 0 {
            command.env("FERROCCL_SOCKET_IFNAME", "lo");
        }
    };
    let Some(ended) = pair(THERE, loopback) else { return };
    let words: &[&str] = &["none of its addresses answers", "FERROCCL_SOCKET_IFNAME"];
    told(&ended, [words, words]);
    let missing = |rank, command: &mut Command| {
        if rank == 1 {
            command.env("FERROCCL_SOCKET_IFNAME", "ib7");
        }
    };
    let Some(ended) = pair(THERE, missing) else { return };
    let words = "no network interface matches FERROCCL_SOCKET_IFNAME=\"ib7\"; there are: ";
    told(&ended, [&["rank 1 gave up: it cannot take part", words], &[words]]);
}

#[test]
fn a_rank_without_descriptors_or_memory_makes_both_ranks_fail_with_an_error() {
    for (limit, words, others) in [
        // With so few descriptors, the rank cannot send its error to the others.
        ("ulimit -n 5", "ulimit -n", "no control connection with rank 1"),
        ("ulimit -n 8", "ulimit -n", "ulimit -n"),
        ("ulimit -v 600000", "FERROCCL_SLOT_BYTES", "FERROCCL_SLOT_BYTES"),
    ] {
        let small = |rank, command: &mut Command| {
            command.env("FERROCCL_SLOT_BYTES", "64M").env("FERROCCL_BUDGET_BYTES", "4G");
            if rank == 1 {
                within(command, &["sh"], limit);
            }
        };
        let Some(ended) = pair(THERE, small) else { return };
        told(&ended, [&["rank 1", others], &[words]]);
    }
}

/// Ranks never compare the clock of one host with the clock of another.
#[test]
fn clocks_that_differ_by_a_year_do_no_harm() {
    let year = ["unshare", "-T", "--monotonic", "31536000", "--boottime", "31536000", "sh"];
    let tried = Command::new(year[0]).args(&year[1..]).args(["-c", "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        return skip("`unshare` cannot make a time namespace here");
    }
    let later = |rank, command: &mut Command| {
        if rank == 1 {
            within(command, &year, "true");
        }
    };
    if let Some(ended) = pair(THERE, later) {
        all_well(&ended);
    }
}

/// Debian's /etc/hosts gives a host's own name a loopback address. Ranks join nevertheless: on the
/// host of rank 0, that host's name may resolve to loopback. If the name resolves to loopback on
/// the host of rank 1, or does not resolve there, rank 1 fails with an error that says so.
#[test]
fn the_name_of_the_host_of_rank_0_may_resolve_to_loopback_there_but_not_on_other_hosts() {
    let named = |own: [&'static str; 2]| {
        pair("node0:7100", move |rank, command: &mut Command| {
            let hosts = format!(
                "file=$(mktemp); printf '127.0.0.1 localhost\\n{}\\n' > $file; \
                 mount --bind $file /etc/hosts; rm $file",
                own[rank]
            );
            within(command, &["unshare", "-m", "sh"], &hosts);
        })
    };
    let Some(ended) = named(["127.0.1.1 node0", "10.77.0.1 node0"]) else { return };
    all_well(&ended);
    let Some(ended) = named(["10.77.0.1 node0", "127.0.1.1 node0"]) else { return };
    let words: &[&str] = &["node0 resolves to 127.0.1.1", "of this host", "correct /etc/hosts"];
    told(&ended, [&["rank 1 did not join"], words]);
    let Some(ended) = named(["10.77.0.1 node0", "10.77.0.1 other"]) else { return };
    told(&ended, [&["rank 1 did not join"], &["cannot resolve the host name of node0:7100"]]);
}
