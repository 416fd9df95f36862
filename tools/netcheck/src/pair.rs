//! Starts the processes of a point (one check of a plugin), carries messages between them, and ends
//! them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::messages::{ChildMessage, Held, ParentMessage, Role, Row, Verdict};
use crate::points::{Act, Point};

/// Time in which a process may report its own failure after its peer has failed. A --timeout above
/// the default makes this time and [`EXIT`] longer.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Time for a process to exit after the plugin has passed the point, or after a kill. A process
/// that has reached its deadline gets the same time to report its failure.
const EXIT: Duration = Duration::from_secs(3);
/// Largest number of lines that are shown from the standard error of a process that died.
const LAST_WORDS: usize = 4;

/// Result of a point.
#[derive(Debug)]
pub(crate) struct Report {
    /// Verdict of all sides together.
    pub(crate) verdict: Verdict,
    /// Texts that are shown beside the verdict.
    pub(crate) notes: Vec<String>,
    /// Warnings of the plugin.
    pub(crate) log: Vec<String>,
    /// Measured performance.
    pub(crate) rows: Vec<Row>,
    pub(crate) held: Option<Held>,
    /// Duration of the point.
    pub(crate) took: Duration,
}

/// Event of a process.
enum Event {
    Message(ChildMessage),
    Closed,
}

struct Process {
    role: Role,
    child: Child,
    step: String,
    verdict: Option<Verdict>,
    /// Exit status, as soon as it is known.
    status: Option<ExitStatus>,
    /// True if the process has said that it is about to kill itself. The verdict of the peer alone
    /// then decides the point.
    is_doomed: bool,
    words: Arc<Mutex<VecDeque<String>>>,
}

/// Runs a point in fresh processes of this program. `again` holds the arguments that these
/// processes get before those of the point: the subcommand `netcheck` if this program is
/// `ferroccl`, and none if this program is `netcheck`.
///
/// # Errors
///
/// A process cannot be started.
pub(crate) fn run(point: &Point, arguments: &Arguments, again: &[&str]) -> std::io::Result<Report> {
    let start = Instant::now();
    let roles: &[Role] = match point.act {
        Act::Alone(_) => &[Role::Receiver],
        Act::Pair { .. } => &[Role::Receiver, Role::Sender],
    };
    let (to_events, events) = channel();
    let exit = arguments.on_this_machine(EXIT);
    let mut pair = Pair {
        processes: Vec::new(),
        report: Report {
            verdict: Verdict::Passed,
            notes: Vec::new(),
            log: Vec::new(),
            rows: Vec::new(),
            held: None,
            took: Duration::ZERO,
        },
        deadline: start + arguments.timeout(point.patience) + exit,
        grace: arguments.on_this_machine(GRACE),
        exit,
    };
    for role in roles {
        let mut command = again.iter().map(OsString::from).collect::<Vec<_>>();
        command.extend(arguments.of_side(point.name, *role));
        pair.processes.push(Process::start(*role, &command, &to_events)?);
    }
    pair.carry(&events);
    pair.end(arguments.timeout(point.patience));
    pair.report.took = start.elapsed();
    Ok(pair.report)
}

struct Pair {
    processes: Vec<Process>,
    report: Report,
    deadline: Instant,
    /// Limit [`GRACE`], scaled to this machine.
    grace: Duration,
    /// Limit [`EXIT`], scaled to this machine.
    exit: Duration,
}

impl Pair {
    /// Carries messages until all processes have ended, or until the deadline.
    fn carry(&mut self, events: &Receiver<(Role, Event)>) {
        while self.processes.iter().any(|process| process.status.is_none()) {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let Ok((role, event)) = events.recv_timeout(left) else { return };
            let Some(at) = self.processes.iter().position(|process| process.role == role) else {
                continue;
            };
            match event {
                Event::Message(message) => self.take(at, message),
                Event::Closed => {
                    let process = &mut self.processes[at];
                    process.reap(self.deadline);
                    if process.verdict.is_none() && !process.is_doomed {
                        self.ended_early(at);
                    }
                }
            }
        }
    }

    fn take(&mut self, at: usize, message: ChildMessage) {
        match message {
            ChildMessage::Step(step) => self.processes[at].step = step,
            ChildMessage::Tell(value) => self.send_to_other(at, &ParentMessage::Heard(value)),
            ChildMessage::Log(line) => self.report.log.push(line),
            ChildMessage::Note(note) => self.report.notes.push(note),
            ChildMessage::Measured(row) => self.report.rows.push(row),
            ChildMessage::Held(role, bytes) => {
                let held = self.report.held.get_or_insert_default();
                match role {
                    Role::Receiver => held.receiver = bytes,
                    Role::Sender => held.sender = bytes,
                }
            }
            ChildMessage::Doomed => self.processes[at].is_doomed = true,
            ChildMessage::Done(verdict) => {
                self.processes[at].verdict.get_or_insert(verdict);
                let has_passed =
                    |process: &Process| matches!(process.verdict, None | Some(Verdict::Passed));
                let has_all_passed = self.processes.iter().all(has_passed);
                match (self.processes.iter().all(Process::is_decided), has_all_passed) {
                    (true, true) => self.end_within(self.exit),
                    (true, false) => self.end_within(Duration::ZERO),
                    (false, true) => {}
                    (false, false) => self.ended_early(at),
                }
            }
        }
    }

    /// Tells the other process that its peer has ended, and gives it `GRACE` to end.
    fn ended_early(&mut self, at: usize) {
        self.send_to_other(at, &ParentMessage::PeerEnded);
        self.end_within(self.grace);
    }

    fn end_within(&mut self, time: Duration) {
        self.deadline = self.deadline.min(Instant::now() + time);
    }

