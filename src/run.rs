//! Programs of several ranks in one call.

use std::fmt::Display;
use std::process::ExitCode;

use crate::communicator::Communicator;
use crate::launch;

/// Runs `rank` on every rank of a job, and returns the exit status of the process.
///
/// Started by a launcher (torchrun, mpirun, srun, or this function), the process joins as one rank.
/// Started by hand, it starts itself again as `ranks` processes on this machine. An error goes to
/// standard error, with the rank in front.
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
        Err(error) => {
            // Nobody can be told if this fails.
            let _ = writeln(&error);
            ExitCode::FAILURE
        }
    }
}

fn writeln(error: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    writeln!(std::io::stderr(), "ferroccl: {error}")
}

fn start<E: Display>(
    ranks: u32,
    rank: impl FnOnce(&mut Communicator) -> Result<(), E>,
) -> Result<ExitCode, String> {
    if launch::from_environment().map_err(|error| error.to_string())?.is_none() {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let arguments = Vec::from_iter(std::env::args_os().skip(1));
        let exit = launch::spawn_local(ranks, &program, &arguments);
        return Ok(ExitCode::from(exit.map_err(|error| error.to_string())?.code));
    }
    let mut communicator = Communicator::from_environment().map_err(|error| error.to_string())?;
    let own = communicator.rank();
    rank(&mut communicator).map_err(|error| format!("rank {own}: {error}"))?;
    Ok(ExitCode::SUCCESS)
}
