//! Entry of the perf programs: from `main` to a measurement and an exit status.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use ccl_core::types::Collective;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _};

use super::open;
use super::options::{CommandLine, NoExtra, Options};
use super::programs::{latency_comparison, p2p_matrix, training};
use super::setup::Refused;
use super::subject::{Subject, SubjectError};
use super::sweep;

/// The perf programs.
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
    /// `p2p_matrix`
    P2pMatrix,
    /// `all_reduce_latency_comp`
    AllReduceLatencyComp,
    /// `training_buckets`
    TrainingBuckets,
}

/// Kind of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sweep(Collective),
    P2pMatrix,
    LatencyComparison,
    Training,
}

impl Kind {
    /// Returns the flags that mean nothing to the program: its help hides them, and they are
    /// refused.
    const fn meaningless(self) -> &'static [&'static str] {
        match self {
            Kind::Sweep(_) => &[],
            Kind::P2pMatrix => &[
                "step_bytes",
                "step_factor",
                "aggregated",
                "op",
                "data_type",
                "root",
                "blocking",
                "average",
                "cycles",
                "algorithm",
                "exact",
                "output_file",
                "traffic",
                "plot",
            ],
            Kind::LatencyComparison => {
                &["aggregated", "root", "cycles", "exact", "output_file", "traffic", "plot"]
            }
            Kind::Training => &[
                "min_bytes",
                "max_bytes",
                "step_bytes",
                "step_factor",
                "aggregated",
                "op",
                "data_type",
                "root",
                "cycles",
                "algorithm",
                "exact",
                "output_file",
                "traffic",
                "plot",
            ],
        }
    }

    /// Returns the defaults that differ from the common ones.
    const fn defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Kind::Sweep(_) => &[],
            Kind::P2pMatrix => &[("min_bytes", "8"), ("max_bytes", "4M")],
            Kind::LatencyComparison => &[("min_bytes", "4M"), ("max_bytes", "4M")],
            Kind::Training => &[("iterations", "5")],
        }
    }
}

/// Exit status of a failed or wrong measurement, or of one that is worse than the baseline.
const FAILED: u8 = 1;
/// Exit status of bad input.
const USAGE: u8 = 2;

impl Program {
    /// Returns the name of the executable.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().0
    }

    /// Returns name, kind, and the first line of `--help`.
    const fn description(self) -> (&'static str, Kind, &'static str) {
        match self {
            Program::AllReduce => (
                "all_reduce_perf",
                Kind::Sweep(Collective::AllReduce),
                "Measures all_reduce: every rank gets the reduction of all inputs",
            ),
            Program::AllGather => (
                "all_gather_perf",
                Kind::Sweep(Collective::AllGather),
                "Measures all_gather: every rank gets all inputs",
            ),
            Program::ReduceScatter => (
                "reduce_scatter_perf",
                Kind::Sweep(Collective::ReduceScatter),
                "Measures reduce_scatter: every rank gets its block of the reduction",
            ),
            Program::Broadcast => (
                "broadcast_perf",
                Kind::Sweep(Collective::Broadcast),
                "Measures broadcast: every rank gets the root's input",
            ),
            Program::Reduce => (
                "reduce_perf",
                Kind::Sweep(Collective::Reduce),
                "Measures reduce: the root gets the reduction of all inputs",
            ),
            Program::Gather => (
                "gather_perf",
                Kind::Sweep(Collective::Gather),
                "Measures gather: the root gets all inputs",
            ),
            Program::Scatter => (
                "scatter_perf",
                Kind::Sweep(Collective::Scatter),
                "Measures scatter: every rank gets its block of the root's input",
            ),
            Program::AllToAll => (
                "alltoall_perf",
                Kind::Sweep(Collective::AllToAll),
                "Measures all_to_all: every rank sends a block to every rank",
            ),
            Program::AllToAllV => (
                "alltoallv_perf",
                Kind::Sweep(Collective::AllToAllV),
                "Measures all_to_all_v: every rank sends larger blocks to ranks further ahead",
            ),
            Program::SendRecv => (
                "sendrecv_perf",
                Kind::Sweep(Collective::SendRecv),
                "Measures send and recv: every rank sends to the next one, all at once",
            ),
            Program::P2pMatrix => (
                "p2p_matrix",
                Kind::P2pMatrix,
                "Measures every ordered pair of ranks: latency at -b bytes, bandwidth at -e bytes",
            ),
            Program::AllReduceLatencyComp => (
                "all_reduce_latency_comp",
                Kind::LatencyComparison,
                "Compares one large all_reduce with many small ones of the same total",
            ),
            Program::TrainingBuckets => (
                "training_buckets",
                Kind::Training,
                "Replays the collectives of training steps of published models",
            ),
        }
    }
}

/// Runs a program from start to end: parses the command line, starts or joins the ranks, measures,
/// prints. The status is 0 for a run without wrong elements (and not slower than a baseline, if one
/// is given), 2 for bad input, else 1. With `-g`, the status is that of the rank that failed first,
/// such as 137 if SIGKILL ended that rank.
#[must_use]
pub fn main_with(program: Program) -> ExitCode {
    start(program, std::env::args_os(), open::open)
}

/// Function that opens a subject for the given options.
pub(super) type Open = fn(&Options) -> Result<Box<dyn Subject>, SubjectError>;

