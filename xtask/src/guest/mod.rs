//! `cargo xtask guest`: runs a command in a small virtual machine with a stock kernel, for features
//! that the host's kernel may lack: loss and delay on a network link, Soft-RoCE.
//!
//! The guest sees the host's own files, so programs that are built here run there unchanged. Its
//! writes to these files stay in its memory, except in the directories of `--rw`. Without hardware
//! support the guest is emulated: it shows whether something works, never how fast it is.

mod initramfs;
mod job;
mod kernel;
pub(crate) mod needs;
mod qemu;

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::{Outcome, workspace};
use job::Job;
use kernel::Kernel;

/// Exit status if the command has not ended in time.
const TIMED_OUT: u8 = 124;
/// Exit status if the guest did not come up, or died during the command.
const NO_GUEST: u8 = 125;
/// Longest wait for another process that installs and downloads what a guest needs.
const PREPARED_WITHIN: Duration = Duration::from_secs(600);

/// Returns the parser for the number of a guest's processors.
fn processors() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=64)
}

/// Flags of `cargo xtask guest`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Time limit of the guest in seconds, from its start to its end. A run that exceeds the limit
    /// exits with status 124.
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
    /// Number of the guest's processors.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = processors())]
    smp: u8,
    /// Set-up of the guest before the command; may be given several times.
    #[arg(long, value_name = "NAME")]
    setup: Vec<Setup>,
    /// Directory that the guest may write to; may be given several times. All other writes of the
    /// guest are lost.
    #[arg(long, value_name = "DIR")]
    rw: Vec<PathBuf>,
    /// Print the reason and succeed if this machine cannot run a guest (no root, no network).
    #[arg(long)]
    or_skip: bool,
    /// Command and its arguments, run in the current directory with the current environment. The
    /// exit status is the command's, 124 (time-out) or 125 (the guest did not come up, or died).
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs this program with `words` in a guest with Soft-RoCE devices; the guest may write to `rw`.
pub(crate) fn again<'a>(
    words: impl IntoIterator<Item = &'a OsStr>,
    rw: PathBuf,
    timeout_s: u64,
) -> Outcome<ExitCode> {
    let own = own()?;
    let words = words.into_iter().map(OsStr::to_owned);
    let command = std::iter::once(own.into_os_string()).chain(words).collect();
    let (setup, rw) = (vec![Setup::RxePair], vec![rw]);
    run(&Options { timeout: timeout_s, smp: 2, setup, rw, or_skip: false, command })
}

/// Returns the path of this program. If a build has replaced the file meanwhile, the kernel adds
/// " (deleted)" to the path. The path without this suffix is returned: it leads to the new file.
pub(crate) fn own() -> Outcome<PathBuf> {
    let own = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let text = own.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| own.clone(), PathBuf::from))
}

/// Set-up of the guest before the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Setup {
    /// Modules for network namespaces, links between them, and `tc netem`.
    Veth,
    /// Soft-RoCE device rxe0.
    Rxe,
    /// Four Soft-RoCE devices: rxa and rxb at the ends of a veth pair, rxc and rxd at the ends of
    /// another veth pair. Packets cross the veth pairs, where they can be captured, dropped and
    /// delayed.
    RxePair,
}

impl Setup {
    /// Returns the name of the function in boot.sh that does the set-up.
    fn function(self) -> &'static str {
        match self {
            Setup::Veth => "set_up_veth",
            Setup::Rxe => "set_up_rxe",
            Setup::RxePair => "set_up_rxe_pair",
        }
    }
}

/// Reason why a run has no exit status of the command.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// This machine cannot have a guest; the project is not at fault.
    Unavailable(String),
    /// The guest did not come up, or died.
    Died(String),
    /// The command did not end in time.
    TimedOut(String),
}

/// Runs the command in a guest and returns its status. Output of the command is forwarded
/// unchanged; messages of xtask go to standard error.
pub(crate) fn run(options: &Options) -> Outcome<ExitCode> {
    let failure = match attempt(options) {
        Ok(status) => return Ok(ExitCode::from(status)),
        Err(failure) => failure,
    };
    let (message, status) = match failure {
        Failure::Unavailable(reason) if options.or_skip => {
            eprintln!("\nSKIPPED: this machine cannot run a guest: {reason}");
            return Ok(ExitCode::SUCCESS);
        }
        Failure::Unavailable(reason) => {
            (format!("this machine cannot run a guest: {reason}"), NO_GUEST)
        }
        Failure::Died(reason) => (reason, NO_GUEST),
        Failure::TimedOut(reason) => (reason, TIMED_OUT),
    };
    eprintln!("guest: {message}");
    Ok(ExitCode::from(status))
}

fn attempt(options: &Options) -> Result<u8, Failure> {
    let cache = cache().map_err(Failure::Died)?;
    let needs_rdma = options.setup.iter().any(|setup| *setup != Setup::Veth);
    let kernel = prepare(&cache, needs_rdma).map_err(Failure::Unavailable)?;
    let job = Job::new(&cache, options, &kernel).map_err(Failure::Died)?;
    let with_kvm = qemu::with_kvm().map_err(Failure::Died)?;
    let machine = qemu::Machine { kernel: &kernel, job: &job, processors: options.smp, with_kvm };
    machine.run(Duration::from_secs(options.timeout))
}

/// Installs missing programs and downloads the kernel. Other processes that need a guest wait
/// meanwhile.
fn prepare(cache: &Path, needs_rdma: bool) -> Outcome<Kernel> {
    let path = cache.join("lock");
    let lock = File::create(&path).map_err(|error| cannot("open", &path, &error))?;
    let deadline = Instant::now() + PREPARED_WITHIN;
    while let Err(error) = lock.try_lock() {
        if let TryLockError::Error(error) = error {
            return Err(cannot("lock", &path, &error));
        }
        if Instant::now() > deadline {
            return Err(format!("another process has held {} for too long", path.display()));
        }
        thread::sleep(Duration::from_millis(50));
    }
    needs::install_missing(needs_rdma)?;
    Kernel::prepared(cache)
}

/// Returns the directory of kernels and jobs. If $XDG_CACHE_HOME is an absolute path, the directory
/// is in it and outlives a checkout; else the directory is in the target directory.
fn cache() -> Outcome<PathBuf> {
    let shared = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = match shared.filter(|path| path.is_absolute()) {
        Some(shared) => shared.join("ferroccl-guest"),
        None => workspace::target_dir()?.join("guest"),
    };
    std::fs::create_dir_all(&cache).map_err(|error| cannot("make", &cache, &error))?;
    Ok(cache)
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
