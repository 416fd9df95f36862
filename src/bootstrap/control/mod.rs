//! The control plane of a communicator: one thread that keeps connections to a few other ranks, the
//! neighbours of this rank, for liveness, small exchanges, and agreement after a failure.

mod driver;
mod regroup;

use super::socket::{Deadline, advice};
use super::{BootstrapError, Join, Joined};
use crate::clock::now;
use crate::recorder::{Recorder, Subject};
use ccl_bootstrap::{
    Completed, Control, ControlError, Failure, NoVerdict, Roster, Secret, Strays, Verdict,
};
use ccl_core::types::Rank;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

use driver::Driver;
use regroup::Reachable;

pub use regroup::Invitation;

/// Longest time that a caller waits for its report to be sent.
const REPORT_MAX: Duration = Duration::from_millis(200);

/// Longest time that [`ControlPlane::compare_notes`] waits for a failure to be found, after the
/// deadline of an operation.
const COMPARE_MAX: Duration = Duration::from_secs(1);

/// Error of an exchange over the control plane.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// A rank failed or left, or this rank's blob had too many bytes.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Some ranks did not take part in time.
    #[error(
        "exchange {sequence} of the control plane did not end within {waited_ms} ms: {awaited} \
         took no part; all ranks must make the same calls"
    )]
    TimedOut {
        /// Number of the exchange.
        sequence: u64,
        /// Time waited, in milliseconds.
        waited_ms: u64,
        /// The rank that is awaited, as far as this rank knows.
        awaited: String,
    },
    /// This process was forked from the rank.
    #[error("this process was forked from the rank that joined; only that rank can take part")]
    Forked,
}

/// Error of a verdict that cannot be reached or used.
#[derive(Debug, Error)]
pub enum VerdictError {
    /// This rank gets no verdict.
    #[error(transparent)]
    None(#[from] NoVerdict),
    /// This rank was told to give up before the survivors agreed.
    #[error("{0}")]
    GivenUp(Failure),
    /// There is nothing to agree on.
    #[error("no rank of the communicator has failed as far as rank {rank} knows")]
    NothingFailed {
        /// This rank.
        rank: Rank,
    },
    /// The survivors did not agree in time.
    #[error(
        "the survivors did not agree within {waited_ms} ms on the outcome of this failure: \
         {failure}. Use a timeout longer than FERROCCL_DEAD_AFTER, after which a silent rank \
         counts as dead"
    )]
    TimedOut {
        /// Time waited, in milliseconds.
        waited_ms: u64,
        /// The failure that started the agreement.
        failure: Failure,
    },
    /// This process was forked from the rank.
    #[error("this process was forked from the rank that joined; only that rank can agree")]
    Forked,
    /// This rank is not among the survivors, or they have nowhere to meet.
    #[error("rank {rank} cannot meet the survivors: {reason}")]
    NoRendezvous {
        /// This rank.
        rank: Rank,
        /// The reason.
        reason: &'static str,
    },
}

