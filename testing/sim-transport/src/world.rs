//! Handle to a world.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::Address;

use crate::conditions::Conditions;
use crate::state::{SimEvent, State, Stats};

/// Ranks and the wires between them. Clones refer to the same world.
#[derive(Clone, Debug)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl World {
    /// Creates a world of `ranks` ranks at time zero.
    #[must_use]
    pub fn new(ranks: u32, conditions: Conditions, seed: u64) -> World {
        World { state: Arc::new(Mutex::new(State::new(ranks, conditions, seed))) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of ranks, dead or alive.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.state().ranks.len() as u32
    }

    /// Returns the current virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.state().now
    }

    /// Returns the time of the next event, if there is one.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.state().next_event()
    }

    /// Executes all events until `to`; time never goes back.
    pub fn advance(&self, to: Instant) {
        self.state().advance(to);
    }

    /// Advances to the next event, or by a tenth of a millisecond if there is none.
    pub fn step(&self) {
        let mut state = self.state();
        let idle = state.now + Duration::from_micros(100);
        let to = state.next_event().unwrap_or(idle);
        state.advance(to);
    }

    /// Crashes a rank at that time.
    pub fn crash_at(&self, rank: u32, at: Instant) {
        self.state().schedule(at, SimEvent::Crash { rank });
    }

    /// Crashes a rank after its next `things` posts and events, counted together; 0 counts as 1.
    pub fn crash_after(&self, rank: u32, things: u64) {
        if let Some(rank) = self.state().ranks.get_mut(rank as usize) {
            rank.crash_after = Some(things.max(1));
        }
    }

    /// Breaks the connections between two ranks. Rank `first` learns of the break at once, rank
    /// `other` after a latency. Data under way is lost.
    pub fn disconnect(&self, first: u32, other: u32) {
        self.state().disconnect(first, other);
    }

    /// Returns whether a rank has crashed.
    #[must_use]
    pub fn has_crashed(&self, rank: u32) -> bool {
        self.state().has_crashed(rank)
    }

    /// Changes the conditions from now on.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.state().conditions = conditions;
    }

    /// Returns the conditions.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        self.state().conditions.clone()
    }

    /// Sends bytes to a listener without proof of membership, as a port scanner would.
    pub fn stranger(&self, address: &Address, bytes: &[u8]) {
        self.state().stranger(address, bytes);
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state().stats
    }

    /// Returns the most bytes in flight to a rank at one time; credits and CTS do not count.
    #[must_use]
    pub fn in_flight_bytes_max(&self, rank: u32) -> usize {
        self.state().ranks.get(rank as usize).map_or(0, |rank| rank.towards_bytes_max)
    }

    /// Returns whether a rank had an event since the last call, and clears that state.
    pub(crate) fn take_dirty(&self, rank: u32) -> bool {
        let mut state = self.state();
        state.ranks.get_mut(rank as usize).is_some_and(|rank| std::mem::take(&mut rank.dirty))
    }
}
