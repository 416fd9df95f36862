//! Cells of the fault matrix over libfabric, with providers that run anywhere. The two hosts are
//! nominal: their ranks reach each other through loopback.

use super::inject::{Attempt, Draw, LONG, MOMENT, await_fault, commands, lasting, verdict};
use super::judge::Expected;
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

fn run(cells: &[Cell], attempt: Attempt, provider: &str) -> Result<String, String> {
    let cell = cells[0];
    let draw = Draw::new(&cell, attempt);
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = free.local_addr().unwrap();
    drop(free);
    let job = Processes::start(commands(cells, &draw, address, true).map(|(rank, mut command)| {
        command
            .env("FERROCCL_HOSTID", format!("host {}", rank / PER_HOST))
            .env("FERROCCL_SOCKET_IFNAME", "lo")
            .env("FERROCCL_TRANSPORT", "ofi")
            .env("FERROCCL_OFI_PROVIDER", provider);
        command
    }));
    await_fault(&cell, &draw, &job)?;
    let expected = if cell.fault == Fault::ShortStop {
        job.signal(draw.victim as usize, Signal::STOP);
        thread::sleep(MOMENT);
        job.signal(draw.victim as usize, Signal::CONT);
        Expected::Completes
    } else {
        Expected::Fails(lasting(&cell, &draw, &job, ENDED_MS, || {}))
    };
    verdict(&expected, &draw, &job.end(LONG))
}

#[test]
fn faults_of_ranks_end_in_right_data_or_agreed_errors() {
    // Only the full run uses all providers.
    for provider in present().take(if full() { usize::MAX } else { 1 }) {
        // If the processes of the provider share locks, only the short stop is tested: a rank that
        // is killed, or stopped for long, may hold a lock that other ranks need, and they then wait
        // without a limit.
        let returns = |fault: Fault| fault == Fault::ShortStop || !shares_locks(provider);
        let cells = chosen(|cell| FAULTS.contains(&cell.fault) && returns(cell.fault));
        let jobs: Vec<Vec<Cell>> = cells.into_iter().map(|cell| vec![cell]).collect();
        run_jobs("libfabric", &jobs, 2, |cells, attempt| run(cells, attempt, provider));
    }
}
