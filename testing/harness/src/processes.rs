//! Ranks as processes of this test binary: each process is one rank, and runs the one case that its
//! environment names.

use ferroccl::Error;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const CASE: &str = "FERROCCL_TEST_CASE";
const PAUSE: Duration = Duration::from_millis(5);

/// Name and body of a case that a rank's process runs.
pub type Case = (&'static str, fn() -> Result<(), Error>);

/// Runs one rank in a process that [`Processes`] started; returns at once in any other process.
#[expect(clippy::exit, reason = "the process is a rank, not a test, and ends as a program does")]
pub fn rank(cases: &[&[Case]]) {
    let Ok(name) = std::env::var(CASE) else { return };
    let mut cases = cases.iter().copied().flatten();
    let (_, case) = cases.find(|(case, _)| *case == name).unwrap();
    match case() {
        Ok(()) => println!("\nwell"),
        Err(error) => {
            say(&format!("error: {error}"));
            std::process::exit(1);
        }
    }
}

/// Writes a line to standard error in one call, so that lines of several ranks do not mix.
pub fn say(line: &str) {
    std::io::stderr().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

/// Returns a command that runs a case as one rank; the caller adds the rank to the environment.
pub fn command(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments()).env(CASE, case).stdin(Stdio::null());
    command
}

/// Returns the arguments with which this test binary runs the case that the environment names.
pub fn arguments() -> [&'static str; 3] {
    ["--exact", "rank", "--nocapture"]
}

/// Returns a free loopback address outside the range of ports that the system assigns.
pub fn free_address() -> String {
    let first = 10_000 + (std::process::id() * 61 + rand()) % 20_000;
    let free = |port: &u32| TcpListener::bind(("127.0.0.1", *port as u16)).is_ok();
    let port = (first..first + 1000).find(free).unwrap();
    format!("127.0.0.1:{port}")
}

fn rand() -> u32 {
    let bytes = ferroccl::bootstrap::random_bytes().unwrap();
    u32::from_le_bytes([bytes[0], bytes[1], 0, 0])
}

/// Exit status and output of a process that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output and standard error, interleaved.
    pub output: String,
}

impl Ended {
    /// Returns the rest of the first line that starts with `error: `, or an empty text.
    pub fn error(&self) -> &str {
        let error = self.output.lines().find_map(|line| line.strip_prefix("error: "));
        error.unwrap_or_default()
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

/// Running processes; dropping them kills them.
#[derive(Debug)]
pub struct Processes(Vec<Process>);

impl Processes {
    /// Starts `n` ranks without a launcher. The environment of each process names its rank.
    pub fn ranks(n: u32, case: &str, change: impl Fn(u32, &mut Command)) -> Processes {
        Processes::ranks_at(&free_address(), n, case, |rank, mut command| {
            change(rank, &mut command);
            command
        })
    }

    /// Starts `n` ranks without a launcher. Rank 0 listens at `address`.
    pub fn ranks_at(
        address: &str,
        n: u32,
        case: &str,
        change: impl Fn(u32, Command) -> Command,
    ) -> Processes {
        Processes::start((0..n).map(|rank| {
            let mut command = command(case);
            command
                .env("FERROCCL_RANK", rank.to_string())
                .env("FERROCCL_RANKS", n.to_string())
                .env("FERROCCL_COMM_ID", address)
                .env("FERROCCL_SECRET", "00112233445566778899aabbccddeeff");
            change(rank, command)
        }))
    }

    /// Starts a process for each command.
    pub fn start(commands: impl IntoIterator<Item = Command>) -> Processes {
        let mut all = Processes(Vec::new());
        for mut command in commands {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let output = Arc::default();
            let stdout = read(child.stdout.take().unwrap(), &output);
            let stderr = read(child.stderr.take().unwrap(), &output);
            all.0.push(Process { child, output, readers: vec![stdout, stderr] });
        }
        all
    }

    /// Returns the id of a process.
    pub fn id(&self, index: usize) -> u32 {
        self.0[index].child.id()
    }

    /// Returns the output of a process so far.
    pub fn output(&self, index: usize) -> String {
        String::from_utf8_lossy(&self.0[index].output.lock().unwrap()).into_owned()
    }

    /// Returns the outputs of all processes so far.
    fn outputs(&self) -> String {
        (0..self.0.len()).map(|index| format!("--- {index}:\n{}", self.output(index))).collect()
    }

    /// Waits until a process has written `text`; panics with all outputs after `within`.
    pub fn await_text(&self, index: usize, text: &str, within: Duration) {
        let start = Instant::now();
        while !self.output(index).contains(text) {
            assert!(
                start.elapsed() < within,
                "process {index} did not write {text:?}:\n{}",
                self.outputs()
            );
            thread::sleep(PAUSE);
        }
    }

    /// Sends a process a signal.
    pub fn signal(&self, index: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.0[index].child), signal).unwrap();
    }

    /// Waits for all processes; panics with all outputs if a process has not ended in time.
    pub fn end(mut self, within: Duration) -> Vec<Ended> {
        let deadline = Instant::now() + within;
        let mut statuses = Vec::new();
        for index in 0..self.0.len() {
            statuses.push(loop {
                match self.0[index].child.try_wait().unwrap() {
                    Some(status) => break status,
                    None if Instant::now() < deadline => thread::sleep(PAUSE),
                    None => panic!("process {index} has not ended:\n{}", self.outputs()),
                }
            });
        }
        let processes = std::mem::take(&mut self.0).into_iter().zip(statuses);
        let ended = processes.map(|(process, status)| {
            while !process.readers.iter().all(JoinHandle::is_finished) {
                assert!(
                    Instant::now() < deadline,
                    "a process that a rank left behind holds the rank's output open"
                );
                thread::sleep(PAUSE);
            }
            let output = String::from_utf8_lossy(&process.output.lock().unwrap()).into_owned();
            Ended { status, output }
        });
        ended.collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.child.kill();
            while matches!(process.child.try_wait(), Ok(None)) {
                thread::sleep(PAUSE);
            }
        }
    }
}

fn read(mut from: impl Read + Send + 'static, to: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let to = Arc::clone(to);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            to.lock().unwrap().extend_from_slice(&buffer[..count]);
        }
    })
}

/// Returns whether SIGKILL ended a process.
pub fn was_killed(ended: &Ended) -> bool {
    ended.status.signal() == Some(9)
}
