//! Progress of posted requests.

use libc::{EHOSTUNREACH, EINVAL, EKEYREJECTED, c_int};
use libfabric_sys::{
    FI_ETRUNC, FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MSG, FI_RECV,
    FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA,
};

use crate::Fault;
use crate::network::{Completion, Network, Payload, Queue, Request, Target};
use crate::objects::{self, Range};

/// Largest number of steps of progress in one call of `Network::travel`.
const STEPS: usize = 8;

/// Result of a step of a request.
enum Outcome {
    /// The request is not finished.
    Stays,
    /// The request is done: all of it has arrived, or a fault made it vanish.
    Arrived,
    /// The sender gets this error, even if the whole request has arrived.
    Failed(c_int),
}

impl Network {
    /// Makes a random number of steps of progress on a provider's requests.
    pub(crate) fn travel(&mut self, provider: u32) {
        let steps = self.providers.get_mut(&provider).map_or(0, |it| it.draw(STEPS + 1));
        for _ in 0..steps {
            let found = self.providers.get_mut(&provider).filter(|it| !it.requests.is_empty());
            let Some(found) = found else { return };
            let at = found.draw(found.requests.len());
            let mut request = found.requests.swap_remove(at);
            match self.step(&mut request) {
                Outcome::Stays => {
                    if let Some(provider) = self.providers.get_mut(&provider) {
                        provider.requests.push(request);
                    }
                }
                Outcome::Arrived => self.report_end(&request, 0),
                Outcome::Failed(error) => self.report_end(&request, error),
            }
        }
    }

    /// Makes progress on the requests and queues of a provider with automatic progress: no read of
    /// a queue is needed. Returns whether the provider still exists.
    pub(crate) fn progress(&mut self, provider: u32) -> bool {
        self.travel(provider);
        let of = |queue: &Queue| self.domains.get(&queue.domain) == Some(&provider);
        let queues = self.queues.iter().filter(|(_, queue)| of(queue)).map(|(id, _)| *id);
        for queue in Vec::from_iter(queues) {
            self.ripen(queue);
        }
        self.providers.contains_key(&provider)
    }

    /// Returns whether a read of this queue could make progress on a request.
    pub(crate) fn may_travel(&mut self, queue: u32) -> bool {
        let domain = self.queues.get(&queue).map(|queue| queue.domain);
        domain
            .and_then(|domain| self.provider_of(domain))
            .is_some_and(|it| !it.limits.is_automatic && it.moves() && !it.requests.is_empty())
    }

    /// Reports the end of a request to its sender, unless the sender already has its completion.
    fn report_end(&mut self, request: &Request, error: c_int) {
        if request.is_told {
            return;
        }
        let Request { from, flags, context, .. } = *request;
        let ends = Some(from);
        self.complete(from, Completion { context, flags, bytes: 0, data: 0, error, ends });
    }

    fn step(&mut self, request: &mut Request) -> Outcome {
        let Some(provider) = self.provider_at(request.from) else { return Outcome::Arrived };
        if !provider.moves() {
            return Outcome::Stays;
        }
        match request.fault {
            Some(Fault::Fails(error)) => return Outcome::Failed(error),
            Some(Fault::Vanishes) => return Outcome::Arrived,
            Some(Fault::Hangs) => return Outcome::Stays,
            Some(Fault::FailsLate(_) | Fault::HangsLate) | None => {}
        }
        if self.endpoints.get(&request.to).is_none_or(|to| !to.is_enabled) {
            return Outcome::Failed(EHOSTUNREACH);
        }
        let done = match request.target {
            Some(target) => self.write(request, target),
            None => self.deliver(request),
        };
        match (done, request.fault) {
            (Outcome::Arrived, Some(Fault::FailsLate(error))) => Outcome::Failed(error),
            (Outcome::Arrived, Some(Fault::HangsLate)) => {
                request.is_told = true;
                Outcome::Arrived
            }
            (done, _) => done,
        }
    }

