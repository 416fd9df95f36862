//! Kernel of the guest: Debian's package, downloaded and unpacked into the guest's cache, never
//! installed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::cannot;
use super::needs::{apt, quietly, tool};
use crate::{Outcome, process};

/// Package that depends on the package of Debian's current kernel. The kernel's "cloud" variant
/// lacks half of the modules that a guest needs.
const META_PACKAGE: &str = "linux-image-amd64";
/// Name prefix of the kernel packages that this code supports: those of Debian 12.
const SERIES: &str = "linux-image-6.1.";
/// Time limit of most commands, such as the download and the unpacking of the package.
const WITHIN: Duration = Duration::from_secs(240);

/// Files that are unpacked: a tenth of the whole package.
const PARTS: [&str; 13] = [
    "./boot/vmlinuz*",
    "*/lib/modules/*/modules.builtin*",
    "*/lib/modules/*/modules.order",
    "*/kernel/arch/x86/crypto/*",
    "*/kernel/crypto/*",
    "*/kernel/drivers/char/*",
    "*/kernel/drivers/infiniband/core/*",
    "*/kernel/drivers/infiniband/sw/*",
    "*/kernel/drivers/net/*.ko",
    "*/kernel/drivers/virtio/*",
    "*/kernel/fs/*",
    "*/kernel/lib/*",
    "*/kernel/net/*",
];

/// Modules that the guest loads before it sees the host's files.
const EARLY_MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];
/// Modules that the set-ups of `--setup` load later; a package that lacks any of them is refused at
/// once.
const LATER_MODULES: [&str; 5] = ["veth", "bridge", "dummy", "sch_netem", "rdma_rxe"];

/// Kernel that is ready to be started.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Release of the kernel, as `uname -r` prints it.
    pub(super) release: String,
    /// Unpacked kernel image, since the kernel's own unpacking takes seconds under emulation.
    pub(super) image: PathBuf,
    /// Directory of the modules, for `modprobe`.
    pub(super) modules: PathBuf,
    /// Modules to load early, in order.
    pub(super) early: Vec<PathBuf>,
}

impl Kernel {
    /// Returns the kernel in `cache`, downloaded if necessary. An error says why there is no guest.
    pub(super) fn prepared(cache: &Path) -> Outcome<Kernel> {
        let place = cache.join("kernel");
        if !place.is_dir() {
            fetch_into(cache, &place)?;
        }
        let release = only_entry(&place.join("lib/modules"))?;
        let early = early_modules(&place, &release)?;
        let modules = place.join("lib/modules").join(&release);
        Ok(Kernel { image: place.join("vmlinux"), release, modules, early })
    }
}

/// Prepares a kernel in a directory beside `place` and renames that directory to `place`, so that
/// `place` is never half done.
fn fetch_into(cache: &Path, place: &Path) -> Outcome {
    let work = cache.join(format!("kernel.{}", std::process::id()));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).map_err(|error| cannot("make", &work, &error))?;
    let done = fetch(&work).and_then(|()| match fs::rename(&work, place) {
        Err(_) if place.is_dir() => Ok(()), // another process was faster
        renamed => renamed.map_err(|error| cannot("move the kernel to", place, &error)),
    });
    let _ = fs::remove_dir_all(&work);
    done
}

fn fetch(work: &Path) -> Outcome {
    if !process::is_installed("apt-get") || !process::is_installed("dpkg-deb") {
        return Err(
            "the guest's kernel is a Debian package, and apt-get or dpkg-deb is missing".to_owned()
        );
    }
    let package = match current_package()? {
        Some(package) => package,
        None => {
            apt(&["update"])?;
            current_package()?.ok_or_else(|| format!("apt has no package {META_PACKAGE}"))?
        }
    };
    if !package.starts_with(SERIES) {
        return Err(format!("the guest needs a package {SERIES}*, but apt has {package}"));
    }
    eprintln!("guest: downloading and unpacking {package} (once; it is not installed)");
    download(work, &package)?;
    unpack(work)?;
    let release = only_entry(&work.join("lib/modules"))?;
    quietly(tool("depmod").arg("-b").arg(work).arg(&release), WITHIN)?;
    require_modules(&work.join("lib/modules").join(&release))?;
    unpack_image(work, &release)
}

/// Returns the package of Debian's current kernel; `None` if apt's lists do not have it.
fn current_package() -> Outcome<Option<String>> {
    let depends =
        process::capture(Command::new("apt-cache").args(["depends", META_PACKAGE]), WITHIN);
    // If apt's lists are empty, apt-cache fails, because the package is unknown.
    let depends = depends.unwrap_or_default();
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(names.next().map(str::to_owned))
}

/// Downloads a package. Point releases remove old kernels from the servers; a failed download is
/// therefore tried again with fresh lists.
fn download(work: &Path, package: &str) -> Outcome {
    let mut command = Command::new("apt-get");
    command
        .current_dir(work)
        .args(["-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::http::Timeout=20"])
        .args(["-o", "Acquire::Retries=1", "download", package]);
    if quietly(&mut command, WITHIN).is_ok() {
        return Ok(());
    }
    apt(&["update"])?;
    quietly(&mut command, WITHIN)
}

