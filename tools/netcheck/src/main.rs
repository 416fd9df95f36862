//! `netcheck PLUGIN`: the same as `ferroccl netcheck`, without the rest.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    ccl_netcheck::run(&ccl_netcheck::Arguments::parse(), &[])
}
