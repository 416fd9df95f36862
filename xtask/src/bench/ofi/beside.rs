//! MPICH and Intel MPI from PyPI over libfabric; each has a libfabric of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::super::{RANKS, mpi, ours};
use super::PROVIDER;
use crate::dist::zig;
use crate::workspace::target_dir;
use crate::{Outcome, process};

/// Compiler of an MPI; its presence means that the MPI is installed.
const COMPILER: &str = "bin/mpicc";
const INSTALL_WITHIN: Duration = Duration::from_secs(900);
const RUN_WITHIN: Duration = Duration::from_secs(120);
/// Upper limits of message sizes in bytes, each with the number of timed calls.
const ITERATIONS: [(u64, u32); 3] = [(4096, 20_000), (1 << 20, 300), (u64::MAX, 12)];

/// Installed MPI, with the compiled program.
pub(super) struct Mpi {
    pub(super) name: &'static str,
    directory: PathBuf,
    binary: PathBuf,
    /// Environment variables that make its ranks use the provider, and not shared memory.
    variables: &'static [(&'static str, &'static str)],
}

/// Name, packages and variables of each MPI; the versions are pinned.
type Package = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);
const PACKAGES: [Package; 2] = [
    (
        "MPICH",
        &["mpich==5.0.2"],
        &[("MPIR_CVAR_NOLOCAL", "1"), ("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", PROVIDER)],
    ),
    (
        "Intel MPI",
        &["impi-rt==2021.17.0", "impi-devel==2021.17.0"],
        &[
            ("I_MPI_FABRICS", "ofi"),
            ("I_MPI_OFI_PROVIDER", PROVIDER),
            ("I_MPI_COLL_INTRANODE", "pt2pt"),
        ],
    ),
];

/// Installs missing MPIs; returns the available ones, and the reasons why others are not available.
pub(super) fn all() -> Outcome<(Vec<Mpi>, Vec<String>)> {
    let (mut found, mut lacks) = (Vec::new(), Vec::new());
    for (name, packages, variables) in PACKAGES {
        let directory = target_dir()?.join("ofi").join(name.to_lowercase().replace(' ', "-"));
        let binary = directory.join("all_reduce");
        let made = install(&directory, packages).and_then(|()| {
            let mut compiler = command(&directory, COMPILER);
            mpi::compile(&mut compiler, &binary)
        });
        match made {
            Ok(()) => found.push(Mpi { name, directory, binary, variables }),
            Err(error) => lacks.push(format!("{name} is not available: {error}")),
        }
    }
    Ok((found, lacks))
}

fn install(directory: &Path, packages: &[&str]) -> Outcome {
    if directory.join(COMPILER).is_file() {
        return Ok(());
    }
    zig::environment(directory)?;
    zig::install(directory, packages, INSTALL_WITHIN)
}

/// Returns a command of an MPI, with the variables by which it finds its own files.
fn command(directory: &Path, program: &str) -> Command {
    let mut command = Command::new(directory.join(program));
    command.env("I_MPI_ROOT", directory).env("LD_LIBRARY_PATH", directory.join("lib"));
    command
}

/// Returns the number of calls that are timed for messages of this many bytes.
fn iterations(bytes: u64) -> u32 {
    ITERATIONS.iter().find(|(most, _)| bytes <= *most).map_or(1, |(_, count)| *count)
}

impl Mpi {
    /// Measures an all_reduce of two ranks once; returns microseconds. All but one of a rank's
    /// threads sleep.
    pub(super) fn all_reduce(&self, bytes: u64, threads: u32) -> Outcome<f64> {
        let mut command = command(&self.directory, "bin/mpiexec");
        command.envs(self.variables.iter().copied());
        command.args(["-n", &RANKS.to_string()]).arg(&self.binary);
        command.args([bytes.to_string(), iterations(bytes).to_string(), "10".to_owned()]);
        command.arg(threads.to_string());
        let said = process::capture(&mut command, RUN_WITHIN)?;
        Ok(mpi::parse(&said, bytes)?.median_us)
    }
}

/// Measures the same all_reduce with ferroccl; returns microseconds. `program` runs
/// `all_reduce_perf` with the environment variables that select a libfabric.
pub(super) fn own_all_reduce(mut program: Command, rows: &Path, bytes: u64) -> Outcome<f64> {
    let text = bytes.to_string();
    program.args(["-g", &RANKS.to_string(), "--transport", "ofi", "-b", &text, "-e", &text]);
    program.args(["-n", &iterations(bytes).to_string(), "-w", "10", "-c", "0", "--json"]).arg(rows);
    process::capture(&mut program, RUN_WITHIN)?;
    Ok(ours::read(rows, bytes)?.median_us)
}
