//! `cargo xtask dist`: builds the packages that users install. The tarball has the plugin for NCCL
//! and the `ferroccl` command. The Python wheel has the plugin, and a command that prints the
//! plugin's path.

mod install;
mod needs;
mod wheel;
pub(crate) mod zig;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::workspace::{root, target_dir};
use crate::{Outcome, SKIPPED};
use needs::Needs;
pub(crate) use zig::Zig;

/// File name that cargo gives the plugin.
pub(crate) const BUILT: &str = "libnccl_net_ferroccl.so";
/// File name that NCCL looks for with `NCCL_NET_PLUGIN=ferroccl`.
pub(crate) const PLUGIN: &str = "libnccl-net-ferroccl.so";
/// File name that NCCL looks for by default.
const BY_DEFAULT: &str = "libnccl-net.so";
/// Minor version of the oldest supported glibc (2.x), the same as for PyTorch's own wheels.
const GLIBC: u32 = 28;
/// Symbols of the plugin: a function table for each version of NCCL's interface.
const TABLES: [&str; 5] = [
    "ncclNetPlugin_v8",
    "ncclNetPlugin_v9",
    "ncclNetPlugin_v10",
    "ncclNetPlugin_v11",
    "ncclNetPlugin_v12",
];
/// Arguments of cargo that select the packages to build.
pub(crate) const PACKED: [&str; 7] =
    ["--package", "ccl-nccl-net", "--package", "ferroccl-cli", "--lib", "--bin", "ferroccl"];

/// Flags of `cargo xtask dist`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Directory for the packages
    #[arg(long, value_name = "DIRECTORY", default_value = "target/dist-out")]
    out: PathBuf,
    /// Profile to build with; `dist` optimises across all crates
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Print the reason and succeed if a tool is unavailable (no Python, no network)
    #[arg(long)]
    or_skip: bool,
}

/// Builds, checks and packs the plugin and the command, then installs the packages as users do.
pub(crate) fn run(options: &Options) -> Outcome {
    let zig = match Zig::install() {
        Err(why) if options.or_skip => {
            println!("{SKIPPED}{why}");
            return Ok(());
        }
        zig => zig?,
    };
    let built = zig.build(&options.profile, &PACKED)?;
    let (plugin, command) = (built.join(BUILT), built.join("ferroccl"));
    portable(&command)?;
    check_exports(&portable(&plugin)?)?;
    let out = root().join(&options.out);
    fs::create_dir_all(&out).map_err(|error| cannot("make", &out, &error))?;
    let version = env!("CARGO_PKG_VERSION");
    let arch = std::env::consts::ARCH;
    let name = format!("ferroccl-{version}");
    let tarball = out.join(format!("{name}-linux-{arch}.tar.gz"));
    let plugin = read(&plugin)?;
    pack(&tarball, &name, &plugin, &read(&command)?)?;
    let wheel = out.join(wheel::file_name(version, arch));
    let bytes = wheel::pack(version, arch, &plugin)?;
    fs::write(&wheel, bytes).map_err(|error| cannot("write", &wheel, &error))?;
    install::check(&target_dir()?.join("dist-check"), &name, &tarball, &wheel)?;
    for made in [tarball, wheel] {
        let bytes = fs::metadata(&made).map_or(0, |file| file.len());
        println!("{} ({:.1} MiB)", made.display(), bytes as f64 / f64::from(1 << 20));
    }
    Ok(())
}

/// Checks that a library or a program needs only the C library, and runs with the oldest supported
/// glibc.
pub(crate) fn portable(file: &Path) -> Outcome<Needs> {
    let needs = Needs::of(file)?;
    let shown = file.file_name().unwrap_or_default().display();
    if !needs.foreign.is_empty() {
        let foreign = needs.foreign.join(", ");
        return Err(format!("{shown} needs {foreign}, but may need only the C library"));
    }
    if needs.glibc() == 0 {
        return Err(format!("readelf shows no symbol of glibc in {shown}: it cannot be checked"));
    }
    let later = needs.later_than(GLIBC);
    if !later.is_empty() {
        let later = later.join(", ");
        return Err(format!("{shown} needs {later}, which glibc 2.{GLIBC} does not have"));
    }
    println!("ok: {shown} needs nothing but the C library, glibc 2.{} or later", needs.glibc());
    Ok(needs)
}

/// Checks that the plugin exports NCCL's function tables and nothing else, and that it stays mapped
/// after `dlclose`.
fn check_exports(plugin: &Needs) -> Outcome {
    let exported = |name: &&str| plugin.exports.iter().any(|export| export == name);
    if plugin.exports.len() != TABLES.len() || !TABLES.iter().all(exported) {
        let exports = plugin.exports.join(", ");
        return Err(format!("{PLUGIN} exports {exports}; {} are expected", TABLES.join(", ")));
    }
    if !plugin.stays {
        return Err(format!("{PLUGIN} is not linked with `-z nodelete`"));
    }
    println!("ok: {PLUGIN} exports its {} tables, and stays loaded (NODELETE)", TABLES.len());
    Ok(())
}

fn read(path: &Path) -> Outcome<Vec<u8>> {
    fs::read(path).map_err(|error| cannot("read", path, &error))
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

/// Packs `NAME/lib/` and `NAME/bin/` into a tarball for `tar xf`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_with_other_exports_or_without_nodelete_is_refused() {
        let exports = TABLES.map(str::to_owned).to_vec();
        let good = Needs { exports: exports.clone(), stays: true, ..Needs::default() };
        assert_eq!(check_exports(&good), Ok(()));
        let unloaded = Needs { exports, stays: false, ..Needs::default() };
        assert!(check_exports(&unloaded).unwrap_err().contains("nodelete"));
        let more = [good.exports.clone(), vec!["_Unwind_Resume".to_owned()]].concat();
        let open = Needs { exports: more, stays: true, ..Needs::default() };
        assert!(check_exports(&open).unwrap_err().contains("_Unwind_Resume"));
        let empty = Needs { stays: true, ..Needs::default() };
        assert!(check_exports(&empty).unwrap_err().contains("ncclNetPlugin_v12"));
    }
}
