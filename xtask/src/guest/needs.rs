//! Programs and files that a guest needs, and their installation by `apt-get`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Outcome, process};

/// Programs, each with the Debian package that has it.
const NEEDS: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("ip", "iproute2"),
    ("xz", "xz-utils"),
    ("setpriv", "util-linux"),
];

/// Path of Debian's libfabric.
pub(crate) const LIBFABRIC: &str = "/usr/lib/x86_64-linux-gnu/libfabric.so.1";

/// Files that a guest with RDMA uses, each with its Debian package.
const NEEDS_RDMA: [(&str, &str); 5] = [
    ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "libibverbs1"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/usr/bin/tcpdump", "tcpdump"),
    // For one of the transports that `compare-transports` measures.
    (LIBFABRIC, "libfabric1"),
    // Tests compare the bindings with this header.
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
];

/// Time limit of one run of `apt-get`.
const INSTALL_WITHIN: Duration = Duration::from_secs(300);
/// First arguments of `apt-get` in [`apt`]. Some of these arguments limit the waits for a silent
/// server and for dpkg's lock.
const APT: [&str; 8] = [
    "-qq",
    "--yes",
    "-o",
    "Acquire::http::Timeout=20",
    "-o",
    "Acquire::Retries=1",
    "-o",
    "DPkg::Lock::Timeout=120",
];

/// Installs missing programs and files; an error is the reason why this machine has no guest.
pub(super) fn install_missing(rdma: bool) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        return Err("the guest's kernel needs an x86_64 host".to_owned());
    }
    install_packages(&missing(rdma))
}

/// Installs each package whose file is missing. An error says why the installation is impossible.
pub(crate) fn install(packages: &[(&str, &'static str)]) -> Outcome {
    install_packages(&absent(packages))
}

fn install_packages(missing: &[&str]) -> Outcome {
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !may_install() {
        return Err(format!(
            "missing {packages}; as root, run: apt-get install --no-install-recommends {packages}"
        ));
    }
    eprintln!("installing {packages} (once)");
    apt(&["update"])?;
    apt(&[&["install", "--no-install-recommends"], missing].concat())
}

fn missing(rdma: bool) -> Vec<&'static str> {
    let missing = NEEDS.iter().filter(|(program, _)| !is_installed(program));
    let files = if rdma { &NEEDS_RDMA[..] } else { &[] };
    missing.map(|(_, package)| *package).chain(absent(files)).collect()
}

/// Returns the packages whose files are missing.
fn absent(packages: &[(&str, &'static str)]) -> Vec<&'static str> {
    let absent = packages.iter().filter(|(file, _)| !Path::new(file).exists());
    absent.map(|(_, package)| *package).collect()
}

fn is_installed(program: &str) -> bool {
    process::is_installed(program) || among_roots(program).is_some()
}

/// Finds a program in the directories that are on root's search path only; returns its path.
fn among_roots(program: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.is_file())
}

/// Returns a command for a program that may be only on root's search path.
pub(super) fn tool(program: &str) -> Command {
    Command::new(among_roots(program).unwrap_or_else(|| program.into()))
}

fn may_install() -> bool {
    process::is_installed("apt-get") && rustix::process::geteuid().is_root()
}

/// Runs `apt-get` with time limits; if it fails, the error has the last lines of its output.
pub(super) fn apt(arguments: &[&str]) -> Outcome {
    let mut command = Command::new("apt-get");
    command.args(APT).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    quietly(&mut command, INSTALL_WITHIN)
}

/// Runs a command; if it fails, the error has the last lines of its output.
pub(super) fn quietly(command: &mut Command, deadline: Duration) -> Outcome {
    let mut output = Vec::new();
    let end = process::run(command, deadline, |line| output.push(line.to_owned()))?;
    if end.success() {
        return Ok(());
    }
    let tail = output[output.len().saturating_sub(5)..].join("\n");
    Err(format!("`{}`: {}\n{tail}", process::typed(command), end.describe()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_command_speaks_only_when_it_fails() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            quietly(&mut command, Duration::from_secs(20))
        };
        assert_eq!(shell("echo fine"), Ok(()));
        let error = shell("echo reason >&2; exit 3").unwrap_err();
        assert!(error.contains("reason") && error.contains('3'), "{error}");
    }
}
