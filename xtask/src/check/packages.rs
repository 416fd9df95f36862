//! Dry run of publishing the library: each crate is packaged and built from its package alone.

use std::time::UNIX_EPOCH;

use super::{Verdict, remove_build_dir, show};
use crate::Outcome;
use crate::workspace::{cargo, target_dir};

/// Name of the folder for the builds, in cargo's target directory.
const FOLDER: &str = "packages";

/// Arguments for a dry run of publishing each crate of the library. The tree may be dirty, since
/// the deep tier of the tests writes its record (docs/full-run.md) into it.
const PACKAGES: &[&str] = &[
    "package",
    "--allow-dirty",
    "--locked",
    "-p=ccl-memory",
    "-p=ccl-core",
    "-p=ccl-clock",
    "-p=ccl-bootstrap",
    "-p=ccl-kernels-cpu",
    "-p=ccl-links",
    "-p=ccl-socket",
    "-p=ccl-transport-shm",
    "-p=ccl-transport-tcp",
    "-p=ferroccl-rdma-sys",
    "-p=ccl-transport-verbs",
    "-p=ferroccl-libfabric-sys",
    "-p=ccl-transport-ofi",
    "-p=ccl-transport-multirail",
    "-p=ferroccl",
];

/// Packages all crates of the library.
pub(super) fn run() -> Outcome<Verdict> {
    remove_build_dir(FOLDER)?;
    // Cargo has one folder in CARGO_HOME for each path of a build folder. Cargo unpacks each
    // version of a crate into that folder only once. If two runs used the same path, the later
    // run would build with the crates that the earlier run unpacked. So each run has a path of its
    // own.
    let since = UNIX_EPOCH.elapsed().map_err(|error| error.to_string())?;
    let own = target_dir()?.join(FOLDER).join(since.as_secs().to_string());
    show(cargo(PACKAGES).arg("--target-dir").arg(own))?;
    remove_build_dir(FOLDER)?;
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::workspace::{Purpose, crates};

    /// Checks that every crate that the library needs is packaged; otherwise publishing fails.
    #[test]
    fn every_crate_of_the_library_is_packaged() {
        let crates = crates().unwrap();
        let mut needed = BTreeSet::from([""]);
        while let Some(more) = crates.iter().find_map(|one| {
            let built = one.dependencies.iter().filter(|(_, purpose)| *purpose == Purpose::Build);
            let mut new = built.map(|(dir, _)| dir.as_str()).filter(|dir| !needed.contains(dir));
            if needed.contains(one.dir.as_str()) { new.next() } else { None }
        }) {
            needed.insert(more);
        }
        let names = crates.iter().filter(|one| needed.contains(one.dir.as_str()));
        let names: BTreeSet<_> = names.map(|one| one.name.as_str()).collect();
        let packaged = PACKAGES.iter().filter_map(|argument| argument.strip_prefix("-p="));
        assert_eq!(packaged.collect::<BTreeSet<_>>(), names);
    }
}
