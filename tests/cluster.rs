//! Jobs on several machines, which are network namespaces here.

use crate::perf::{examples, none_wrong};
use ccl_core::types::Collective;
use ccl_harness::data::{Case as Call, check};
use ccl_harness::netns::{Host, Network};
use ccl_harness::processes::{Case, Ended, Processes, command, free_address, say, was_killed};
use ccl_harness::stranger;
use ccl_harness::stretched;
use ferroccl::{Communicator, Error, Reduction};
use rustix::process::Signal;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[("collectives", collectives), ("sums", sums)];

pub(crate) const LONG: Duration = Duration::from_secs(100);
pub(crate) const WORK: &str = "FERROCCL_TEST_WORK";
pub(crate) const SECRET: &str = "00112233445566778899aabbccddeeff";
const PORT: u16 = 7100;

/// Runs every collective except barriers and send/recv, and checks the results.
fn collectives() -> Result<(), Error> {
    let mut communicator = Communicator::from_environment()?;
    for collective in Collective::ALL {
        if matches!(collective, Collective::Barrier | Collective::SendRecv) {
            continue;
        }
        for count in [0, 1, 1009, 100_003] {
            for in_place in [false, true] {
                check(&mut communicator, &Call { in_place, ..Call::new(collective, count) });
            }
        }
    }
    say(communicator.transport());
    communicator.barrier()
}

/// Runs all_reduces. `WORK` has the length of the buffer in bytes and the number of all_reduces.
fn sums() -> Result<(), Error> {
    let mut communicator = Communicator::from_environment()?;
    let work = std::env::var(WORK).unwrap();
    let (bytes, turns) = work.split_once(' ').unwrap();
    let mut buffer = vec![1u8; bytes.parse().unwrap()];
    communicator.barrier()?;
    say(communicator.transport());
    say("working");
    for _ in 0..turns.parse::<u64>().unwrap() {
        communicator.all_reduce_in_place(&mut buffer, Reduction::Max)?;
    }
    say("worked");
    communicator.barrier()
}

fn host_of(network: &Network, rank: usize, per_host: usize) -> &Host {
    &network.hosts[rank / per_host]
}

/// Starts `per_host` ranks on each host, without a launcher.
pub(crate) fn job(
    network: &Network,
    per_host: usize,
    address: IpAddr,
    make: impl Fn() -> Command,
    change: impl Fn(usize, &mut Command),
) -> Processes {
    let ranks = network.hosts.len() * per_host;
    Processes::start((0..ranks).map(|rank| {
        let mut command = make();
        command
            .env("FERROCCL_RANK", rank.to_string())
            .env("FERROCCL_RANKS", ranks.to_string())
            .env("FERROCCL_COMM_ID", SocketAddr::new(address, PORT).to_string())
            .env("FERROCCL_SECRET", SECRET);
        change(rank, &mut command);
        host_of(network, rank, per_host).enter(&command)
    }))
}

pub(crate) fn all_well(ended: &[Ended]) {
    for (rank, ended) in ended.iter().enumerate() {
        assert!(ended.status.success(), "rank {rank}: {}", ended.output);
    }
}

#[test]
fn every_collective_runs_between_hosts() {
    for ipv6 in [false, true] {
        for (hosts, per_host, transport) in [(2, 1, "tcp"), (2, 2, "shm+tcp"), (3, 2, "shm+tcp")] {
            let Some(network) = Network::switched(hosts) else { return };
            let first = &network.hosts[0];
            let address = if ipv6 { first.ipv6() } else { first.ipv4() };
            let job = job(
                &network,
                per_host,
                address,
                || command("collectives"),
                |_, command| {
                    let family = if ipv6 { "fd77::/64" } else { "10.77.0.0/24" };
                    command.env("FERROCCL_SOCKET_IFNAME", family);
                },
            );
            let ended = job.end(LONG);
            all_well(&ended);
            assert!(ended.iter().all(|ended| ended.output.contains(transport)));
        }
    }
}

/// An all_reduce over two hosts, with four ranks on each host, sends the buffer between the hosts
/// once per direction, not once per rank.
#[test]
fn a_sum_crosses_between_hosts_once() {
    const BYTES: u64 = 8 << 20;
    const TURNS: u64 = 10;
    let Some(network) = Network::back_to_back() else { return };
    let address = network.hosts[0].ipv4();
    let job = job(
        &network,
        4,
        address,
        || command("sums"),
        |_, command| {
            command.env(WORK, format!("{BYTES} {TURNS}"));
        },
    );
    for rank in 0..8 {
        job.await_text(rank, "working", LONG);
    }
    // The join adds little to the traffic: the bounds below allow for it.
    all_well(&job.end(LONG));
    for host in &network.hosts {
        let traffic = host.traffic();
        for bytes in [traffic.sent_bytes, traffic.received_bytes] {
            let share = bytes as f64 / (BYTES * TURNS) as f64;
            assert!((0.9..1.1).contains(&share), "{share} times the data crossed: {traffic:?}");
        }
    }
}

