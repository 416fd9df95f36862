//! NCCL's communicators: each is one direction of one connection.
//!
//! * **A receive is a CTS.** The buffers of one `irecv` are a group. `irecv` writes a record of the
//!   group into the sender's ring. The sender then writes each message directly into its buffer,
//!   and the immediate identifies the group and the buffer.
//! * **Short messages do not wait for a CTS.** The receiver has a few slots, and the sender a
//!   credit for each: a short message goes to a slot at once and is copied when its buffer is
//!   known. Some slots are reserved for messages that have a CTS, so that messages without a posted
//!   receive cannot fill all slots. A group whose buffers are all short mostly needs no CTS, so its
//!   CTS is withheld. Withheld CTS are sent when a slot holds a message for which no buffer is
//!   posted: slots may then become scarce. Otherwise they are sent after 1 ms without events, or
//!   after 10 ms in any case: a message that exceeds both its buffer and a slot waits for the CTS.
//! * **Over TCP, slots are large and mostly take no memory**, because the receiver redirects each
//!   slot's message to the buffer that it expects the message for. The sender does not copy a long
//!   message: the message's memory stays in use until the whole message is written to the socket.
//! * **Where the peer cannot reach the caller's memory**, messages come through slots in chunks.
//! * **Both sides count messages and buffers**: the k-th message of a tag is for the k-th buffer
//!   with that tag.
//!
//! Nothing waits here, except `Sender::release`: each call does the work that is possible now,
//! unless a helper thread ([`crate::helpers`]) does it. Calls to one communicator take turns;
//! communicators share only their device, context and queue-pair policy.

pub(crate) mod buffer;
pub(crate) mod connection;
mod expected;
pub(crate) mod receiver;
pub(crate) mod sender;
pub(crate) mod tags;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::time::Duration;

use ccl_core::time::Instant;

use crate::error::NetError;
use crate::table::Helped;
use connection::Connection;
use wire::{HEADER_BYTES, SLOTS_MAX};

/// Largest number of communicators of a device, as reported to NCCL.
pub(crate) const COMMS_MAX: i32 = 1 << 16;
/// Largest number of bytes of a transfer, as reported to NCCL; the sender splits a transfer that
/// exceeds the device's limit for one put.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// Bytes of the shortest message for which a communicator asks helper threads for help. A sender
/// asks when the message is posted, a receiver when the message has arrived.
const HELP_BYTES_MIN: usize = 64 << 10;
/// Rate, in bytes per microsecond, of the slowest network on which helpers are of use.
const HELP_BYTES_PER_US: usize = 1000;
/// Time for which helpers poll beyond the time that the message takes at [`HELP_BYTES_PER_US`].
const HELP_WITHIN: Duration = Duration::from_millis(1);
/// Time since a helper's last poll after which the caller polls again.
const HELP_GAP_MAX: Duration = Duration::from_micros(20);
/// Time between two polls of helpers that have nothing to copy.
const HELP_PAUSE: Duration = Duration::from_micros(2);
/// Shortest duration of a poll that is assumed to have copied bytes.
const HELP_COPY_MIN: Duration = Duration::from_micros(5);

/// Factor by which slots are longer than `short_bytes` if the device redirects: the slots then take
/// memory only for messages without a known buffer.
const LONG_SLOT: usize = 64;
/// Largest number of bytes of a slot lengthened by [`LONG_SLOT`], unless `short_bytes` is larger.
const LONG_SLOT_BYTES_MAX: usize = 1 << 20;

/// Settings of a communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Number of slots of a receiver, at most [`SLOTS_MAX`].
    pub(crate) slots: usize,
    /// Payload bytes of a slot; a longer message waits for a CTS.
    pub(crate) slot_bytes: usize,
    /// Largest number of bytes of a message that is copied instead of sent zero-copy.
    pub(crate) short_bytes: usize,
    /// True if helper threads poll communicators with long messages.
    pub(crate) has_helpers: bool,
    /// Time without progress after which a request fails.
    pub(crate) timeout: Duration,
    /// Time without progress after which a warning is logged.
    pub(crate) warn_after: Duration,
}

