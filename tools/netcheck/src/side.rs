//! One of the processes that check a point (a demand on a plugin), seen from inside: its steps, its
//! peer, its deadline.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nccl_net_abi::Profiler;
use rustix::process::{Pid, Signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arguments::Arguments;
use crate::library::Plugin;
use crate::log;
use crate::messages::{ChildMessage, ParentMessage, Role, Verdict};
use crate::net::Net;
use crate::stop::{Outcome, Stop, demand, failed, skipped};
use crate::watch::Watch;

/// Time limit of a call that must not block, at the default --timeout. In each process, the first
/// call over the limit is still accepted if it takes at most ten times the limit, because the
/// machine can be busy. A second call over the limit is a failure.
const PROMPT: Duration = Duration::from_millis(100);
/// Time after which a call that must not block counts as stuck, at the default --timeout.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of polls that a wait makes without sleeping; it sleeps after each later poll.
const EAGER_POLLS: u32 = 2000;
/// Libraries that stay open for the life of the process.
static OPEN: Mutex<Vec<Plugin>> = Mutex::new(Vec::new());

/// This process's side of a point.
#[derive(Debug)]
pub(crate) struct Side {
    /// Role of this process.
    pub(crate) role: Role,
    /// Arguments of the user.
    pub(crate) arguments: Arguments,
    /// Current step, and the deadline.
    pub(crate) watch: Arc<Watch>,
    up: Arc<Mutex<File>>,
    inbox: Mutex<Receiver<ParentMessage>>,
    slow_calls: Mutex<u32>,
}

impl Side {
    /// Returns this process's side of a point whose time limit is `timeout`. Starts two threads:
    /// one detects a stuck call, and one receives the peer's values.
    pub(crate) fn new(
        role: Role,
        arguments: &Arguments,
        timeout: Duration,
    ) -> std::io::Result<Side> {
        // This process dies with its parent, even while this process is stopped. If the parent ends
        // before this line, `read_in_background` sees the end of the pipe and ends this process.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Plugins may print to standard output: their text must not mix with this program's lines.
        let up = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
        let up = Arc::new(Mutex::new(File::from(up)));
        let watch = Arc::new(Watch::new(timeout, arguments.on_this_machine(CALL_TIMEOUT)));
        let to_log = Arc::clone(&up);
        log::to(Box::new(move |line| write(&to_log, &ChildMessage::Log(line))));
        let inbox = Mutex::new(read_in_background()?);
        let (stuck, to_report) = (Arc::clone(&watch), Arc::clone(&up));
        std::thread::Builder::new().name("netcheck watch".to_owned()).spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(20));
                if let Some(why) = stuck.stuck() {
                    return write(&to_report, &ChildMessage::Done(Verdict::Failed(why)));
                }
            }
        })?;
        let (arguments, slow_calls) = (arguments.clone(), Mutex::new(0));
        Ok(Side { role, arguments, watch, up, inbox, slow_calls })
    }

    /// Opens the library, but calls none of its functions.
    pub(crate) fn plugin(&self) -> Outcome<Plugin> {
        self.step("opening the library");
        let plugin = Plugin::open(self.arguments.library(), self.arguments.api);
        plugin.map_err(Stop::Failed)
    }

    /// Opens the library for the life of the process, calls `init`, and selects the device of
    /// `--device`.
    pub(crate) fn net(&self) -> Outcome<Net> {
        self.net_with(None)
    }

    /// Opens the plugin as `Side::net` does, with a profiler for `init`.
    pub(crate) fn net_with(&self, profiler: Profiler) -> Outcome<Net> {
        let plugin = self.plugin()?;
        let net = self.init_with(&plugin, profiler);
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).push(plugin);
        net
    }

    /// Calls `init` and selects the device of `--device`.
    pub(crate) fn init(&self, plugin: &Plugin) -> Outcome<Net> {
        self.init_with(plugin, None)
    }

    fn init_with(&self, plugin: &Plugin, profiler: Profiler) -> Outcome<Net> {
        self.step("init");
        let net = Net::init(plugin.calls, profiler)?;
        if net.devices()? == 0 {
            self.step("finalize, as there is no device");
            net.finalize()?;
            return skipped(
                "the plugin reports 0 devices: it finds nothing to use on this machine, so NCCL \
                 goes on to the next plugin",
            );
        }
        let device = match self.arguments.device[..] {
            [device] => device,
            ref parts => match net.make_device(parts) {
                Some(made) => made?,
                None => {
                    let count = parts.len();
                    return failed(format!(
                        "makeVDevice is absent or cannot merge {count} devices"
                    ));
                }
            },
        };
        let count = net.devices()?;
        demand(device < count, || {
            format!("there is no device {device}; the number of devices is {count}")
        })?;
        Ok(net.on(device))
    }

    /// Begins a step, whose name is reported if the point fails.
    pub(crate) fn step(&self, step: &str) {
        self.watch.step(step);
        self.write(&ChildMessage::Step(step.to_owned()));
    }

    /// Shows a text beside the outcome.
    pub(crate) fn note(&self, note: String) {
        self.write(&ChildMessage::Note(note));
    }

    /// Kills this process. The outcome of the point then depends on the peer alone.
    pub(crate) fn die(&self) -> Outcome {
        self.write(&ChildMessage::Doomed);
        let this: Pid = rustix::process::getpid();
        let killed = rustix::process::kill_process(this, Signal::KILL);
        failed(format!("this process could not be killed: {killed:?}"))
    }

    /// Sends a value to the peer.
    pub(crate) fn send_value(&self, what: &impl Serialize) -> Outcome {
        let value = serde_json::to_value(what);
        let value = value
            .map_err(|error| Stop::Failed(format!("cannot send a value to the peer: {error}")))?;
        self.write(&ChildMessage::Tell(value));
        Ok(())
    }

    /// Waits for a value from the peer.
    pub(crate) fn receive_value<T: DeserializeOwned>(&self) -> Outcome<T> {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        match inbox.recv_timeout(self.watch.left()) {
            Ok(ParentMessage::Heard(value)) => serde_json::from_value(value)
                .map_err(|error| Stop::Failed(format!("the peer sent a wrong value: {error}"))),
            // The peer has ended or takes too long, and reports the reason itself.
            Ok(ParentMessage::PeerEnded) | Err(_) => Err(Stop::PeerEnded),
        }
    }

    /// Waits until the peer has called `barrier` too.
    pub(crate) fn barrier(&self) -> Outcome {
        self.send_value(&())?;
        self.receive_value()
    }

    /// Polls until there is a result, or the time is over.
    pub(crate) fn until<T>(
        &self,
        what: impl Display,
        mut poll: impl FnMut() -> Outcome<Option<T>>,
    ) -> Outcome<T> {
        for polls in 0_u32.. {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            if polls < EAGER_POLLS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
            if polls % 64 == 0 && self.watch.is_over() {
                break;
            }
        }
        failed(self.watch.too_long(&what.to_string()))
    }

    /// Polls for `time` or until `poll` returns true. Returns whether `poll` returned true.
    pub(crate) fn poll_for(
        &self,
        time: Duration,
        mut poll: impl FnMut() -> Outcome<bool>,
    ) -> Outcome<bool> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if poll()? {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(false)
    }

    /// Makes a call that must not block, and fails if the call blocks.
    pub(crate) fn promptly<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        let start = Instant::now();
        let result = self.watch.call(name, call)?;
        let taken = start.elapsed();
        let prompt = self.arguments.on_this_machine(PROMPT);
        if taken > prompt {
            let mut slow_calls = self.slow_calls.lock().unwrap_or_else(PoisonError::into_inner);
            *slow_calls += 1;
            if *slow_calls > 1 || taken > 10 * prompt {
                let (taken, prompt) = (taken.as_millis(), prompt.as_millis());
                return failed(format!(
                    "{name} blocked for {taken} ms, expected it to return at once (within \
                     {prompt} ms)"
                ));
            }
        }
        Ok(result)
    }

    /// Writes a message to the process that started this one.
    pub(crate) fn write(&self, message: &ChildMessage) {
        write(&self.up, message);
    }
}

fn write(up: &Mutex<File>, message: &ChildMessage) {
    let Ok(mut line) = serde_json::to_string(message) else { return };
    line.push('\n');
    // A write error means that this process is about to be killed.
    let _ = up.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
}

/// Reads the peer's values in a thread, so that `receive_value` can have a deadline. The end of the
/// pipe means that the parent process has ended; this process then kills itself.
fn read_in_background() -> std::io::Result<Receiver<ParentMessage>> {
    let (to_inbox, inbox) = channel();
    std::thread::Builder::new().name("netcheck inbox".to_owned()).spawn(move || {
        for line in BufReader::new(std::io::stdin()).lines().map_while(Result::ok) {
            if let Ok(message) = serde_json::from_str(&line) {
                // Sending fails only when the point has ended.
                let _ = to_inbox.send(message);
            }
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    })?;
    Ok(inbox)
}
