//! One call that starts the ranks of a program, or joins as one of them.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use ccl_core::types::Rank;

use crate::communicator::{Communicator, Error};
use crate::launch::{self, LaunchError};

/// Runs `rank` on every rank of a job, and returns the exit status of the process.
///
/// A process whose environment gives it a rank (set by torchrun, mpirun, srun or this function, or
/// by hand as `FERROCCL_RANK`) joins as that rank. Any other process starts itself again as `ranks`
/// processes on this machine. An error goes to standard error, with the rank in front.
///
/// ```no_run
/// use ferroccl::{Error, Reduction};
///
/// fn main() -> std::process::ExitCode {
///     ferroccl::run(4, |communicator| {
///         let mut data = [communicator.rank()];
///         communicator.all_reduce_in_place(&mut data, Reduction::Sum)?;
///         assert_eq!(data, [6]);
///         Ok::<(), Error>(())
///     })
/// }
/// ```
pub fn run<E: Display>(
    ranks: u32,
    rank: impl FnOnce(&mut Communicator) -> Result<(), E>,
) -> ExitCode {
    match start(ranks, rank) {
        Ok(code) => code,
        Err(failure) => {
            // A failure of this write can be reported nowhere.
            let _ = writeln!(std::io::stderr(), "ferroccl: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The reason why a rank, or the process that starts the ranks, ends badly.
#[derive(Debug, thiserror::Error)]
enum Failure<E: Display> {
    #[error("{0}")]
    Launch(#[from] LaunchError),
    #[error("the path of this program is unknown: {0}")]
    Program(#[from] std::io::Error),
    #[error("{0}")]
    Join(#[from] Error),
    #[error("rank {0}: {1}")]
    Rank(Rank, E),
}

fn start<E: Display>(
    ranks: u32,
    rank: impl FnOnce(&mut Communicator) -> Result<(), E>,
) -> Result<ExitCode, Failure<E>> {
    if launch::from_environment()?.is_none() {
        let program = std::env::current_exe()?;
        let arguments = Vec::from_iter(std::env::args_os().skip(1));
        let exit = launch::spawn_local(ranks, &program, &arguments)?;
        return Ok(ExitCode::from(exit.code));
    }
    let mut communicator = Communicator::from_environment()?;
    let own = communicator.rank();
    rank(&mut communicator).map_err(|error| Failure::Rank(own, error))?;
    Ok(ExitCode::SUCCESS)
}