impl Settings {
    /// Adapts the settings to a connection. If the device redirects, slots are made longer than
    /// `short_bytes`: longer messages need not be copied then, and long slots take memory only if
    /// messages come before their buffers.
    fn on(mut self, connection: &Connection) -> Settings {
        self.slot_bytes = self.short_bytes;
        self.has_helpers &= connection.copies();
        if connection.redirects() {
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

/// A communicator of either direction, as seen by the threads that poll it.
pub(crate) trait Communicator {
    fn connection(&mut self) -> &mut Connection;

    /// Returns whether a request is open, or anything posted needs another poll.
    fn has_work(&self) -> bool;

    /// Makes progress without waiting.
    fn pump(&mut self, now: Instant) -> Result<(), NetError>;

    fn help_state(&mut self) -> &mut Help;

    /// Makes progress without waiting; an error ends the connection.
    fn pump_or_abort(&mut self, now: Instant) {
        if let Err(error) = self.pump(now) {
            self.connection().abort(&error.text);
        }
    }
}

impl<T: Communicator> Helped for T {
    fn help(&mut self, clock: &dyn Fn() -> Instant) {
        let now = clock();
        if self.has_work() && self.help_state().is_due(now) {
            self.pump_or_abort(now);
            self.help_state().polled(now, clock());
        }
    }

    fn helped_until(&mut self) -> Instant {
        self.help_state().until
    }
}

/// State of the help that helper threads give a communicator: they poll in place of its caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Help {
    /// Time until which helpers poll.
    until: Instant,
    /// End of the last poll by a helper.
    polled: Option<Instant>,
    /// Time from the end of a helper's poll until the next.
    pause: Duration,
}

impl Help {
    fn new() -> Help {
        Help { until: Instant::ZERO, polled: None, pause: Duration::ZERO }
    }

    /// Asks for help, for [`HELP_WITHIN`] beyond the time that a message takes at
    /// [`HELP_BYTES_PER_US`].
    fn ask(&mut self, settings: &Settings, now: Instant, bytes: usize) {
        if settings.has_helpers && bytes >= HELP_BYTES_MIN {
            let us = (bytes / HELP_BYTES_PER_US) as u64;
            self.until = self.until.max(now + HELP_WITHIN + Duration::from_micros(us));
        }
    }

    /// Returns whether a helper polls so often that the caller need not.
    fn is_given(&self, now: Instant) -> bool {
        now < self.until && self.polled.is_some_and(|polled| now.since(polled) < HELP_GAP_MAX)
    }

    /// Returns whether a helper should poll now.
    fn is_due(&self, now: Instant) -> bool {
        self.polled.is_none_or(|polled| now.since(polled) >= self.pause)
    }

    /// Records a helper's poll.
    fn polled(&mut self, began: Instant, now: Instant) {
        self.polled = Some(now);
        let has_copied = now.since(began) >= HELP_COPY_MIN;
        self.pause = if has_copied { Duration::ZERO } else { HELP_PAUSE };
    }
}

/// Waiting state of a request.
#[derive(Clone, Copy, Debug)]
struct Wait {
    began: Instant,
    /// Time of the last progress.
    moved: Instant,
    warned: bool,
}

impl Wait {
    fn new(now: Instant) -> Wait {
        Wait { began: now, moved: now, warned: false }
    }

    /// Records progress of the request.
    fn moves(&mut self, now: Instant) {
        self.moved = self.moved.max(now);
    }

    /// Logs a warning if the request makes no progress for `warn_after`, even while other requests
    /// of the connection progress. Returns an error if the request makes no progress for `timeout`,
    /// or if the peer is gone.
    fn judge(
        &mut self,
        connection: &Connection,
        settings: &Settings,
        now: Instant,
        what: impl FnOnce() -> String,
    ) -> Result<(), NetError> {
        connection.check()?;
        let still = now.since(self.moved);
        if still < settings.warn_after.min(settings.timeout) {
            return Ok(());
        }
        let idle = now.since(connection.moved);
        let sentence = |what: String| {
            let how = if idle < still / 2 {
                format!(
                    "it has made no progress for {:.1} s, though the connection was active \
                     {:.1} s ago; is the peer in the same operation, or does it wait for another \
                     rank?",
                    still.as_secs_f64(),
                    idle.as_secs_f64()
                )
            } else {
                format!(
                    "the connection has been idle for {:.1} s; does the peer still run, and is it \
                     in the same operation?",
                    idle.as_secs_f64()
                )
            };
            let waited = now.since(self.began).as_secs_f64();
            format!("{what} {} has waited for {waited:.1} s, and {how}", connection.peer)
        };
        if still >= settings.timeout {
            return Err(NetError::remote(format!(
                "{} The request fails: FERROCCL_NET_TIMEOUT has passed",
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
