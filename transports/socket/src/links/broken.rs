//! A connection that broke, until another one takes its place.

use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::TransportError;

use super::{Intent, Reconnector, Side};
use crate::connection::Connection;
use crate::dialler::Dialler;
use crate::end::{ConnectionEnd, LinkEnd, ReconnectError};

/// Pause between two attempts to connect again.
const REDIAL_PAUSE: Duration = Duration::from_millis(20);

/// A break that is not mended yet.
#[derive(Debug)]
pub struct Break {
    since: Instant,
    end: ConnectionEnd,
    dialler: Option<Dialler>,
    redial_at: Instant,
}

impl Break {
    /// Creates the state of a break that is found `now`.
    #[must_use]
    pub fn new(end: ConnectionEnd, now: Instant) -> Break {
        Break { since: now, end, dialler: None, redial_at: now }
    }

    /// Connects again, if this is the connecting side. Returns the new connection once it is
    /// authenticated.
    ///
    /// # Errors
    ///
    /// When no new connection will come: the peer refuses it, or nobody listens there.
    pub fn redial(
        &mut self,
        reconnector: &Reconnector,
        intent: impl FnOnce() -> Intent,
        now: Instant,
    ) -> Result<Option<Connection>, ReconnectError> {
        let Side::Dialled { location, setup } = &reconnector.0 else { return Ok(None) };
        if now < self.redial_at {
            return Ok(None);
        }
        let dialler = self
            .dialler
            .get_or_insert_with(|| Dialler::new(location.clone(), setup, true, &intent().encode()));
        match dialler.poll(now) {
            Ok(None) => Ok(None),
            Ok(Some((_, connection))) => {
                // The break may outlast this connection, too.
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

    /// Returns whether the break has lasted for `within`.
    #[must_use]
    pub fn lasts(&self, within: Duration, now: Instant) -> bool {
        now.since(self.since) >= within
    }

    /// Returns the end of a link to this peer, whose connection was not mended.
    #[must_use]
    pub fn outlasts(&self, peer: &str, outcome: ReconnectError) -> LinkEnd {
        LinkEnd::Broken { peer: peer.to_owned(), end: self.end.clone(), outcome }
    }
}
