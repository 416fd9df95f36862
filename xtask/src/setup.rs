//! `cargo xtask setup`: installs optional tools for the benchmarks and the checks. The tests need
//! only Rust and a C linker.

use std::process::Command;
use std::time::Duration;

use crate::{Outcome, process};

/// Debian package to install.
struct Package {
    name: &'static str,
    /// Program of the package; its presence means that the package is installed.
    program: &'static str,
    purpose: &'static str,
}

const PACKAGES: [Package; 6] = [
    Package {
        name: "openmpi-bin",
        program: "mpirun",
        purpose: "`cargo xtask bench` measures ferroccl side by side with it",
    },
    Package {
        name: "libopenmpi-dev",
        program: "mpicc",
        purpose: "`cargo xtask bench` compiles its MPI program with it",
    },
    Package {
        name: "iperf3",
        program: "iperf3",
        purpose: "`cargo xtask bench --network` measures the bandwidth of TCP with it",
    },
    Package {
        name: "python3-torch",
        program: "torchrun",
        purpose: "`cargo xtask bench --network` measures Gloo with it",
    },
    Package {
        name: "perftest",
        program: "ib_write_bw",
        purpose: "`cargo xtask bench --rdma` measures the latency and bandwidth of RDMA with it",
    },
    Package {
        name: "valgrind",
        program: "valgrind",
        purpose: "`cargo xtask check valgrind` and `... recorder` run programs under it",
    },
];

fn missing() -> Vec<&'static Package> {
    PACKAGES.iter().filter(|package| !process::is_installed(package.program)).collect()
}

fn install_command(packages: &[&Package]) -> String {
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    format!("apt-get install --yes --no-install-recommends {}", names.join(" "))
}

/// Returns one sentence on the optional packages that are not installed.
pub(crate) fn notice() -> String {
    let missing: Vec<&str> = missing().iter().map(|package| package.name).collect();
    if missing.is_empty() {
        return "Every package that `cargo xtask bench` and `check` use is installed.".to_owned();
    }
    format!(
        "Not installed: {} (`cargo xtask setup` installs them). Only `cargo xtask bench`, `cargo \
         xtask check` and one test of xtask use them; without PyTorch, this test is skipped.",
        missing.join(", ")
    )
}

/// Installs the nightly toolchain and missing packages; without root, prints apt-get's command.
pub(crate) fn run() -> Outcome {
    println!("The tests need only Rust and a C linker.");
    if process::is_installed("rustup") {
        println!("nightly toolchain: `cargo xtask check asan` and `... fuzz` build with it");
        shell("rustup toolchain install nightly --profile minimal")?;
    } else {
        println!("rustup, which installs nightly for sanitizers and fuzzers, is missing.");
    }
    for package in &PACKAGES {
        let state = if process::is_installed(package.program) { "installed" } else { "missing" };
        println!("{}: {state}; {}", package.name, package.purpose);
    }
    let missing = missing();
    if missing.is_empty() {
        println!("nothing to do");
        return Ok(());
    }
    let install = install_command(&missing);
    if !process::is_installed("apt-get") {
        println!(
            "apt-get is missing. Install your system's packages of Open MPI (with `mpicc`), \
             iperf3, PyTorch, perftest and valgrind."
        );
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        println!("Only root may install packages. Run:\n\n    sudo {install}\n");
        return Ok(());
    }
    for line in ["apt-get update", &install] {
        println!("$ {line}");
        shell(line)?;
    }
    Ok(())
}

fn shell(line: &str) -> Outcome {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
    let end = process::run(&mut command, Duration::from_secs(600), |line| println!("{line}"))?;
    if end.success() { Ok(()) } else { Err(format!("`{line}`: {}", end.describe())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_packages_are_installed() {
        let command = install_command(&[&PACKAGES[1]]);
        assert!(command.ends_with("libopenmpi-dev") && !command.contains("openmpi-bin"));
    }
}
