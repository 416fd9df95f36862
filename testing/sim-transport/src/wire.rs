//! Puts under way.

use std::ops::Range;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Event, LocalSlice, TransportError};

use crate::flight::Flight;
use crate::state::{Connection, SimEvent, State};

impl State {
    /// Returns a random time of at most the jitter.
    pub(crate) fn jitter(&mut self) -> Duration {
        let most = self.conditions.jitter.as_nanos() as u64;
        Duration::from_nanos(self.random.below(most.saturating_add(1)))
    }

    /// Returns the latency between two ranks.
    pub(crate) fn latency(&self, a: u32, b: u32) -> Duration {
        let slowness = self.conditions.slowness(a).max(self.conditions.slowness(b));
        self.conditions.latency.saturating_mul(slowness)
    }

    /// Launches a put. Draws the times of its departure and arrival, and its faults on the way.
    pub(crate) fn launch(&mut self, mut flight: Flight) {
        self.late.begin(&flight);
        let (link, side) = (flight.link, flight.side);
        let (from, to) = (self.links[link].sides[side].rank, self.links[link].sides[1 - side].rank);
        let slowness = self.conditions.slowness(from).max(self.conditions.slowness(to));
        let bytes = flight.bytes();
        let seconds = bytes as f64 / self.conditions.bandwidth_bytes_per_s * f64::from(slowness);
        let start = self.links[link].sides[side].busy_until.max(self.now);
        // A link without bandwidth never sends.
        let sent = start + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.links[link].sides[side].busy_until = sent;
        self.stats.puts += 1;
        self.links[link].sides[side].outstanding += usize::from(!flight.is_control);
        let towards = &mut self.ranks[to as usize];
        towards.towards_bytes += flight.admitted_bytes();
        towards.towards_bytes_max = towards.towards_bytes_max.max(towards.towards_bytes);

        let (departs, reached) = self.transmissions(from, to, sent);
        flight.departs = departs;
        let mut arrives = departs + self.latency(from, to) + self.hold();
        if self.conditions.ordered {
            arrives = arrives.max(self.links[link].sides[side].last_arrival);
        }
        self.links[link].sides[side].last_arrival = arrives;
        let number = self.fresh();
        flight.number = number;
        let duplicate = self.random.chance(self.conditions.duplication);
        self.flights.insert(number, flight);
        if !reached {
            self.schedule(departs, SimEvent::Fail { link, reason: "puts were not acknowledged" });
            return;
        }
        if !self.conditions.redirects {
            self.draw_tear(departs, arrives, number, bytes);
        }
        self.schedule(arrives, SimEvent::Deliver(number));
        if duplicate {
            let late = self.jitter();
            self.schedule(arrives + late, SimEvent::Duplicate(number));
        }
    }

    /// Returns the departure time of the transmission that arrives, and true. If none arrives,
    /// returns the time at which the sender gives up, and false.
    fn transmissions(&mut self, from: u32, to: u32, first: Instant) -> (Instant, bool) {
        let (mut at, mut wait) = (first, self.conditions.retransmit_after);
        for _ in 0..=self.conditions.retransmissions_max {
            let cut = self.conditions.cut.as_ref().is_some_and(|cut| cut.parts(from, to, at));
            if !self.random.chance(self.conditions.loss) && !cut {
                return (at, true);
            }
            self.stats.lost += 1;
            at = at + wait;
            wait = wait.saturating_mul(2);
        }
        (at, false)
    }

    /// Returns the additional delay of a put beyond the latency.
    fn hold(&mut self) -> Duration {
        let mut hold = self.jitter();
        let spike = self.conditions.spike;
        if self.random.chance(self.conditions.reordering) {
            let part = self.random.below((spike.as_nanos() as u64).saturating_add(1));
            hold = hold.saturating_add(Duration::from_nanos(part));
        }
        if self.random.chance(self.conditions.delay_spikes) {
            hold = hold.saturating_add(spike);
        }
        hold
    }

    /// Draws the bytes of a put that are written before the others, and the time of that write.
    fn draw_tear(&mut self, departs: Instant, arrives: Instant, flight: u64, bytes: usize) {
        let way = arrives.since(departs).as_nanos() as u64;
        let at = departs + Duration::from_nanos(self.random.below(way + 1));
        let split = self.random.below(bytes as u64 + 1) as usize;
        let part = if self.random.chance(0.5) { 0..split } else { split..bytes };
        self.schedule(at, SimEvent::Tear { flight, part });
    }

    /// Writes a part of a put's bytes, if the connection is open and both ends live.
    pub(crate) fn tear(&mut self, number: u64, part: Range<usize>) {
        let Some(flight) = self.flights.get(&number).cloned() else { return };
        let Connection { sides, open } = &self.links[flight.link];
        let has_crashed = sides.iter().any(|side| self.has_crashed(side.rank));
        if !open || has_crashed || !self.gather(&flight) {
            return;
        }
        let target = self.shares.get(flight.share as usize);
        let target = target.and_then(|share| self.memory.get(&share.key));
        if let (Some(target), Some(bytes)) = (target, self.buffer.get(part.clone())) {
            let _ = target.region.write(flight.remote_offset + part.start, bytes);
        }
    }