fn unpack(work: &Path) -> Outcome {
    let parts = PARTS.map(|part| format!("'{part}'")).join(" ");
    // A pattern that matches nothing makes tar fail, so tar's status is ignored; required files are
    // checked afterwards.
    let script = format!(
        "dpkg-deb --fsys-tarfile linux-image-*.deb | \
         tar -x --wildcards --wildcards-match-slash {parts}; rm linux-image-*.deb"
    );
    quietly(Command::new("sh").current_dir(work).args(["-c", &script]), WITHIN)
}

fn require_modules(modules: &Path) -> Outcome {
    let index = modules.join("modules.dep");
    let text = fs::read_to_string(&index).map_err(|error| cannot("read", &index, &error))?;
    let files = text.lines().filter_map(|line| line.split_once(':'));
    let known: BTreeSet<&str> =
        files.filter_map(|(path, _)| path.rsplit('/').next()?.strip_suffix(".ko")).collect();
    match EARLY_MODULES.iter().chain(&LATER_MODULES).find(|name| !known.contains(*name)) {
        Some(missing) => Err(format!("the kernel's package has no module {missing}")),
        None => Ok(()),
    }
}

/// Writes `vmlinux` from the compressed kernel inside of `vmlinuz`.
fn unpack_image(work: &Path, release: &str) -> Outcome {
    let packed = work.join("boot").join(format!("vmlinuz-{release}"));
    let bytes = fs::read(&packed).map_err(|error| cannot("read", &packed, &error))?;
    let payload = payload(&bytes)
        .filter(|payload| payload.starts_with(b"\xfd7zXZ\0"))
        .ok_or_else(|| format!("{} holds no xz-compressed kernel", packed.display()))?;
    let (xz, image) = (work.join("vmlinux.xz"), work.join("vmlinux"));
    fs::write(&xz, payload).map_err(|error| cannot("write", &xz, &error))?;
    let output = File::create(&image).map_err(|error| cannot("write", &image, &error))?;
    // The length of the kernel follows the xz stream and is no part of the stream:
    // `--single-stream` stops before the length.
    let mut command = Command::new("xz");
    command.args(["--decompress", "--stdout", "--single-stream"]).arg(&xz);
    run_into(&mut command, output)?;
    let _ = fs::remove_file(&xz);
    let _ = fs::remove_dir_all(work.join("boot"));
    let head = fs::read(&image).map_err(|error| cannot("read", &image, &error))?;
    if head.starts_with(b"\x7fELF") { Ok(()) } else { Err("the kernel is no ELF file".to_owned()) }
}

/// Runs a command with a file as its standard output, without a deadline.
fn run_into(command: &mut Command, output: File) -> Outcome {
    let name = process::typed(command);
    let status = command
        .stdin(Stdio::null())
        .stdout(output)
        .status()
        .map_err(|error| format!("cannot start `{name}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{name}`: {status}")) }
}

/// Returns the compressed kernel in a Linux boot image. The header of the image has the offset and
/// the length of the kernel.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes: [u8; 4] = image.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let setup_bytes = (usize::from(*image.get(0x1f1)?) + 1) * 512;
    let start = setup_bytes + word(0x248)?;
    image.get(start..start + word(0x24c)?)
}

/// Returns the early modules and their dependencies in the order of loading.
fn early_modules(place: &Path, release: &str) -> Outcome<Vec<PathBuf>> {
    let mut modules: Vec<PathBuf> = Vec::new();
    let mut command = tool("modprobe");
    command.arg("-d").arg(place).args(["-S", release, "--show-depends", "-a"]).args(EARLY_MODULES);
    for line in process::capture(&mut command, WITHIN)?.lines() {
        let Some(path) = line.strip_prefix("insmod ") else { continue };
        let path = PathBuf::from(path.trim());
        if !modules.contains(&path) {
            modules.push(path);
        }
    }
    Ok(modules)
}

/// Returns the name of a directory's only entry.
fn only_entry(dir: &Path) -> Outcome<String> {
    let mut entries = fs::read_dir(dir).map_err(|error| cannot("list", dir, &error))?;
    match (entries.next(), entries.next()) {
        (Some(Ok(entry)), None) => Ok(entry.file_name().to_string_lossy().into_owned()),
        _ => Err(format!(
            "{} must hold the modules of one kernel; to fetch the kernel again, remove the \
             directory `kernel` from the cache",
            dir.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_an_image_leads_to_the_compressed_kernel() {
        let mut image = vec![0; 4 * 512];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&3u32.to_le_bytes());
        image[1024 + 16..1024 + 19].copy_from_slice(b"abc");
        assert_eq!(payload(&image), Some(&b"abc"[..]));
        assert_eq!(payload(&image[..1024 + 18]), None);
        assert_eq!(payload(b"short"), None);
    }
}
