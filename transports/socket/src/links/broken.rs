//! A broken connection. The break lasts until the peer has resumed on a new connection, that is,
//! has reported there how many messages it has received.

use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::TransportError;

use super::{Intent, Reconnector, Side};
use crate::connection::Connection;
use crate::dialler::Dialler;
use crate::end::{ConnectionEnd, LinkEnd, ReconnectError};

/// Shortest pause between two calls of [`Break::redial`] after which [`BreakLimits::unreachable`]
/// is measured anew: during the pause, this side did not try to reach the peer.
const AWAY: Duration = Duration::from_millis(500);
/// Pause between two attempts to connect again.
const REDIAL_PAUSE: Duration = Duration::from_millis(20);

/// Longest times for which a break may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakLimits {
    /// Longest time for which nobody at the peer's address accepts a connection.
    pub unreachable: Duration,
    /// Longest time for which the peer does not answer or, where the peer is the connecting side,
    /// does not dial. A peer that computes can go without polling its links for a while.
    pub silent: Duration,
}

/// A break that is not mended yet.
#[derive(Debug)]
pub struct Break {
    since: Instant,
    /// Time from which [`BreakLimits::unreachable`] is measured: when a connection to the peer was
    /// last open, or when the last pause of [`AWAY`] or longer ended.
    reached: Instant,
    /// Time of the last call of [`Break::redial`]; before the first call, the start of the break.
    looked: Instant,
    /// True if the break is older than the time for which a peer may be unreachable.
    is_overdue: bool,
    end: ConnectionEnd,
    dialler: Option<Dialler>,
    redial_at: Instant,
}

impl Break {
    /// Begins a break at the time `now`. A break that `broken` already holds is kept, and
    /// [`BreakLimits::unreachable`] is measured from `now`, because a connection to the peer was
    /// open at that time.
    pub fn begin(broken: &mut Option<Break>, end: ConnectionEnd, now: Instant) {
        let found = broken.get_or_insert_with(|| Break {
            since: now,
            reached: now,
            looked: now,
            is_overdue: false,
            end,
            dialler: None,
            redial_at: now,
        });
        found.reached = now;
    }

    /// Returns whether the break is older than the time for which a peer may be unreachable. A
    /// caller that waits for its messages to be sent need not wait for the end of such a break.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// Connects again, if this is the connecting side. Returns the new connection once it is
    /// authenticated.
    ///
    /// # Errors
    ///
    /// When no new connection will come: the peer refuses it, or nobody listens at the peer's
    /// address.
    pub fn redial(
        &mut self,
        reconnector: &Reconnector,
        intent: impl FnOnce() -> Intent,
        now: Instant,
    ) -> Result<Option<Connection>, ReconnectError> {
        let Side::Dialled { location, setup } = &reconnector.0 else { return Ok(None) };
        if now.since(self.looked) >= AWAY {
            self.reached = now;
        }
        self.looked = now;
        if now < self.redial_at {
            return Ok(None);
        }
        let dialler = self
            .dialler
            .get_or_insert_with(|| Dialler::new(location.clone(), setup, true, &intent().encode()));
        let polled = dialler.poll(now);
        if dialler.is_connected() || matches!(polled, Ok(Some(_))) {
            self.reached = now;
        }
        match polled {
            Ok(None) => Ok(None),
            Ok(Some((_, connection))) => {
                // If this connection breaks before the break ends, a new dialler is needed.
                self.dialler = None;
                Ok(Some(connection))
            }
            Err(error @ TransportError::Refused { .. }) => Err(ReconnectError::Refused(error)),
            Err(_) if dialler.is_retryable() => {
                (self.dialler, self.redial_at) = (None, now + REDIAL_PAUSE);
                Ok(None)
            }
            Err(_) => Err(ReconnectError::Gone),
        }
    }

    /// Returns the outcome if the break has lasted too long, else none. `is_connected` is true if
    /// there is a new connection, on which the peer has not resumed yet.
    #[must_use]
    pub fn late(
        &mut self,
        reconnector: &Reconnector,
        limits: &BreakLimits,
        is_connected: bool,
        now: Instant,
    ) -> Option<ReconnectError> {
        self.is_overdue = now.since(self.since) >= limits.unreachable;
        let is_late = now.since(self.since) >= limits.silent;
        let is_unreachable = reconnector.is_dialled()
            && !is_connected
            && now.since(self.reached) >= limits.unreachable;
        match (is_unreachable, is_late) {
            (true, _) => Some(ReconnectError::Late(limits.unreachable)),
            (_, true) => Some(ReconnectError::Late(limits.silent)),
            _ => None,
        }
    }

    /// Returns the reason why a link has ended: its connection to `peer` was not mended.
    #[must_use]
    pub fn outlasts(&self, peer: &str, outcome: ReconnectError) -> LinkEnd {
        LinkEnd::Broken { peer: peer.to_owned(), end: self.end.clone(), outcome }
    }
}
