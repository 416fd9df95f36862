//! Lane that stands in for the lane of a device that has failed.

use ccl_core::time::Instant;
use ccl_core::transport::{
    Connected, EndpointId, Event, Lane, MrKey, RemoteKey, RemoteMr, TransportError, WorkRequest,
};
use ccl_memory::Region;

/// Lane that refuses everything with its device's error.
#[derive(Debug)]
pub(crate) struct FailedLane(pub(crate) TransportError);

impl Lane for FailedLane {
    fn attach(&mut self, _: Connected) -> Result<EndpointId, TransportError> {
        Err(self.0.clone())
    }

    fn detach(&mut self, _: EndpointId) {}

    fn share(&mut self, _: EndpointId, _: MrKey) -> Result<RemoteKey, TransportError> {
        Err(self.0.clone())
    }

    fn import(&mut self, _: EndpointId, _: &RemoteKey) -> Result<RemoteMr, TransportError> {
        Err(self.0.clone())
    }

    fn map(&mut self, _: EndpointId, _: &RemoteKey) -> Result<Region, TransportError> {
        Err(self.0.clone())
    }

    fn post(&mut self, _: Instant, _: &[WorkRequest]) -> Result<usize, TransportError> {
        Err(self.0.clone())
    }

    fn note(&mut self, _: EndpointId, _: &[u8]) -> Result<(), TransportError> {
        Err(self.0.clone())
    }

    fn poll(&mut self, _: Instant, _: &mut Vec<Event>) -> Result<(), TransportError> {
        Err(self.0.clone())
    }

    fn peek(&mut self) -> Option<bool> {
        Some(false)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
