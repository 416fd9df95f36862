//! Lane of one rank.

use std::collections::VecDeque;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Connected, EndpointId, Event, IMMEDIATE_MAX, Lane, LocalSlice, MrKey, RemoteKey, RemoteMr,
    TransportError, WorkRequest, check_note,
};
use ccl_memory::Region;

use crate::connect::SimInner;
use crate::flight::Flight;
use crate::state::{LaneState, Share, SimEvent, State};
use crate::world::World;

const PREFIX: &[u8] = b"simkey:";

#[derive(Debug)]
pub(crate) struct SimLane {
    world: World,
    rank: u32,
    lane: usize,
}

impl SimLane {
    pub(crate) fn new(world: &World, rank: u32) -> SimLane {
        let mut state = world.state();
        let lane = state.lanes.len();
        state.lanes.push(LaneState { rank, events: VecDeque::new(), endpoints: Vec::new() });
        drop(state);
        SimLane { world: world.clone(), rank, lane }
    }
}

fn inside(offset: usize, bytes: usize, of: usize) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= of)
}

fn check_range(
    memory: &'static str,
    offset: usize,
    bytes: usize,
    of: usize,
) -> Result<(), TransportError> {
    if inside(offset, bytes, of) {
        return Ok(());
    }
    Err(TransportError::OutOfRange { memory, offset, bytes, room: of as u64 })
}

impl State {
    fn endpoint(&self, lane: usize, at: EndpointId) -> Result<(usize, usize), TransportError> {
        let endpoints = &self.lanes[lane].endpoints;
        let found = endpoints.get(at.0 as usize).copied().flatten();
        found.ok_or(TransportError::UnknownEndpoint(at))
    }

    /// Returns the share with this number. The number comes from a peer's key. Returns `None` if
    /// the other side of this connection has shared no memory under that number.
    fn share_of(&self, link: usize, side: usize, number: u64) -> Option<&Share> {
        let share = usize::try_from(number).ok().and_then(|index| self.shares.get(index));
        share.filter(|share| share.link == link && share.side == 1 - side)
    }

    /// Checks a request and returns its flight.
    fn check(
        &self,
        lane: usize,
        rank: u32,
        request: &WorkRequest,
    ) -> Result<Flight, TransportError> {
        let WorkRequest::Put { endpoint, local, tail, is_control, remote, .. } = *request;
        let WorkRequest::Put { remote_offset, immediate, id, .. } = *request;
        let (link, side) = self.endpoint(lane, endpoint)?;
        let mut bytes = 0usize;
        let local = [Some(local), tail];
        for slice in local.into_iter().flatten() {
            self.check_local(rank, slice)?;
            bytes = bytes.saturating_add(slice.bytes);
        }
        let share = self.share_of(link, side, remote.0);
        let share = share.ok_or(TransportError::NotImported { memory: remote, endpoint })?;
        check_range("the peer's memory", remote_offset, bytes, share.bytes)?;
        if let Some(immediate) = immediate.filter(|immediate| *immediate > IMMEDIATE_MAX) {
            return Err(TransportError::ImmediateTooLarge(immediate));
        }
        let most = self.conditions.message_bytes_max;
        if bytes > most {
            return Err(TransportError::TooLong { what: "put", bytes, most });
        }
        let (number, departs, share) = (0, self.now, remote.0);
        Ok(Flight {
            link,
            side,
            number,
            local,
            share,
            remote_offset,
            is_control,
            immediate,
            id,
            departs,
        })
    }

    fn check_redirects(&self) -> Result<(), TransportError> {
        match self.conditions.redirects {
            true => Ok(()),
            false => Err(TransportError::Unsupported {
                what: "relocate or redirect puts",
                reason: "a put of this network keeps the locations with which it was posted",
            }),
        }
    }

    /// Checks that a slice lies in memory that the rank has registered.
    pub(crate) fn check_local(&self, rank: u32, slice: LocalSlice) -> Result<(), TransportError> {
        let LocalSlice { key, offset, bytes } = slice;
        let memory = self.memory.get(&key.0).filter(|memory| memory.rank == rank);
        let memory = memory.ok_or(TransportError::UnknownMemory(key))?;
        check_range("the registered memory", offset, bytes, memory.region.bytes())
    }

    fn post(
        &mut self,
        lane: usize,
        rank: u32,
        work: &[WorkRequest],
    ) -> Result<usize, TransportError> {
        for (taken, request) in work.iter().enumerate() {
            if self.has_crashed(rank) {
                return Ok(taken);
            }
            let flight = match self.check(lane, rank, request) {
                Ok(flight) => flight,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => return Ok(taken),
            };
            let connection = &self.links[flight.link];
            if !connection.open {
                continue;
            }
            let outstanding = connection.sides[flight.side].outstanding;
            if !flight.is_control && outstanding >= self.conditions.depth_max {
                return Ok(taken);
            }
            self.launch(flight);
            self.count(rank);
        }
        Ok(work.len())
    }

