//! The `ferroccl` command: what the library would do, and why; what machines lack for it; and what
//! plugins do wrong.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ferroccl::bootstrap::Endpoint;
use ferroccl::communicator::{Call, Hosts, config_from_environment, explain};
use ferroccl::doctor::{self, Host, Job, Report};
use ferroccl::perf::sizes::parse_size;
use ferroccl::{Collective, DataType, Rank, ReduceOp};

/// Explains collectives and what they cost, shows the configuration, tells what running ranks are
/// doing, and checks machines, and plugins for NCCL.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  ferroccl explain all_reduce --bytes 64M --ranks 8
  ferroccl explain all_to_all --bytes 1k --ranks 32 --rank 3 --json
  FERROCCL_ALGO=ring ferroccl explain all_gather --bytes 1M --ranks 4
  ferroccl cost all_gather bytes=512MiB ranks=8 bandwidth=450GB/s
  ferroccl config
  ferroccl status
  ferroccl doctor
  ferroccl netcheck ./libnccl-net-x.so"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The plan of a collective: algorithm, reason, schedule, program, memory
    Explain(Explain),
    /// How long communication takes, by formulas, and what that means for training
    Cost(Cost),
    /// What the ranks of this user on this machine are doing, and who holds up the others
    Status(Status),
    /// What of this machine keeps collectives from being fast, or from working, and what to do
    Doctor(Doctor),
    /// Whether a network plugin for NCCL keeps the contract, point by point, and how fast it is
    Netcheck(ccl_netcheck::Arguments),
    /// Every tunable: its variable, value, default and meaning
    Config {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Processes are only looked at: it does not matter whether they compute, hang, or are stopped.
Examples:
  ferroccl status
  ferroccl status --json
  ferroccl status --pid 4711")]
struct Status {
    /// Only the ranks of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Print JSON, with the last operations of each rank
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a question, all are listed. Units: GB is 10^9 bytes, GiB 2^30; GB/s, and Gb/s for bits; 990T
operations; 70B of anything.
Examples:
  ferroccl cost
  ferroccl cost all_reduce bytes=1GB ranks=8 bandwidth=450GB/s
  ferroccl cost pod_all_gather bytes=1GB units=1
  ferroccl cost data_parallel flops=990T bandwidth=400GB/s experts=128 k=4
  ferroccl cost training parameters=70B tokens=15T accelerators=4096 flops=990T --json")]
struct Cost {
    /// Which
    question: Option<String>,
    /// What must be known for it, as NAME=VALUE
    inputs: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It only reads. Run it where the ranks run: in their container, by their launcher, with their
environment; as root it sees more (ACS). What it looks at is listed in docs/doctor.md.
Verdicts: fault (something does not work), warning (slower or less safe than it could be), advice
(may be on purpose), unknown (cannot be seen from here), ok.
Exit status: 0 if there is no fault and no warning, 1 if there is one, 2 if it cannot be run so.
Examples:
  ferroccl doctor
  ferroccl doctor --quiet
  ferroccl doctor --json
  ferroccl doctor --peer localhost:22
  ferroccl doctor --root /")]
struct Doctor {
    /// Only what is wrong: faults and warnings
    #[arg(long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also try to reach this peer, at a port where something listens
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "root")]
    peer: Option<Endpoint>,
    /// Look at the machine whose / is this directory: a mounted image, or a copy of /sys and /proc
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Explain {
    /// all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all barrier
    collective: Collective,
    /// Bytes of the larger buffer
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "1M")]
    bytes: usize,
    /// Ranks
    #[arg(short = 'n', long, default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,
    /// Hosts that the ranks are spread over, each with as many as the next
    #[arg(long, default_value_t = 1)]
    hosts: u32,
    /// The rank whose schedule is shown
    #[arg(long, default_value_t = 0)]
    rank: Rank,
    /// The root, where there is one
    #[arg(long, default_value_t = 0)]
    root: Rank,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "float")]
    data_type: DataType,
    /// Reduction
    #[arg(short, long, default_value = "sum")]
    op: ReduceOp,
    /// Algorithm, instead of the library's choice
    #[arg(long = "algo")]
    algorithm: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Explain(arguments) => show_plan(&arguments),
        Command::Cost(arguments) => show_cost(&arguments),
        Command::Status(arguments) => show_status(&arguments),
        Command::Doctor(arguments) => return examine(&arguments),
        Command::Netcheck(arguments) => return ccl_netcheck::run(&arguments, &["netcheck"]),
        Command::Config { json } => show_config(json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroccl: {error}");
            ExitCode::from(2)
        }
    }
}

