//! The handle to a world.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device};

use crate::conditions::Conditions;
use crate::device::{SimDevice, SimTransport};
use crate::state::{Happening, State, Stats};

/// A few ranks and the wires between them. Clones are the same world.
#[derive(Clone, Debug)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl World {
    /// A world of `ranks` ranks at the start of time.
    #[must_use]
    pub fn new(ranks: u32, conditions: Conditions, seed: u64) -> World {
        World { state: Arc::new(Mutex::new(State::new(ranks, conditions, seed))) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many ranks there are, dead or alive.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.state().ranks.len() as u32
    }

    /// The transport as a rank sees it: one device.
    #[must_use]
    pub fn transport(&self, rank: u32) -> SimTransport {
        SimTransport::new(self.clone(), rank)
    }

    /// A rank's device.
    #[must_use]
    pub fn device(&self, rank: u32) -> Arc<dyn Device> {
        Arc::new(SimDevice::new(self.clone(), rank))
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.state().now
    }

    /// When something will happen next, if ever.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.state().next_event()
    }

    /// Lets everything happen that happens until `to`; time never goes back.
    pub fn advance(&self, to: Instant) {
        self.state().advance(to);
    }

    /// Lets time pass to the next event, or by a tenth of a millisecond if there is none.
    pub fn step(&self) {
        let mut state = self.state();
        let idle = state.now + Duration::from_micros(100);
        let to = state.next_event().unwrap_or(idle);
        state.advance(to);
    }

    /// Kills a rank at that time.
    pub fn crash_at(&self, rank: u32, at: Instant) {
        self.state().schedule(at, Happening::Crash { rank });
    }

    /// Kills a rank when so many more things (posts, events) have happened to it, at least one.
    pub fn crash_after(&self, rank: u32, things: u64) {
        if let Some(rank) = self.state().ranks.get_mut(rank as usize) {
            rank.crash_after = Some(things.max(1));
        }
    }

    /// Breaks the connections between two ranks: the first learns of it at once, the other one
    /// after a latency, and what is under way is lost.
    pub fn disconnect(&self, first: u32, other: u32) {
        self.state().disconnect(first, other);
    }

    /// Whether a rank is dead.
    #[must_use]
    pub fn has_crashed(&self, rank: u32) -> bool {
        self.state().has_crashed(rank)
    }

    /// Changes the conditions from now on.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.state().conditions = conditions;
    }

    /// The conditions.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        self.state().conditions.clone()
    }

    /// Sends bytes that prove nothing to a listener, as a port scanner would.
    pub fn stranger(&self, address: &Address, bytes: &[u8]) {
        self.state().stranger(address, bytes);
    }

    /// What has happened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state().stats
    }

    /// The most bytes that were ever under way towards a rank, without credits.
    #[must_use]
    pub fn in_flight_bytes_max(&self, rank: u32) -> usize {
        self.state().ranks.get(rank as usize).map_or(0, |rank| rank.towards_bytes_max)
    }

    /// Whether something has happened to a rank since this was last asked.
    pub(crate) fn take_dirty(&self, rank: u32) -> bool {
        let mut state = self.state();
        state.ranks.get_mut(rank as usize).is_some_and(|rank| std::mem::take(&mut rank.dirty))
    }
}
