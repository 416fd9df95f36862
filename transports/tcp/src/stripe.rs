//! A stripe: one connection of an endpoint, which a new connection replaces after a break.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ccl_core::time::Instant;
use ccl_socket::{Break, Connection, ConnectionEnd};
use rustix::event::epoll;
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
    /// Current break; it ends when the peer has reported how many frames it has received.
    pub(crate) broken: Option<Break>,
    /// True if a write has failed. The stripe then writes no more, but still reads: bytes that a
    /// closing peer sent may be unread. A read after these bytes reports the break.
    pub(crate) write_failed: bool,
    /// True from the time when a new connection replaces the old one, until the peer reports how
    /// many frames it has received; no put is sent until then.
    pub(crate) resuming: bool,
    /// Number of frames received when an acknowledgement was last sent, modulo 2^32.
    pub(crate) acknowledged_frames: u32,
    /// Bytes of the frames that `acknowledged_frames` counts.
    pub(crate) acknowledged_bytes: u64,
    /// Time at which the first unacknowledged frame arrived.
    pub(crate) unacknowledged_since: Option<Instant>,
    /// True if epoll also reports when the socket has room for more bytes.
    pub(crate) watches_room: bool,
    /// True if the peer has closed the stripe in good order.
    pub(crate) closed: bool,
    /// The epoll instance that watches the socket; none if the socket is new.
    pub(crate) watched_by: Option<Arc<OwnedFd>>,
    /// True if the farewell was queued for the present connection.
    said_farewell: bool,
    /// Traffic class of the packets; none for the system's default.
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
            watched_by: None,
            said_farewell: false,
            traffic_class,
        }
    }

    /// Returns whether no frame waits to be written: the connection has taken all frames and,
    /// unless the connection is gone, has written them to its socket.
    pub(crate) fn is_drained(&self) -> bool {
        self.outgoing.is_drained() && self.is_flushed()
    }

    /// Returns whether a call need not wait for this stripe: everything has been written, and a
    /// break, if there is one, cannot have lost any of it. Also returns true once the peer's return
    /// is overdue, since an absent peer must not hold up unrelated calls. Frames that the peer
    /// lacks are then written when the peer comes back.
    pub(crate) fn has_left(&self) -> bool {
        let may_be_swallowed = !self.closed && !self.outgoing.is_acknowledged();
        match &self.broken {
            Some(broken) => broken.is_overdue() || (self.is_drained() && !may_be_swallowed),
            None => self.is_drained(),
        }
    }

    /// Returns whether this stripe has something to write as soon as the socket has room.
    pub(crate) fn wants_room(&self) -> bool {
        match self.resuming {
            true => self.outgoing.has_bare_headers() || !self.is_flushed(),
            false => !self.is_drained(),
        }
    }

    fn is_flushed(&self) -> bool {
        self.connection.as_ref().is_none_or(Connection::is_flushed)
    }

    /// Queues the farewell once all frames are written: the peer reads nothing after the farewell.
    /// A resuming stripe queues the farewell at once, and leaves its puts and notes unwritten: they
    /// have to wait until the peer reports how many have arrived, but a side that is leaving may
    /// discard the report unread. Returns whether the farewell is queued.
    pub(crate) fn say_farewell(&mut self) -> bool {
        if !self.said_farewell && (self.resuming || self.outgoing.has_written_all()) {
            self.outgoing.push_bare_header(Kind::Farewell, self.incoming.received());
            self.said_farewell = true;
        }
        self.said_farewell
    }

    /// Returns whether a read would return something that epoll does not report.
    pub(crate) fn holds(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::holds)
    }

    /// Writes as much as the socket takes. Writes nothing once a write has failed.
    pub(crate) fn write(&mut self) -> Result<(), ConnectionEnd> {
        let Some(connection) = self.connection.as_mut().filter(|_| !self.write_failed) else {
            return Ok(());
        };
        connection.flush()?;
        if self.outgoing.is_drained() {
            return Ok(());
        }
        if self.resuming {
            return self.outgoing.write_bare_headers(connection).map(drop);
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
        self.disconnect();
        (self.write_failed, self.watches_room) = (false, false);
        Break::begin(&mut self.broken, end, now);
    }

    /// Ends the connection, even if a forked child of this process also has its socket.
    pub(crate) fn disconnect(&mut self) {
        if let Some(connection) = self.drop_connection() {
            // Fails if the peer has ended the connection.
            let _ = rustix::net::shutdown(connection.socket(), rustix::net::Shutdown::Both);
        }
    }

    /// Removes the connection from the stripe and from epoll, and returns it. Without the removal,
    /// epoll would keep reporting a socket that a forked child also has.
    pub(crate) fn drop_connection(&mut self) -> Option<Connection> {
        let connection = self.connection.take()?;
        if let Some(epoll) = self.watched_by.take() {
            let _ = epoll::delete(epoll, connection.socket());
        }
        Some(connection)
    }

    /// Replaces the connection by a new one, even if the old one was not known to be broken. The
    /// break ends when the peer has reported how many frames it has received.
    pub(crate) fn replace_connection(&mut self, connection: Connection, now: Instant) {
        set_traffic_class(&connection, self.traffic_class);
        // If no break was known, the peer has ended the old connection.
        self.mark_broken(ConnectionEnd::Closed, now);
        self.connection = Some(connection);
        (self.resuming, self.said_farewell) = (true, false);
        self.incoming.restart();
        self.outgoing.restart();
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
