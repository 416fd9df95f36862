//! AddressSanitizer and valgrind on the tests of code that touches `unsafe`.

use std::process::Command;
use std::time::Duration;

use super::{Verdict, cargo, host, nightly_missing, show};
use crate::{Outcome, process, test, workspace};

/// Crates that contain `unsafe` code, and the simulated transport, whose tests run code of
/// these crates.
const UNSAFE: [&str; 6] = [
    "ccl-memory",
    "ccl-kernels-cpu",
    "ccl-transport-shm",
    "ccl-transport-tcp",
    "ccl-transport-sim",
    "ccl-nccl-net",
];

/// Crates whose unit tests run under valgrind.
const VALGRIND: [&str; 4] =
    ["ccl-memory", "ccl-transport-shm", "ccl-transport-tcp", "ccl-kernels-cpu"];

/// Checks of `ferroccl netcheck` that run under valgrind.
const BAD_INPUT: [&str; 16] = [
    "bad_handle",
    "null_arguments",
    "no_such_device",
    "request_after_completion",
    "double_close",
    "zero_sizes",
    "deregister_with_requests_in_flight",
    "close_with_requests_in_flight",
    "receiver_killed",
    "stranger_on_port",
    "null_request_is_retried",
    "registration_parts_and_overlaps",
    "fork_after_init",
    "send_smaller_than_receive",
    "truncation",
    "grouped_receives",
];

/// Tests that do not run under AddressSanitizer. Some limit the address space, but the sanitizer
/// reserves terabytes of address space. The others start programs built without the sanitizer.
const NOT_UNDER_ASAN: [&str; 12] = [
    "perf::",
    "launch::",
    "a_rank_without_resources",
    "bad_network::",
    "cluster::",
    "exchange::",
    "matrix::",
    "nccl_net::",
    "ofi::the_plugin",
    "stuck::status",
    "examples::",
    "tune::",
];

/// Options of AddressSanitizer: SIGSEGV is left to tests that expect it, and a request for too much
/// memory returns null as malloc does.
const ASAN_OPTIONS: &str =
    "handle_segv=0:allocator_may_return_null=1:detect_stack_use_after_return=1";

/// Runs the tests of the crates in [`UNSAFE`]; with `full`, also tests with ranks as processes.
pub(super) fn address(full: bool) -> Outcome<Verdict> {
    println!("   needs the nightly toolchain; installs nothing");
    if let Some(why) = nightly_missing() {
        return Ok(Verdict::Skipped(why));
    }
    let test = |packages: &[&str]| -> Outcome<Command> {
        let mut command = cargo(Some("+nightly"), "asan", "-Zsanitizer=address", full)?;
        // Less optimised kernels have the same errors, and are much quicker to build.
        command.args(["test", "--no-fail-fast", "--target", &host()]);
        command.args(["--config", "profile.test.package.ccl-kernels-cpu.opt-level=1"]);
        command.args(packages.iter().flat_map(|package| ["--package", package]));
        command.env("ASAN_OPTIONS", ASAN_OPTIONS);
        Ok(command)
    };
    let mut crates = test(&UNSAFE)?;
    crates.args(["--lib", "--tests", "--", "--skip", "many_seeds"]);
    // AddressSanitizer keeps freed memory and pads allocations, so tests of memory use would fail.
    crates.args(["--skip", "little_memory"]);
    if !full {
        // Long tests are skipped. The long tests of the simulated transport touch only memory of
        // this process, so the simulated transport's other tests suffice.
        crates.args(["--skip", "weather", "--skip", "same_bits", "--skip", "exhaustive"]);
    }
    show(&mut crates)?;
    if full {
        let mut ranks = test(&["ferroccl-tests"])?;
        ranks.args(["--no-default-features", "--test", "integration", "--"]);
        ranks.args(NOT_UNDER_ASAN.iter().flat_map(|name| ["--skip", name]));
        show(&mut ranks)?;
    }
    Ok(Verdict::Passed)
}

/// Runs the unit tests of the crates in [`VALGRIND`] and the checks in [`BAD_INPUT`] under
/// valgrind; long unit tests only with `full`.
pub(super) fn valgrind(full: bool) -> Outcome<Verdict> {
    println!("   needs valgrind; `cargo xtask setup` installs it");
    if !process::is_installed("valgrind") {
        let why = "valgrind is not installed; `apt-get install valgrind`, or `cargo xtask setup`";
        return Ok(Verdict::Skipped(why.to_owned()));
    }
    let built = test::binaries(Duration::from_secs(3600))?;
    for name in VALGRIND.map(|package| package.replace('-', "_")) {
        let found = built.iter().find(|built| built.is_unit && built.target == name);
        let path = &found.ok_or_else(|| format!("cargo built no unit tests of {name}"))?.path;
        let mut command = memcheck();
        command.arg("--trace-children=no").arg(path).args(["--test-threads", "1"]);
        // Valgrind does not know the instructions of the encryption's hand-written assembly.
        command.args(["--skip", "encrypted"]);
        if !full {
            command.args(["--skip", "two_threads", "--skip", "fuzzing", "--skip", "exhaustive"]);
        }
        show(command.current_dir(workspace::root()))?;
    }
    bad_input()?;
    Ok(Verdict::Passed)
}

/// Runs the checks in [`BAD_INPUT`] on the plugin for NCCL under valgrind. Some of these checks
/// misuse the plugin, others send correct messages.
fn bad_input() -> Outcome {
    let built = workspace::target_dir()?.join("debug");
    let plugin = built.join("deps").join(crate::dist::BUILT);
    let mut command = memcheck();
    command.arg("--trace-children=yes").arg(built.join("ferroccl")).arg("netcheck").arg(plugin);
    command.args(["--skip-performance", "--timeout", "100", "--only", &BAD_INPUT.join(",")]);
    show(command.env("FERROCCL_TRANSPORT", "tcp"))
}

/// Returns a valgrind command that exits with a status of its own on errors and leaks.
fn memcheck() -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--fair-sched=yes"]);
    command.arg("--show-leak-kinds=definite").arg("--errors-for-leak-kinds=definite");
    command
}