pub(super) struct Shared {
    control: Mutex<Control>,
    pub(super) changed: Condvar,
    /// 1 + the failed rank; 0 while no rank has failed.
    failed: AtomicU64,
    /// The longest of the round trips to neighbours, in microseconds.
    pub(super) round_trip_us: AtomicU32,
    pub(super) failure: OnceLock<Failure>,
    /// Event that interrupts the control thread's wait.
    pub(super) wake: OwnedFd,
    /// Deadline by which the control thread must end; set once, when this rank leaves.
    pub(super) leaving: OnceLock<Deadline>,
    /// Control plane of the communicator that is being made from this one, if there is one.
    successor: Mutex<Weak<ControlPlane>>,
    /// Listening sockets at which the survivors can meet, if this rank coordinates their agreement.
    /// There is one socket per verdict; the key is its port.
    rendezvous_listeners: Mutex<BTreeMap<u16, TcpListener>>,
    pub(super) recorder: Recorder,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Control> {
        // The state machine is valid between any two calls of its methods, even if a caller
        // panicked.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rendezvous_listeners(&self) -> MutexGuard<'_, BTreeMap<u16, TcpListener>> {
        self.rendezvous_listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn successor(&self) -> MutexGuard<'_, Weak<ControlPlane>> {
        self.successor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures the round trip on a connection with a neighbour.
    pub(super) fn measure(&self, stream: &TcpStream) {
        if let Some(took) = ccl_socket::socket::round_trip(stream) {
            let microseconds = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
            self.round_trip_us.fetch_max(microseconds, Ordering::Relaxed);
        }
    }

    fn wake(&self) {
        // The write fails only if the counter is full. Any counter above 0 wakes the thread.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits until `done` returns a value, at most `timeout`.
    pub(super) fn await_change<T>(
        &self,
        timeout: Duration,
        mut done: impl FnMut(&mut Control) -> Option<T>,
    ) -> Option<T> {
        let deadline = Deadline::after(timeout);
        let mut control = self.lock();
        loop {
            if let Some(done) = done(&mut control) {
                return Some(done);
            }
            let left = deadline.left();
            if left.is_zero() {
                return None;
            }
            control = self
                .changed
                .wait_timeout(control, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(control, _)| control);
        }
    }
}

/// The control plane of a communicator: membership, liveness, small exchanges between the ranks
/// (never payload), and agreement among the survivors of a failure. A rank that drops its control
/// plane leaves in good order, as with [`ControlPlane::close`].
pub struct ControlPlane {
    pub(super) rank: Rank,
    ranks: u32,
    roster: Roster,
    pub(super) secret: Secret,
    /// Addresses of the control ports, by rank.
    pub(super) addresses: Vec<SocketAddr>,
    /// Addresses at which ranks of a communicator made from this one can meet.
    reachable: Reachable,
    linger: Duration,
    /// The process that runs the control thread.
    process: u32,
    completed: Arc<Completed>,
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, ranks) = (self.rank, self.ranks);
        write!(f, "ControlPlane(rank {rank} of {ranks}, failure: {:?})", self.failure())
    }
}

