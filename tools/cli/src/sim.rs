//! The `sim` subcommand: experiments on fabrics of switches. This file hands the simulator the
//! functions that read topologies and traffic matrices.

use std::process::ExitCode;

use ccl_sim::{Arguments, Files};

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let files = Files { topology: &ccl_model::topology::open, traffic: &ccl_traffic::matrix::read };
    ccl_sim::run(arguments, &files)
}