    fn detach(&mut self, lane: usize, at: EndpointId) {
        let Ok((link, side)) = self.endpoint(lane, at) else { return };
        self.lanes[lane].endpoints[at.0 as usize] = None;
        // The lane's owner never sees the endpoint's unpolled events, except completions.
        self.lanes[lane].events.retain(|event| match event {
            Event::Arrived { endpoint, .. }
            | Event::Note { endpoint, .. }
            | Event::Lost { endpoint, .. } => *endpoint != at,
            Event::Done { .. } => true,
        });
        let connection = &mut self.links[link];
        connection.sides[side].lane = None;
        let rank = connection.sides[side].rank;
        if !std::mem::replace(&mut connection.open, false) || self.has_crashed(rank) {
            return;
        }
        let other = &self.links[link].sides[1 - side];
        let late = self.latency(rank, other.rank);
        self.schedule(self.now + late, SimEvent::Closed { link, side: 1 - side });
    }

    /// Sends a note. The note always arrives, unless one end is gone.
    fn note(&mut self, lane: usize, at: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        let (link, side) = self.endpoint(lane, at)?;
        check_note(bytes)?;
        let connection = &self.links[link];
        let (from, to) = (connection.sides[side].rank, connection.sides[1 - side].rank);
        if connection.open && !self.has_crashed(from) {
            let arrives = self.now + self.latency(from, to);
            // Notes keep their order.
            let arrives = arrives.max(self.links[link].sides[side].last_note);
            self.links[link].sides[side].last_note = arrives;
            let bytes = bytes.to_vec();
            self.schedule(arrives, SimEvent::Note { link, side: 1 - side, bytes });
        }
        Ok(())
    }

    /// Delivers a note to a side of a connection, once a lane of this side has attached the
    /// connection.
    pub(crate) fn noted(&mut self, link: usize, side: usize, bytes: Vec<u8>) {
        let connection = &self.links[link];
        if !connection.open || self.has_crashed(connection.sides[side].rank) {
            return;
        }
        match connection.sides[side].lane {
            Some((lane, endpoint)) => self.tell(lane, Event::Note { endpoint, bytes }),
            None => {
                let later = self.now + Duration::from_micros(1);
                self.schedule(later, SimEvent::Note { link, side, bytes });
            }
        }
    }

    /// Tells a side that the other side has closed the connection.
    pub(crate) fn closed(&mut self, link: usize, side: usize) {
        if let Some((lane, endpoint)) = self.links[link].sides[side].lane {
            let reason = "it closed the connection".to_owned();
            self.tell(lane, Event::Lost { endpoint, reason });
        }
    }
}

impl Lane for SimLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let inner = connected.into_own(|_: &SimInner| true)?;
        let (link, side) = inner.take();
        let mut state = self.world.state();
        if state.links[link].sides[side].rank != self.rank {
            state.fail(link, "it closed the connection");
            return Err(TransportError::OtherDevice);
        }
        let endpoints = &mut state.lanes[self.lane].endpoints;
        let endpoint = EndpointId(endpoints.len() as u32);
        endpoints.push(Some((link, side)));
        state.links[link].sides[side].lane = Some((self.lane, endpoint));
        if !state.links[link].open {
            state.closed(link, side);
        }
        Ok(endpoint)
    }

    fn detach(&mut self, endpoint: EndpointId) {
        self.world.state().detach(self.lane, endpoint);
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        let mut state = self.world.state();
        let (link, side) = state.endpoint(self.lane, endpoint)?;
        let memory = state.memory.get(&key.0).filter(|memory| memory.rank == self.rank);
        let memory = memory.ok_or(TransportError::UnknownMemory(key))?;
        let bytes = memory.region.bytes();
        let number = state.shares.len() as u64;
        state.shares.push(Share { link, side, key: key.0, bytes });
        Ok(RemoteKey([PREFIX, &number.to_le_bytes()].concat()))
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        let state = self.world.state();
        let (link, side) = state.endpoint(self.lane, at)?;
        let number = key.0.strip_prefix(PREFIX).and_then(|bytes| bytes.try_into().ok());
        let number = number.map(u64::from_le_bytes);
        let number = number.ok_or(TransportError::NoKey { bytes: key.0.len() })?;
        if state.share_of(link, side, number).is_none() {
            let peer = format!("rank {}", state.links[link].sides[1 - side].rank);
            return Err(TransportError::ForeignKey { peer });
        }
        Ok(RemoteMr(number))
    }

    fn map(&mut self, _: EndpointId, _: &RemoteKey) -> Result<Region, TransportError> {
        Err(TransportError::NotMapped { peer: "a simulated rank".to_owned() })
    }

    fn post(&mut self, now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        let mut state = self.world.state();
        state.advance(now);
        state.post(self.lane, self.rank, work)
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        self.world.state().note(self.lane, endpoint, bytes)
    }

    fn relocate(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        tail: LocalSlice,
    ) -> Result<(), TransportError> {
        let mut state = self.world.state();
        let at = state.endpoint(self.lane, endpoint)?;
        state.check_redirects()?;
        state.relocate(at, id, tail)
    }

    fn redirect(
        &mut self,
        endpoint: EndpointId,
        from: LocalSlice,
        into: Option<LocalSlice>,
    ) -> Result<bool, TransportError> {
        let mut state = self.world.state();
        let at = state.endpoint(self.lane, endpoint)?;
        state.check_redirects()?;
        state.redirect(at, from, into)
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let mut state = self.world.state();
        state.advance(now);
        if !state.has_crashed(self.rank) {
            events.extend(state.lanes[self.lane].events.drain(..));
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.world.next_event()
    }
}

impl Drop for SimLane {
    fn drop(&mut self) {
        let mut state = self.world.state();
        for index in 0..state.lanes[self.lane].endpoints.len() {
            state.detach(self.lane, EndpointId(index as u32));
        }
    }
}
