//! A side connection (a TCP connection beside the data path) that is made anew when it breaks. It
//! carries connection parameters and notes for hardware that cannot connect by itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::TransportError;

use crate::end::{ConnectionEnd, LinkEnd, SideEnd};
use crate::links::{Break, BreakLimits, Intent, Link, LinkId, Reconnector};
use crate::side::{SideConnection, SideMessage};
use crate::socket::KEEPALIVE;

/// Lower bound of the time limit for a repair. In the worst case, the dialling side learns of a
/// break only when its kernel sends the next keepalive probe ([`KEEPALIVE`]) and gets a reset.
const MENDED_WITHIN_MIN: Duration = Duration::from_secs(3 * KEEPALIVE.as_secs());

/// One end of a link's side connection. A connection that breaks, for example because a middlebox
/// drops it, is made anew, and no message is lost.
#[derive(Debug)]
pub struct SideLink {
    id: LinkId,
    peer: String,
    connection: SideConnection,
    reconnector: Reconnector,
    /// Break of the connection, until the peer has resumed on a new connection.
    broken: Option<Break>,
}

impl SideLink {
    /// Creates this side's end over the first connection of a link; none if the link has no
    /// connection.
    #[must_use]
    pub fn new(link: Link) -> Option<SideLink> {
        let Link { id, peer, connections, reconnector, .. } = link;
        let connection = SideConnection::new(connections.into_iter().next()?);
        Some(SideLink { id, peer, connection, reconnector, broken: None })
    }

    /// Returns the identifier of the link.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Returns the address of the peer, for errors and logs.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns whether this is the side that connected.
    #[must_use]
    pub fn is_dialled(&self) -> bool {
        self.reconnector.is_dialled()
    }

    /// Returns the socket, unless the connection is broken.
    pub fn socket(&self) -> Option<&OwnedFd> {
        self.connection.socket()
    }

    /// Makes an epoll instance report `number`, as [`SideConnection::watch`] does.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn watch(&mut self, epoll: &Arc<OwnedFd>, number: u64) -> Result<(), TransportError> {
        self.connection.watch(epoll, number)
    }

    /// Ends the watch, as [`SideConnection::unwatch`] does.
    pub fn unwatch(&mut self) {
        self.connection.unwatch();
    }

    /// Sends a message, as [`SideConnection::send`] does.
    pub fn send(&mut self, word: &SideMessage) {
        self.connection.send(word);
    }

    /// Returns whether everything is sent, as [`SideConnection::is_flushed`] does.
    pub fn is_flushed(&self) -> bool {
        self.connection.is_flushed()
    }

    /// Returns whether a caller that waits for its messages to be sent can go on: everything is
    /// sent, or the break is overdue ([`Break::is_overdue`]). In the second case, unsent messages
    /// wait until the break ends.
    pub fn is_settled(&self) -> bool {
        self.broken.as_ref().is_some_and(Break::is_overdue) || self.is_flushed()
    }

    /// Appends the messages that have arrived from the peer. A break is no error if `may_break` is
    /// true.
    ///
    /// # Errors
    ///
    /// When the connection has ended for good.
    pub fn receive(
        &mut self,
        words: &mut Vec<SideMessage>,
        may_break: bool,
        now: Instant,
    ) -> Result<(), LinkEnd> {
        match self.connection.receive(words) {
            Ok(()) => Ok(()),
            Err(SideEnd::Broken(end)) if may_break => {
                tracing::info!(self.peer, %end, "the side connection broke");
                self.connection.mark_broken();
                Break::begin(&mut self.broken, end, now);
                Ok(())
            }
            Err(end) => Err(LinkEnd::Ended { peer: self.peer.clone(), end }),
        }
    }

    /// Makes the connection anew, if this side or the peer has found it broken. Returns whether
    /// there is a new one.
    ///
    /// # Errors
    ///
    /// When the connection cannot be made anew within the limits (each is raised to at least 3 s),
    /// or the peer does not resume on the new one.
    pub fn reconnect(&mut self, limits: &BreakLimits, now: Instant) -> Result<bool, LinkEnd> {
        let limits = BreakLimits {
            unreachable: limits.unreachable.max(MENDED_WITHIN_MIN),
            silent: limits.silent.max(MENDED_WITHIN_MIN),
        };
        let is_connected = self.connection.socket().is_some();
        if is_connected && !self.connection.resumes() {
            self.broken = None;
        }
        let resumed = self.reconnector.take_resumed(&self.id, now).pop();
        let connection = match (resumed, &mut self.broken) {
            (Some((_, connection)), _) => connection,
            (None, None) => return Ok(false),
            (None, Some(broken)) => {
                let intent = || Intent { link: self.id, number: 0, count: 1, text: Vec::new() };
                let dialled = match is_connected {
                    true => Ok(None),
                    false => broken.redial(&self.reconnector, intent, now),
                };
                let late = broken.late(&self.reconnector, &limits, is_connected, now);
                match (dialled, late) {
                    (Ok(Some(connection)), _) => connection,
                    (Ok(None), None) => return Ok(false),
                    (Err(outcome), _) | (Ok(None), Some(outcome)) => {
                        let end = broken.outlasts(&self.peer, outcome);
                        self.broken = None;
                        return Err(end);
                    }
                }
            }
        };
        tracing::info!(self.peer, "the side connection is back");
        self.connection.replace_connection(connection);
        // A break lasts until the peer has resumed on the new connection. If this side has not
        // found the old connection broken, the break begins here.
        Break::begin(&mut self.broken, ConnectionEnd::Closed, now);
        Ok(true)
    }

    /// Ends the connection for both sides.
    pub fn close(&mut self) {
        self.connection.close();
    }
}
