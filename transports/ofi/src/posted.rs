//! The part of a lane that the provider uses: endpoints, and the requests posted to them. If memory
//! is deregistered while a request still reads it, the device closes endpoints to end the request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::endpoints::{Endpoints, Groups};
use crate::memory::Registered;
use crate::native::{Domain, OfiError};
use crate::requests::Requests;

/// Endpoints, and the requests posted to them.
#[derive(Debug)]
pub(crate) struct Posted {
    domain: Arc<Domain>,
    /// True if puts are writes, false if they are messages.
    writes: bool,
    /// Endpoints, each for a group of peers; closed before the memory of their requests is freed.
    pub(crate) endpoints: Groups,
    pub(crate) requests: Requests,
    /// True once memory was deregistered in the middle of a request.
    pub(crate) is_withdrawn: bool,
}

impl Posted {
    pub(crate) fn open(domain: &Arc<Domain>, writes: bool) -> Result<Posted, OfiError> {
        let mut posted = Posted {
            domain: Arc::clone(domain),
            writes,
            endpoints: Groups::default(),
            requests: Requests::new(domain),
            is_withdrawn: false,
        };
        posted.grow(1)?;
        Ok(posted)
    }

    /// Opens new groups of endpoints until the number of groups, closed groups included, is at
    /// least `count`; does nothing once memory was withdrawn.
    pub(crate) fn grow(&mut self, count: usize) -> Result<(), OfiError> {
        while self.endpoints.count() < count && !self.is_withdrawn {
            self.endpoints.push(Endpoints::open(&self.domain, self.writes)?);
        }
        Ok(())
    }

    /// Closes the endpoints of a group of `peers` peers, unless the provider still has requests to
    /// these peers: EFA's provider would wait for the requests before it closes an endpoint.
    pub(crate) fn close_group(&mut self, group: usize, peers: usize) {
        if !self.requests.any_to(|endpoint| endpoint.0 as usize / peers == group) {
            self.endpoints.close(group);
        }
    }

    /// Closes all endpoints: the provider reads and writes nothing more.
    pub(crate) fn close(&mut self) {
        self.endpoints.clear();
        self.requests.clear();
    }

    /// Ends the requests that read this memory. Only closing an endpoint ends a request. If all
    /// these requests are given up, because their completion queues have failed, only the failed
    /// endpoints close. If the provider may still complete any of them, all endpoints close.
    pub(crate) fn withdraw(&mut self, memory: &Arc<Registered>) {
        if self.requests.any_of(memory, false) {
            self.is_withdrawn = true;
            self.close();
        } else if self.requests.any_of(memory, true) {
            self.endpoints.close_failed();
            self.requests.end_given_up();
        }
    }
}

pub(crate) fn lock(posted: &Mutex<Posted>) -> MutexGuard<'_, Posted> {
    posted.lock().unwrap_or_else(PoisonError::into_inner)
}