fn show_plan(arguments: &Explain) -> Result<(), Box<dyn Error>> {
    use Collective as C;
    let collective = arguments.collective;
    let blocks = match collective {
        C::AllReduce | C::Reduce | C::Broadcast | C::Barrier => 1,
        C::AllGather | C::ReduceScatter | C::Gather | C::Scatter | C::AllToAll => arguments.ranks,
        _ => {
            return Err(format!(
                "{collective} has counts of its own for each rank; ask for the plan of its even \
                 form"
            )
            .into());
        }
    };
    let count = arguments.bytes / arguments.data_type.bytes() / blocks as usize;
    let call = Call {
        op: arguments.op,
        root: arguments.root,
        algorithm: arguments.algorithm.as_deref(),
        ..Call::even(collective, arguments.data_type, count)
    };
    let config = config_from_environment()?;
    let plan = explain(&config, arguments.rank, &hosts(arguments)?, &call)?;
    let text = if arguments.json { serde_json::to_string_pretty(&plan)? } else { plan.to_string() };
    // A reader that has seen enough (head) is no error.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

fn show_cost(arguments: &Cost) -> Result<(), Box<dyn Error>> {
    let text = match &arguments.question {
        None => ferroccl::cost::list(),
        Some(question) => {
            let answer = ferroccl::cost::answer(question, &arguments.inputs)?;
            match arguments.json {
                true => serde_json::to_string_pretty(&answer)? + "\n",
                false => answer.to_string(),
            }
        }
    };
    let _ = write!(std::io::stdout(), "{text}");
    Ok(())
}

/// Its exit status is for scripts.
fn examine(arguments: &Doctor) -> ExitCode {
    let report = match diagnose(arguments) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("ferroccl: {error}");
            return ExitCode::from(2);
        }
    };
    let status = ExitCode::from(u8::from(report.is_wrong()));
    let report = if arguments.quiet { report.only_wrong() } else { report };
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&report).map(|text| text + "\n"),
        false => Ok(report.to_string()),
    };
    match text {
        Ok(text) => {
            let _ = write!(std::io::stdout(), "{text}");
            status
        }
        Err(error) => {
            eprintln!("ferroccl: {error}");
            ExitCode::from(2)
        }
    }
}

fn diagnose(arguments: &Doctor) -> Result<Report, String> {
    let job = Job { peer: arguments.peer.clone(), ..Job::from_environment() };
    let root = &arguments.root;
    let host = Host::new(root, job)
        .map_err(|error| format!("--root {}: {error}; name a directory", root.display()))?;
    Ok(doctor::examine(host))
}

fn show_status(arguments: &Status) -> Result<(), Box<dyn Error>> {
    let status = ferroccl::recorder::status(arguments.pid)?;
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&status)? + "\n",
        false => status.to_string(),
    };
    let _ = write!(std::io::stdout(), "{text}");
    Ok(())
}

/// The ranks in their order, as many on each host as on the next.
fn hosts(arguments: &Explain) -> Result<Hosts, Box<dyn Error>> {
    let Explain { ranks, hosts, .. } = *arguments;
    if hosts == 0 || !ranks.is_multiple_of(hosts) {
        return Err(format!("{ranks} ranks cannot be spread evenly over {hosts} hosts").into());
    }
    Ok(Hosts::of(&Vec::from_iter((0..ranks).map(|rank| rank / (ranks / hosts)))))
}

fn show_config(json: bool) -> Result<(), Box<dyn Error>> {
    let table = config_from_environment()?.table();
    let mut out = std::io::stdout();
    if json {
        let _ = writeln!(out, "{}", serde_json::to_string_pretty(&table)?);
        return Ok(());
    }
    for tunable in table {
        let alias = tunable.alias.map_or_else(String::new, |alias| format!(" (or {alias})"));
        let agreed = if tunable.agreed { "; equal on all ranks" } else { "" };
        let _ = writeln!(out, "{}{alias} = {}", tunable.variable, tunable.value);
        let _ = writeln!(out, "    {} [default {}{agreed}]", tunable.doc, tunable.default);
    }
    let _ = writeln!(out, "\nHow ranks find and trust each other, where no launcher tells them:");
    for (variable, meaning) in ferroccl::launch::VARIABLES {
        let _ = writeln!(out, "{variable}\n    {meaning}");
    }
    Ok(())
}
