//! `cargo xtask dist`: what users install. A tarball with the plugin for NCCL and the `ferroccl`
//! command, and a Python wheel that carries only the plugin and an entry that tells where it is.

mod needs;
mod wheel;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::workspace::{cargo, root, target_dir};
use crate::{Outcome, process};

const BUILD_WITHIN: Duration = Duration::from_secs(1800);
/// What cargo calls the plugin, and what NCCL looks for.
pub(crate) const BUILT: &str = "libnccl_net_ferroccl.so";
pub(crate) const PLUGIN: &str = "libnccl-net-ferroccl.so";
/// What NCCL looks for if nobody tells it anything.
const BY_DEFAULT: &str = "libnccl-net.so";

/// Flags of `cargo xtask dist`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where to put them
    #[arg(long, value_name = "DIRECTORY", default_value = "target/dist-out")]
    out: PathBuf,
    /// Take what was built with this profile, and build it so: `dist` is optimised as a whole
    #[arg(long, default_value = "dist")]
    profile: String,
}

/// Builds, checks and packs.
pub(crate) fn run(options: &Options) -> Outcome {
    let mut build = cargo(&["build", "--profile", &options.profile, "--locked"]);
    build.args([
        "--package",
        "ccl-nccl-net",
        "--package",
        "ferroccl",
        "--lib",
        "--bin",
        "ferroccl",
    ]);
    println!("$ {}", process::typed(&build));
    let end = process::run(&mut build, BUILD_WITHIN, |line| println!("{line}"))?;
    if !end.success() {
        return Err(format!("`{}`: {}", process::typed(&build), end.describe()));
    }
    let built =
        target_dir()?.join(if options.profile == "dev" { "debug" } else { &options.profile });
    let plugin = read(&built.join(BUILT))?;
    let strangers = needs::strangers(&built.join(BUILT))?;
    if !strangers.is_empty() {
        return Err(format!(
            "{PLUGIN} needs {}: nothing but the C library's own may be needed",
            strangers.join(", ")
        ));
    }
    let glibc = needs::glibc(&plugin);
    println!("{PLUGIN} needs nothing but the C library, glibc 2.{glibc} or later");
    let out = root().join(&options.out);
    fs::create_dir_all(&out).map_err(|error| cannot("make", &out, &error))?;
    let version = env!("CARGO_PKG_VERSION");
    let arch = std::env::consts::ARCH;
    let tarball = out.join(format!("ferroccl-{version}-linux-{arch}.tar.gz"));
    pack(&tarball, &format!("ferroccl-{version}"), &plugin, &read(&built.join("ferroccl"))?)?;
    let wheel = out.join(wheel::file_name(version, arch, glibc));
    let bytes = wheel::pack(version, arch, glibc, &plugin)?;
    fs::write(&wheel, bytes).map_err(|error| cannot("write", &wheel, &error))?;
    for made in [tarball, wheel] {
        let bytes = fs::metadata(&made).map_or(0, |file| file.len());
        println!("{} ({:.1} MiB)", made.display(), bytes as f64 / f64::from(1 << 20));
    }
    Ok(())
}

fn read(path: &Path) -> Outcome<Vec<u8>> {
    fs::read(path).map_err(|error| cannot("read", path, &error))
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

/// `NAME/lib/` and `NAME/bin/`, as `tar xf` unpacks them anywhere.
fn pack(to: &Path, name: &str, plugin: &[u8], command: &[u8]) -> Outcome {
    let failed = |error: std::io::Error| cannot("write", to, &error);
    let file = File::create(to).map_err(failed)?;
    let mut tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let mut add = |path: String, mode: u32, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        tar.append_data(&mut header, path, bytes)
    };
    add(format!("{name}/lib/{PLUGIN}"), 0o755, plugin).map_err(failed)?;
    add(format!("{name}/bin/ferroccl"), 0o755, command).map_err(failed)?;
    let readme = read(&root().join("README.md"))?;
    add(format!("{name}/README.md"), 0o644, &readme).map_err(failed)?;
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    link.set_mode(0o777);
    tar.append_link(&mut link, format!("{name}/lib/{BY_DEFAULT}"), PLUGIN).map_err(failed)?;
    let mut file = tar.into_inner().and_then(GzEncoder::finish).map_err(failed)?;
    file.flush().map_err(failed)
}
