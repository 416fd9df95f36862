//! libfabric's endpoints of a lane. The lane's peers are divided into groups, since the remote CQ
//! data of a write can tell only a limited number of peers apart; if puts are messages, all peers
//! are one group. Each group has one endpoint for data. If puts are writes and the provider has a
//! low-latency traffic class, the group has another endpoint for credits and CTS. Nothing relies on
//! an order between puts of the two endpoints.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::native::{Domain, Endpoint, OfiError};

/// Endpoints of one group of peers.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) data: Endpoint,
    /// Endpoint in the low-latency traffic class. Without it, control puts use the data endpoint.
    control: Option<Endpoint>,
}

/// Endpoints of a lane, by group: each group has room for the same number of peers.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Endpoints in use, by the number of their group.
    open: Vec<Option<Endpoints>>,
    /// Endpoints whose completion queue has failed. They are closed as late as possible: EFA's
    /// provider waits for outstanding requests when it closes an endpoint.
    failed: Vec<Endpoints>,
}

impl Groups {
    /// Returns the endpoints of a group; none if they are closed or have failed.
    pub(crate) fn get(&self, group: usize) -> Option<&Endpoints> {
        self.open.get(group)?.as_ref()
    }

    /// Returns the number of groups so far, in use or not.
    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    /// Adds a group.
    pub(crate) fn push(&mut self, endpoints: Endpoints) {
        self.open.push(Some(endpoints));
    }

    /// Closes the endpoints of a group.
    pub(crate) fn close(&mut self, group: usize) {
        self.open.get_mut(group).and_then(Option::take);
    }

    /// Takes the endpoints of a group out of use.
    pub(crate) fn fail(&mut self, group: usize) {
        self.failed.extend(self.open.get_mut(group).and_then(Option::take));
    }

    /// Closes the endpoints that have failed.
    pub(crate) fn close_failed(&mut self) {
        self.failed.clear();
    }

    /// Closes all endpoints.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
        self.failed.clear();
    }

    /// Returns all endpoints in use.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.open.iter().flatten().flat_map(Endpoints::all)
    }
}

/// Addresses of endpoints, for a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Addresses {
    data: Vec<u8>,
    control: Option<Vec<u8>>,
}

/// Fabric addresses (`fi_addr_t`) of a peer's endpoints, as this side's endpoints number them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricAddresses {
    data: u64,
    /// Address of the control endpoint, if both sides have one.
    control: Option<u64>,
}

impl Endpoints {
    /// Opens the endpoints. If puts are messages (`writes` is false), all puts use one endpoint.
    pub(crate) fn open(domain: &Arc<Domain>, writes: bool) -> Result<Endpoints, OfiError> {
        let data = Endpoint::open(domain)?;
        let control = if writes { Endpoint::open_low_latency(domain) } else { Ok(None) };
        // The device may have no room for another endpoint.
        let control = control.unwrap_or_else(|error| {
            tracing::info!(%error, "credits and CTS use the data's endpoint and traffic class");
            None
        });
        Ok(Endpoints { data, control })
    }

    /// Returns all endpoints.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Endpoint> {
        std::iter::once(&self.data).chain(&self.control)
    }

    /// Returns the addresses that peers insert.
    pub(crate) fn addresses(&self) -> Result<Addresses, OfiError> {
        let control = self.control.as_ref().map(Endpoint::address).transpose()?;
        Ok(Addresses { data: self.data.address()?, control })
    }

    /// Inserts a peer's addresses.
    pub(crate) fn insert(&self, peer: &Addresses) -> Result<FabricAddresses, OfiError> {
        let control = self.control.as_ref().zip(peer.control.as_ref());
        let control = control.map(|(own, address)| own.insert(address)).transpose()?;
        Ok(FabricAddresses { data: self.data.insert(&peer.data)?, control })
    }

    /// Returns the endpoint for a put, and the peer's fabric address at that endpoint.
    pub(crate) fn route(&self, to: FabricAddresses, is_control: bool) -> (&Endpoint, u64) {
        match (&self.control, to.control) {
            (Some(control), Some(number)) if is_control => (control, number),
            _ => (&self.data, to.data),
        }
    }
}