/// A rank tries every address of a peer and uses one that answers.
#[test]
fn an_interface_that_leads_nowhere_is_not_taken() {
    let Some(network) = Network::back_to_back() else { return };
    network.add_interfaces();
    for interfaces in ["", "dead0,net0", "10.79.0.0/24,fast0", "^lo"] {
        let ended = job(
            &network,
            1,
            network.hosts[0].ipv4(),
            || command("sums"),
            |_, command| {
                command.env(WORK, "1000 3").env("FERROCCL_SOCKET_IFNAME", interfaces);
            },
        )
        .end(LONG);
        all_well(&ended);
    }
}

/// The ranks join on one network, and their data uses the other.
#[test]
fn data_may_use_another_network_than_the_bootstrap() {
    const BYTES: u64 = 4 << 20;
    let Some(network) = Network::back_to_back() else { return };
    network.add_interfaces();
    let ended = job(
        &network,
        1,
        network.hosts[0].ipv4(),
        || command("sums"),
        |_, command| {
            command.env(WORK, format!("{BYTES} 5")).env("FERROCCL_SOCKET_IFNAME", "=fast0");
        },
    )
    .end(LONG);
    all_well(&ended);
    for host in &network.hosts {
        let (met, said) = (host.traffic(), host.traffic_of("fast0"));
        assert!(met.sent_bytes > 1000 && met.sent_bytes < BYTES / 4, "{met:?}");
        assert!(said.sent_bytes > 5 * BYTES && said.received_bytes > 5 * BYTES, "{said:?}");
    }
}

fn torchrun(rank: usize, per_host: usize, ranks: usize, address: IpAddr, command: &mut Command) {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_RANK", (rank % per_host).to_string())
        .env("LOCAL_WORLD_SIZE", per_host.to_string())
        .env("MASTER_ADDR", address.to_string())
        .env("MASTER_PORT", PORT.to_string());
}

/// Sets the variables that mpirun sets, and the rendezvous address, which mpirun does not set.
fn mpirun(rank: usize, per_host: usize, ranks: usize, address: IpAddr, command: &mut Command) {
    command
        .env("OMPI_COMM_WORLD_RANK", rank.to_string())
        .env("OMPI_COMM_WORLD_SIZE", ranks.to_string())
        .env("OMPI_COMM_WORLD_LOCAL_RANK", (rank % per_host).to_string())
        .env("OMPI_COMM_WORLD_LOCAL_SIZE", per_host.to_string())
        .env("FERROCCL_COMM_ID", SocketAddr::new(address, PORT).to_string());
}

#[test]
fn the_perf_programs_run_between_hosts_under_torchrun_and_under_mpirun() {
    type Launcher = fn(usize, usize, usize, IpAddr, &mut Command);
    let launchers: [Launcher; 2] = [torchrun, mpirun];
    let programs = [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "alltoall",
        "alltoallv",
        "sendrecv",
    ];
    let Some(network) = Network::switched(2) else { return };
    let address = network.hosts[0].ipv4();
    for (program, launch) in programs.iter().flat_map(|name| launchers.map(|how| (name, how))) {
        let ended = Processes::start((0..4).map(|rank| {
            let mut command = Command::new(examples().join(format!("{program}_perf")));
            command.args("-b 8 -e 4M -f 16 -n 2 -w 1 -c 1".split(' '));
            command.env("FERROCCL_SECRET", SECRET);
            launch(rank, 2, 4, address, &mut command);
            host_of(&network, rank, 2).enter(&command)
        }))
        .end(LONG);
        all_well(&ended);
        none_wrong(&ended[0].output, 5);
    }
}

#[test]
fn a_killed_rank_is_named_by_the_survivors_on_both_hosts_in_time() {
    for victim in [0, 1, 3] {
        let Some(network) = Network::switched(2) else { return };
        let address = network.hosts[0].ipv4();
        let job = job(
            &network,
            2,
            address,
            || command("sums"),
            |_, command| {
                command.env(WORK, "4000000 1000000");
            },
        );
        for rank in 0..4 {
            job.await_text(rank, "working", LONG);
        }
        std::thread::sleep(Duration::from_millis(300));
        let killed = Instant::now();
        job.signal(victim, Signal::KILL);
        let ended = job.end(LONG);
        assert!(killed.elapsed() < stretched(Duration::from_secs(5)), "{:?}", killed.elapsed());
        for (rank, ended) in ended.iter().enumerate() {
            if rank == victim {
                assert!(was_killed(ended));
            } else {
                let named = ended.error().contains(&format!("rank {victim} failed"));
                assert!(named, "rank {rank}: {}", ended.output);
            }
        }
    }
}

/// A network link that is down for a moment costs only time: the connections survive.
#[test]
fn a_link_that_flaps_costs_time_only() {
    let Some(network) = Network::switched(2) else { return };
    let address = network.hosts[0].ipv4();
    let job = job(
        &network,
        1,
        address,
        || command("sums"),
        |_, command| {
            // On a busy machine, recovery after each cut can take long.
            command.env(WORK, "1000000 2000").env("FERROCCL_DEAD_AFTER", "20s");
        },
    );
    for rank in 0..2 {
        job.await_text(rank, "working", LONG);
    }
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        network.hosts[1].link_down();
        std::thread::sleep(Duration::from_millis(300));
        network.hosts[1].link_up();
    }
    all_well(&job.end(LONG));
}