impl ControlPlane {
    /// Connects this rank with its neighbours; blocks until all connections are made, a rank fails,
    /// or the deadline passes. Returns the control plane and the result of connecting.
    pub(super) fn start(
        join: &Join,
        joined: Joined,
        deadline: Deadline,
    ) -> Result<(ControlPlane, Result<(), BootstrapError>), BootstrapError> {
        let system = |doing, error| BootstrapError::System { doing, error };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("make an eventfd", error.into()))?;
        let Join { rank, ranks, timing, linger, .. } = *join;
        let Joined { roster, listener, addresses } = joined;
        let recorder = recorder(join, &roster)?;
        let reachable = Reachable::of(join, listener.as_ref());
        let completed = Arc::new(Completed::default());
        let secret = join.control_secret(&roster.session);
        let mut control =
            Control::new(rank, ranks, secret.clone(), timing, completed.clone(), now());
        control.set_roster(&roster);
        let shared = Arc::new(Shared {
            control: Mutex::new(control),
            changed: Condvar::new(),
            failed: AtomicU64::new(0),
            round_trip_us: AtomicU32::new(0),
            failure: OnceLock::new(),
            wake,
            leaving: OnceLock::new(),
            successor: Mutex::default(),
            rendezvous_listeners: Mutex::new(BTreeMap::new()),
            recorder,
        });
        let process = std::process::id();
        let mut plane = ControlPlane {
            rank,
            ranks,
            roster,
            secret,
            addresses: addresses.clone(),
            reachable,
            linger,
            process,
            completed,
            shared: shared.clone(),
            thread: None,
        };
        if ranks > 1 {
            let streams = BTreeMap::new();
            let driver = Driver { shared, listener, addresses, streams, accept_pause: None };
            let thread = std::thread::Builder::new()
                .name(format!("ferroccl-control-{rank}"))
                .spawn(move || driver.run())
                .map_err(|error| system("start the control thread", error))?;
            plane.thread = Some(thread);
        }
        let linked = if ranks > 1 { plane.await_neighbours(join, deadline) } else { Ok(()) };
        Ok((plane, linked))
    }

    fn await_neighbours(&self, join: &Join, deadline: Deadline) -> Result<(), BootstrapError> {
        let linked = loop {
            let slice = deadline.left().min(join.give_up.every());
            let linked = self.shared.await_change(slice, |control| {
                let unlinked = control.unlinked();
                match control.failure() {
                    _ if unlinked.is_empty() => Some(Ok(())),
                    Some(failure) => Some(Err(failure.clone())),
                    None => None,
                }
            });
            if linked.is_some() || deadline.is_past() {
                break linked;
            }
            join.give_up.check(join.rank).inspect_err(|error| {
                self.report(self.rank, error.to_string());
            })?;
        };
        match linked {
            Some(Ok(())) => Ok(()),
            Some(Err(failure)) => Err(BootstrapError::Linking { rank: self.rank, failure }),
            None => {
                let peer = self.shared.lock().unlinked().first().copied().unwrap_or(self.rank);
                let address = self.addresses.get(peer as usize).copied();
                let address = address.map_or_else(String::new, |address| address.to_string());
                let waited_ms = deadline.waited_ms();
                // Without this report, connected ranks believe that this one leaves in good order.
                let text = format!("it has no control connection with rank {peer}");
                self.report(self.rank, format!("{text}: {}", advice()));
                let rank = self.rank;
                let advice = advice();
                Err(BootstrapError::Unlinked { rank, peer, address, waited_ms, advice })
            }
        }
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the roster: the members, by rank.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns whether a rank is known to have failed: one relaxed load, for hot loops.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed) != 0
    }

    /// Returns the failure that ended this communicator, as far as this rank knows; none without a
    /// failure. If several ranks fail at once, other ranks may first hear of another failure:
    /// [`ControlPlane::verdict`] names the failure that all agree on.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        // Acquire: `failure` was written before `failed`.
        match self.shared.failed.load(Ordering::Acquire) {
            0 => None,
            _ => self.shared.failure.get().cloned(),
        }
    }

    /// Returns whether `rank` is known to have left in good order.
    #[must_use]
    pub fn has_left(&self, rank: Rank) -> bool {
        !self.is_forked() && self.shared.lock().has_left(rank)
    }

    /// Returns how many connections at this rank's control port came to nothing, for each cause.
    #[must_use]
    pub fn strays(&self) -> Strays {
        if self.is_forked() { Strays::default() } else { self.shared.lock().strays() }
    }

    /// Returns this rank's progress, in which the data path records the end of each operation. If
    /// [`Completed::finish`] returns false for an operation, that operation must fail.
    #[must_use]
    pub fn completed(&self) -> &Arc<Completed> {
        &self.completed
    }

    /// Prevents all operations that have not ended yet from ending well on this rank. Returns the
    /// number of the last operation that ended well.
    pub fn freeze(&self) -> u64 {
        self.completed.freeze()
    }

    /// Waits for the verdict that the survivors of a failure agree on, at most `timeout`. A failure
    /// starts the agreement by itself. The verdict is the same on every survivor.
    ///
    /// If a survivor dies after the verdict, the next call waits for the next verdict
    /// ([`Verdict::epoch`] counts the verdicts). The next verdict adds this survivor to the dead
    /// ranks; it keeps the cause and the last completed operation.
    ///
    /// # Errors
    /// Nothing has failed, the others declared this rank dead, this rank gave up
    /// ([`ControlPlane::abort`]), too many ranks are silent, the time is up, or this process is a
    /// forked child.
    pub fn verdict(&self, timeout: Duration) -> Result<Verdict, VerdictError> {
        self.agree(timeout, |control| control.verdict().map(Option::<&Verdict>::cloned))
    }

    /// Does what [`ControlPlane::verdict`] does, for ranks that want to go on together. If a
    /// survivor has left in good order, the remaining ranks agree once more.
    ///
    /// # Errors
    /// The errors of [`ControlPlane::verdict`].
    pub(crate) fn reconvene(&self, timeout: Duration) -> Result<Verdict, VerdictError> {
        if !self.is_forked() {
            let _ = self.shared.lock().reconvene(now());
            self.shared.wake();
        }
        self.agree(timeout, |control| control.reconvene(now()).map(Option::<&Verdict>::cloned))
    }

    fn agree(
        &self,
        timeout: Duration,
        look: impl Fn(&mut Control) -> Result<Option<Verdict>, NoVerdict>,
    ) -> Result<Verdict, VerdictError> {
        if self.is_forked() {
            return Err(VerdictError::Forked);
        }
        if self.thread.is_none() && self.failure().is_none() {
            return Err(VerdictError::NothingFailed { rank: self.rank });
        }
        let deadline = Deadline::after(timeout);
        let mut refusal = None;
        let found = self.shared.await_change(timeout, |control| match look(control) {
            Ok(verdict) => {
                refusal = None;
                let gave_up = || control.withdrawn(self.rank).cloned();
                verdict.map_or_else(
                    || gave_up().map(|failure| Err(VerdictError::GivenUp(failure))),
                    |verdict| Some(Ok(verdict)),
                )
            }
            Err(error @ NoVerdict::Condemned(_)) => Some(Err(error.into())),
            // A verdict can still come from a rank that knows that the silent ranks have ended.
            Err(error) => {
                refusal = Some(error);
                None
            }
        });
        match (found, refusal, self.failure()) {
            (Some(Ok(verdict)), ..) => Ok(verdict),
            (Some(Err(error)), ..) => Err(error),
            (None, Some(error), _) => Err(error.into()),
            (None, None, None) => Err(VerdictError::NothingFailed { rank: self.rank }),
            (None, None, Some(failure)) => {
                Err(VerdictError::TimedOut { waited_ms: deadline.waited_ms(), failure })
            }
        }
    }

    /// Returns whether this process is the child of a fork. A child has the connections but not the
    /// thread, and the lock may be held for ever by a thread that only the parent has.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Returns the longest of the round trips to this rank's neighbours, as the kernel measured
    /// them on the connections of the control plane; zero without neighbours.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.shared.round_trip_us.load(Ordering::Relaxed).into())
    }

    /// Returns the recorder of this rank.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// Makes the ranks compare notes on an operation of this rank that has stalled past its
    /// deadline. Returns the failure that ends the communicator, if one is found in time.
    pub(crate) fn compare_notes(&self, stalled: Duration) -> Option<Failure> {
        if self.thread.is_none() || self.is_forked() {
            return None;
        }
        self.shared.lock().overdue(stalled, now());
        self.shared.wake();
        self.shared.await_change(COMPARE_MAX, |_| self.failure())
    }

    /// Ends the communicator for all ranks, at this rank's request. If the communicator has ended
    /// already, the other survivors learn that this rank does not go on with them. A communicator
    /// that is being made from this one ends as well.
    pub fn abort(&self, reason: impl Into<String>) {
        if self.is_forked() {
            return;
        }
        let text: String = reason.into();
        let successor = self.shared.successor().upgrade();
        self.tell(|control| control.give_up(text.clone(), now()));
        if let Some(successor) = successor {
            successor.abort(text);
        }
    }

    /// Ends the communicator for all ranks because `rank` was found failed, by a transport for
    /// example. The child of a fork reports nothing.
    pub fn report(&self, rank: Rank, reason: impl Into<String>) {
        if self.is_forked() {
            return;
        }
        let text = reason.into();
        self.tell(|control| control.report(rank, text, now()));
    }

    fn tell(&self, what: impl FnOnce(&mut Control)) {
        let shared = &self.shared;
        let mut control = shared.lock();
        what(&mut control);
        if self.thread.is_none() {
            // A single rank agrees with itself and needs no rendezvous.
            if control.wants_rendezvous_port() {
                control.set_rendezvous_port(0, now());
            }
            return publish(shared, &control);
        }
        shared.wake();
        // The thread publishes the failure after sending it: the caller may end this process next,
        // and the other ranks must not take the end of the process for the cause.
        let unseen = |_: &mut Control| !self.has_failed();
        let waited = shared.changed.wait_timeout_while(control, REPORT_MAX, unseen);
        let (control, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // Publishes here, too: this rank's further calls must fail, however long the control thread
        // is kept from running.
        publish(shared, &control);
    }

    /// Returns the failure that ended the communicator, if this rank hears of one within `timeout`.
    pub(crate) fn await_failure(&self, timeout: Duration) -> Option<Failure> {
        if self.is_forked() {
            return None;
        }
        self.shared.await_change(timeout, |control| control.failure().cloned())
    }

    /// Gathers the blobs of all ranks, in order of rank. All ranks must make the same calls in the
    /// same order; a blob has at most 1 MiB minus 64 bytes.
    ///
    /// # Errors
    /// A rank failed or left, or not all ranks called within `timeout`. If a rank's time runs out,
    /// the lowest rank that took no part is declared failed on all ranks.
    pub fn all_gather(
        &self,
        blob: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        if self.is_forked() {
            return Err(ExchangeError::Forked);
        }
        let deadline = Deadline::after(timeout);
        let sequence = self.shared.lock().contribute(blob)?;
        self.shared.wake();
        let gathered = |control: &mut Control| control.gathered(sequence).transpose();
        match self.shared.await_change(timeout, gathered) {
            Some(parts) => Ok(parts?),
            None => Err(self.time_out(sequence, deadline)),
        }
    }

    /// Waits until all ranks have called `barrier`.
    ///
    /// # Errors
    /// The errors of [`ControlPlane::all_gather`].
    pub fn barrier(&self, timeout: Duration) -> Result<(), ExchangeError> {
        self.all_gather(Vec::new(), timeout).map(|_| ())
    }

    /// Leaves in good order: the others do not report a death, and go on without this rank. Blocks
    /// until this rank's last messages are sent, for [`super::Join::linger`] at most.
    pub fn close(self) {}

    fn time_out(&self, sequence: u64, by: Deadline) -> ExchangeError {
        let waited_ms = by.waited_ms();
        let awaited = self.shared.lock().awaited(sequence);
        let awaited = match awaited {
            Some(rank) => {
                let text = format!("it took no part in exchange {sequence} within {waited_ms} ms");
                self.report(rank, text);
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
        self.shared.lock().leave();
        let _ = self.shared.leaving.set(Deadline::after(self.linger));
        self.shared.wake();
        // The thread ends by the deadline that was just set. Its result is ignored: if the thread
        // has panicked, nothing is lost.
        let _ = thread.join();
    }
}

fn recorder(join: &Join, roster: &Roster) -> Result<Recorder, BootstrapError> {
    let Join { rank, ranks, timing, .. } = *join;
    // The name is derived from the session, so that the recording does not show the session itself.
    let name = Secret::from_bytes(roster.session).derive(b"name of a recording");
    let subject = Subject {
        rank,
        ranks,
        communicator: name.iter().take(8).fold(0, |name, byte| name << 8 | u64::from(*byte)),
        heartbeat_ms: u64::try_from(timing.heartbeat.as_millis()).unwrap_or(u64::MAX),
    };
    Recorder::new(&subject, join.recorder.clone()).map_err(|error| BootstrapError::System {
        doing: "make the memory of the recording",
        error: std::io::Error::other(error),
    })
}

/// Makes the failure visible outside of the lock.
pub(super) fn publish(shared: &Shared, control: &Control) {
    if let Some(failure) = control.failure() {
        let failure = shared.failure.get_or_init(|| {
            shared.recorder.fail(&failure.to_string());
            failure.clone()
        });
        shared.failed.store(1 + u64::from(failure.rank), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_bootstrap::UniqueId;
    use std::sync::mpsc;

    #[test]
    fn a_forked_child_reports_nothing_and_waits_for_no_lock() {
        let id = UniqueId { endpoints: vec![], secret: Secret::from_bytes([1; 32]) };
        let join = Join::new(0, 1, id);
        let joined = Joined { roster: Roster::default(), listener: None, addresses: vec![] };
        let deadline = Deadline::after(Duration::ZERO);
        let (mut plane, _) = ControlPlane::start(&join, joined, deadline).unwrap();
        // The state in a forked child: another process id, and a lock that the parent's thread
        // holds.
        plane.process = plane.process.wrapping_add(1);
        let shared = plane.shared.clone();
        let held = shared.lock();
        let (done, ended) = mpsc::channel();
        let child = std::thread::spawn(move || {
            plane.abort("in the child");
            let _ = plane.verdict(Duration::from_secs(60));
            let _ = done.send((plane.has_left(0), plane.failure()));
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(5)), Ok((false, None)));
        drop(held);
        child.join().unwrap();
    }
}
