//! Two lanes joined by one connection, with memory to put from and into.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Connected, Connecting, Device, EndpointId, Event, Lane, Listener, LocalSlice, MrKey, RemoteMr,
    Secret, WorkRequest,
};
use ccl_memory::Region;

use crate::{Fixture, failed};

pub(crate) const SECRET: Secret = Secret([0x5e; 32]);

/// Number of polls after which the suite assumes that nothing more happens.
const SETTLED: usize = 400;
/// Largest number of attempts to let both sides leave.
const FAREWELLS_MAX: usize = 2_000;
/// Pause after each attempt to let both sides leave.
const PAUSE: Duration = Duration::from_micros(50);

/// One side of the connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) lane: Box<dyn Lane>,
    pub(crate) endpoint: EndpointId,
    /// Memory that the other end puts into.
    pub(crate) inbox: Region,
    pub(crate) inbox_key: MrKey,
    /// Memory that this end puts from.
    pub(crate) source: Region,
    pub(crate) source_key: MrKey,
    /// Inbox of the other end.
    pub(crate) remote: RemoteMr,
    /// All events of this end, oldest first.
    pub(crate) events: Vec<Event>,
}

impl End {
    /// Returns the ids of the completed requests, in the order of completion.
    pub(crate) fn done(&self) -> Vec<u64> {
        let id = |event: &Event| if let Event::Done { id } = event { Some(*id) } else { None };
        self.events.iter().filter_map(id).collect()
    }

    /// Returns the immediate and the length of each arrival at an endpoint.
    pub(crate) fn arrived(&self, at: EndpointId) -> Vec<(u32, usize)> {
        let arrival = |event: &Event| match event {
            Event::Arrived { endpoint, immediate, bytes } if *endpoint == at => {
                Some((*immediate, *bytes))
            }
            _ => None,
        };
        self.events.iter().filter_map(arrival).collect()
    }

    /// Returns the number of events that report the other end as lost.
    pub(crate) fn lost(&self) -> usize {
        let lost = |event: &&Event| matches!(event, Event::Lost { .. });
        self.events.iter().filter(lost).count()
    }

    /// Returns a put of the source's first bytes to the start of the other end's inbox.
    pub(crate) fn put(&self, bytes: usize, immediate: Option<u32>, id: u64) -> WorkRequest {
        self.put_at(0, 0, bytes, immediate, id)
    }

    /// Returns a put from an offset of the source to an offset of the other end's inbox.
    pub(crate) fn put_at(
        &self,
        offset: usize,
        remote_offset: usize,
        bytes: usize,
        immediate: Option<u32>,
        id: u64,
    ) -> WorkRequest {
        WorkRequest::Put {
            endpoint: self.endpoint,
            local: LocalSlice { key: self.source_key, offset, bytes },
            tail: None,
            is_control: false,
            remote: self.remote,
            remote_offset,
            immediate,
            id,
        }
    }
}

/// Both ends of a connection; end 0 accepted it.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) ends: [End; 2],
}