/// A network link that stays down counts as the peer's death. Both sides report it in time.
#[test]
fn a_link_that_stays_down_ends_both_sides_in_time() {
    let Some(network) = Network::switched(2) else { return };
    let address = network.hosts[0].ipv4();
    let job = job(
        &network,
        1,
        address,
        || command("sums"),
        |_, command| {
            command.env(WORK, "1000000 100000000");
        },
    );
    for rank in 0..2 {
        job.await_text(rank, "working", LONG);
    }
    let cut = Instant::now();
    network.hosts[1].link_down();
    let ended = job.end(LONG);
    assert!(cut.elapsed() < stretched(Duration::from_secs(5)), "{:?}", cut.elapsed());
    for (rank, other) in [(0, 1), (1, 0)] {
        let error = ended[rank].error();
        assert!(error.contains(&format!("rank {other}")), "rank {rank}: {error}");
    }
}

#[test]
fn a_crowd_of_strangers_does_not_disturb_a_job() {
    let Some(network) = Network::switched(3) else { return };
    let address = network.hosts[0].ipv4();
    let crowd = move || {
        // The rendezvous port comes first, then some ports that the kernel can assign to listeners.
        stranger::random(SocketAddr::new(address, PORT), 300, 200, 1);
        for port in (0..5u16).map(|i| 32_768 + i * 5000) {
            stranger::random(SocketAddr::new(address, port), 20, 50, 2);
        }
    };
    let outsider = network.hosts[2].spawn(crowd);
    let inside = job_on(&network, 2, address);
    all_well(&inside.end(LONG));
    outsider.join().unwrap();
}

/// A port scanner finds all listeners on a host, and 10,000 connections with random bytes follow.
/// The job goes on until a rank is killed, and reports nothing but that death.
#[test]
fn a_port_scanner_and_10_000_random_connections_do_not_disturb_a_running_job() {
    let Some(network) = Network::switched(3) else { return };
    let address = network.hosts[0].ipv4();
    let job = case_on(&network, 2, address, "sums", "100000 1000000000");
    for rank in 0..2 {
        job.await_text(rank, "working", LONG);
    }
    let crowd = network.hosts[2].spawn(move || {
        let open: Vec<SocketAddr> = (1..=u16::MAX)
            .map(|port| SocketAddr::new(address, port))
            .filter(|port| TcpStream::connect_timeout(port, Duration::from_secs(2)).is_ok())
            .collect();
        let each = 10_000 / open.len() as u32 + 1;
        for (seed, port) in open.iter().enumerate() {
            assert!(stranger::random(*port, each, 200, seed as u64).connected > each / 2);
        }
        open.len()
    });
    // The host has at least the listeners of the control plane and of the data connections.
    assert!(crowd.join().unwrap() >= 2, "the scanner found fewer than two listeners");
    job.signal(1, Signal::KILL);
    let ended = job.end(LONG);
    let error = ended[0].error();
    assert!(error.contains("rank 1 failed: died"), "{error}");
}

/// Starts a job with one rank on each of the first `hosts` hosts.
fn job_on(network: &Network, hosts: usize, address: IpAddr) -> Processes {
    case_on(network, hosts, address, "collectives", "")
}

fn case_on(network: &Network, hosts: usize, address: IpAddr, case: &str, work: &str) -> Processes {
    Processes::start((0..hosts).map(|rank| {
        let mut command = command(case);
        command
            .env("FERROCCL_RANK", rank.to_string())
            .env("FERROCCL_RANKS", hosts.to_string())
            .env("FERROCCL_COMM_ID", SocketAddr::new(address, PORT).to_string())
            .env("FERROCCL_SECRET", SECRET)
            .env(WORK, work);
        network.hosts[rank].enter(&command)
    }))
}

/// The README's commands for two hosts on one machine work; only the programs' directory and the
/// port are replaced.
#[test]
fn the_commands_of_the_readme_for_two_hosts_work() {
    let readme = include_str!("../README.md");
    let section = readme.split("## Several machines").nth(1).unwrap();
    let block = section.split("```sh\n").find(|block| block.contains("FERROCCL_HOSTID=one"));
    let script = block.unwrap().split("```").next().unwrap();
    let programs = examples().to_str().unwrap();
    let script = script.replace("target/release/examples", programs);
    let mut shell = Command::new("sh");
    // Another test may use the port in the README.
    let script = script.replace("127.0.0.1:29500", &free_address());
    shell.args(["-e", "-c", &script]);
    let ended = Processes::start([shell]).end(LONG).remove(0);
    assert!(ended.status.success(), "{}", ended.output);
    none_wrong(&ended.output, 7);
    assert!(ended.output.contains("transport tcp"), "{}", ended.output);
}