    fn send_to_other(&mut self, at: usize, message: &ParentMessage) {
        let role = self.processes[at].role.other();
        let other = self.processes.iter_mut().find(|process| process.role == role);
        let Some(stdin) = other.and_then(|process| process.child.stdin.as_mut()) else { return };
        if let Ok(line) = serde_json::to_string(message) {
            // An error means that the process has ended, which `Event::Closed` reports.
            let _ = stdin.write_all((line + "\n").as_bytes());
        }
    }

    /// Kills the processes that have not ended, and sets the verdict of all processes together.
    fn end(&mut self, timeout: Duration) {
        let is_pair = self.processes.len() > 1;
        let has_failed = self.processes.iter().any(|process| {
            matches!(process.verdict, Some(Verdict::Failed(_) | Verdict::Skipped(_)))
                || (process.status.is_some() && process.verdict.is_none() && !process.is_doomed)
        });
        let (mut failures, mut has_waited) = (Vec::new(), false);
        for process in &mut self.processes {
            if process.verdict == Some(Verdict::Passed) {
                // The child gets more time to exit: a stall of the machine may have used up the
                // time that the child had.
                process.reap(Instant::now() + self.grace);
            }
            let was_killed = process.status.is_none();
            if was_killed {
                let _ = process.child.kill();
                process.reap(Instant::now() + self.exit);
            }
            match process.judge(was_killed, has_failed, timeout, self.exit) {
                Verdict::Failed(why) if is_pair => {
                    failures.push(format!("{}: {why}", process.role.name()));
                }
                Verdict::Failed(why) => failures.push(why),
                Verdict::Skipped(why) => self.report.verdict = Verdict::Skipped(why),
                Verdict::PeerEnded => has_waited = true,
                Verdict::Passed => {}
            }
        }
        if failures.is_empty() && has_waited && self.report.verdict == Verdict::Passed {
            failures.push("both processes waited for each other".to_owned());
        }
        if !failures.is_empty() {
            self.report.verdict = Verdict::Failed(failures.join("; "));
        }
    }
}

impl Process {
    fn start(
        role: Role,
        arguments: &[OsString],
        events: &Sender<(Role, Event)>,
    ) -> std::io::Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let words = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            let words = Arc::clone(&words);
            in_lines(stderr, move |line| {
                let line = String::from_utf8_lossy(line).trim_end().to_owned();
                if line.is_empty() {
                    return;
                }
                let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                words.push_back(line);
                if words.len() > LAST_WORDS {
                    words.pop_front();
                }
            })?;
        }
        if let Some(stdout) = child.stdout.take() {
            let events = events.clone();
            in_lines(stdout, move |line| {
                let event = match line {
                    [] => Event::Closed,
                    line => match serde_json::from_slice(line) {
                        Ok(message) => Event::Message(message),
                        Err(_) => return,
                    },
                };
                // Fails only when the point has ended.
                let _ = events.send((role, event));
            })?;
        }
        Ok(Process {
            role,
            child,
            step: "starting".to_owned(),
            verdict: None,
            status: None,
            is_doomed: false,
            words,
        })
    }

    fn is_decided(&self) -> bool {
        self.verdict.is_some() || self.is_doomed
    }

    /// Waits for the process to exit, at most until the deadline, and takes its status.
    fn reap(&mut self, deadline: Instant) {
        while self.status.is_none() && Instant::now() < deadline {
            self.status = self.child.try_wait().ok().flatten();
            if self.status.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Returns the verdict on the process, now that it has ended.
    fn judge(
        &self,
        was_killed: bool,
        has_failed: bool,
        timeout: Duration,
        exit: Duration,
    ) -> Verdict {
        let step = &self.step;
        match (&self.verdict, self.status) {
            _ if self.is_doomed => Verdict::Passed,
            (Some(Verdict::Passed), _) if was_killed && !has_failed => Verdict::Failed(format!(
                "all steps passed, but the process did not exit within {} s: code of the plugin \
                 still runs at exit",
                exit.as_secs_f64()
            )),
            (Some(Verdict::Passed), Some(status)) if !was_killed && !status.success() => {
                let words = self.last_words();
                Verdict::Failed(format!("{} after all steps had passed{words}", death(status)))
            }
            (Some(verdict), _) => verdict.clone(),
            (None, _) if was_killed && has_failed => Verdict::PeerEnded,
            (None, _) if was_killed => Verdict::Failed(format!(
                "did not end within {} s; last step: {step}",
                timeout.as_secs_f64()
            )),
            (None, status) => {
                let death = status.map_or_else(|| "the process died".to_owned(), death);
                Verdict::Failed(format!("{death}; last step: {step}{}", self.last_words()))
            }
        }
    }

    fn last_words(&self) -> String {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.is_empty() {
            return String::new();
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        format!("; last lines on standard error: {}", words.join(" / "))
    }
}

/// Describes how a process ended.
fn death(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = match signal {
                libc::SIGSEGV => " (SIGSEGV: invalid memory access)",
                libc::SIGABRT => " (SIGABRT)",
                libc::SIGBUS => " (SIGBUS)",
                libc::SIGPIPE => " (SIGPIPE: wrote to a closed connection)",
                _ => "",
            };
            format!("the process died of signal {signal}{name}")
        }
        (None, code) => {
            format!("the process exited by itself, with status {}", code.unwrap_or_default())
        }
    }
}

/// Starts a thread that passes each line of `pipe` to `take`, and an empty line at the end.
fn in_lines(
    pipe: impl Read + Send + 'static,
    mut take: impl FnMut(&[u8]) + Send + 'static,
) -> std::io::Result<()> {
    std::thread::Builder::new().spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            let is_open = pipe.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0);
            take(&line);
            if !is_open {
                return;
            }
        }
    })?;
    Ok(())
}
