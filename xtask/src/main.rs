//! `cargo xtask`: chores of the project, with one module per subcommand; `cargo xtask help` lists
//! them.
//!
//! A chore reports a failure as a sentence for the person at the terminal. No code matches on
//! errors, so an error is a `String`.

mod bench;
mod check;
mod compare;
mod dist;
mod gpu;
mod guest;
mod libfabric;
mod lint;
mod machine;
mod process;
mod report;
mod setup;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Start of the line that a chore or a test prints if it skips itself; the reason follows.
const SKIPPED: &str = "SKIPPED: ";

/// Result of a chore; the message of an error says what happened and what to do.
type Outcome<T = ()> = Result<T, String>;

/// Chores of the project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Run the test suites: the quick tier, or with `--full` the deep one.
    Test(test::Options),
    /// Run model checkers, sanitizers and fuzzers, which show what tests alone do not.
    Check(check::Options),
    /// Check formatting, clippy, tidy and documentation, warnings denied.
    Lint,
    /// Check the project's own rules, such as those on layers, sizes, names and the environment.
    Tidy,
    /// Install optional tools for the benchmarks and the checks; the tests need none of them.
    Setup,
    /// Measure ferroccl side by side with other programs: on one host, or with `--network` on two
    /// (network namespaces of this machine).
    Bench(bench::Options),
    /// Run the same collectives over every transport, and write a table and a plot.
    CompareTransports(compare::Options),
    /// Build and pack what users install: the plugin for NCCL in a tarball and in a Python wheel.
    Dist(dist::Options),
    /// Make a folder of checks that need a GPU, for any machine with a GPU and PyTorch, and run
    /// the checks if this machine has a GPU.
    Gpu(gpu::Options),
    /// Test RDMA between Soft-RoCE devices in a small virtual machine: the deep part of the suite
    /// `softroce`.
    Softroce,
    /// Run a command in a small virtual machine whose kernel can lose and delay packets.
    Guest(guest::Options),
}

fn run(chore: &Chore) -> Outcome<ExitCode> {
    process::listen_for_interrupts()?;
    match chore {
        Chore::Test(options) => test::run(options),
        Chore::Check(options) => check::run(options),
        Chore::Lint => lint::run(),
        Chore::Tidy => tidy::run(),
        Chore::Setup => setup::run(),
        // The next two chores may run in a guest; their exit status is then that of the command in
        // the guest.
        Chore::Bench(options) => return bench::run(options),
        Chore::CompareTransports(options) => return compare::run(options),
        Chore::Dist(options) => dist::run(options),
        Chore::Gpu(options) => gpu::run(options),
        Chore::Softroce => test::softroce(),
        // The exit status is that of the command that the guest runs.
        Chore::Guest(options) => return guest::run(options),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    match run(&Cli::parse().chore) {
        Ok(status) => status,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
