//! `cargo xtask check ofi`: tests over each version of libfabric that can be installed.

use std::time::Duration;

use super::Verdict;
use crate::libfabric::{Version, versions};
use crate::{Outcome, SKIPPED, process, workspace};

const TEST_WITHIN: Duration = Duration::from_secs(2700);

/// Runs the tests over every available version. Without `full`, the unit tests, and those of the
/// command `ferroccl` and of the collectives run over the newer version only: in the quick tier,
/// other suites run them over the system's version.
pub(super) fn run(full: bool) -> Outcome<Verdict> {
    let (versions, lacks) = versions();
    for version in &versions {
        let name = version.name;
        println!("-- over {name}");
        test(version, full).map_err(|error| format!("over {name}: {error}"))?;
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

/// Arguments of cargo for the unit tests that use an installed libfabric.
const UNITS: [&str; 5] =
    ["--lib", "--", "native::endpoint::", "native::shm::", "messages::tests::"];

/// Runs the tests of code that uses libfabric: bindings, transport, command and collectives.
fn test(version: &Version, full: bool) -> Outcome {
    // Other suites run the tests of software providers, which need no library.
    let transport: &[&str] =
        &["--test", "bindings", "--test", "ofi", "--", "--skip", "soft::", "--skip", "faults::"];
    // The guest runs the tests of `tc netem`.
    let skipped = ["--skip", "software_providers", "--skip", "netem"];
    let users: &[&str] =
        &[&["--test", "cli", "--test", "integration", "--", "ofi::"][..], &skipped].concat();
    let parts: &[&[&str]] = match full || version.directory.is_some() {
        true => &[&UNITS, transport, users],
        false => &[transport],
    };
    for arguments in parts {
        // Without `--workspace`, cargo would select other features and rebuild everything.
        let mut cargo = workspace::cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
        cargo.args(*arguments);
        cargo.envs(version.variables());
        println!("$ {}", process::typed(&cargo));
        let end = process::run(&mut cargo, TEST_WITHIN, |line| println!("{line}"))?;
        if !end.success() {
            return Err(format!("`{}`: {}", process::typed(&cargo), end.describe()));
        }
    }
    Ok(())
}
