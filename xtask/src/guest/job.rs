//! Directory of a guest's run: initial file system, outputs, and a folder that the guest sees.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::initramfs::Archive;
use super::kernel::Kernel;
use super::{Options, cannot};
use crate::Outcome;

const INIT: &str = include_str!("init.sh");
const BOOT: &str = include_str!("boot.sh");
const BUSYBOX: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];

/// Directory of a run, removed when dropped.
#[derive(Debug)]
pub(super) struct Job {
    dir: PathBuf,
    /// Directories that the guest may write to.
    pub(super) writable: Vec<PathBuf>,
}

impl Job {
    /// Creates the directory, with the script and the initial file system for the guest.
    pub(super) fn new(cache: &Path, options: &Options, kernel: &Kernel) -> Outcome<Job> {
        remove_leftovers(cache);
        let dir = cache.join(format!("job.{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let mut job = Job { dir, writable: Vec::new() };
        fs::create_dir_all(job.shared()).map_err(|error| cannot("make", &job.dir, &error))?;
        for dir in &options.rw {
            let full = fs::canonicalize(dir).map_err(|error| cannot("share", dir, &error))?;
            job.writable.push(full);
        }
        let here = std::env::current_dir()
            .map_err(|error| format!("cannot find the path of the working directory: {error}"))?;
        write(&job.shared().join("plan.sh"), &plan(options, kernel, &job.writable, &here))?;
        write(&job.initramfs(), &initramfs(kernel)?)?;
        for file in [job.out(), job.err(), job.console()] {
            write(&file, &[])?;
        }
        Ok(job)
    }

    /// Returns the subdirectory that the guest sees as /run/job.
    pub(super) fn shared(&self) -> PathBuf {
        self.dir.join("shared")
    }

    pub(super) fn initramfs(&self) -> PathBuf {
        self.dir.join("initramfs")
    }

    /// Returns the file of the command's standard output.
    pub(super) fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// Returns the file of the command's standard error.
    pub(super) fn err(&self) -> PathBuf {
        self.dir.join("err")
    }

    /// Returns the file of the guest kernel's console output.
    pub(super) fn console(&self) -> PathBuf {
        self.dir.join("console")
    }

    /// Returns the exit status of the command, if it has ended.
    pub(super) fn status(&self) -> Option<u8> {
        fs::read_to_string(self.shared().join("status")).ok()?.trim().parse().ok()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Removes the directories that killed runs have left.
fn remove_leftovers(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("job.").or_else(|| name.strip_prefix("kernel."));
        let dead = owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        if dead {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn write(path: &Path, content: &[u8]) -> Outcome {
    fs::write(path, content).map_err(|error| cannot("write", path, &error))
}

fn initramfs(kernel: &Kernel) -> Outcome<Vec<u8>> {
    let read = |path: &Path| fs::read(path).map_err(|error| cannot("read", path, &error));
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "lower", "upper", "root", "modules"] {
        archive.directory(dir);
    }
    let busybox = BUSYBOX.iter().map(Path::new).find(|path| path.is_file());
    archive.file("bin/busybox", &read(busybox.unwrap_or(Path::new(BUSYBOX[0])))?);
    for (index, module) in kernel.early.iter().enumerate() {
        archive.file(&format!("modules/{index:02}"), &read(module)?);
    }
    archive.file("boot.sh", BOOT.as_bytes());
    archive.file("init", INIT.as_bytes());
    Ok(archive.finish())
}

/// Returns the script that boot.sh reads.
fn plan(options: &Options, kernel: &Kernel, writable: &[PathBuf], here: &Path) -> Vec<u8> {
    let mut plan = Plan::default();
    plan.words(&[b"kernel=".as_slice(), &quoted(kernel.release.as_ref())].concat(), &[]);
    plan.words(&[b"modules=".as_slice(), &quoted(kernel.modules.as_ref())].concat(), &[]);
    plan.function("share_directories", |plan| {
        for (index, dir) in writable.iter().enumerate() {
            plan.words(format!("share rw{index}").as_bytes(), &[dir.as_ref()]);
        }
    });
    plan.function("set_up", |plan| {
        for setup in &options.setup {
            plan.words(setup.function().as_bytes(), &[]);
        }
    });
    plan.function("command", |plan| {
        plan.words(b"cd", &[here.as_ref()]);
        // The program `env` sets the variables, since a shell would refuse some of their names.
        let mut words = Vec::new();
        for (name, value) in std::env::vars_os() {
            let pair = [name.as_bytes(), b"=", value.as_bytes()].concat();
            words.push(std::os::unix::ffi::OsStringExt::from_vec(pair));
        }
        words.extend(options.command.iter().cloned());
        let words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        plan.words(b"exec env -i", &words);
    });
    plan.0
}

/// Lines of a shell script.
#[derive(Debug, Default)]
struct Plan(Vec<u8>);

impl Plan {
    /// Adds a line: `start` unquoted, then words that the shell takes literally.
    fn words(&mut self, start: &[u8], words: &[&OsStr]) {
        self.0.extend(start);
        for word in words {
            self.0.push(b' ');
            self.0.extend(quoted(word));
        }
        self.0.push(b'\n');
    }

    fn function(&mut self, name: &str, body: impl FnOnce(&mut Plan)) {
        self.0.extend(format!("{name}() {{\n:\n").bytes());
        body(self);
        self.0.extend(b"}\n");
    }
}

/// Quotes a word of any bytes, so that the shell takes it literally.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_shell_takes_quoted_words_literally() {
        for word in ["", "plain", "two words", "it's", "$HOME `x` \\ \"", "a\nb", "\u{fc}*?"] {
            let mut script = Plan::default();
            script.function("f", |plan| plan.words(b"printf %s", &[OsStr::new(word)]));
            script.words(b"f", &[]);
            let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script.0)).output();
            assert_eq!(output.unwrap().stdout, word.as_bytes(), "{word:?}");
        }
    }

    #[test]
    fn directories_of_dead_processes_are_removed() {
        let cache = std::env::temp_dir().join(format!("ferroccl-jobs-{}", std::process::id()));
        let own = format!("job.{}", std::process::id());
        for name in ["job.999999999", "kernel.999999999", "kernel", &own] {
            fs::create_dir_all(cache.join(name)).unwrap();
        }
        remove_leftovers(&cache);
        let left = ["job.999999999", "kernel.999999999", "kernel", &own]
            .map(|name| cache.join(name).exists());
        fs::remove_dir_all(&cache).unwrap();
        assert_eq!(left, [false, false, true, true]);
    }
}
