//! `ferroccl doctor --ofi`: the providers of the installed libfabric, and whether they work.
//!
//! Providers are foreign code: some look for hardware for minutes, or end their process. So each is
//! tested in a process of its own, with a time limit.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use ccl_transport_ofi::{Passed, Provider, providers, test_provider};
use serde::Serialize;

use super::{report, watched};

/// Name of the part of the examination that lists the providers; no provider has this name.
const LIST: &str = "list";
/// Time that listing may take: some providers measure clocks, or look for devices.
const LIST_WITHIN: Duration = Duration::from_secs(20);
/// Time that a provider has for its test.
const TEST_WITHIN: Duration = Duration::from_secs(10);
/// Time that a testing process may take beyond the time limit of its test.
const GRACE: Duration = Duration::from_secs(10);

/// A provider, with the result of its test and its limits.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    provider: Provider,
    /// True if all sent and written data arrived unchanged.
    passed: bool,
    /// Result of the test, in words.
    test: String,
    /// Effects of missing features on a transport, one sentence each.
    without: Vec<String>,
}

/// Lists and tests all providers. The exit status is 0 if all work, 1 if one does not, and 2 if
/// they cannot be listed: for example, libfabric is not installed.
pub(super) fn examine(json: bool) -> ExitCode {
    let all = match in_process(LIST, LIST_WITHIN).and_then(|text| read::<Vec<Provider>>(&text)) {
        Ok(all) => all,
        Err(error) => {
            eprintln!("ferroccl: {error}");
            return ExitCode::from(2);
        }
    };
    let rows = Vec::from_iter(all.into_iter().map(row));
    let text = match json {
        true => serde_json::to_string_pretty(&rows).map(|text| text + "\n").unwrap_or_default(),
        false => shown(&rows),
    };
    let _ = write!(std::io::stdout(), "{text}");
    ExitCode::from(u8::from(rows.iter().any(|row| !row.passed)))
}

/// Runs one part of the examination in this process: [`LIST`], or the test of the provider `name`.
/// Reports the result to the parent process.
pub(super) fn part(name: &str) -> ExitCode {
    let text = |error: serde_json::Error| error.to_string();
    let done = match name {
        LIST => providers()
            .map_err(|error| error.to_string())
            .and_then(|all| serde_json::to_string(&all).map_err(text)),
        name => test_provider(name, TEST_WITHIN)
            .map_err(|error| error.to_string())
            .and_then(|passed| serde_json::to_string(&passed).map_err(text)),
    };
    let status = u8::from(done.is_err());
    let (Ok(text) | Err(text)) = done;
    report(&mut std::io::stdout(), status, &text);
    ExitCode::from(status)
}

/// Runs a part in another process; returns its text, or the reason for the failure.
fn in_process(part: &str, within: Duration) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot start a process: {error}");
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.args(["doctor", "--ofi", "--ofi-part", part]);
    // Libraries for InfiniPath write a file into the working directory when a process crashes.
    command.env("IPATH_NO_BACKTRACE", "1");
    match watched(command, within).map_err(cannot)? {
        Some((0, text)) => Ok(text),
        Some((_, error)) => Err(error),
        None => {
            Err(format!("the process for `{part}` crashed, or did not report within {within:?}"))
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn row(provider: Provider) -> Row {
    let tested = in_process(&provider.name, TEST_WITHIN + GRACE);
    let tested = tested.and_then(|text| read::<Passed>(&text));
    let test = match &tested {
        Ok(Passed { wrote, dma_bufs }) => {
            let sends = if *wrote { "" } else { "; sends only" };
            let registers = if *dma_bufs { "; it registers DMA-bufs" } else { "" };
            format!("passed{sends}{registers}")
        }
        Err(error) => format!("FAILED: {error}"),
    };
    let without = provider.without();
    Row { provider, passed: tested.is_ok(), test, without }
}

fn shown(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "libfabric has no provider with reliable datagram endpoints\n".to_owned();
    }
    let mut lines = vec![
        [
            "provider",
            "version",
            "writes",
            "data",
            "HMEM",
            "low latency",
            "inject",
            "registration",
            "progress",
        ]
        .map(str::to_owned),
    ];
    for Row { provider, .. } in rows {
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let registration = provider.registration.join("+");
        lines.push([
            provider.name.clone(),
            provider.version.clone(),
            yes(provider.writes),
            yes(provider.write_data),
            yes(provider.device_memory),
            yes(provider.low_latency),
            provider.inject_bytes.to_string(),
            if registration.is_empty() { "any memory".to_owned() } else { registration },
            if provider.automatic_progress { "automatic" } else { "manual" }.to_owned(),
        ]);
    }
    let tests = ["test"].into_iter().chain(rows.iter().map(|row| row.test.as_str()));
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    let mut text = String::new();
    for (line, test) in lines.iter().zip(tests) {
        for (cell, width) in line.iter().zip(widths) {
            let _ = write!(text, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{test}");
    }
    for Row { provider, without, .. } in rows {
        for sentence in without {
            let _ = write!(text, "\n{}: {sentence}", provider.name);
        }
    }
    text + "\n\nFERROCCL_TRANSPORT=ofi uses one provider; FERROCCL_OFI_PROVIDER selects it.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_has_a_line_in_the_table_and_a_line_per_missing_feature() {
        let provider = Provider {
            name: "tcp;ofi_rxm".to_owned(),
            version: "117.0".to_owned(),
            devices: vec!["eth0".to_owned()],
            writes: true,
            write_data: true,
            device_memory: false,
            low_latency: false,
            inject_bytes: 64,
            message_bytes_max: 1 << 30,
            registration: vec!["LOCAL".to_owned(), "VIRT_ADDR".to_owned()],
            automatic_progress: true,
        };
        let without = provider.without();
        let row = Row { provider, passed: false, test: "FAILED: late".to_owned(), without };
        let text = shown(&[row]);
        let mut lines = text.lines();
        assert!(lines.next().unwrap().ends_with("progress   test"), "{text}");
        assert!(lines.next().unwrap().ends_with("LOCAL+VIRT_ADDR  automatic  FAILED: late"));
        for sentence in
            ["a write can go on", "no memory of accelerators: ", "messages have at most 16 KiB"]
        {
            assert!(text.contains(&format!("\ntcp;ofi_rxm: {sentence}")), "{text}");
        }
        assert!(shown(&[]).contains("no provider"));
    }
}
