//! Child processes with a deadline, whose output is streamed while they run. The whole process
//! group of a child is killed at the deadline, at an interrupt, and if a process that outlives the
//! child holds the child's output open.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, PipeReader, PipeWriter, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Outcome;

/// Interval at which a waiting parent checks the clock and its child.
const GLANCE: Duration = Duration::from_millis(50);
/// Interval at which a parent checks its child once the child's output has ended.
const MOMENT: Duration = Duration::from_millis(2);
/// Time from a child's exit to the kill of the processes that still hold the child's output open;
/// also the longest wait for the exit of a killed child.
const LINGER: Duration = Duration::from_secs(2);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes Ctrl-C and SIGTERM end the children. Each child has a process group of its own, so the
/// terminal does not signal it.
pub(crate) fn listen_for_interrupts() -> Outcome {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(flag))
            .map_err(|error| format!("cannot listen for signal {signal}: {error}"))?;
    }
    Ok(())
}

/// Returns whether this program has received Ctrl-C or SIGTERM.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// End of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Exit with this status.
    Exit(ExitStatus),
    /// End of a child that was killed after its deadline.
    Deadline,
    /// Exit of a child, after which another process kept the child's output open and was killed.
    LeftRunning,
}

impl End {
    /// Returns whether the child exited with status 0 and left nothing running.
    pub(crate) fn success(self) -> bool {
        matches!(self, End::Exit(status) if status.success())
    }

    /// Returns a description of an unsuccessful end.
    pub(crate) fn describe(self) -> String {
        match self {
            End::Exit(status) => status.to_string(),
            End::Deadline => "killed at its deadline".to_owned(),
            End::LeftRunning => "left a process running, which was killed".to_owned(),
        }
    }
}

/// Returns the command as one would type it.
pub(crate) fn typed(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs `command` without standard input, in a process group of its own. Passes each line of the
/// command's standard output and standard error to `on_line`, in the order of writing.
///
/// Returns an error only if the command cannot be started or waited for, or if this program is
/// interrupted; everything else is an [`End`].
pub(crate) fn run(
    command: &mut Command,
    deadline: Duration,
    on_line: impl FnMut(&str),
) -> Outcome<End> {
    // Both outputs share one pipe: with two pipes, a heading on one output could be separated from
    // its text on the other.
    let (reader, writer) = pipe()?;
    let errors = writer.try_clone().map_err(|error| format!("cannot duplicate a pipe: {error}"))?;
    command.stderr(errors);
    // Into a pipe, cargo prints no colours by default; here its lines end up on the terminal.
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    start_and_watch(command, (reader, writer), deadline, on_line)
}

fn pipe() -> Outcome<(PipeReader, PipeWriter)> {
    std::io::pipe().map_err(|error| format!("cannot make a pipe: {error}"))
}

fn start_and_watch(
    command: &mut Command,
    (reader, writer): (PipeReader, PipeWriter),
    deadline: Duration,
    mut on_line: impl FnMut(&str),
) -> Outcome<End> {
    let name = typed(command);
    let started = command.stdin(Stdio::null()).stdout(writer).process_group(0).spawn();
    // Drops the write ends that `command` holds: the reader sees no end of the output while a
    // write end is open.
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut child = started.map_err(|error| format!("cannot start `{name}`: {error}"))?;
    let lines = read_lines(reader);
    watch(&mut child, &lines, Instant::now() + deadline, &mut on_line)
        .map_err(|error| format!("`{name}`: {error}"))
}

/// Runs `command` and returns its standard output. The command inherits this program's standard
/// error. An unsuccessful end is an error.
pub(crate) fn capture(command: &mut Command, deadline: Duration) -> Outcome<String> {
    let mut output = String::new();
    let end = start_and_watch(command, pipe()?, deadline, |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    if end.success() {
        Ok(output)
    } else {
        Err(format!("`{}`: {}", typed(command), end.describe()))
    }
}

/// Returns whether `program` is on the search path.
pub(crate) fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Reads a pipe on a thread of its own, since a pipe has no timeout. The channel closes with the
/// pipe.
fn read_lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line);
            if send.send(text.trim_end_matches(['\n', '\r']).to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receive
}

fn watch(
    child: &mut Child,
    lines: &Receiver<String>,
    deadline: Instant,
    on_line: &mut impl FnMut(&str),
) -> Outcome<End> {
    let mut exited: Option<(ExitStatus, Instant)> = None;
    loop {
        match lines.recv_timeout(GLANCE) {
            Ok(line) => on_line(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match exited {
                Some((status, _)) => return Ok(End::Exit(status)),
                // The output has ended; usually the child exits right afterwards.
                None => thread::sleep(MOMENT),
            },
        }
        let now = Instant::now();
        if exited.is_none() {
            let status = child.try_wait().map_err(|error| format!("cannot wait: {error}"))?;
            exited = status.map(|status| (status, now));
        }
        if interrupted() {
            kill_group(child);
            return Err("interrupted".to_owned());
        }
        match exited {
            Some((_, at)) if now > at + LINGER => {
                kill_group(child);
                return Ok(End::LeftRunning);
            }
            None if now > deadline => {
                kill_group(child);
                return Ok(End::Deadline);
            }
            _ => {}
        }
    }
}

/// Kills the child's process group and reaps the child. A process group that no longer exists is no
/// error.
fn kill_group(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    // After SIGKILL the child exits as soon as it is scheduled. A child that is stuck in the kernel
    // is not waited for.
    let patience = Instant::now() + LINGER;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < patience {
        thread::sleep(GLANCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_errors_arrive_in_order_even_without_a_last_newline() {
        let mut lines = Vec::new();
        let end = run(
            &mut shell("echo one; echo error >&2; printf two"),
            Duration::from_secs(20),
            |line| {
                lines.push(line.to_owned());
            },
        );
        assert!(end.unwrap().success());
        assert_eq!(lines, ["one", "error", "two"]);
    }

    #[test]
    fn an_exit_status_is_reported() {
        let end = run(&mut shell("exit 3"), Duration::from_secs(20), |_| {}).unwrap();
        assert!(!end.success());
        assert!(end.describe().contains('3'), "{}", end.describe());
    }

    #[test]
    fn a_child_past_its_deadline_is_killed_with_its_children() {
        let mut grandchild = None;
        let script = "sleep 600 & echo $!; wait";
        // Long enough for a shell to start on a machine whose disk is busy.
        let end = run(&mut shell(script), Duration::from_secs(4), |line| {
            grandchild = line.parse::<i32>().ok();
        });
        assert_eq!(end, Ok(End::Deadline));
        assert_ends(grandchild.expect("the script prints the process id"));
    }

    #[test]
    fn a_process_left_behind_is_found_and_killed() {
        let mut left = None;
        let end = run(&mut shell("sleep 600 & echo $!"), Duration::from_secs(60), |line| {
            left = line.parse::<i32>().ok();
        });
        assert_eq!(end, Ok(End::LeftRunning));
        assert_ends(left.expect("the script prints the process id"));
    }

    /// Asserts that a process ends. A killed orphan may stay a zombie, which counts as ended.
    fn assert_ends(id: i32) {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            if matches!(state, None | Some('Z' | 'X')) {
                return;
            }
            assert!(Instant::now() < patience, "process {id} still runs: {stat}");
            thread::sleep(GLANCE);
        }
    }

    #[test]
    fn the_error_names_a_program_that_does_not_exist() {
        let error = run(&mut Command::new("no-such-program"), GLANCE, |_| {}).unwrap_err();
        assert!(error.contains("no-such-program"), "{error}");
        assert!(!is_installed("no-such-program") && is_installed("sh"));
    }
}
