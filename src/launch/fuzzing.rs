//! Fuzz targets for a launcher's answers and for environments; see `crate::fuzzing`.

use super::detect::detect;
use super::pmi::Pmi;
use super::service::ServiceError;
use super::store::{Dialect, Store};
use super::stream::LauncherStream;
use super::variables::Variables;
use crate::bootstrap::socket::Deadline;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Returns a connection to a launcher that has sent `says` already, and the launcher's socket.
fn launcher(says: &[u8]) -> Option<(LauncherStream, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair().ok()?;
    theirs.set_nonblocking(true).ok()?;
    // Bytes that do not fit the socket are cut off.
    let _ = theirs.write(says);
    theirs.shutdown(Shutdown::Write).ok()?;
    Some((LauncherStream::new(ours.into(), Deadline::after(Duration::from_secs(5))), theirs))
}

/// Feeds the data to the PMI client, as the answers of a process manager.
pub fn pmi(data: &[u8]) {
    let (id, says) = match data.split_first() {
        Some((first, rest)) if first & 1 == 1 => (Some(u32::from(*first)), rest),
        Some((_, rest)) => (None, rest),
        None => (None, data),
    };
    let Some((stream, _theirs)) = launcher(says) else { return };
    let talk = || {
        let mut pmi = Pmi::start(stream, id)?;
        pmi.put("key", "value")?;
        pmi.barrier()?;
        let value = pmi.get("key")?;
        assert!(!value.contains(|c: char| c.is_ascii_whitespace()), "{value:?}");
        pmi.finish()
    };
    let told: Result<(), ServiceError> = talk();
    assert!(
        !matches!(told, Err(ServiceError::Late { .. })),
        "the client waited for more after the launcher had closed its side"
    );
}

/// Feeds the data to the store's client, as the answers of torchrun's store.
pub fn store(data: &[u8]) {
    let dialect = match data.first() {
        Some(first) if first & 1 == 1 => Dialect::Recent,
        _ => Dialect::Old,
    };
    let Some((stream, _theirs)) = launcher(data.get(1..).unwrap_or_default()) else { return };
    let talk = || {
        let mut store = Store::greet(stream, dialect)?;
        store.set("key", b"value")?;
        store.wait_for("key").map(|_| ())
    };
    let told: Result<(), ServiceError> = talk();
    assert!(
        !matches!(told, Err(ServiceError::Late { .. })),
        "the client waited for more after the launcher had closed its side"
    );
}

/// Variables of a launcher's environment that the library reads, except those that name files.
const NAMES: [&str; 33] = [
    "FERROCCL_RANK",
    "FERROCCL_RANKS",
    "FERROCCL_LOCAL_RANK",
    "FERROCCL_LOCAL_RANKS",
    "FERROCCL_COMM_ID",
    "FERROCCL_SECRET",
    "FERROCCL_INSECURE_JOIN",
    "FERROCCL_BOOTSTRAP_HOST",
    "FERROCCL_LISTEN_FD",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "PMI_FD",
    "PMI_PORT",
    "PMI_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
];

/// Feeds the data to the detection of launchers, as an environment. The first byte of each line,
/// modulo the length of `NAMES`, is the variable's index in `NAMES`. The rest of the line is the
/// value.
pub fn environment(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n').filter_map(<[u8]>::split_first);
    let pairs: Vec<_> = lines
        .map(|(name, value)| (NAMES[usize::from(*name) % NAMES.len()], value))
        .map(|(name, value)| (name, String::from_utf8_lossy(value)))
        .collect();
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| (*name, &**value)).collect();
    let shown = match detect(&Variables::of(&pairs)) {
        Ok(Some(launch)) => {
            assert!(launch.rank < launch.ranks, "{launch:?}");
            format!("{launch:?}")
        }
        Ok(None) => String::new(),
        Err(error) => format!("{error} {error:?}"),
    };
    // Two kinds of secrets are not checked: short ones, which match by chance, and those that are
    // part of another variable's value.
    let is_secret = |name: &str| name == "FERROCCL_SECRET";
    // Errors escape control characters. An escaped value can contain a secret that the plain value
    // does not contain: NUL becomes `\0`, which contains a digit.
    let tells =
        |value: &str, text: &str| value.contains(text) || format!("{value:?}").contains(text);
    let told =
        |text: &str| pairs.iter().any(|(name, value)| !is_secret(name) && tells(value, text));
    let secrets = pairs.iter().filter(|(name, secret)| is_secret(name) && secret.len() >= 16);
    for (_, secret) in secrets.filter(|(_, secret)| !told(secret)) {
        assert!(!shown.contains(secret), "a secret is shown");
    }
}
