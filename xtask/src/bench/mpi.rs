//! Open MPI in its default settings, driven by a small C program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::{Job, RANKS, Sample};
use crate::workspace::{root, target_dir};
use crate::{Outcome, process};

/// Message for a machine without Open MPI.
pub(super) const MISSING: &str =
    "Open MPI is missing, so it is not measured. `cargo xtask setup` installs it.";

const DEADLINE: Duration = Duration::from_secs(300);

/// Compiled program.
#[derive(Debug)]
pub(super) struct Program {
    binary: PathBuf,
}

/// Compiles the program; returns `None` if `mpicc` or `mpirun` is missing.
pub(super) fn build() -> Outcome<Option<Program>> {
    if !process::is_installed("mpicc") || !process::is_installed("mpirun") {
        return Ok(None);
    }
    let dir = target_dir()?.join("bench");
    fs::create_dir_all(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    let binary = dir.join("mpi_all_reduce");
    compile(&mut Command::new("mpicc"), &binary)?;
    Ok(Some(Program { binary }))
}

/// Compiles the program with this compiler.
pub(super) fn compile(compiler: &mut Command, binary: &Path) -> Outcome {
    compiler.args(["-O2", "-std=gnu11", "-pthread", "-Wall", "-Wextra", "-o"]).arg(binary);
    compiler.arg(root().join("xtask/bench/mpi_all_reduce.c"));
    println!("$ {}", process::typed(compiler));
    process::capture(compiler, DEADLINE).map(drop)
}

impl Program {
    /// Returns the program's path.
    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Runs the job once.
    pub(super) fn measure(&self, job: Job) -> Outcome<Sample> {
        let mut command = Command::new("mpirun");
        command.args(["-n", &job.ranks.to_string(), "--allow-run-as-root"]);
        // Two ranks are bound to cores. More ranks share cores and are therefore not bound, as Open
        // MPI's manual advises.
        command.args(if job.ranks > RANKS {
            ["--oversubscribe", "--bind-to", "none"].as_slice()
        } else {
            ["--bind-to", "core"].as_slice()
        });
        command.arg(&self.binary);
        command.args([job.bytes.to_string(), job.iterations.to_string(), job.warmup.to_string()]);
        parse(&process::capture(&mut command, DEADLINE)?, job.bytes)
    }
}

#[derive(Deserialize)]
struct Row {
    bytes: u64,
    median_us: f64,
    p99_us: f64,
}

/// Parses the program's line for messages of `bytes` bytes.
pub(super) fn parse(output: &str, bytes: u64) -> Outcome<Sample> {
    let rows = output.lines().filter_map(|line| serde_json::from_str::<Row>(line).ok());
    let row = rows.into_iter().find(|row| row.bytes == bytes);
    row.map(|row| Sample { median_us: row.median_us, p99_us: Some(row.p99_us) })
        .ok_or_else(|| format!("the measured program printed no line for {bytes} bytes:\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_for_the_message_size_is_parsed() {
        let output = "a warning\n{\"bytes\":8,\"median_us\":0.5,\"p99_us\":1.5}\n";
        assert_eq!(parse(output, 8), Ok(Sample { median_us: 0.5, p99_us: Some(1.5) }));
        assert!(parse(output, 16).unwrap_err().contains("16 bytes"));
    }
}
