//! Cells over RDMA. All ranks run on this machine, which plays several hosts (`FERROCCL_HOSTID`):
//! with `Fault::ShortCut` one host per rank, otherwise two. Two RDMA networks connect the two
//! halves of the ranks; each half has a device on each network. The control plane uses loopback, so
//! faults of the RDMA networks do not affect it.

use super::inject::{
    Attempt, Draw, LONG, MOMENT, await_fault, commands, lasting, signal_of, verdict,
};
use super::judge::Expected;
use super::{Cell, Fault, INCONCLUSIVE, PER_HOST, chosen, run_jobs};
use crate::rdma::VERBS;
use crate::rdma::faults::{Down, Netem};
use crate::rdma::rails;
use ccl_harness::processes::Processes;
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

/// Faults of processes, loss of packets, and cuts of one of the two RDMA networks. Delay and
/// reordering are not tested over RDMA; the other faults concern TCP connections.
pub(super) const FAULTS: [Fault; 6] =
    [Fault::Kill, Fault::LongStop, Fault::ShortStop, Fault::LongCut, Fault::ShortCut, Fault::Loss];
const PORT: u16 = 7300;
/// Longest time from a fault until every survivor has its error, in milliseconds. The limit is
/// long, because the processors may be emulated.
const ENDED_MS: u64 = 15_000;

/// Runs cells; `sides` has the devices of each half of the ranks, one on each network.
fn run(cells: &[Cell], attempt: Attempt, sides: &[Vec<String>; 2]) -> Result<String, String> {
    let cell = cells[0];
    let draw = Draw::new(&cell, attempt);
    let first = sides.each_ref().map(|side| side[0].clone());
    let lossy = (cell.fault == Fault::Loss).then(|| Netem::new(&first, "loss 1% "));
    let lost_before = lossy.as_ref().map_or(0, Netem::lost);
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let job = Processes::start(commands(cells, &draw, address, true).map(|(rank, mut command)| {
        let side = (rank / PER_HOST) as usize;
        // With `Fault::ShortCut`, each rank is alone on its host and uses all devices of its half.
        let (host, devices) = match cell.fault {
            Fault::ShortCut => (rank as usize, sides[side].join(",")),
            _ => (side, first[side].clone()),
        };
        command
            .env("FERROCCL_HOSTID", format!("host {host}"))
            .env("FERROCCL_SOCKET_IFNAME", "lo")
            .env("FERROCCL_TRANSPORT", VERBS)
            .env("FERROCCL_IB_HCA", format!("={devices}"))
            .env("FERROCCL_IB_POLICY", "2");
        if cell.fault == Fault::Loss {
            // A time-out of 67 ms.
            command.env("FERROCCL_IB_TIMEOUT", "14");
        }
        command
    }));
    await_fault(&cell, &draw, &job)?;
    let mut down = None;
    let expected = match cell.fault {
        Fault::Kill | Fault::LongStop | Fault::LongCut => {
            let hit = || match signal_of(cell.fault) {
                Some(signal) => job.signal(draw.victim as usize, signal),
                None => down = Some(Down::new(&first[1])),
            };
            let mut failure = lasting(&cell, &draw, &job, ENDED_MS, hit);
            if cell.fault == Fault::LongCut {
                // The control plane still connects all ranks, so no rank is declared dead.
                (failure.dead, failure.outcasts) = (Vec::new(), Vec::new());
            }
            Expected::Fails(failure)
        }
        Fault::ShortStop => {
            job.signal(draw.victim as usize, Signal::STOP);
            thread::sleep(MOMENT);
            job.signal(draw.victim as usize, Signal::CONT);
            Expected::Completes
        }
        Fault::ShortCut => {
            let down = Down::new(&first[(draw.victim / PER_HOST) as usize]);
            thread::sleep(MOMENT);
            drop(down);
            Expected::Completes
        }
        _ => Expected::Completes,
    };
    let ended = job.end(LONG);
    drop(down);
    if lossy.is_some_and(|lossy| lossy.lost() == lost_before) {
        return Err(format!("no packet was lost: {INCONCLUSIVE}"));
    }
    verdict(&expected, &draw, &ended)
}

#[test]
fn faults_of_ranks_and_links_end_in_right_data_or_agreed_errors() {
    let Some((sides, _turn)) = rails() else { return };
    let cells = chosen(|cell| FAULTS.contains(&cell.fault));
    // Starting processes takes most of the time: all cells with packet loss are one job.
    let (lossy, others): (Vec<Cell>, Vec<Cell>) =
        cells.into_iter().partition(|cell| cell.fault == Fault::Loss);
    let mut jobs: Vec<Vec<Cell>> = others.into_iter().map(|cell| vec![cell]).collect();
    jobs.extend((!lossy.is_empty()).then_some(lossy));
    run_jobs("rdma", &jobs, 1, |cells, attempt| run(cells, attempt, &sides));
}
