//! Doorbells: each wakes its owner, a sleeping rank, when something has arrived.
//!
//! Each rank has one doorbell in memory that its peers map. Ringing loads a line that is almost
//! always in the ringer's cache; it costs an atomic add and a system call only if the owner sleeps.
//! The owner looks for arrivals once more after announcing its sleep. The owner sleeps for a
//! bounded time only, because a ring at the same time as the announcement may be missed.

use std::time::Duration;

use crate::region::{Region, RegionError};
use crate::sync::{AtomicU32, Ordering, fence, order};

/// Bytes of a doorbell.
pub const BYTES: usize = 64;

const SLEEPING: usize = 0;
const RINGS: usize = 4;

/// Functions of the operating system to sleep on a word of shared memory and to wake all sleepers.
#[derive(Clone, Copy, Debug)]
pub struct Parking {
    /// Sleeps while the word has the given value, for at most the given time.
    pub sleep: fn(&AtomicU32, u32, Duration),
    /// Wakes all sleepers on the word.
    pub wake: fn(&AtomicU32),
}

/// One rank's doorbell, in shared memory.
#[derive(Clone, Debug)]
pub struct Doorbell {
    region: Region,
    parking: Parking,
}

impl Doorbell {
    /// Returns the doorbell in the first [`BYTES`] of `region`.
    ///
    /// # Errors
    ///
    /// When the region is too small or not aligned.
    pub fn new(region: &Region, parking: Parking) -> Result<Doorbell, RegionError> {
        let region = region.part(0, BYTES)?;
        region.word32(SLEEPING)?;
        region.word32(RINGS)?;
        Ok(Doorbell { region, parking })
    }

    #[inline]
    fn owner_sleeps(&self) -> bool {
        self.region.word32(SLEEPING).is_ok_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Wakes the owner if it sleeps. Call this after publishing something to the owner.
    #[inline]
    pub fn ring(&self) {
        if self.owner_sleeps() {
            self.wake_owner();
        }
    }

    #[cold]
    fn wake_owner(&self) {
        if let Ok(word) = self.region.word32(RINGS) {
            word.fetch_add(1, order::ring());
            (self.parking.wake)(word);
        }
    }

    /// Sleeps, as the owner, until the next ring or for `at_most`. Does not sleep if `arrived`
    /// returns true after the announcement.
    pub fn sleep(&self, at_most: Duration, arrived: &mut dyn FnMut() -> bool) {
        let (Ok(rings), Ok(sleeping)) = (self.region.word32(RINGS), self.region.word32(SLEEPING))
        else {
            return;
        };
        let before = rings.load(Ordering::Relaxed);
        sleeping.store(1, Ordering::Relaxed);
        // SeqCst: the announcement comes before the owner's last look. If a ring is already counted
        // in `before`, it cannot end the sleep. But then the last look sees the data that was
        // published before that ring.
        fence(order::announce());
        if !arrived() {
            (self.parking.sleep)(rings, before, at_most);
        }
        sleeping.store(0, Ordering::Relaxed);
    }
}
