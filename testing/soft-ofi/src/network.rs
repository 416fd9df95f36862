//! State of all providers, memory, queues and requests under way, behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ccl_core::random::Random;
use libc::c_int;
use libfabric_sys::FI_DELIVERY_COMPLETE;

use crate::objects::{self, Range};
use crate::{Condition, Fault, Limits};

/// Length of an endpoint's address.
pub(crate) const ADDRESS_BYTES: usize = 32;

#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) limits: Limits,
    pub(crate) condition: Condition,
    pub(crate) faults: VecDeque<Fault>,
    pub(crate) is_listed: bool,
    random: Random,
    pub(crate) requests: Vec<Request>,
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) domain: u32,
    pub(crate) key: u64,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) access: u64,
    /// Endpoint that the memory is bound to, if any.
    pub(crate) bound: Option<u32>,
}

/// A completion; a failure if `error` is not 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) bytes: usize,
    pub(crate) data: u64,
    pub(crate) error: c_int,
    /// Endpoint whose request this completion ends, if any.
    pub(crate) ends: Option<u32>,
}

/// Completion queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) domain: u32,
    pub(crate) ready: VecDeque<Completion>,
    /// Completions that cannot be read yet; [`Network::ripen`] makes them readable.
    pub(crate) late: Vec<Completion>,
    /// Descriptor that signals completions, if the caller asked for one.
    pub(crate) bell: Option<c_int>,
    /// Error of the first read that failed, which all later reads return; 0 if none has failed.
    pub(crate) error: c_int,
}

#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    pub(crate) domain: u32,
    pub(crate) low_latency: bool,
    pub(crate) queue: Option<u32>,
    pub(crate) vector: Option<u32>,
    pub(crate) events: Option<u32>,
    pub(crate) is_enabled: bool,
    /// Posted receives: memory and context.
    pub(crate) receives: VecDeque<(Range, usize)>,
    /// Number of requests whose completions were not read.
    pub(crate) outstanding: usize,
}

/// Bytes of a request.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Bytes that were copied when the request was posted.
    Taken(Vec<u8>),
    /// Memory that is read when a packet is sent.
    At(Vec<Range>),
}

/// Destination of a write: address, key, and the data of the completion at the peer, if any.
pub(crate) type Target = (u64, u64, Option<u64>);

/// A request under way.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) from: u32,
    /// Number of the peer's endpoint.
    pub(crate) to: u32,
    pub(crate) flags: u64,
    pub(crate) context: usize,
    pub(crate) payload: Payload,
    pub(crate) bytes: usize,
    /// Destination of a write; none for a message.
    pub(crate) target: Option<Target>,
    /// First byte and length of the packets that have not arrived.
    pub(crate) packets: Vec<(usize, usize)>,
    /// True if the sender already has its completion.
    pub(crate) is_told: bool,
    pub(crate) fault: Option<Fault>,
}

#[derive(Debug)]
pub(crate) struct Network {
    last_id: u32,
    pub(crate) providers: BTreeMap<u32, Provider>,
    /// Open domains, each with its provider.
    pub(crate) domains: BTreeMap<u32, u32>,
    pub(crate) memory: BTreeMap<u32, Memory>,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) vectors: BTreeMap<u32, Vec<u32>>,
    /// Errors of each event queue.
    pub(crate) events: BTreeMap<u32, VecDeque<c_int>>,
    pub(crate) endpoints: BTreeMap<u32, Endpoint>,
}

static NETWORK: Mutex<Network> = Mutex::new(Network {
    last_id: 0,
    providers: BTreeMap::new(),
    domains: BTreeMap::new(),
    memory: BTreeMap::new(),
    queues: BTreeMap::new(),
    vectors: BTreeMap::new(),
    events: BTreeMap::new(),
    endpoints: BTreeMap::new(),
});

pub(crate) fn lock() -> MutexGuard<'static, Network> {
    // One failed test must not fail all others.
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn device_name(id: u32) -> String {
    format!("soft{id}")
}

