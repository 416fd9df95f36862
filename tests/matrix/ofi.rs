//! Cells of the fault matrix over libfabric, with providers that run anywhere. Over providers that
//! use sockets, the two hosts are network namespaces. Over `shm`, the two hosts are nominal: all
//! ranks are processes of one host.

use super::inject::{
    self, Attempt, Draw, LONG, MOMENT, Over, await_fault, await_work, commands, lasting, may_reset,
    signal_of, verdict,
};
use super::judge::{Expected, Failure, ofi_ended_ms};
use super::rank::{ANNOUNCES_SIGNAL, OWN_SIGNAL, OwnSignal};
use super::{ABREAST, Cell, Fault, PER_HOST, chosen, full, netem, netem_jobs, run_jobs};
use crate::ofi::{SHM, present, shares_locks, version};
use ccl_harness::netns::Network;
use ccl_harness::processes::Processes;
use ccl_harness::skip;
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

/// Faults of processes; the other faults concern connections and devices.
pub(super) const FAULTS: [Fault; 3] = [Fault::Kill, Fault::LongStop, Fault::ShortStop];
/// Versions of libfabric whose `tcp;ofi_rxm` can call a null pointer after a reset of a connection.
pub(super) const RESETS_CRASH: [&str; 1] = ["1.17"];

/// Waits until a rank sends itself a signal; returns the time just before the signal.
fn signalled_ms(job: &Processes, rank: usize) -> u64 {
    job.await_text(rank, ANNOUNCES_SIGNAL, LONG);
    let output = job.output(rank);
    output.lines().find_map(|line| line.strip_suffix(ANNOUNCES_SIGNAL)).unwrap().parse().unwrap()
}

/// Runs a cell whose ranks are all on this host.
fn run(cells: &[Cell], attempt: Attempt, provider: &str) -> Result<String, String> {
    let cell = cells[0];
    let draw = Draw::new(&cell, attempt);
    // Over a provider whose processes share locks, a rank that is killed or stopped inside a call
    // may hold a lock for which others wait without a limit. So the rank sends itself the signal,
    // between two calls.
    let own = signal_of(cell.fault).filter(|_| shares_locks(provider));
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = free.local_addr().unwrap();
    drop(free);
    let job = Processes::start(commands(cells, &draw, address, true).map(|(rank, mut command)| {
        command
            .env("FERROCCL_HOSTID", format!("host {}", rank / PER_HOST))
            .env("FERROCCL_SOCKET_IFNAME", "lo")
            .env("FERROCCL_TRANSPORT", "ofi")
            .env("FERROCCL_OFI_PROVIDER", provider);
        if let Some(signal) = own.filter(|_| rank == draw.victim) {
            let own = OwnSignal { signal: signal.as_raw(), after: draw.after };
            command.env(OWN_SIGNAL, serde_json::to_string(&own).unwrap());
        }
        command
    }));
    let victim = draw.victim as usize;
    let expected = match (signal_of(cell.fault), own) {
        (_, Some(_)) => {
            await_work(&job);
            let hit = || job.await_text(victim, ANNOUNCES_SIGNAL, LONG);
            let failure = lasting(&cell, &draw, &job, ofi_ended_ms(cell.fault), hit);
            Expected::Fails(Failure { at_ms: signalled_ms(&job, victim), ..failure })
        }
        (Some(signal), None) => {
            await_fault(&cell, &draw, &job)?;
            let hit = || job.signal(victim, signal);
            Expected::Fails(lasting(&cell, &draw, &job, ofi_ended_ms(cell.fault), hit))
        }
        (None, None) => {
            await_fault(&cell, &draw, &job)?;
            job.signal(victim, Signal::STOP);
            thread::sleep(MOMENT);
            job.signal(victim, Signal::CONT);
            Expected::Completes
        }
    };
    verdict(&expected, &draw, &job.end(LONG))
}

/// Takes the faults of processes and one provider. The full run takes all providers and, over those
/// that use sockets, all faults but those of `tc netem`. Connections are reset only if the kernel
/// can do so, and libfabric does not crash ([`RESETS_CRASH`]).
#[test]
fn faults_end_in_right_data_or_agreed_errors() {
    for provider in present().take(if full() { usize::MAX } else { 1 }) {
        let network = if provider == SHM { None } else { Network::switched(2) };
        let is_local = network.is_none();
        let version = version(provider);
        let crashes = RESETS_CRASH.contains(&&*version);
        let may_reset = full() && !crashes && network.as_ref().is_some_and(may_reset);
        if full() && !is_local && !may_reset && !crashes {
            skip("this kernel cannot reset another process's connections");
        }
        drop(network);
        let is_taken = |fault| match fault {
            _ if is_local || !full() => FAULTS.contains(&fault),
            Fault::Broken => may_reset,
            _ => netem(fault).is_none(),
        };
        let cells = chosen(|cell| is_taken(cell.fault));
        let jobs: Vec<Vec<Cell>> = cells.into_iter().map(|cell| vec![cell]).collect();
        let place = match is_local && provider != SHM {
            true => format!("libfabric {provider} on loopback"),
            false => format!("libfabric {version} {provider}"),
        };
        run_jobs(&place, &jobs, ABREAST, |cells, attempt| match is_local {
            true => run(cells, attempt, provider),
            false => inject::run(cells, attempt, Over::Libfabric(provider)),
        });
    }
}

/// Takes the providers that use sockets, in the full run.
#[test]
fn netem_faults_end_in_right_data() {
    if !full() {
        return skip("only the full run takes the faults of `tc netem` over libfabric");
    }
    let Some(jobs) = netem_jobs() else { return };
    for provider in present().filter(|provider| *provider != SHM) {
        let place = format!("guest libfabric {} {provider}", version(provider));
        run_jobs(&place, &jobs, ABREAST, |cells, attempt| {
            inject::run(cells, attempt, Over::Libfabric(provider))
        });
    }
}