    /// Writes a put's bytes and schedules its events, unless the connection is closed, the receiver
    /// has crashed, or the sender crashed before the put departed.
    pub(crate) fn deliver(&mut self, number: u64) {
        let Some(flight) = self.flights.remove(&number) else { return };
        let connection = &self.links[flight.link];
        let (from, to) =
            (connection.sides[flight.side].rank, connection.sides[1 - flight.side].rank);
        let open = connection.open;
        self.ranks[to as usize].towards_bytes -= flight.admitted_bytes();
        let sent = self.ranks[from as usize].crashed.is_none_or(|at| flight.departs <= at);
        if !open || !sent {
            self.stats.void += 1;
            return;
        }
        if self.has_crashed(to) {
            self.stats.void += 1;
            self.give_up(flight.link);
            return;
        }
        if let Err(reason) = self.write(&flight) {
            self.stats.void += 1;
            self.fail(flight.link, reason);
            return;
        }
        let side = &mut self.links[flight.link].sides[flight.side];
        self.stats.overtakings += u64::from(flight.number < side.last_number);
        side.last_number = side.last_number.max(flight.number);
        let at_once = flight.immediate.is_none() || self.conditions.ordered;
        let late = if at_once { Duration::ZERO } else { self.jitter() };
        // The acknowledgement comes after the arrival at the receiver.
        let back = self.now + late + self.latency(from, to) + self.hold();
        let (acknowledged, digest) = (Box::new(flight.clone()), digest(&self.buffer));
        self.schedule(back, SimEvent::Acknowledge { flight: acknowledged, digest });
        if flight.immediate.is_none() {
            return;
        }
        if self.conditions.ordered {
            self.arrive(&flight);
        } else {
            let flight = Box::new(flight);
            self.schedule(self.now + late, SimEvent::Arrive { flight });
        }
    }

    fn write(&mut self, flight: &Flight) -> Result<(), &'static str> {
        let gone = "the target memory of a put was deregistered";
        if !self.gather(flight) {
            return Err("the source memory of a put was deregistered");
        }
        let share = self.shares.get(flight.share as usize).ok_or(gone)?;
        let target = self.memory.get(&share.key).ok_or(gone)?;
        let mut here = self.buffer.as_slice();
        if let Some((start, into)) = self.late.write(flight, share.key) {
            let (before, rest) = self.buffer.split_at(start);
            if let Some(memory) = self.memory.get(&into.key.0) {
                memory.region.write(into.offset, rest).map_err(|_| gone)?;
            }
            here = before;
        }
        target.region.write(flight.remote_offset, here).map_err(|_| gone)
    }

    /// Reads a put's bytes into the buffer. Returns whether their memory still exists.
    fn gather(&mut self, flight: &Flight) -> bool {
        let State { buffer, memory, late, .. } = self;
        buffer.clear();
        late.sources(flight).iter().flatten().all(|slice| {
            let start = buffer.len();
            buffer.resize(start + slice.bytes, 0);
            let memory = memory.get(&slice.key.0);
            memory.is_some_and(|of| of.region.read(slice.offset, &mut buffer[start..]).is_ok())
        })
    }

    /// Schedules the failure of a connection whose sender gives up after all retransmissions.
    fn give_up(&mut self, link: usize) {
        if !self.conditions.silent_crashes {
            let doublings = (1u32 << self.conditions.retransmissions_max.min(16)) - 1;
            let at = self.now + self.conditions.retransmit_after.saturating_mul(doublings);
            self.schedule(at, SimEvent::Fail { link, reason: "puts were not acknowledged" });
        }
    }

    pub(crate) fn arrive(&mut self, flight: &Flight) {
        self.late.arrive(flight);
        let connection = &self.links[flight.link];
        let side = &connection.sides[1 - flight.side];
        let Some(immediate) = flight.immediate else { return };
        match side.lane {
            Some((lane, endpoint)) if connection.open && !self.has_crashed(side.rank) => {
                let bytes = flight.bytes();
                self.tell(lane, Event::Arrived { endpoint, immediate, bytes });
            }
            _ => self.stats.void += 1,
        }
    }

    pub(crate) fn acknowledge(&mut self, flight: &Flight, before: u64) {
        let connection = &mut self.links[flight.link];
        if !connection.open {
            return;
        }
        let side = &mut connection.sides[flight.side];
        side.outstanding = side.outstanding.saturating_sub(usize::from(!flight.is_control));
        let (lane, rank) = (side.lane, side.rank);
        let (Some((lane, _)), false) = (lane, self.has_crashed(rank)) else { return };
        let unchanged = self.gather(flight) && digest(&self.buffer) == before;
        self.stats.changed += u64::from(!unchanged);
        self.tell(lane, Event::Done { id: flight.id });
    }

    /// Moves the tail of a put to other memory of its sender.
    pub(crate) fn relocate(
        &mut self,
        (link, side): (usize, usize),
        id: u64,
        tail: LocalSlice,
    ) -> Result<(), TransportError> {
        self.check_local(self.links[link].sides[side].rank, tail)?;
        self.late.relocate((link, side), id, tail);
        Ok(())
    }

    /// Redirects to `into` the bytes that a put will write to `from`. If `into` is `None`, ends the
    /// redirection. Returns false if it is too late to redirect the bytes.
    pub(crate) fn redirect(
        &mut self,
        (link, side): (usize, usize),
        from: LocalSlice,
        into: Option<LocalSlice>,
    ) -> Result<bool, TransportError> {
        let rank = self.links[link].sides[side].rank;
        for slice in [Some(from), into].into_iter().flatten() {
            self.check_local(rank, slice)?;
        }
        if let Some(into) = into {
            return Ok(self.late.redirect((link, side), from, into));
        }
        if let Some((into, bytes)) = self.late.end_redirect((link, side), from) {
            self.bring_back(from, into, bytes);
        }
        Ok(true)
    }

    fn bring_back(&mut self, from: LocalSlice, into: LocalSlice, bytes: usize) {
        let (Some(slot), Some(source)) =
            (self.memory.get(&from.key.0), self.memory.get(&into.key.0))
        else {
            return;
        };
        // Both ranges were checked earlier.
        let _ = slot.region.copy_from(from.offset, &source.region, into.offset, bytes);
    }
}

/// Returns a hash of the bytes.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
