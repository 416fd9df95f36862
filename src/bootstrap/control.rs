//! The control plane of a communicator: one thread that keeps the star connections, tells who
//! lives, and carries small exchanges.

use super::socket::{self, Deadline, Got, now};
use super::{BootstrapError, Joined};
use ccl_core::bootstrap::{Control, ControlError, ControlTiming, Failure, Roster};
use ccl_core::types::Rank;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// How long a rank that leaves tries to get its goodbye out.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long rank 0 stays after a failure: nothing is left to be learned, but to be heard.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How long a report may take to be sent before its caller goes on.
const REPORT_MAX: Duration = Duration::from_millis(200);
/// Bytes read from one peer before the others have their turn.
const TURN_BYTES: usize = 1 << 20;

/// Why an exchange over the control plane failed.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// A rank failed or left, or this rank's part was too long.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Not all took part in time.
    #[error(
        "exchange {sequence} of the control plane did not end within {waited_ms} ms: {awaited} \
         took no part; all ranks must make the same calls"
    )]
    TimedOut {
        /// Number of the exchange.
        sequence: u64,
        /// How long, in milliseconds.
        waited_ms: u64,
        /// Who is awaited, as far as this rank knows.
        awaited: String,
    },
}

struct Shared {
    control: Mutex<Control>,
    changed: Condvar,
    /// 0 while all is well, else 1 + the rank that failed.
    failed: AtomicU64,
    failure: OnceLock<Failure>,
    /// Interrupts the thread's wait.
    wake: OwnedFd,
    /// Set once, when this rank leaves: by when its thread must end.
    leaving: OnceLock<Deadline>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Control> {
        // The machine is valid between any two of its calls, whatever a panicking caller left.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It fails only when the counter is full: then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The living side of a communicator: who its ranks are, whether all of them live, and small
/// exchanges among them (never payload). Dropping it says goodbye.
pub struct ControlPlane {
    rank: Rank,
    ranks: u32,
    roster: Roster,
    linger: Duration,
    /// The process that has the thread.
    process: u32,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, ranks) = (self.rank, self.ranks);
        write!(f, "ControlPlane(rank {rank} of {ranks}, failure: {:?})", self.failure())
    }
}