pub(super) fn start(
    program: Program,
    arguments: impl IntoIterator<Item = OsString>,
    open: Open,
) -> ExitCode {
    let status = match program.description().1 {
        Kind::Sweep(collective) => {
            with_flags::<NoExtra>(program, arguments, open, |name, line, subject, out| {
                Ok(sweep::run(name, collective, &line.options, subject, out)?.failed)
            })
        }
        Kind::P2pMatrix => {
            with_flags::<p2p_matrix::Extra>(program, arguments, open, |name, line, subject, out| {
                Ok(p2p_matrix::run(name, &line.options, &line.extra, subject, out)?.failed())
            })
        }
        Kind::LatencyComparison => with_flags::<latency_comparison::Extra>(
            program,
            arguments,
            open,
            |name, line, subject, out| {
                let run = latency_comparison::run;
                let all = run(name, &line.options, line.extra, subject, out)?;
                Ok(all.iter().map(|comparison| comparison.wrong).sum())
            },
        ),
        Kind::Training => {
            with_flags::<training::Extra>(program, arguments, open, |name, line, subject, out| {
                let steps = training::run(name, &line.options, &line.extra, subject, out)?;
                Ok(steps.iter().filter_map(|step| step.wrong).sum())
            })
        }
    };
    status.unwrap_or_else(|status| status)
}

/// Parses the command line and runs `measure` with it.
fn with_flags<E: clap::Args>(
    program: Program,
    arguments: impl IntoIterator<Item = OsString>,
    open: Open,
    measure: impl FnOnce(
        &str,
        &CommandLine<E>,
        &mut dyn Subject,
        &mut dyn Write,
    ) -> Result<u64, SubjectError>,
) -> Result<ExitCode, ExitCode> {
    let line = parse::<E>(program, arguments)?;
    let name = program.name();
    Ok(run(program, &line.options, open, |subject, out| measure(name, &line, subject, out)))
}

fn parse<E: clap::Args>(
    program: Program,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<CommandLine<E>, ExitCode> {
    let (name, kind, about) = program.description();
    let mut command = command::<E>(program).about(about);
    let line = command
        .try_get_matches_from_mut(arguments)
        .and_then(|matches| {
            for &id in kind.meaningless() {
                if matches.value_source(id) == Some(ValueSource::CommandLine) {
                    let flag = command.get_arguments().find(|flag| flag.get_id() == id);
                    let flag = flag.map(ToString::to_string).unwrap_or_default();
                    let message = format!("{flag} means nothing to {name}; leave it out");
                    return Err(command.error(ErrorKind::UnknownArgument, message));
                }
            }
            CommandLine::<E>::from_arg_matches(&matches)
        })
        .map_err(|error| {
            // Help goes to standard output and is no failure. A failure to print is ignored.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
        })?;
    line.options.validate().map_err(|error| complain(name, &error, ExitCode::from(USAGE)))?;
    Ok(line)
}

fn command<E: clap::Args>(program: Program) -> clap::Command {
    let (name, kind, _) = program.description();
    let mut command = CommandLine::<E>::command()
        .name(name)
        .bin_name(name)
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(examples(name, kind));
    for &(id, value) in kind.defaults() {
        command = command.mut_arg(id, |flag| flag.default_value(value));
    }
    for &id in kind.meaningless() {
        command = command.mut_arg(id, |flag| flag.hide(true));
    }
    if kind == Kind::P2pMatrix {
        command = command
            .mut_arg("min_bytes", |flag| flag.help("Bytes of a message, for the latency"))
            .mut_arg("max_bytes", |flag| flag.help("Bytes of a message, for the bandwidth"));
    }
    command
}

fn examples(name: &str, kind: Kind) -> String {
    let lines: &[&str] = match kind {
        Kind::Sweep(_) => &[
            "-b 8 -e 64M -f 2 -g 2          sizes from 8 B to 64 MiB, doubling, two local ranks",
            "-b 1M -e 8M -i 1M -g 4 -n 50   fixed steps, 50 iterations",
            "-b 1k -e 1k -g 3 -d all -o all every type and reduction",
            "-b 8 -e 1G -f 2 -g 2 --json out.json --plot out.svg",
            "-b 8 -e 1G -f 2 -g 2 -J nccl.json   for tools that read the files of nccl-tests",
        ],
        Kind::P2pMatrix => &[
            "-g 4",
            "-g 2 -b 8 -e 64M -n 50 --json pairs.json",
            "-g 2 -e 1M --save-baseline good.paths    keep the times of every path",
            "-g 2 -e 1M --baseline good.paths         status 1 if a path got slower",
        ],
        Kind::LatencyComparison => &["-g 2", "-g 4 -b 1M -e 64M -f 4 --pieces 100"],
        Kind::Training => &[
            "-g 4",
            "-g 2 --model resnet50,gpt2 --scale 0.01",
            "-g 8 --model llama3-8b-fsdp -n 3 --json steps.json",
        ],
    };
    let lines = lines.iter().map(|line| format!("\n  {name} {line}")).collect::<String>();
    format!(
        "Examples:{lines}\n  mpirun -n 4 {name}\n  \
         torchrun --no-python --nproc-per-node 4 {name}"
    )
}

fn complain(name: &str, error: &dyn std::fmt::Display, status: ExitCode) -> ExitCode {
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr(), "{name}: {error}");
    status
}

/// Starts or joins the ranks and runs `measure`, which returns 0 if no result is wrong and no path
/// is slower than a baseline.
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
            let status = if error.is::<Refused>() { USAGE } else { FAILED };
            complain(name, &format!("rank {rank}: {error}"), ExitCode::from(status))
        }
    }
}
