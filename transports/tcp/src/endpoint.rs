//! A peer: its stripes, the memory that it may write to, and the repair of broken stripes.

use std::time::Duration;

use ccl_core::encoding;
use ccl_core::time::Instant;
use ccl_core::transport::{
    EndpointId, Event, Imported, LocalSlice, MrKey, RemoteKey, TransportError,
};
use ccl_memory::Region;
use ccl_socket::{BreakLimits, Intent, Link, LinkId, Reconnector};
use serde::{Deserialize, Serialize};

use crate::error::{ProtocolError, StripeEnd};
use crate::frame::Kind;
use crate::inbox::{Inbox, RedirectTarget};
use crate::incoming::{Arrival, LONG_BYTES};
use crate::outgoing::Put;
use crate::stripe::Stripe;

/// Number of unacknowledged frames at which an acknowledgement is sent at once.
const ACK_AFTER_FRAMES: u32 = 64;
/// Number of unacknowledged bytes at which an acknowledgement is sent at once: the sender may be
/// waiting to reuse its memory.
const ACK_AFTER_BYTES: u64 = 512 << 10;
/// Initial capacity of lists, so that calls need not allocate.
const AT_ONCE: usize = 64;
/// Longest time that an acknowledgement waits for a frame that can carry it.
pub(crate) const ACK_DELAY_MAX: Duration = Duration::from_micros(300);

/// Remote key: what a peer must know to be able to write to memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub(crate) link: LinkId,
    /// True if the memory belongs to the side that dialled.
    pub(crate) dialled: bool,
    pub(crate) memory: u32,
    pub(crate) bytes: u64,
}

impl Imported for Shared {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Shared {
    pub(crate) fn encode(self) -> RemoteKey {
        RemoteKey(encoding::encode(&self))
    }

    pub(crate) fn decode(key: &RemoteKey) -> Option<Shared> {
        encoding::decode(&key.0).ok()
    }
}

/// Connection to a peer, over one or several stripes.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: LinkId,
    pub(crate) peer: String,
    reconnector: Reconnector,
    pub(crate) stripes: Vec<Stripe>,
    /// Index of the stripe that takes the next put of data.
    turn: usize,
    inbox: Inbox,
    /// True if a put is done as soon as it is written: the connection has taken all its bytes. The
    /// peer has the same setting.
    done_when_written: bool,
    pub(crate) lost: Option<String>,
    pub(crate) reported: bool,
    /// True once the farewell to the peer has begun.
    pub(crate) is_leaving: bool,
    arrivals: Vec<Arrival>,
    done: Vec<u64>,
}

impl Endpoint {
    /// Creates the endpoint of a link; with `done_when_written`, puts are done as soon as they are
    /// written.
    pub(crate) fn new(link: Link, done_when_written: bool, traffic_class: Option<u8>) -> Endpoint {
        let stripe = |connection| Stripe::new(connection, done_when_written, traffic_class);
        Endpoint {
            id: link.id,
            peer: link.peer,
            reconnector: link.reconnector,
            stripes: link.connections.into_iter().map(stripe).collect(),
            turn: 0,
            inbox: Inbox::default(),
            done_when_written,
            lost: None,
            reported: false,
            is_leaving: false,
            arrivals: Vec::with_capacity(AT_ONCE),
            done: Vec::with_capacity(AT_ONCE),
        }
    }

    /// Reports puts that are done because they are written.
    pub(crate) fn tell_written(&mut self, events: &mut Vec<Event>) {
        for stripe in &mut self.stripes {
            events.extend(stripe.outgoing.take_written().map(|id| Event::Done { id }));
        }
    }

    /// Lets the peer write to registered memory.
    pub(crate) fn share(
        &mut self,
        key: MrKey,
        region: Region,
    ) -> Result<RemoteKey, TransportError> {
        if let Some(reason) = &self.lost {
            let (peer, reason) = (self.peer.clone(), reason.clone());
            return Err(TransportError::Lost { peer, reason });
        }
        let bytes = region.bytes() as u64;
        let memory = self.inbox.share(key, region);
        let (link, dialled) = (self.id, self.has_dialled());
        Ok(Shared { link, dialled, memory, bytes }.encode())
    }

    fn has_dialled(&self) -> bool {
        self.reconnector.is_dialled()
    }

    /// Returns whether the peer has shared this memory over this link.
    pub(crate) fn is_theirs(&self, shared: &Shared) -> bool {
        shared.link == self.id && shared.dialled != self.has_dialled()
    }

    /// Forgets memory that is no longer registered.
    pub(crate) fn withdraw(&mut self, is_registered: impl Fn(MrKey) -> bool) {
        let stripes = self.stripes.iter_mut();
        let unfinished = stripes.filter_map(|stripe| stripe.incoming.unfinished());
        self.inbox.withdraw(is_registered, unfinished);
    }

