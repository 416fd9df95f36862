//! Test that installs the packages as users do: the wheel into an empty Python environment, and the
//! tarball into a folder. The tarball's `ferroccl` command then tests the wheel's plugin.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flate2::read::GzDecoder;

use super::{BY_DEFAULT, PLUGIN, TABLES, cannot, read, wheel, zig};
use crate::{Outcome, process};

const STEP_WITHIN: Duration = Duration::from_secs(300);
/// Python program that loads a library as NCCL does. The first argument is the path of the library;
/// the others are symbols to look up in it.
const LOAD: &str = "import ctypes, os, sys; \
    library = ctypes.CDLL(sys.argv[1], os.RTLD_NOW | os.RTLD_LOCAL); \
    [ctypes.c_char.in_dll(library, name) for name in sys.argv[2:]]";

/// Installs both packages into an empty directory, runs them, and removes the directory.
pub(super) fn check(scratch: &Path, name: &str, tarball: &Path, wheel: &Path) -> Outcome {
    empty(scratch)?;
    fs::create_dir_all(scratch).map_err(|error| cannot("make", scratch, &error))?;
    let library = install_wheel(&scratch.join("environment"), wheel)?;
    let unpacked = unpack(scratch, name, tarball)?;
    let packed = unpacked.join("lib").join(BY_DEFAULT);
    if read(&packed)? != read(&library)? {
        return Err(format!("{} differs from the wheel's plugin", packed.display()));
    }
    println!("ok: the tarball's {BY_DEFAULT} is identical to the wheel's {PLUGIN}");
    let mut netcheck = Command::new(unpacked.join("bin/ferroccl"));
    netcheck.arg("netcheck").arg(&library).args(["--contract-only", "--skip-performance"]);
    zig::quiet(&mut netcheck, STEP_WITHIN)?;
    println!("ok: the tarball's `ferroccl netcheck` drives the wheel's plugin");
    empty(scratch)
}

/// Installs the wheel and loads its plugin; returns the plugin's path, which the wheel's command
/// prints.
fn install_wheel(environment: &Path, wheel: &Path) -> Outcome<PathBuf> {
    zig::environment(environment)?;
    let python = environment.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    zig::quiet(pip.arg(wheel), STEP_WITHIN)?;
    println!("ok: `pip install` works in an empty environment");
    let command = environment.join("bin").join(wheel::COMMAND);
    let directory = process::capture(&mut Command::new(&command), STEP_WITHIN)?;
    let library = process::capture(Command::new(&command).arg("--file"), STEP_WITHIN)?;
    let (directory, library) = (Path::new(directory.trim()), PathBuf::from(library.trim()));
    let inside = environment.canonicalize().is_ok_and(|place| library.starts_with(place));
    if library != directory.join(PLUGIN) || !inside {
        let shown = (directory.display(), library.display());
        return Err(format!(
            "{} prints {} and {}, which are not the plugin's paths",
            wheel::COMMAND,
            shown.0,
            shown.1
        ));
    }
    println!("ok: {} prints {}", wheel::COMMAND, directory.display());
    let mut load = Command::new(&python);
    load.args(["-c", LOAD]).arg(&library).args(TABLES);
    zig::quiet(&mut load, STEP_WITHIN)?;
    println!("ok: the installed plugin loads, with {}", TABLES.join(", "));
    Ok(library)
}

fn unpack(scratch: &Path, name: &str, tarball: &Path) -> Outcome<PathBuf> {
    let file = File::open(tarball).map_err(|error| cannot("read", tarball, &error))?;
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    archive.unpack(scratch).map_err(|error| cannot("unpack", tarball, &error))?;
    Ok(scratch.join(name))
}

fn empty(scratch: &Path) -> Outcome {
    match fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(cannot("remove", scratch, &error))
        }
        _ => Ok(()),
    }
}
