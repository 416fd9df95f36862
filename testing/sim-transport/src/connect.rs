//! Listening and connecting: one request and one answer, each of which takes one latency.

use std::any::Any;
use std::collections::VecDeque;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Connected, Connecting, HELLO_BYTES_MAX, Inner, Listener, Secret, TransportError,
};

use crate::state::{Attempt, Connection, ListenerState, Request, Side, SimEvent, State};
use crate::world::World;

const PREFIX: &[u8] = b"sim:";

fn listener_of(address: &Address) -> Option<u64> {
    let number = address.0.strip_prefix(PREFIX)?;
    Some(u64::from_le_bytes(number.try_into().ok()?))
}

#[derive(Debug)]
struct SimListener {
    world: World,
    number: u64,
    rank: u32,
    secret: Secret,
    rejected: u64,
}

pub(crate) fn listen(
    world: &World,
    rank: u32,
    secret: &Secret,
) -> Result<Box<dyn Listener>, TransportError> {
    let mut state = world.state();
    state.check_rank(rank)?;
    let number = state.fresh();
    state.listeners.insert(number, ListenerState { rank, inbox: VecDeque::new() });
    let (world, secret) = (world.clone(), secret.clone());
    Ok(Box::new(SimListener { world, number, rank, secret, rejected: 0 }))
}

impl Listener for SimListener {
    fn address(&self) -> Address {
        Address([PREFIX, &self.number.to_le_bytes()].concat())
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let mut state = self.world.state();
        state.advance(now);
        while let Some(request) = state.take_request(self.number) {
            let Some((attempt, from, secret)) = request.from else {
                self.rejected += 1;
                continue;
            };
            let back = state.now + state.latency(from, self.rank);
            if secret != self.secret {
                self.rejected += 1;
                let reason = "the two sides have different secrets";
                let answer = Attempt::Refused { reason };
                state.schedule(back, SimEvent::Answer { attempt, answer });
                continue;
            }
            let link = state.links.len();
            let sides = [from, self.rank].map(Side::new);
            state.links.push(Connection { sides, open: true });
            state.schedule(back, SimEvent::Answer { attempt, answer: Attempt::Accepted { link } });
            drop(state);
            let inner = SimInner::new(&self.world, link, 1);
            return Ok(Some(Connected { hello: request.hello, inner }));
        }
        Ok(None)
    }

    fn rejected(&self) -> u64 {
        self.rejected
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.world.state().listeners.remove(&self.number);
    }
}

impl Side {
    fn new(rank: u32) -> Side {
        Side {
            rank,
            lane: None,
            outstanding: 0,
            busy_until: Instant::ZERO,
            last_arrival: Instant::ZERO,
            last_note: Instant::ZERO,
            last_number: 0,
        }
    }
}

impl State {
    /// Checks that a rank belongs to this world, as listening and connecting require.
    fn check_rank(&self, rank: u32) -> Result<(), TransportError> {
        if (rank as usize) < self.ranks.len() {
            return Ok(());
        }
        let (count, most) = (rank as usize + 1, self.ranks.len());
        Err(TransportError::Count { what: "ranks of the simulated world", count, most })
    }

    fn take_request(&mut self, listener: u64) -> Option<Request> {
        self.listeners.get_mut(&listener)?.inbox.pop_front()
    }

    pub(crate) fn ask(&mut self, listener: u64, request: Request) {
        match self.listeners.get_mut(&listener) {
            Some(listener) => {
                listener.inbox.push_back(request);
                let rank = listener.rank;
                self.touch(rank);
            }
            None => {
                if let Some((attempt, ..)) = request.from {
                    let answer = Attempt::Refused { reason: "no listener has this number" };
                    let at = self.now + self.conditions.latency;
                    self.schedule(at, SimEvent::Answer { attempt, answer });
                }
            }
        }
    }

    pub(crate) fn stranger(&mut self, address: &Address, bytes: &[u8]) {
        if let Some(listener) = listener_of(address) {
            let request = Box::new(Request { from: None, hello: bytes.to_vec() });
            let at = self.now + self.conditions.latency;
            self.schedule(at, SimEvent::Ask { listener, request });
        }
    }
}

#[derive(Debug)]
struct SimConnecting {
    world: World,
    attempt: u64,
    started: Instant,
    deadline: Instant,
    listener: u64,
}

pub(crate) fn connect(
    world: &World,
    rank: u32,
    address: &Address,
    secret: &Secret,
    hello: &[u8],
    deadline: Instant,
) -> Result<Box<dyn Connecting>, TransportError> {
    let Some(listener) = listener_of(address) else {
        let (bytes, of) = (address.0.len(), "a simulated listener");
        return Err(TransportError::NoAddress { bytes, of });
    };
    if hello.len() > HELLO_BYTES_MAX {
        let (bytes, most) = (hello.len(), HELLO_BYTES_MAX);
        return Err(TransportError::TooLong { what: "hello", bytes, most });
    }
    let mut state = world.state();
    state.check_rank(rank)?;
    let attempt = state.fresh();
    state.attempts.insert(attempt, Attempt::Pending);
    let from = Some((attempt, rank, secret.clone()));
    let request = Box::new(Request { from, hello: hello.to_vec() });
    let (started, at) = (state.now, state.now + state.conditions.latency);
    state.schedule(at, SimEvent::Ask { listener, request });
    drop(state);
    let world = world.clone();
    Ok(Box::new(SimConnecting { world, attempt, started, deadline, listener }))
}

impl Connecting for SimConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let mut state = self.world.state();
        state.advance(now);
        let attempt = state.attempts.get(&self.attempt).cloned();
        let peer = format!("listener {}", self.listener);
        match attempt {
            Some(Attempt::Accepted { link }) => {
                state.attempts.remove(&self.attempt);
                drop(state);
                let inner = SimInner::new(&self.world, link, 0);
                Ok(Some(Connected { hello: Vec::new(), inner }))
            }
            Some(Attempt::Refused { reason }) => {
                Err(TransportError::Refused { peer, reason: reason.to_owned() })
            }
            Some(Attempt::Pending) if now < self.deadline => Ok(None),
            _ => Err(TransportError::Deadline {
                what: "connecting",
                peer,
                after: self.deadline.since(self.started),
            }),
        }
    }
}

impl Drop for SimConnecting {
    fn drop(&mut self) {
        let mut state = self.world.state();
        if let Some(Attempt::Accepted { link }) = state.attempts.remove(&self.attempt) {
            state.fail(link, "it gave up connecting");
        }
    }
}

/// Side of a connection that no lane has attached yet.
#[derive(Debug)]
pub(crate) struct SimInner {
    world: World,
    link: usize,
    side: usize,
    taken: bool,
}

impl SimInner {
    fn new(world: &World, link: usize, side: usize) -> Box<SimInner> {
        Box::new(SimInner { world: world.clone(), link, side, taken: false })
    }

    /// Returns the connection and the side. From then on, the caller owns the side.
    pub(crate) fn take(mut self) -> (usize, usize) {
        self.taken = true;
        (self.link, self.side)
    }
}

impl Inner for SimInner {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Drop for SimInner {
    fn drop(&mut self) {
        if !self.taken {
            self.world.state().fail(self.link, "it closed the connection");
        }
    }
}