impl Drop for Pair {
    /// Lets both sides leave at the same time, as ranks do. A side that leaves alone would wait for
    /// an answer of the other side.
    fn drop(&mut self) {
        for _ in 0..FAREWELLS_MAX {
            // Both sides are polled in every round, even if one has finished.
            let over = self.ends.each_mut().map(|end| end.lane.poll_shutdown(None));
            if over == [true, true] {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Returns the bytes of a region.
pub(crate) fn bytes_of(region: &Region) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; region.bytes()];
    region.read(0, &mut bytes).map_err(failed("reading memory"))?;
    Ok(bytes)
}

/// Returns a pattern that is unique to its number.
pub(crate) fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    let mix = |at: usize| {
        let z = (number << 32 ^ at as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (z >> 56) as u8
    };
    (0..bytes).map(mix).collect()
}

/// Polls both sides until they are connected; returns both ends, the accepting side's end first.
pub(crate) fn meet(
    fixture: &dyn Fixture,
    listener: &mut dyn Listener,
    connecting: &mut dyn Connecting,
) -> Result<[Connected; 2], String> {
    let end = fixture.now() + fixture.patience();
    let (mut accepted, mut connected) = (None, None);
    while fixture.now() < end {
        let now = fixture.now();
        if accepted.is_none() {
            accepted = listener.poll(now).map_err(failed("listening"))?;
        }
        if connected.is_none() {
            connected = connecting.poll(now).map_err(failed("connecting"))?;
        }
        match (accepted, connected) {
            (Some(accepted), Some(connected)) => return Ok([accepted, connected]),
            (one, other) => (accepted, connected) = (one, other),
        }
        fixture.idle();
    }
    Err("the two sides did not connect in time".to_owned())
}

/// Makes a connection between the two sides and drops the listener. Returns both ends, the
/// accepting side's end first.
///
/// # Errors
///
/// Returns an error if the sides do not connect within the fixture's patience.
pub fn join(fixture: &dyn Fixture, hello: &[u8]) -> Result<[Connected; 2], String> {
    let deadline = fixture.now() + fixture.patience();
    let mut listener = fixture.device(0).listen(&SECRET).map_err(failed("listening"))?;
    let connecting = fixture.device(1).connect(&listener.address(), &SECRET, hello, deadline);
    meet(fixture, &mut *listener, &mut *connecting.map_err(failed("connecting"))?)
}

/// Returns registered memory of this many bytes, as a source of puts.
fn source(device: &dyn Device, bytes: usize) -> Result<(Region, MrKey), String> {
    let region = Region::private(bytes).part(0, bytes).map_err(failed("cutting memory"))?;
    let key = device.register(&region).map_err(failed("registering"))?;
    Ok((region, key))
}

impl Pair {
    /// Connects two fresh lanes, with inboxes and sources of `bytes` each.
    pub(crate) fn new(fixture: &dyn Fixture, bytes: usize) -> Result<Pair, String> {
        let devices = [0, 1].map(|side| fixture.device(side));
        let mut lanes = Vec::new();
        for (side, device) in devices.iter().enumerate() {
            lanes.push(fixture.wrap(side, device.lane().map_err(failed("making a lane"))?));
        }
        let mut ends = Vec::new();
        for ((device, mut lane), connected) in
            devices.into_iter().zip(lanes).zip(join(fixture, b"pair")?)
        {
            let endpoint = lane.attach(connected).map_err(failed("attaching"))?;
            let (inbox, inbox_key) = device.allocate(bytes).map_err(failed("allocating"))?;
            let (source, source_key) = source(&*device, bytes)?;
            let (remote, events) = (RemoteMr(u64::MAX), Vec::new());
            ends.push(End {
                device,
                lane,
                endpoint,
                inbox,
                inbox_key,
                source,
                source_key,
                remote,
                events,
            });
        }
        let ends = ends.try_into().map_err(|_| "there are not two ends".to_owned())?;
        let mut pair = Pair { ends };
        pair.introduce()?;
        Ok(pair)
    }

    /// Gives each end the key of the other's inbox.
    fn introduce(&mut self) -> Result<(), String> {
        for from in [0, 1] {
            let (endpoint, key) = (self.ends[from].endpoint, self.ends[from].inbox_key);
            let key = self.ends[from].lane.share(endpoint, key).map_err(failed("sharing"))?;
            let to = &mut self.ends[1 - from];
            to.remote = to.lane.import(to.endpoint, &key).map_err(failed("importing"))?;
        }
        Ok(())
    }

    pub(crate) fn poll(&mut self, now: Instant) -> Result<(), String> {
        for end in &mut self.ends {
            end.lane.poll(now, &mut end.events).map_err(failed("polling"))?;
        }
        Ok(())
    }

    /// Polls both ends until `done` returns true. After the fixture's patience, fails with an error
    /// that quotes `what`.
    pub(crate) fn until(
        &mut self,
        fixture: &dyn Fixture,
        what: &str,
        mut done: impl FnMut(&Pair) -> bool,
    ) -> Result<(), String> {
        let end = fixture.now() + fixture.patience();
        loop {
            self.poll(fixture.now())?;
            if done(self) {
                return Ok(());
            }
            if fixture.now() >= end {
                let events: Vec<usize> = self.ends.iter().map(|end| end.events.len()).collect();
                let patience = fixture.patience();
                return Err(format!(
                    "within {patience:?}, this did not happen: {what}; events per side: {events:?}"
                ));
            }
            fixture.idle();
        }
    }

    /// Posts all requests from one end, with as many calls as necessary.
    pub(crate) fn post(
        &mut self,
        fixture: &dyn Fixture,
        from: usize,
        work: &[WorkRequest],
    ) -> Result<(), String> {
        let end = fixture.now() + fixture.patience();
        let mut rest = work;
        loop {
            let taken = self.ends[from].lane.post(fixture.now(), rest);
            let taken = taken.map_err(failed("posting"))?;
            rest = rest.get(taken..).ok_or("more requests were taken than posted")?;
            if rest.is_empty() {
                return Ok(());
            }
            if fixture.now() >= end {
                return Err(format!("{} requests were never taken", rest.len()));
            }
            fixture.idle();
            self.poll(fixture.now())?;
        }
    }

    /// Polls both ends `SETTLED` times, so that everything under way has happened.
    pub(crate) fn settle(&mut self, fixture: &dyn Fixture) -> Result<(), String> {
        for _ in 0..SETTLED {
            self.poll(fixture.now())?;
            fixture.idle();
        }
        Ok(())
    }
}