impl ControlPlane {
    pub(super) fn start(
        rank: Rank,
        ranks: u32,
        joined: Joined,
        timing: ControlTiming,
        linger: Duration,
    ) -> Result<ControlPlane, BootstrapError> {
        let system = |doing, error| BootstrapError::System { doing, error };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("make an eventfd", error.into()))?;
        let mut control = Control::new(rank, ranks, timing, now());
        control.received(0, &joined.early, now());
        let shared = Arc::new(Shared {
            control: Mutex::new(control),
            changed: Condvar::new(),
            failed: AtomicU64::new(0),
            failure: OnceLock::new(),
            wake,
            leaving: OnceLock::new(),
        });
        let (roster, process) = (joined.roster, std::process::id());
        let mut plane = ControlPlane { rank, ranks, roster, linger, process, shared, thread: None };
        if ranks > 1 {
            let (shared, streams) = (plane.shared.clone(), joined.streams);
            let driver = Driver { rank, shared, streams, aftermath: None };
            let thread = std::thread::Builder::new()
                .name("ferroccl-ctl".to_owned())
                .spawn(move || driver.run())
                .map_err(|error| system("start the control thread", error))?;
            plane.thread = Some(thread);
        }
        Ok(plane)
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Who the ranks are.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Whether a rank is known to have failed: one relaxed load, for hot loops.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed) != 0
    }

    /// The failure that ended this communicator, if one has: the same rank is named everywhere.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        // Acquire: the details were written before the word.
        match self.shared.failed.load(Ordering::Acquire) {
            0 => None,
            _ => self.shared.failure.get().cloned(),
        }
    }

    /// Whether this rank is known to have left in good order.
    #[must_use]
    pub fn has_left(&self, rank: Rank) -> bool {
        !self.is_forked() && self.shared.lock().left().contains(&rank)
    }

    /// Whether this is the child of a fork: it has the connections, but not the thread, and the
    /// lock may be held for ever by a thread that only its parent has.
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Ends the communicator for all ranks, by this rank's own will.
    pub fn abort(&self, reason: impl Into<String>) {
        self.report(self.rank, reason);
    }

    /// Ends the communicator for all ranks because `rank` was found failed, by a transport for
    /// example. The first failure that rank 0 learns of is the one that all ranks name.
    /// The child of a fork reports nothing.
    pub fn report(&self, rank: Rank, reason: impl Into<String>) {
        if self.is_forked() {
            return;
        }
        let shared = &self.shared;
        let mut control = shared.lock();
        control.report(rank, reason.into());
        if self.thread.is_none() {
            return publish(shared, &control);
        }
        shared.wake();
        // The thread shows the failure once it has sent it: the caller's next step may be to end
        // this process, and the others must not take that for the cause.
        let unseen = |_: &mut Control| !self.has_failed();
        let _ = shared.changed.wait_timeout_while(control, REPORT_MAX, unseen);
    }

    /// Hands each rank the blobs of all, in order of rank. All ranks must call it, in the same
    /// order; a blob has at most 1 MiB less 64 bytes.
    ///
    /// # Errors
    /// A rank failed or left, or not all called within `timeout`. Where rank 0's time runs out,
    /// the first rank that took no part is declared failed everywhere.
    pub fn all_gather(
        &self,
        blob: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let deadline = Deadline::after(timeout);
        let mut control = self.shared.lock();
        let sequence = control.contribute(blob)?;
        self.shared.wake();
        loop {
            if let Some(parts) = control.gathered(sequence)? {
                return Ok(parts);
            }
            let left = deadline.left();
            if left.is_zero() {
                return Err(self.time_out(&mut control, sequence, deadline));
            }
            control = self
                .shared
                .changed
                .wait_timeout(control, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(control, _)| control);
        }
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// As [`ControlPlane::all_gather`].
    pub fn barrier(&self, timeout: Duration) -> Result<(), ExchangeError> {
        self.all_gather(Vec::new(), timeout).map(|_| ())
    }

    /// Leaves in good order: the others do not take it for a death. Rank 0 stays as the centre
    /// for up to [`super::Join::linger`] while others are not done (1 s if a rank has failed);
    /// after that, deaths among those others go unnoticed here, and their transports must notice
    /// them. A thread that holds several ranks lets go of rank 0 last.
    pub fn close(self) {}

    fn time_out(&self, control: &mut Control, sequence: u64, by: Deadline) -> ExchangeError {
        let waited_ms = by.waited_ms();
        let awaited = match control.awaited(sequence) {
            Some(rank) => {
                let text = format!("no part in exchange {sequence} within {waited_ms} ms");
                control.report(rank, text);
                publish(&self.shared, control);
                self.shared.wake();
                format!("rank {rank}")
            }
            None => "some rank".to_owned(),
        };
        ExchangeError::TimedOut { sequence, waited_ms, awaited }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.is_forked() {
            return;
        }
        let patience = if self.rank == 0 { self.linger.max(FAREWELL) } else { FAREWELL };
        self.shared.lock().leave();
        let _ = self.shared.leaving.set(Deadline::after(patience));
        self.shared.wake();
        // It ends at the deadline just set, and it does not panic; if it did, nothing is lost.
        let _ = thread.join();
    }
}

/// Makes the failure visible outside the lock.
fn publish(shared: &Shared, control: &Control) {
    if let Some(failure) = control.failure() {
        let failure = shared.failure.get_or_init(|| failure.clone());
        shared.failed.store(1 + u64::from(failure.rank), Ordering::Release);
    }
}

/// The control thread.
struct Driver {
    rank: Rank,
    shared: Arc<Shared>,
    streams: BTreeMap<Rank, TcpStream>,
    /// By when the thread ends after a failure, once this rank leaves.
    aftermath: Option<Deadline>,
}

