//! From `main` to a measurement and an exit status.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use ccl_core::types::Collective;
use clap::{CommandFactory as _, FromArgMatches as _};

use super::open;
use super::options::{CommandLine, NoExtra, Options};
use super::subject::{Subject, SubjectError};
use super::sweep;

/// The programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `all_reduce_perf`
    AllReduce,
    /// `all_gather_perf`
    AllGather,
    /// `reduce_scatter_perf`
    ReduceScatter,
    /// `broadcast_perf`
    Broadcast,
    /// `reduce_perf`
    Reduce,
    /// `gather_perf`
    Gather,
    /// `scatter_perf`
    Scatter,
    /// `alltoall_perf`
    AllToAll,
    /// `alltoallv_perf`
    AllToAllV,
    /// `sendrecv_perf`
    SendRecv,
}

/// Bad input; 1 is a failed or wrong measurement.
const USAGE: u8 = 2;

impl Program {
    /// The name of the executable.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().0
    }

    /// Name, collective, and what `--help` says first.
    const fn description(self) -> (&'static str, Collective, &'static str) {
        match self {
            Program::AllReduce => (
                "all_reduce_perf",
                Collective::AllReduce,
                "Measures all_reduce: every rank gets the reduction of all inputs",
            ),
            Program::AllGather => (
                "all_gather_perf",
                Collective::AllGather,
                "Measures all_gather: every rank gets all inputs",
            ),
            Program::ReduceScatter => (
                "reduce_scatter_perf",
                Collective::ReduceScatter,
                "Measures reduce_scatter: every rank gets its block of the reduction",
            ),
            Program::Broadcast => (
                "broadcast_perf",
                Collective::Broadcast,
                "Measures broadcast: every rank gets the root's input",
            ),
            Program::Reduce => (
                "reduce_perf",
                Collective::Reduce,
                "Measures reduce: the root gets the reduction of all inputs",
            ),
            Program::Gather => {
                ("gather_perf", Collective::Gather, "Measures gather: the root gets all inputs")
            }
            Program::Scatter => (
                "scatter_perf",
                Collective::Scatter,
                "Measures scatter: every rank gets its block of the root's input",
            ),
            Program::AllToAll => (
                "alltoall_perf",
                Collective::AllToAll,
                "Measures all_to_all: every rank sends a block to every rank",
            ),
            Program::AllToAllV => (
                "alltoallv_perf",
                Collective::AllToAllV,
                "Measures all_to_all_v: every rank sends more to ranks further ahead",
            ),
            Program::SendRecv => (
                "sendrecv_perf",
                Collective::SendRecv,
                "Measures send and recv: every rank sends to the next one, all at once",
            ),
        }
    }
}

/// A program's whole `main`: parses the command line, starts or joins the ranks, measures, prints.
/// The status is 0 for a run without wrong elements, 2 for bad input, else 1.
#[must_use]
pub fn main_with(program: Program) -> ExitCode {
    start(program, std::env::args_os(), open::open)
}

/// Opens a subject for the given options.
pub(super) type Open = fn(&Options) -> Result<Box<dyn Subject>, SubjectError>;

pub(super) fn start(
    program: Program,
    arguments: impl IntoIterator<Item = OsString>,
    open: Open,
) -> ExitCode {
    match parse::<NoExtra>(program, arguments) {
        Ok(line) => run(program, &line.options, open, |subject, out| {
            let (name, collective, _) = program.description();
            Ok(sweep::run(name, collective, &line.options, subject, out)?.failed)
        }),
        Err(status) => status,
    }
}

fn parse<E: clap::Args>(
    program: Program,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<CommandLine<E>, ExitCode> {
    let (name, _, about) = program.description();
    let command = CommandLine::<E>::command().name(name).bin_name(name).about(about);
    let command = command.version(env!("CARGO_PKG_VERSION")).after_help(examples(name));
    let line = command
        .try_get_matches_from(arguments)
        .and_then(|matches| CommandLine::<E>::from_arg_matches(&matches))
        .map_err(|error| {
            // Help goes to standard output and is no failure. Nobody is told if printing fails.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
        })?;
    line.options.validate().map_err(|error| complain(name, &error, ExitCode::from(USAGE)))?;
    Ok(line)
}

fn examples(name: &str) -> String {
    format!(
        "Examples:\n  \
         {name} -b 8 -e 64M -f 2 -g 2        sizes from 8 B to 64 MiB, doubling, two local ranks\n  \
         {name} -b 1M -e 8M -i 1M -g 4 -n 50 fixed steps, 50 iterations\n  \
         {name} -g 2 -d all -o all -b 1k -e 1k\n  \
         {name} -g 2 -b 8 -e 1G -f 2 --json out.json --plot out.svg\n  \
         torchrun --no-python --nproc-per-node 4 {name} -b 1M -e 1M\n  \
         mpirun -n 4 {name} -b 1M -e 1M"
    )
}

fn complain(name: &str, error: &dyn std::fmt::Display, status: ExitCode) -> ExitCode {
    // If standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{name}: {error}");
    status
}

/// Starts or joins the ranks and runs `measure`, which says how many measurements were wrong.
fn run(
    program: Program,
    options: &Options,
    open: Open,
    measure: impl FnOnce(&mut dyn Subject, &mut dyn Write) -> Result<u64, SubjectError>,
) -> ExitCode {
    let name = program.name();
    if let Some(ranks) = options.local_ranks {
        match open::launch_local(ranks) {
            Ok(None) => {}
            Ok(Some(status)) => return status,
            Err(error) => return complain(name, &error, ExitCode::FAILURE),
        }
    }
    let mut subject = match open(options) {
        Ok(subject) => subject,
        Err(error) => return complain(name, &error, ExitCode::FAILURE),
    };
    if let Err(error) = options.validate_root(subject.ranks()) {
        return complain(name, &error, ExitCode::from(USAGE));
    }
    match measure(&mut *subject, &mut std::io::stdout()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            let rank = subject.rank();
            complain(name, &format!("rank {rank}: {error}"), ExitCode::FAILURE)
        }
    }
}
