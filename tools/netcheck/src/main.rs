//! `netcheck PLUGIN`: the command `ferroccl netcheck` as a program of its own.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    ccl_netcheck::run(&ccl_netcheck::Arguments::parse(), &[])
}