    /// Makes `to` the new source of an unfinished put's tail (the second part of its payload).
    pub(crate) fn relocate(&mut self, id: u64, to: &Region) -> Result<(), TransportError> {
        self.stripes.iter_mut().try_for_each(|stripe| stripe.outgoing.relocate(id, to))
    }

    /// Redirects bytes that the peer puts into `from`: these bytes arrive in the memory `into`
    /// instead. If `into` is `None`, undoes the redirect.
    pub(crate) fn redirect(
        &mut self,
        from: LocalSlice,
        into: Option<RedirectTarget>,
    ) -> Result<bool, TransportError> {
        let Endpoint { inbox, stripes, .. } = self;
        let unfinished = stripes.iter_mut().filter_map(|stripe| stripe.incoming.unfinished());
        let result = match into {
            Some(into) => inbox.redirect(from, into, unfinished),
            None => inbox.restore(from, unfinished).map(|restored| restored.map(|()| true)),
        };
        let LocalSlice { offset, bytes, .. } = from;
        let result = result.ok_or_else(|| {
            let peer = self.peer.clone();
            TransportError::NotShared { peer, offset, bytes }
        })?;
        Ok(result?)
    }

    /// Returns the number of puts of data that the peer has not acknowledged.
    pub(crate) fn outstanding_data(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.outgoing.outstanding_data()).sum()
    }

    /// Returns whether the peer has acknowledged all puts and notes.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.stripes.iter().all(|stripe| stripe.outgoing.is_acknowledged())
    }

    /// Returns whether the sockets have taken everything; true for a lost peer.
    pub(crate) fn is_drained(&self) -> bool {
        self.lost.is_some() || self.stripes.iter().all(|stripe| stripe.is_drained())
    }

    /// Returns whether [`Stripe::has_left`] is true for all stripes; also true for a lost peer.
    pub(crate) fn has_left(&self) -> bool {
        self.lost.is_some() || self.stripes.iter().all(Stripe::has_left)
    }

    /// Queues a put. Credits and CTS all take the first stripe, which keeps them in order.
    pub(crate) fn put(&mut self, put: Put) {
        if put.is_control {
            return self.stripes[0].outgoing.push(put);
        }
        self.stripes[self.turn].outgoing.push(put);
        self.turn = (self.turn + 1) % self.stripes.len();
    }

    /// Writes as many bytes as the sockets take.
    pub(crate) fn write(&mut self) {
        for stripe in &mut self.stripes {
            stripe.write_failed |= stripe.write().is_err();
        }
    }

    /// Reads the frames that have arrived on one stripe.
    pub(crate) fn read(
        &mut self,
        stripe_index: usize,
        own: EndpointId,
        now: Instant,
        events: &mut Vec<Event>,
    ) {
        let mut more = true;
        // Bounds the reads: while a peer keeps sending, the stripe might never run empty.
        for _ in 0..8 {
            let Endpoint { stripes, inbox, arrivals, done, .. } = self;
            let stripe = &mut stripes[stripe_index];
            let Some(connection) = &mut stripe.connection else { return };
            if !more {
                return;
            }
            arrivals.clear();
            let before = stripe.incoming.received();
            let read = stripe.incoming.read(connection, inbox, arrivals);
            if stripe.incoming.received() != before {
                stripe.unacknowledged_since.get_or_insert(now);
            }
            let mut result = Ok(false);
            for arrival in arrivals.drain(..) {
                if let Ok(false) = result {
                    result = arrived(stripe, arrival, own, done, events);
                }
            }
            match (result, read) {
                (Err(error), _) | (_, Err(StripeEnd::Protocol(error))) => {
                    return self.lose(format!("{} {error}", self.peer));
                }
                (Ok(true), _) => return self.farewell(stripe_index),
                (_, Err(StripeEnd::Broken(end))) => {
                    tracing::info!(self.peer, stripe_index, %end, "a connection broke");
                    return stripe.mark_broken(end, now);
                }
                (_, Ok(there_may_be)) => more = there_may_be,
            }
        }
    }

    /// Queues an acknowledgement on each stripe that has received many unacknowledged frames, many
    /// unacknowledged bytes, or a frame that has been unacknowledged for [`ACK_DELAY_MAX`]. The
    /// number of bytes does not count if puts are done when written.
    pub(crate) fn acknowledge(&mut self, now: Instant) {
        for stripe in &mut self.stripes {
            let received = stripe.incoming.received();
            let waiting =
                stripe.unacknowledged_since.map_or(Duration::ZERO, |since| now.since(since));
            let unacknowledged = received.wrapping_sub(stripe.acknowledged_frames);
            let unacknowledged_bytes = stripe.incoming.received_bytes() - stripe.acknowledged_bytes;
            let many = unacknowledged >= ACK_AFTER_FRAMES
                || (unacknowledged_bytes >= ACK_AFTER_BYTES && !self.done_when_written);
            if many || (unacknowledged > 0 && waiting >= ACK_DELAY_MAX) {
                stripe.mark_acknowledged();
                stripe.outgoing.push_bare_header(Kind::Acknowledge, received);
            }
        }
    }

    /// Acknowledges at once the received frames of each stripe whose unacknowledged frames have
    /// `LONG_BYTES` bytes or more in total: the sender may be waiting to reuse its memory.
    pub(crate) fn acknowledge_long_frames(&mut self) {
        if self.done_when_written {
            return;
        }
        for stripe in &mut self.stripes {
            if stripe.incoming.received_bytes() - stripe.acknowledged_bytes >= LONG_BYTES as u64 {
                stripe.mark_acknowledged();
                stripe.outgoing.push_bare_header(Kind::Acknowledge, stripe.incoming.received());
            }
        }
    }

    /// Restores broken stripes. Gives the peer up when a break has lasted longer than `limits`
    /// allow.
    pub(crate) fn reconnect(&mut self, now: Instant, limits: &BreakLimits) {
        for (index, connection) in self.reconnector.take_resumed(&self.id, now) {
            if let Some(stripe) = self.stripes.get_mut(usize::from(index)) {
                tracing::info!(self.peer, index, "a connection is back");
                stripe.replace_connection(connection, now);
            }
        }
        (0..self.stripes.len()).for_each(|index| self.redial(index, now));
        let end = self.stripes.iter_mut().find_map(|stripe| {
            let broken = stripe.broken.as_mut()?;
            let is_connected = stripe.connection.is_some();
            let late = broken.late(&self.reconnector, limits, is_connected, now)?;
            Some(broken.outlasts(&self.peer, late).to_string())
        });
        end.into_iter().for_each(|end| self.lose(end));
    }

    fn redial(&mut self, index: usize, now: Instant) {
        let count = self.stripes.len() as u16;
        let Endpoint { id, reconnector, stripes, peer, .. } = self;
        let Stripe { broken: Some(broken), connection: None, .. } = &mut stripes[index] else {
            return;
        };
        let intent = || Intent { link: *id, number: index as u16, count, text: Vec::new() };
        match broken.redial(reconnector, intent, now) {
            Ok(None) => {}
            Ok(Some(connection)) => {
                tracing::info!(peer, index, "a connection is back");
                stripes[index].replace_connection(connection, now);
            }
            Err(outcome) => {
                let end = broken.outlasts(peer, outcome);
                self.lose(end.to_string());
            }
        }
    }

    /// Handles the peer's farewell on one stripe. Frames on other stripes may still be in flight.
    fn farewell(&mut self, stripe: usize) {
        self.stripes[stripe].drop_connection();
        self.stripes[stripe].closed = true;
        if self.stripes.iter().all(|stripe| stripe.closed) {
            self.lose(format!("{} has closed the connection", self.peer));
        }
    }

    /// Marks the peer as lost for good, and drops its connections and memory.
    pub(crate) fn lose(&mut self, reason: String) {
        tracing::debug!(self.peer, reason, "a link is lost");
        self.lost.get_or_insert(reason);
        for stripe in &mut self.stripes {
            stripe.disconnect();
            stripe.broken = None;
            stripe.outgoing.clear();
        }
        self.inbox.clear();
    }
}

/// Handles an arrival. Returns whether it is the farewell.
fn arrived(
    stripe: &mut Stripe,
    arrival: Arrival,
    endpoint: EndpointId,
    done: &mut Vec<u64>,
    events: &mut Vec<Event>,
) -> Result<bool, ProtocolError> {
    match arrival {
        Arrival::Put { immediate, bytes } => {
            events.push(Event::Arrived { endpoint, immediate, bytes });
        }
        Arrival::Note(bytes) => events.push(Event::Note { endpoint, bytes }),
        Arrival::Acknowledged(received) => stripe.outgoing.acknowledge(received, done)?,
        Arrival::Resume(received) if stripe.resuming => {
            (stripe.resuming, stripe.broken) = (false, None);
            stripe.outgoing.resume(received, done)?;
        }
        Arrival::Resume(_) => return Err(ProtocolError::NotBroken),
        Arrival::Farewell => return Ok(true),
    }
    events.extend(done.drain(..).map(|id| Event::Done { id }));
    Ok(false)
}
