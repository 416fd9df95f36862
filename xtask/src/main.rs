//! `cargo xtask`: the project's chores. One module per subcommand; `cargo xtask help` lists them.
//!
//! Chores report failures as sentences for the person at the terminal, so an error here is a
//! `String`: nothing ever matches on one.

mod bench;
mod check;
mod compare;
mod dist;
mod gpu;
mod guest;
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

/// Result of a chore: the message says what happened and what to do.
type Outcome<T = ()> = Result<T, String>;

/// The project's chores.
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
    /// Model checkers, sanitizers and fuzzers: what tests alone do not show.
    Check(check::Options),
    /// Formatting, clippy, tidy and documentation, warnings denied.
    Lint,
    /// Check the rules of the house that no compiler knows: layers, sizes, what may be read where.
    Tidy,
    /// Install what the benchmarks can use beyond Rust; the tests need nothing.
    Setup,
    /// Measure side by side with others: on one host, or with `--network` on two.
    Bench(bench::Options),
    /// Run the same collectives over every transport, and write a table and a plot.
    CompareTransports(compare::Options),
    /// Build and pack what users install: the plugin for NCCL in a tarball and in a Python wheel.
    Dist(dist::Options),
    /// Make a folder that checks, anywhere with a GPU and PyTorch, what needs one, and run it if
    /// there is one here.
    Gpu(gpu::Options),
    /// Test RDMA between devices in software, in a small virtual machine: the suite of that name.
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
        // In a guest, its status is that of what runs there.
        Chore::Bench(options) => return bench::run(options),
        Chore::CompareTransports(options) => return compare::run(options),
        Chore::Dist(options) => dist::run(options),
        Chore::Gpu(options) => gpu::run(options),
        Chore::Softroce => test::softroce(),
        // Its status is that of the command.
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
