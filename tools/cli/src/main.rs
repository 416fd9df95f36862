//! The `ferroccl` command: it explains the choices of the library, finds faults of machines, and
//! checks plugins. Each subcommand is a file.

mod config;
mod cost;
mod doctor;
mod explain;
mod place;
mod plan;
mod sim;
mod status;
mod topo;
mod trace;
mod tune;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ferroccl::communicator::config_without_table;

/// Explains collectives and their cost, shows topologies, the configuration and the activity of
/// running ranks, and checks machines and NCCL plugins.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  ferroccl explain all_reduce --bytes 64M --ranks 8
  ferroccl explain all_to_all --bytes 1k --ranks 32 --rank 3 --json
  FERROCCL_ALGO=ring ferroccl explain all_gather --bytes 1M --ranks 4
  ferroccl cost all_gather bytes=512MiB ranks=8 bandwidth=450GB/s
  ferroccl plan all_reduce --bytes 1G --on superpod-1024
  ferroccl place all_reduce --on meta-24576 --hosts 0,384,1,385
  ferroccl trace replay docs/exchange/job --on p5
  ferroccl sim --scenario f2
  ferroccl topo
  ferroccl tune -g 2 --out here.tuning
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
    /// Explain the plan of a collective: algorithm, reason, schedule, program, memory
    Explain(explain::Explain),
    /// Compute communication times, and their effect on training, by formulas
    Cost(cost::Cost),
    /// Predict how long each algorithm of a collective takes on a cluster
    Plan(plan::Plan),
    /// Choose the host of each rank, so that little traffic crosses racks and zones
    Place(place::Place),
    /// Export recorded jobs and planned collectives as execution traces, and replay them on
    /// clusters
    Trace(trace::Trace),
    /// Simulate collectives on a fabric of switches: experiments with flows, routing, queues
    Sim(ccl_sim::Arguments),
    /// Show the topology of GPUs, NICs and hosts: of this machine, a file, or a cluster known by
    /// name
    Topo(topo::Topo),
    /// Find the fastest algorithms on this machine and write a table that later runs load
    Tune(tune::Tune),
    /// Show what the ranks of this user on this machine are doing, and which rank holds up others
    Status(status::Status),
    /// Find faults of this machine that make collectives slow or fail, and their remedies
    Doctor(doctor::Doctor),
    /// Check a network plugin for NCCL against NCCL's contract, point by point, and measure its
    /// speed
    Netcheck(ccl_netcheck::Arguments),
    /// List every tunable: its variable, value, default and meaning
    Config {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    // Errors of the configuration are ignored here: a subcommand that reads it reports them.
    let debug = config_without_table().map(|config| config.debug).unwrap_or_default();
    let _ = ferroccl::log::start(&debug);
    let result = match command {
        Command::Explain(arguments) => explain::show(&arguments),
        Command::Cost(arguments) => cost::show(&arguments),
        Command::Plan(arguments) => plan::show(&arguments),
        Command::Place(arguments) => place::show(&arguments),
        Command::Sim(arguments) => return sim::run(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Topo(arguments) => topo::show(&arguments),
        Command::Tune(arguments) => return tune::tune(&arguments),
        Command::Status(arguments) => status::show(&arguments),
        Command::Doctor(arguments) => return doctor::examine(&arguments),
        Command::Netcheck(arguments) => return ccl_netcheck::run(&arguments, &["netcheck"]),
        Command::Config { json } => config::show(json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroccl: {error}");
            ExitCode::from(2)
        }
    }
}
