//! Limits of the kernel on a process.

use super::super::finding::Finding;
use super::super::host::Host;
use ccl_machine::devices;

/// Least limit of locked memory: twice what a communicator's slots need by default.
const LOCKED_BYTES_MIN: u64 = 64 << 20;
/// Least soft limit of open files: the usual default of this limit.
const FILES_MIN: u64 = 1024;
/// Number of open files that the hard limit must allow: one or two connections to each of a few
/// thousand peers.
const MORE_FILES_MIN: u64 = 4096;
const IPC_LOCK: u32 = 14;

const RAISE: &str = "`ulimit -l unlimited`, or \"* - memlock unlimited\" in \
                     /etc/security/limits.conf; containers: `--ulimit memlock=-1`; systemd and \
                     Slurm's slurmd: LimitMEMLOCK=infinity";

/// Checks how much memory may be locked: RDMA and CUDA pin the memory that they transfer.
pub(super) fn memlock(host: &Host) -> Vec<Finding> {
    let Some([limit, _]) = limits(host, "Max locked memory") else {
        return vec![unreadable()];
    };
    let shown = match limit {
        u64::MAX => "unlimited".to_owned(),
        bytes => format!("at most {} KiB may be locked", bytes >> 10),
    };
    let evidence = format!("{shown} (/proc/self/limits)");
    let has_rdma = !devices::rdma(host).is_empty();
    vec![if limit == u64::MAX {
        Finding::ok("", evidence)
    } else if super::capable(host, IPC_LOCK) {
        Finding::ok("", format!("{evidence}; CAP_IPC_LOCK exempts this process from the limit"))
    } else if !has_rdma && limit >= LOCKED_BYTES_MIN {
        Finding::ok("", format!("{evidence}: this is enough on a host without RDMA devices"))
    } else if !has_rdma {
        let evidence = format!(
            "{evidence}; this host has no RDMA device, but NCCL also locks the host memory that \
             GPUs access"
        );
        Finding::advice("", evidence, RAISE)
    } else if limit < LOCKED_BYTES_MIN {
        let evidence = format!("{evidence}: buffers cannot be registered with RDMA devices");
        Finding::fault("", evidence, RAISE)
    } else {
        let evidence = format!("{evidence}: large buffers cannot be registered with RDMA devices");
        Finding::warning("", evidence, RAISE)
    }]
}

/// Checks the limits of open files: over TCP, each peer needs at least one connection. When many
/// ranks join, rank 0 raises its own soft limit to what it needs, at most to the hard limit.
pub(super) fn open_files(host: &Host) -> Vec<Finding> {
    let Some([limit, most]) = limits(host, "Max open files") else {
        return vec![unreadable()];
    };
    let more = match most {
        u64::MAX => "to any number".to_owned(),
        most => format!("to {most}"),
    };
    let evidence = format!(
        "a process may open {limit} files, and raise this limit {more} (/proc/self/limits)"
    );
    vec![match limit < FILES_MIN || most < MORE_FILES_MIN {
        false => Finding::ok("", evidence),
        true => Finding::advice(
            "",
            format!("{evidence}; over TCP, a rank needs at least one connection to each peer"),
            "raise both limits: nofile in /etc/security/limits.conf; containers: `--ulimit \
             nofile=65536`; systemd: LimitNOFILE=65536",
        ),
    }]
}

fn unreadable() -> Finding {
    let evidence = "this limit cannot be read from /proc/self/limits";
    Finding::unknown("", evidence, "run `ulimit -a` where the ranks run")
}

/// Returns the soft and the hard limit of this process.
fn limits(host: &Host, name: &str) -> Option<[u64; 2]> {
    let text = host.text("/proc/self/limits")?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut numbers = rest.split_whitespace().map(|number| match number {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Some([numbers.next()??, numbers.next()??])
}
