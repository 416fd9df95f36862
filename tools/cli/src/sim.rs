//! The `sim` subcommand: experiments on fabrics of switches, with the readers of their files.

use std::process::ExitCode;

use ccl_sim::{Arguments, Files};

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let files = Files { topology: &ccl_model::topology::open, traffic: &ccl_traffic::matrix::read };
    ccl_sim::run(arguments, &files)
}