    /// Writes one packet of a write.
    fn write(&mut self, request: &mut Request, (address, key, data): Target) -> Outcome {
        let Some(provider) = self.provider_at(request.from) else { return Outcome::Arrived };
        let packet = provider.draw(request.packets.len().max(1));
        let packet = (packet < request.packets.len()).then(|| request.packets.swap_remove(packet));
        let (first, bytes) = packet.unwrap_or((0, 0));
        let Some(payload) = self.load(request, first, bytes) else {
            return Outcome::Failed(EINVAL);
        };
        let Some(start) = self.target(request, address, key) else {
            return Outcome::Failed(EKEYREJECTED);
        };
        objects::store(start + first, &payload);
        if !request.packets.is_empty() {
            return Outcome::Stays;
        }
        if let Some(data) = data {
            let flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
            let (context, error, bytes) = (0, 0, request.bytes);
            let arrived = Completion { context, flags, bytes, data, error, ends: None };
            self.arrive(request, arrived);
        }
        Outcome::Arrived
    }

    /// Returns the address that a write goes to, if the peer has registered that memory.
    fn target(&mut self, request: &Request, address: u64, key: u64) -> Option<usize> {
        let domain = self.endpoints.get(&request.to)?.domain;
        let mode = self.provider_of(domain)?.limits.mr_mode;
        let memory = self.memory.values().find(|it| (it.domain, it.key) == (domain, key))?;
        let may_write = memory.access & FI_REMOTE_WRITE != 0;
        let is_bound = mode & FI_MR_ENDPOINT == 0 || memory.bound == Some(request.to);
        let offset = match mode & FI_MR_VIRT_ADDR != 0 {
            true => (address as usize).checked_sub(memory.start)?,
            false => address as usize,
        };
        let fits = offset.checked_add(request.bytes).is_some_and(|end| end <= memory.bytes);
        (may_write && is_bound && fits).then(|| memory.start + offset)
    }

    /// Delivers a message into a posted receive; without one, the message waits.
    fn deliver(&mut self, request: &mut Request) -> Outcome {
        let Some(to) = self.endpoints.get(&request.to) else { return Outcome::Arrived };
        // Bytes are copied only if there is a receive for them: a message may wait for long.
        let Some(&(into, context)) = to.receives.front() else { return Outcome::Stays };
        let Some(payload) = self.load(request, 0, request.bytes) else {
            return Outcome::Failed(EINVAL);
        };
        if let Some(to) = self.endpoints.get_mut(&request.to) {
            to.receives.pop_front();
        }
        let taken = request.bytes.min(into.bytes);
        let error = if taken < request.bytes { FI_ETRUNC } else { 0 };
        if self.covers(request.to, &into) {
            objects::store(into.start, &payload[..taken]);
        }
        let flags = FI_MSG | FI_RECV;
        let received = Completion { context, flags, bytes: taken, data: 0, error, ends: None };
        self.arrive(request, received);
        Outcome::Arrived
    }

    /// Returns bytes of a request; `None` if the provider requires registered memory and the
    /// request's memory is not registered any more.
    pub(crate) fn load(
        &mut self,
        request: &Request,
        first: usize,
        bytes: usize,
    ) -> Option<Vec<u8>> {
        let ranges = match &request.payload {
            Payload::Taken(all) => return Some(all[first..first + bytes].to_vec()),
            Payload::At(ranges) => ranges,
        };
        if !ranges.iter().all(|range| self.covers(request.from, range)) {
            return None;
        }
        let mut loaded = Vec::with_capacity(bytes);
        let mut skip = first;
        for range in ranges {
            let here = range.bytes.saturating_sub(skip).min(bytes - loaded.len());
            if here > 0 {
                objects::load(range.start + skip, here, &mut loaded);
            }
            skip = skip.saturating_sub(range.bytes);
        }
        Some(loaded)
    }

    /// Returns whether a range lies within the memory of the range's registration. An empty range
    /// does. So does any range if the provider does not check the caller's memory, and a range
    /// without descriptor if only the memory of accelerators needs one.
    fn covers(&mut self, endpoint: u32, range: &Range) -> bool {
        let Some(domain) = self.endpoints.get(&endpoint).map(|it| it.domain) else { return false };
        let Some(provider) = self.provider_of(domain) else { return false };
        let mode = provider.limits.mr_mode;
        let is_free = mode & FI_MR_HMEM == 0 || range.descriptor == 0;
        if range.bytes == 0 || (mode & FI_MR_LOCAL == 0 && is_free) {
            return true;
        }
        self.memory.get(&range.descriptor).is_some_and(|memory| {
            let end = range.start + range.bytes;
            memory.domain == domain
                && range.start >= memory.start
                && end <= memory.start + memory.bytes
        })
    }
}
