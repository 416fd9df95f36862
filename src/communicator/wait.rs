//! How a rank waits: spins while an answer is likely within a microsecond, yields while others
//! may need the core, then sleeps until its doorbell rings.

use std::time::{Duration, Instant};

use ccl_core::config::Config;
use ccl_memory::doorbell::Doorbell;

/// The longest sleep without looking around: bounds what a missed ring costs.
const SLEEP_MAX: Duration = Duration::from_millis(5);
/// Empty looks between two looks at the clock.
const LOOKS_PER_TICK: u32 = 64;

/// The manners of waiting, fixed when the communicator is made.
#[derive(Debug)]
pub(super) struct Manners {
    spin: Duration,
    park_after: Duration,
    doorbell: Option<Doorbell>,
}

impl Manners {
    /// Ranks that share cores with each other do not spin.
    pub(super) fn new(config: &Config, local_ranks: usize, doorbell: Option<Doorbell>) -> Manners {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if local_ranks > cores { Duration::ZERO } else { config.spin };
        Manners { spin, park_after: config.park_after, doorbell }
    }
}

/// One wait, from the last progress on.
#[derive(Debug, Default)]
pub(super) struct Wait {
    looks: u32,
    since: Option<Instant>,
}

impl Wait {
    /// Something moved: the wait begins anew. No clock is read.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.looks = 0;
        self.since = None;
    }

    /// Nothing moved. Returns how long that has been so whenever the clock was read: then it is
    /// time to look around for failures.
    #[inline]
    pub(super) fn pause(
        &mut self,
        manners: &Manners,
        arrived: &mut dyn FnMut() -> bool,
    ) -> Option<Duration> {
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS_PER_TICK) && !manners.spin.is_zero() {
            std::hint::spin_loop();
            return None;
        }
        self.tick(manners, arrived)
    }

    #[cold]
    fn tick(&mut self, manners: &Manners, arrived: &mut dyn FnMut() -> bool) -> Option<Duration> {
        let now = Instant::now();
        let waited = now - *self.since.get_or_insert(now);
        if waited > manners.park_after
            && let Some(doorbell) = &manners.doorbell
        {
            doorbell.sleep(SLEEP_MAX, arrived);
            return Some(waited);
        }
        if waited >= manners.spin {
            std::thread::yield_now();
        }
        Some(waited)
    }
}