impl Driver {
    fn run(mut self) {
        let mut buffer = vec![0; 64 << 10];
        while !self.is_done() {
            self.wait();
            let mut drained = [0; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut drained);
            let shared = self.shared.clone();
            let mut control = shared.lock();
            self.read(&mut control, &mut buffer);
            control.tick(now());
            self.write(&mut control);
            // Only now: whoever sees the failure may end the process, and with it this thread.
            publish(&shared, &control);
            shared.changed.notify_all();
            if shared.leaving.get().is_some() && control.failure().is_some() {
                self.aftermath.get_or_insert(Deadline::after(AFTERMATH));
            }
        }
    }

    fn is_done(&self) -> bool {
        let Some(left) = self.left() else { return false };
        let control = self.shared.lock();
        left.is_zero() || self.streams.is_empty() || (self.rank == 0 && control.is_alone())
    }

    /// The time that is left to this thread; no end is set before this rank leaves.
    fn left(&self) -> Option<Duration> {
        let left = self.shared.leaving.get()?.left();
        Some(self.aftermath.map_or(left, |aftermath| left.min(aftermath.left())))
    }

    fn wait(&self) {
        let (mut timeout, unsent) = {
            let control = self.shared.lock();
            let unsent = |rank: &&Rank| !control.outbox(**rank).is_empty();
            let ranks: Vec<_> = self.streams.keys().filter(unsent).copied().collect();
            (control.poll_timeout().since(now()), ranks)
        };
        if let Some(left) = self.left() {
            timeout = timeout.min(left);
        }
        let mut fds = Vec::with_capacity(1 + self.streams.len());
        fds.push((self.shared.wake.as_fd(), PollFlags::IN));
        for (rank, stream) in &self.streams {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, unsent.contains(rank));
            fds.push((stream.as_fd(), flags));
        }
        socket::wait(&fds, timeout);
    }

    fn read(&mut self, control: &mut Control, buffer: &mut [u8]) {
        let mut ended = Vec::new();
        for (rank, stream) in &self.streams {
            let mut turn = 0;
            while turn < TURN_BYTES {
                match socket::read(stream, buffer) {
                    Got::Bytes(count) => {
                        control.received(*rank, &buffer[..count], now());
                        turn += count;
                    }
                    Got::Nothing => break,
                    Got::End => {
                        ended.push(*rank);
                        break;
                    }
                }
            }
        }
        for rank in ended {
            self.streams.remove(&rank);
            control.hung_up(rank);
        }
    }

    fn write(&mut self, control: &mut Control) {
        let own = self.rank;
        self.streams.retain(|rank, stream| {
            let written = socket::write(stream, control.outbox(*rank));
            control.sent(*rank, written);
            if control.is_gone(*rank) || !control.is_closing(*rank) {
                return !control.is_gone(*rank);
            }
            // To close with unread bytes in the socket would reset the connection and could take
            // the goodbye with it: a member ends its own half and waits for rank 0 to close.
            if own != 0 && control.outbox(*rank).is_empty() {
                let _ = stream.shutdown(Shutdown::Write);
            }
            own != 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_forked_child_reports_nothing_and_waits_for_no_lock() {
        let roster = Roster { members: Vec::new() };
        let joined = Joined { roster, streams: BTreeMap::new(), early: Vec::new() };
        let (timing, linger) = (ControlTiming::default(), Duration::ZERO);
        let mut plane = ControlPlane::start(0, 1, joined, timing, linger).unwrap();
        // As a child finds it: another process, and the lock held by a thread it does not have.
        plane.process = plane.process.wrapping_add(1);
        let shared = plane.shared.clone();
        let held = shared.lock();
        let (done, ended) = mpsc::channel();
        let child = std::thread::spawn(move || {
            plane.abort("in the child");
            let _ = done.send((plane.has_left(0), plane.failure()));
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(5)), Ok((false, None)));
        drop(held);
        child.join().unwrap();
    }
}
