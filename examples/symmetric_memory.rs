//! Reads the neighbours' data without a message: the ranks of a host map each other's
//! memory. `cargo run --example symmetric_memory` starts four ranks on this machine.

use std::process::ExitCode;

use ferroccl::Error;

/// Number of cells of each rank.
const CELLS: usize = 1000;

fn main() -> ExitCode {
    ferroccl::run(4, |communicator| {
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let mut cells = communicator.alloc::<f64>(CELLS)?;
        cells.write(0, &[f64::from(rank); CELLS])?;
        // After the barrier, every rank's cells are written.
        communicator.barrier()?;

        let [mut left, mut right] = [[0.0]; 2];
        cells.read_from((rank + ranks - 1) % ranks, CELLS - 1, &mut left)?;
        cells.read_from((rank + 1) % ranks, 0, &mut right)?;
        if rank == 0 {
            println!("rank 0 is between {} and {}", left[0], right[0]);
        }
        // No rank changes or frees its cells before all ranks have read them.
        communicator.barrier()?;
        Ok::<(), Error>(())
    })
}
