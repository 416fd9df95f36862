//! The programs that a guest takes, and their installation where that is possible.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Outcome, process};

/// A program and the Debian package that has it.
const NEEDS: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("ip", "iproute2"),
    ("xz", "xz-utils"),
    ("setpriv", "util-linux"),
];

/// Packages of a guest with RDMA, and a file of each: programs that are run there.
const NEEDS_RDMA: [(&str, &str); 4] = [
    ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "libibverbs1"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/usr/bin/tcpdump", "tcpdump"),
    // Its header is what our bindings are compared with.
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
];

/// What apt-get may take altogether, and what one silent server.
const INSTALL_WITHIN: Duration = Duration::from_secs(300);
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

/// Installs what is missing, and says so; an error is a reason why this machine has no guest.
pub(super) fn install_missing(rdma: bool) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        return Err("the guest's kernel is for x86_64".to_owned());
    }
    let missing: Vec<&str> = missing(rdma);
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !may_install() {
        return Err(format!(
            "missing {packages}; as root: apt-get install --no-install-recommends {packages}"
        ));
    }
    eprintln!("guest: installing {packages} (once)");
    apt(&["update"])?;
    apt(&[&["install", "--no-install-recommends"], missing.as_slice()].concat())
}

fn missing(rdma: bool) -> Vec<&'static str> {
    let missing = NEEDS.iter().filter(|(program, _)| !is_installed(program));
    let files = if rdma { &NEEDS_RDMA[..] } else { &[] };
    let files = files.iter().filter(|(file, _)| !Path::new(file).exists());
    missing.chain(files).map(|(_, package)| *package).collect()
}

fn is_installed(program: &str) -> bool {
    process::is_installed(program) || among_roots(program).is_some()
}

/// Where a program lies that only root has on its search path.
fn among_roots(program: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.is_file())
}

/// A command of a program that may lie where only root looks.
pub(super) fn tool(program: &str) -> Command {
    Command::new(among_roots(program).unwrap_or_else(|| program.into()))
}

fn may_install() -> bool {
    process::is_installed("apt-get") && rustix::process::geteuid().is_root()
}

/// Runs `apt-get` with limits of time; what it prints is shown only if it fails.
pub(super) fn apt(arguments: &[&str]) -> Outcome {
    let mut command = Command::new("apt-get");
    command.args(APT).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    quietly(&mut command, INSTALL_WITHIN)
}

/// Runs a command whose output matters only if it fails: then it is in the error.
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
