//! Cells of the fault matrix over libfabric, with providers that run anywhere. The two hosts are
//! nominal: their ranks reach each other through loopback.

use super::inject::{
    Attempt, Draw, LONG, MOMENT, await_fault, await_work, commands, lasting, signal_of, verdict,
};
use super::judge::{Expected, Failure};
use super::rank::{ANNOUNCES_SIGNAL, OWN_SIGNAL, OwnSignal};
use super::{Cell, Fault, PER_HOST, chosen, full, run_jobs};
use crate::ofi::{present, shares_locks};
use ccl_harness::processes::Processes;
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

/// Faults of processes; the other faults concern TCP connections and devices.
pub(super) const FAULTS: [Fault; 3] = [Fault::Kill, Fault::LongStop, Fault::ShortStop];
/// Longest time from a fault to the error of every survivor, in milliseconds.
const ENDED_MS: u64 = 15_000;

/// Waits until a rank sends itself a signal; returns the time just before the signal.
fn signalled_ms(job: &Processes, rank: usize) -> u64 {
    job.await_text(rank, ANNOUNCES_SIGNAL, LONG);
    let output = job.output(rank);
    output.lines().find_map(|line| line.strip_suffix(ANNOUNCES_SIGNAL)).unwrap().parse().unwrap()
}

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
            let failure = lasting(&cell, &draw, &job, ENDED_MS, hit);
            Expected::Fails(Failure { at_ms: signalled_ms(&job, victim), ..failure })
        }
        (Some(signal), None) => {
            await_fault(&cell, &draw, &job)?;
            let hit = || job.signal(victim, signal);
            Expected::Fails(lasting(&cell, &draw, &job, ENDED_MS, hit))
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

#[test]
fn faults_of_ranks_end_in_right_data_or_agreed_errors() {
    // Only the full run uses all providers.
    for provider in present().take(if full() { usize::MAX } else { 1 }) {
        let cells = chosen(|cell| FAULTS.contains(&cell.fault));
        let jobs: Vec<Vec<Cell>> = cells.into_iter().map(|cell| vec![cell]).collect();
        run_jobs("libfabric", &jobs, 2, |cells, attempt| run(cells, attempt, provider));
    }
}
