//! One connection of an endpoint, kept through breaks.

use ccl_core::time::Instant;
use ccl_socket::{Break, Connection, ConnectionEnd};
use rustix::net::sockopt;

use crate::frame::Kind;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;

/// A connection of an endpoint, replaced after a break.
#[derive(Debug)]
pub(crate) struct Stripe {
    /// The connection; none while it is broken.
    pub(crate) connection: Option<Connection>,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) broken: Option<Break>,
    /// True if a write has failed. The stripe then writes no more, but still reads: bytes that a
    /// closing peer sent may be unread. A read after these bytes reports the break.
    pub(crate) write_failed: bool,
    /// True after a break until the peer reports how many frames it has; no put is sent before.
    pub(crate) resuming: bool,
    /// Frames received when an acknowledgement was last sent.
    pub(crate) acknowledged_frames: u32,
    /// Bytes of the frames that `acknowledged_frames` counts.
    pub(crate) acknowledged_bytes: u64,
    /// Time at which the first unacknowledged frame arrived.
    pub(crate) unacknowledged_since: Option<Instant>,
    /// True if epoll reports when the socket takes more.
    pub(crate) watches_room: bool,
    /// True if the peer has closed the stripe in good order.
    pub(crate) closed: bool,
    /// True if epoll does not watch the socket yet.
    pub(crate) is_new: bool,
    /// Traffic class of the packets; none for the system's.
    traffic_class: Option<u8>,
}

impl Stripe {
    pub(crate) fn new(
        connection: Connection,
        done_when_written: bool,
        traffic_class: Option<u8>,
    ) -> Stripe {
        set_traffic_class(&connection, traffic_class);
        Stripe {
            connection: Some(connection),
            outgoing: Outgoing::new(done_when_written),
            incoming: Incoming::new(),
            broken: None,
            write_failed: false,
            resuming: false,
            acknowledged_frames: 0,
            acknowledged_bytes: 0,
            unacknowledged_since: None,
            watches_room: false,
            closed: false,
            is_new: true,
            traffic_class,
        }
    }

    /// Returns whether the socket, if there is one, has taken everything.
    pub(crate) fn is_drained(&self) -> bool {
        self.outgoing.is_drained() && self.connection.as_ref().is_none_or(Connection::is_flushed)
    }

    /// Returns whether a read would return something that epoll does not report.
    pub(crate) fn holds(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::holds)
    }

    /// Writes as much as the socket takes; nothing after an error.
    pub(crate) fn write(&mut self) -> Result<(), ConnectionEnd> {
        let Some(connection) = self.connection.as_mut().filter(|_| !self.write_failed) else {
            return Ok(());
        };
        connection.flush()?;
        if self.outgoing.is_drained() {
            return Ok(());
        }
        if self.resuming {
            return self.outgoing.write_said(connection).map(drop);
        }
        let received = self.incoming.received();
        if self.outgoing.write(connection, received)? {
            self.mark_acknowledged();
        }
        Ok(())
    }

    /// Records that all received frames are acknowledged.
    pub(crate) fn mark_acknowledged(&mut self) {
        let Stripe {
            incoming, acknowledged_frames, acknowledged_bytes, unacknowledged_since, ..
        } = self;
        (*acknowledged_frames, *acknowledged_bytes, *unacknowledged_since) =
            (incoming.received(), incoming.received_bytes(), None);
    }

    /// Records that the connection broke.
    pub(crate) fn mark_broken(&mut self, end: ConnectionEnd, now: Instant) {
        self.connection = None;
        (self.write_failed, self.watches_room) = (false, false);
        self.broken.get_or_insert_with(|| Break::new(end, now));
    }

    /// Replaces the connection by a new one, even if the old one was not known to be broken.
    pub(crate) fn replace_connection(&mut self, connection: Connection) {
        set_traffic_class(&connection, self.traffic_class);
        self.connection = Some(connection);
        (self.broken, self.resuming) = (None, true);
        (self.write_failed, self.watches_room) = (false, false);
        self.incoming.restart();
        self.outgoing.restart();
        self.is_new = true;
        self.outgoing.push_bare_header(Kind::Resume, self.incoming.received());
    }
}

/// Sets the traffic class for IPv4 and for IPv6: an IPv6 socket may have an IPv4 peer. A failure to
/// set the class is ignored.
fn set_traffic_class(connection: &Connection, traffic_class: Option<u8>) {
    if let Some(class) = traffic_class {
        let _ = sockopt::set_ip_tos(connection.socket(), class);
        let _ = sockopt::set_ipv6_tclass(connection.socket(), class.into());
    }
}
