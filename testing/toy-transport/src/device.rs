//! Device: memory registration, listening and connecting.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Caps, Connected, Connecting, Device, HELLO_BYTES_MAX, Lane, Listener, MrKey, Registry,
    Secret, TransportError,
};
use ccl_memory::Region;

use crate::lane::ToyLane;
use crate::queue::{Queue, ToyInner, lock};

pub(crate) const CAPS: Caps = Caps {
    mapped: false,
    ordered: true,
    redirects: false,
    acknowledged: false,
    written_early: false,
    polls_by_system_call: false,
    register_bytes_min: 0,
    message_bytes_max: 16 << 20,
    depth_max: 64,
    bandwidth_bytes_per_s: 1e9,
    latency_ns: 10_000,
};

/// Listeners of this process by number, with their waiting connection requests.
static LISTENERS: Mutex<BTreeMap<u64, VecDeque<Call>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Connection request.
#[derive(Debug)]
struct Call {
    secret: Secret,
    hello: Vec<u8>,
    /// Queues to the connecting side and from it.
    queues: [Arc<Queue>; 2],
    answer: Arc<Answer>,
}

/// Answer of the listener.
#[derive(Debug, Default)]
struct Answer {
    accepted: AtomicBool,
    refused: AtomicBool,
}

/// Opened device.
#[derive(Debug)]
pub struct ToyDevice {
    registry: Arc<Registry<()>>,
}

impl ToyDevice {
    pub(crate) fn new() -> ToyDevice {
        ToyDevice { registry: Arc::new(Registry::new()) }
    }
}

impl Device for ToyDevice {
    fn caps(&self) -> &Caps {
        &CAPS
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let region = Region::allocate(bytes)?;
        let key = self.registry.add(region.clone(), ());
        Ok((region, key))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        Ok(self.registry.add(region.clone(), ()))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        self.registry.remove(key)
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&LISTENERS).insert(number, VecDeque::new());
        Ok(Box::new(ToyListener { number, secret: secret.clone(), rejected: 0 }))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let number = address.0.as_slice().try_into().map(u64::from_le_bytes);
        let Ok(number) = number else {
            let (bytes, of) = (address.0.len(), "a toy listener");
            return Err(TransportError::NoAddress { bytes, of });
        };
        if hello.len() > HELLO_BYTES_MAX {
            let (bytes, most) = (hello.len(), HELLO_BYTES_MAX);
            return Err(TransportError::TooLong { what: "hello", bytes, most });
        }
        let queues = [Arc::new(Queue::default()), Arc::new(Queue::default())];
        let answer = Arc::new(Answer::default());
        let call = Call {
            secret: secret.clone(),
            hello: hello.to_vec(),
            queues: queues.clone(),
            answer: Arc::clone(&answer),
        };
        match lock(&LISTENERS).get_mut(&number) {
            Some(calls) => calls.push_back(call),
            None => answer.refused.store(true, Ordering::Release),
        }
        Ok(Box::new(ToyConnecting { number, queues: Some(queues), answer, deadline, since: None }))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        Ok(Box::new(ToyLane::new(&self.registry, &CAPS)))
    }
}

#[derive(Debug)]
struct ToyListener {
    number: u64,
    secret: Secret,
    rejected: u64,
}

impl Listener for ToyListener {
    fn address(&self) -> Address {
        Address(self.number.to_le_bytes().to_vec())
    }

    fn poll(&mut self, _: Instant) -> Result<Option<Connected>, TransportError> {
        loop {
            let call = lock(&LISTENERS).get_mut(&self.number).and_then(VecDeque::pop_front);
            let Some(Call { secret, hello, queues, answer }) = call else { return Ok(None) };
            if secret != self.secret {
                self.rejected += 1;
                answer.refused.store(true, Ordering::Release);
                continue;
            }
            answer.accepted.store(true, Ordering::Release);
            return Ok(Some(Connected { hello, inner: Box::new(ToyInner(queues)) }));
        }
    }

    fn rejected(&self) -> u64 {
        self.rejected
    }
}

impl Drop for ToyListener {
    fn drop(&mut self) {
        lock(&LISTENERS).remove(&self.number);
    }
}

#[derive(Debug)]
struct ToyConnecting {
    number: u64,
    queues: Option<[Arc<Queue>; 2]>,
    answer: Arc<Answer>,
    deadline: Instant,
    since: Option<Instant>,
}

impl Connecting for ToyConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let since = *self.since.get_or_insert(now);
        let peer = format!("listener {}", self.number);
        if self.answer.refused.load(Ordering::Acquire) {
            let reason =
                "no listener has this number, or the listener has another secret".to_owned();
            return Err(TransportError::Refused { peer, reason });
        }
        if self.answer.accepted.load(Ordering::Acquire) {
            let Some([to_here, from_here]) = self.queues.take() else {
                return Err(TransportError::HandedOut);
            };
            let inner = Box::new(ToyInner([from_here, to_here]));
            return Ok(Some(Connected { hello: Vec::new(), inner }));
        }
        if now < self.deadline {
            return Ok(None);
        }
        let after = self.deadline.since(since);
        Err(TransportError::Deadline { what: "connecting", peer, after })
    }
}
