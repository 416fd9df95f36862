//! Communicators as NCCL means them: one direction of one connection.
//!
//! * **A receive is a CTS.** `irecv` writes a record of its buffers into the sender's ring. The
//!   sender then writes the message into its buffer directly, and the immediate says which buffer
//!   of which group it was.
//! * **Short messages do not wait for a CTS.** The receiver has a few slots, and the sender a
//!   credit for each: a short message goes to a slot at once and is copied when its buffer is
//!   known. Some slots are reserved for messages whose buffers are known, so that messages nobody
//!   has posted a receive for do not block them. The CTS of a buffer that takes short messages only
//!   is sent when a message waits for a buffer, or after a millisecond: the message may be longer.
//! * **Over TCP slots are large and mostly not there.** The sender sends from a message's memory
//!   until it is written; what comes to a slot goes on to the buffer that it is expected for.
//! * **Where memory cannot be reached**, messages come through the slots in chunks.
//! * **Which message is for which buffer** both sides count for themselves: the k-th message of a
//!   tag is for the k-th buffer with that tag.
//!
//! Nothing waits here: each call does what can be done now. All calls to one communicator take
//! turns; no two communicators have anything in common but their device.

mod expected;
pub(crate) mod line;
pub(crate) mod receiver;
pub(crate) mod sender;
pub(crate) mod tags;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::time::Duration;

use ccl_core::time::Instant;

use crate::error::NetError;
use line::Line;
use wire::{HEADER_BYTES, SLOTS_MAX};

/// The most communicators of a device that NCCL is told of.
pub(crate) const COMMS_MAX: i32 = 1 << 16;
/// The longest transfer: what every transport takes in one put.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// A slot that takes nothing until a message comes early is so many times as long as others.
const LONG_SLOT: usize = 64;
/// But no longer, if those are not.
const LONG_SLOT_BYTES_MAX: usize = 1 << 20;

/// How a communicator is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Slots of a receiver, at most [`SLOTS_MAX`].
    pub(crate) slots: usize,
    /// Payload of one, and the longest message that does not wait for a CTS.
    pub(crate) slot_bytes: usize,
    /// The longest message that is rather copied than waited for.
    pub(crate) short_bytes: usize,
    /// A request fails while nothing comes or goes for so long.
    pub(crate) timeout: Duration,
    /// And is told of after so long.
    pub(crate) warn_after: Duration,
}

impl Settings {
    /// For a connection. Where both sides can say late where messages are, longer ones need not be
    /// copied: their slots are memory that is only there if they come before their buffers.
    fn on(mut self, line: &Line) -> Settings {
        self.slot_bytes = self.short_bytes;
        if line.redirects() {
            let long = self.short_bytes.saturating_mul(LONG_SLOT).min(LONG_SLOT_BYTES_MAX);
            self.slot_bytes = long.max(self.short_bytes);
        }
        self
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.clamp(2, SLOTS_MAX)
    }

    pub(crate) fn stride(&self) -> usize {
        HEADER_BYTES + self.slot_bytes.next_multiple_of(HEADER_BYTES)
    }
}

/// Since when a request waits.
#[derive(Clone, Copy, Debug)]
struct Wait {
    began: Instant,
    /// When something became of it last.
    moved: Instant,
    warned: bool,
}

impl Wait {
    fn new(now: Instant) -> Wait {
        Wait { began: now, moved: now, warned: false }
    }

    /// Something becomes of it.
    fn moves(&mut self, now: Instant) {
        self.moved = self.moved.max(now);
    }

    /// A sentence if nothing has become of it for long, though others of the connection may move;
    /// an error if that is too long.
    fn judge(
        &mut self,
        line: &Line,
        settings: &Settings,
        now: Instant,
        what: impl FnOnce() -> String,
    ) -> Result<(), NetError> {
        line.check()?;
        let still = now.since(self.moved);
        if still < settings.warn_after.min(settings.timeout) {
            return Ok(());
        }
        let idle = now.since(line.moved);
        let sentence = |what: String| {
            let how = if idle < still / 2 {
                format!(
                    "nothing has become of it for {:.1} s, though the connection moved {:.1} s \
                     ago; is that process in the same operation, and does it wait for another?",
                    still.as_secs_f64(),
                    idle.as_secs_f64()
                )
            } else {
                format!(
                    "nothing has come or gone for {:.1} s; does that process still run, and is it \
                     in the same operation?",
                    idle.as_secs_f64()
                )
            };
            let waited = now.since(self.began).as_secs_f64();
            format!("{what} {} has waited for {waited:.1} s, and {how}", line.peer)
        };
        if still >= settings.timeout {
            return Err(NetError::remote(format!(
                "{} It is given up (FERROCCL_NET_TIMEOUT)",
                sentence(what())
            )));
        }
        if !self.warned {
            tracing::warn!("{}", sentence(what()));
            self.warned = true;
        }
        Ok(())
    }
}
