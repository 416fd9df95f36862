//! Experiments on fabrics of switches: what these need to be read from files.

use std::process::ExitCode;

use ccl_sim::{Arguments, Files};

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let traffic = |path: &str| {
        Err(format!("{path}: this build reads no traffic matrices; take one that does"))
    };
    let files = Files { topology: &ferroccl::topology::open, traffic: &traffic };
    ccl_sim::run(arguments, &files)
}
