//! Builds libraries and programs that run with an older C library than this machine's
//! ([ADR 0015](../../../docs/adr/0015-old-glibc.md)). cargo-zigbuild makes cargo link with zig.
//! Both tools are installed from PyPI into the target directory.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::GLIBC;
use crate::workspace::{cargo, target_dir};
use crate::{Outcome, process};

/// Pinned versions of the tools, since another version may link differently.
const TOOLS: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.15.2"];
const DIRECTORY: &str = "zig";
const INSTALL_WITHIN: Duration = Duration::from_secs(600);
const BUILD_WITHIN: Duration = Duration::from_secs(1800);

/// Installed zig and cargo-zigbuild.
#[derive(Debug)]
pub(crate) struct Zig {
    target: PathBuf,
}

impl Zig {
    /// Installs missing tools; an error says why they are unavailable here.
    pub(crate) fn install() -> Outcome<Zig> {
        let zig = Zig { target: target_dir()? };
        if !process::is_installed("python3") {
            return Err("there is no python3, which is needed to install zig".to_owned());
        }
        let place = zig.target.join(DIRECTORY);
        environment(&place)?;
        install(&place, &TOOLS, INSTALL_WITHIN)
            .map_err(|error| format!("zig cannot be installed: {error}"))?;
        Ok(zig)
    }

    /// Builds with a profile and further cargo arguments; returns the output directory.
    pub(crate) fn build(&self, profile: &str, arguments: &[&str]) -> Outcome<PathBuf> {
        let platform = format!("{}-unknown-linux-gnu", env::consts::ARCH);
        let mut build = cargo(&["zigbuild", "--locked", "--profile", profile]);
        build.args(["--target", &format!("{platform}.2.{GLIBC}")]).args(arguments);
        let place = self.target.join(DIRECTORY);
        let path = env::var_os("PATH").unwrap_or_default();
        let paths = [place.join("bin")].into_iter().chain(env::split_paths(&path));
        let paths =
            env::join_paths(paths).map_err(|error| format!("cannot extend PATH: {error}"))?;
        build.env("PATH", paths);
        for cache in ["CARGO_ZIGBUILD_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
            build.env(cache, place.join("cache"));
        }
        println!("$ {}", process::typed(&build));
        let end = process::run(&mut build, BUILD_WITHIN, |line| println!("{line}"))?;
        if !end.success() {
            return Err(format!("`{}`: {}", process::typed(&build), end.describe()));
        }
        Ok(self.target.join(platform).join(if profile == "dev" { "debug" } else { profile }))
    }
}

/// Creates an empty Python environment, or keeps an existing one.
pub(crate) fn environment(place: &Path) -> Outcome {
    quiet(Command::new("python3").args(["-m", "venv"]).arg(place), INSTALL_WITHIN)
}

/// Installs packages into a Python environment.
pub(crate) fn install(place: &Path, packages: &[&str], within: Duration) -> Outcome {
    let mut pip = Command::new(place.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    quiet(&mut pip, within)
}

/// Runs a command without showing its output. If the command fails, the error has the output.
pub(crate) fn quiet(command: &mut Command, within: Duration) -> Outcome {
    let mut said = String::new();
    let end = process::run(command, within, |line| said = format!("{said} {}", line.trim()))?;
    if end.success() {
        return Ok(());
    }
    Err(format!("`{}`: {}:{said}", process::typed(command), end.describe()))
}
