//! Dumps of a recording, to be read later.

use std::fs::OpenOptions;
use std::io::Write;

use ccl_core::types::Rank;

use super::json;
use super::snapshot::Snapshot;

/// Writes a recording to standard error (`to` is `stderr` or empty), to the end of the file that
/// `to` names, or nowhere (`none`).
pub(super) fn dump(snapshot: &Snapshot, to: &str) {
    let result = match to {
        "none" => return,
        // One write for all lines, so that the lines of different ranks do not mix.
        "stderr" | "" => std::io::stderr().write_all(snapshot.to_string().as_bytes()),
        file => append(snapshot, &path(file, snapshot.rank)),
    };
    if let Err(error) = result {
        tracing::warn!(%error, to, "the recording cannot be dumped; see FERROCCL_DUMP");
    }
}

/// Returns a file's name, with the process id in place of `%p` and the rank in place of `%r`.
pub(super) fn path(name: &str, rank: Rank) -> String {
    let process = std::process::id().to_string();
    name.replace("%p", &process).replace("%r", &rank.to_string())
}

fn append(snapshot: &Snapshot, path: &str) -> std::io::Result<()> {
    let text = match path.ends_with(".json") {
        true => json::line(snapshot)?,
        false => snapshot.to_string().into_bytes(),
    };
    OpenOptions::new().create(true).append(true).open(path)?.write_all(&text)
}