impl Network {
    /// Returns a new number for an object.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn add_provider(&mut self, limits: Limits) -> u32 {
        let id = self.next_id();
        let random = Random::new(limits.seed);
        let provider = Provider {
            limits,
            condition: Condition::Good,
            faults: VecDeque::new(),
            is_listed: true,
            random,
            requests: Vec::new(),
        };
        self.providers.insert(id, provider);
        id
    }

    pub(crate) fn remove_provider(&mut self, id: u32) {
        self.with_provider(id, |provider| provider.is_listed = false);
        self.forget(id);
    }

    /// Removes a provider if it is no longer listed and none of its domains is open.
    pub(crate) fn forget(&mut self, id: u32) {
        let is_open = self.domains.values().any(|provider| *provider == id);
        if !is_open && self.providers.get(&id).is_some_and(|provider| !provider.is_listed) {
            self.providers.remove(&id);
        }
    }

    pub(crate) fn with_provider(&mut self, id: u32, change: impl FnOnce(&mut Provider)) {
        if let Some(provider) = self.providers.get_mut(&id) {
            change(provider);
        }
    }

    /// Returns the provider of a domain.
    pub(crate) fn provider_of(&mut self, domain: u32) -> Option<&mut Provider> {
        let provider = self.domains.get(&domain)?;
        self.providers.get_mut(provider)
    }

    /// Returns the provider of an endpoint.
    pub(crate) fn provider_at(&mut self, endpoint: u32) -> Option<&mut Provider> {
        let domain = self.endpoints.get(&endpoint)?.domain;
        self.provider_of(domain)
    }

    fn is_of(&self, domain: u32, provider: u32) -> bool {
        self.domains.get(&domain) == Some(&provider)
    }

    pub(crate) fn under_way(&self, provider: u32) -> usize {
        self.providers.get(&provider).map_or(0, |provider| provider.requests.len())
    }

    pub(crate) fn in_use(&self, provider: u32) -> (usize, usize) {
        let domains = self.endpoints.values().map(|endpoint| endpoint.domain);
        let endpoints = domains.filter(|domain| self.is_of(*domain, provider)).count();
        let domains = self.memory.values().map(|memory| memory.domain);
        (endpoints, domains.filter(|domain| self.is_of(*domain, provider)).count())
    }

    /// Makes a packet of each endpoint fail: puts an error into the endpoint's event queue, if it
    /// has one, and a completion without a context into the endpoint's completion queue. Returns
    /// the number of endpoints with an event queue.
    pub(crate) fn fail_packets(&mut self, provider: u32, error: c_int) -> usize {
        let Network { endpoints, domains, events, queues, .. } = self;
        let own = endpoints.values().filter(|it| domains.get(&it.domain) == Some(&provider));
        let mut told = 0;
        for Endpoint { events: own, queue, .. } in own {
            if let Some(errors) = own.and_then(|own| events.get_mut(&own)) {
                errors.push_back(error);
                told += 1;
            }
            let failed = Completion { context: 0, flags: 0, bytes: 0, data: 0, error, ends: None };
            let queue = queue.and_then(|queue| queues.get_mut(&queue));
            queue.into_iter().for_each(|queue| queue.ready.push_back(failed));
        }
        told
    }

    /// Returns the number of errors that the event queues of a provider's endpoints hold.
    pub(crate) fn events_held(&self, provider: u32) -> usize {
        let own = self.endpoints.values().filter(|endpoint| self.is_of(endpoint.domain, provider));
        let queues = own.filter_map(|endpoint| self.events.get(&endpoint.events?));
        queues.map(VecDeque::len).sum()
    }

    /// Puts a completion into an endpoint's completion queue, readable at once or only later.
    pub(crate) fn complete(&mut self, at: u32, completion: Completion) {
        let is_late = self.provider_at(at).is_some_and(|provider| provider.draw(2) == 0);
        self.enqueue(at, completion, is_late);
    }

    /// Puts the completion of an arrived request into the receiver's completion queue. If the
    /// sender asked for `FI_DELIVERY_COMPLETE`, the completion is readable at once: EFA's provider
    /// writes it before it acknowledges a message (`efa_rdm_ope_handle_recv_completed`). That
    /// adapters do the same with writes is an assumption.
    pub(crate) fn arrive(&mut self, request: &Request, completion: Completion) {
        match request.flags & FI_DELIVERY_COMPLETE {
            0 => self.complete(request.to, completion),
            _ => self.enqueue(request.to, completion, false),
        }
    }

    fn enqueue(&mut self, at: u32, completion: Completion, is_late: bool) {
        let queue = self.endpoints.get(&at).and_then(|endpoint| endpoint.queue);
        let queue = queue.and_then(|queue| self.queues.get_mut(&queue));
        let Some(queue) = queue else { return };
        match is_late {
            true => queue.late.push(completion),
            false => queue.ready.push_back(completion),
        }
        queue.bell.into_iter().for_each(objects::ring);
    }

    /// Makes some of a queue's late completions readable, in random order.
    pub(crate) fn ripen(&mut self, queue: u32) {
        let Network { queues, domains, providers, .. } = self;
        let Some(queue) = queues.get_mut(&queue) else { return };
        let provider = domains.get(&queue.domain).and_then(|id| providers.get_mut(id));
        let Some(provider) = provider else { return };
        for _ in 0..provider.draw(queue.late.len() + 1) {
            let at = provider.draw(queue.late.len());
            queue.ready.push_back(queue.late.swap_remove(at));
        }
    }
}

impl Provider {
    /// Returns whether requests of this provider make progress.
    pub(crate) fn moves(&self) -> bool {
        matches!(self.condition, Condition::Good | Condition::Congested)
    }

    /// Returns a random number below `below`.
    pub(crate) fn draw(&mut self, below: usize) -> usize {
        self.random.below(below as u64) as usize
    }
}
