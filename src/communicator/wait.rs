//! Waiting of a rank: a rank spins while an answer is likely soon, yields while other threads may
//! need the core, then sleeps until its doorbell rings.
//!
//! Spinning helps only if the peer runs meanwhile. Two ranks share a core if there are more ranks
//! than cores, or if another process keeps a core busy. While one of them spins, the other cannot
//! run and answer. So the spin adapts: it halves whenever a wait is longer than the spin, and
//! doubles, up to the configured time, whenever an answer comes during the spin.

use std::time::{Duration, Instant};

use ccl_core::config::Config;
use ccl_memory::doorbell::Doorbell;

/// The shortest spin.
const SPIN_MIN: Duration = Duration::from_micros(1);

/// Weight of one look for progress, as a number of peeks. A look advances the call as far as
/// possible; a peek only asks the links whether something has happened. Where a peek reads memory,
/// a look takes at least as long as this many peeks.
const LOOK: u32 = 4;

/// The kind of work that one look for progress takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollCost {
    /// Reads of memory that peers write.
    Memory,
    /// Reads of memory that peers write, and polls of a device, which take longer.
    Device,
    /// System calls.
    Calls,
}

/// Returns whether this host has a core for each of its ranks.
pub(super) fn has_core(local_ranks: usize) -> bool {
    local_ranks <= std::thread::available_parallelism().map_or(1, usize::from)
}

/// The policy of waiting: limits that are fixed when the communicator is made, and the length of
/// the spin, which adapts.
#[derive(Debug)]
pub(super) struct WaitPolicy {
    /// Present length of the spin.
    spin: Duration,
    spin_max: Duration,
    park_after: Duration,
    poll_cost: PollCost,
    /// Doorbell that the peers on this host ring.
    pub(super) doorbell: Option<Doorbell>,
}

impl WaitPolicy {
    /// Makes a policy. Ranks do not spin if this host has more of them than cores.
    pub(super) fn new(
        config: &Config,
        local_ranks: usize,
        poll_cost: PollCost,
        doorbell: Option<Doorbell>,
    ) -> WaitPolicy {
        let spin_max = if has_core(local_ranks) { config.spin } else { Duration::ZERO };
        let (park_after, spin) = (config.park_after, spin_max);
        WaitPolicy { spin, spin_max, park_after, poll_cost, doorbell }
    }

    /// Returns the number of empty looks between two readings of the clock. The number is small for
    /// looks with system calls, because such a look takes longer than a reading of the clock. For
    /// these looks, it is smaller still while the spin is shortened, because then another thread
    /// may need the core.
    fn looks_per_tick(&self) -> u32 {
        match self.poll_cost {
            PollCost::Memory | PollCost::Device => 64,
            PollCost::Calls if self.spin < self.spin_max => 1,
            PollCost::Calls => 2,
        }
    }

    /// Adapts the spin after a wait that ended with an answer. `yielded` is true if the rank
    /// yielded during the wait.
    fn adapt_spin(&mut self, yielded: bool) {
        let spin = if yielded { self.spin / 2 } else { self.spin.saturating_mul(2) };
        self.spin = spin.clamp(SPIN_MIN.min(self.spin_max), self.spin_max);
    }
}

/// One wait, from the last progress on.
#[derive(Debug, Default)]
pub(super) struct Wait {
    /// Peeks since the last reading of the clock; a look counts as [`LOOK`] peeks. Includes the
    /// peeks of earlier waits that ended without a reading of the clock.
    peeks: u32,
    since: Option<Instant>,
    yielded: bool,
}

impl Wait {
    /// Ends the wait, if there was one, after progress. Reads no clock.
    #[inline]
    pub(super) fn over(&mut self, wait_policy: &mut WaitPolicy) {
        if self.since.is_some() {
            wait_policy.adapt_spin(self.yielded);
            *self = Wait::default();
        }
    }

    /// Spins or yields after a look without progress. Returns the next step of the wait.
    #[inline]
    pub(super) fn pause(&mut self, wait_policy: &WaitPolicy) -> Pause {
        self.peeks += LOOK;
        if self.peeks < LOOK * wait_policy.looks_per_tick()
            && !self.yielded
            && !wait_policy.spin_max.is_zero()
        {
            // Looks that cost more already take longer than this pause.
            if wait_policy.poll_cost == PollCost::Memory {
                std::hint::spin_loop();
            }
            return Pause::Over;
        }
        self.tick(wait_policy)
    }

    /// Counts a peek that found nothing. Returns false if the clock is to be read before another
    /// peek.
    #[inline]
    pub(super) fn peeked(&mut self, wait_policy: &WaitPolicy) -> bool {
        self.peeks += 1;
        self.peeks < LOOK * wait_policy.looks_per_tick()
    }

    #[cold]
    fn tick(&mut self, wait_policy: &WaitPolicy) -> Pause {
        self.peeks = 0;
        let now = Instant::now();
        let waited = now - *self.since.get_or_insert(now);
        self.yielded |= waited >= wait_policy.spin;
        if waited > wait_policy.park_after {
            return Pause::Sleep(waited);
        }
        if self.yielded {
            std::thread::yield_now();
        }
        Pause::Check(waited)
    }
}

/// Next step of a wait, with the time for which nothing has moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    /// Another look for progress.
    Over,
    /// Check for failures.
    Check(Duration),
    /// Sleep, and check for failures.
    Sleep(Duration),
}
